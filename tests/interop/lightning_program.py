"""What test_lightning.py runs: Lightning's own loops over our loaders, as the README has it.

    python lightning_program.py DATASET OUT

Trains two epochs in two processes and saves a checkpoint in the middle of the first; then goes on
from that in a new trainer. Each rank leaves the indices that it saw in OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.nn.functional import cross_entropy

from fastdata import Loader, Recipe, make_loader

TRAIN = Recipe(size=16, crop="random_resized", mean=(0.5,) * 3, std=(0.25,) * 3)
EVAL = Recipe(size=16, crop="center", mean=(0.5,) * 3, std=(0.25,) * 3)


class Classifier(lightning.LightningModule):
    def __init__(self, path: str, out: Path) -> None:
        super().__init__()
        self.path, self.out = path, out
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3))
        self.seen: list[Any] = []  # (what, epoch, indices)
        self.tested = torch.zeros(())

    def train_dataloader(self) -> Loader:
        return make_loader(self.path, 2, recipe=TRAIN, device=self.device, with_index=True)

    def val_dataloader(self) -> Loader:
        return make_loader(self.path, 5, recipe=EVAL, device=self.device, with_index=True)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, labels, indices = batch
        self.seen.append(("training", self.current_epoch, indices.tolist()))
        return cross_entropy(self.layers(images), labels)

    def validation_step(self, batch: Any, number: int) -> None:
        _, labels, indices = batch
        if not self.trainer.sanity_checking:
            self.seen.append(("evaluation", self.current_epoch, indices.tolist()))
            self.tested += len(labels)

    def on_validation_epoch_end(self) -> None:
        # Ranks may differ in steps: nothing is reduced before all have taken theirs.
        self.log("tested", self.tested, sync_dist=True, reduce_fx="sum")
        self.tested.zero_()

    def on_fit_end(self) -> None:
        tested = float(self.trainer.callback_metrics["tested"])
        found = {"world": self.trainer.world_size, "seen": self.seen, "tested": tested}
        (self.out / f"{self.global_rank}.json").write_text(json.dumps(found))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def fit(path: str, out: Path, checkpoint: Path | None = None) -> None:
    out.mkdir()
    every = ModelCheckpoint(out, "{step}", every_n_train_steps=3, save_top_k=-1)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=2,
        strategy="ddp_fork",
        use_distributed_sampler=False,
        callbacks=[every],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(path, out), ckpt_path=checkpoint)


def main() -> None:
    path, out = sys.argv[1], Path(sys.argv[2])
    fit(path, out / "whole")
    fit(path, out / "resumed", out / "whole" / "step=3.ckpt")


if __name__ == "__main__":
    main()
