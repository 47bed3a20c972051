"""What test_accelerate.py runs: training with Accelerate on our loaders, as the README has it.

    python accelerate_program.py DATASET OUT

Two processes; each leaves what it saw in OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, debug_launcher
from torch.nn.functional import cross_entropy

from fastdata import Recipe, make_loader

TRAIN = Recipe(size=16, crop="random_resized", mean=(0.5,) * 3, std=(0.25,) * 3)
EVAL = Recipe(size=16, crop="center", mean=(0.5,) * 3, std=(0.25,) * 3)


def train(path: str, out: Path) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator()
    found: dict[str, Any] = {"world": accelerator.num_processes, "training": [], "evaluation": []}
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"device": accelerator.device, "with_index": True, "num_workers": 1}
    loader = make_loader(path, 4, recipe=TRAIN, **options)
    # The loader takes its rank from torch.distributed; handed to prepare it comes back as it is.
    model, optimizer, prepared = accelerator.prepare(model, optimizer, loader)
    found["left as it is"] = prepared is loader
    for epoch in range(2):
        loader.set_epoch(epoch)
        seen = []
        for images, labels, indices in loader:
            loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(indices.tolist())
        found["training"].append(seen)
        accelerator.wait_for_everyone()
    loader.close()
    tested = torch.zeros((), device=accelerator.device)
    with make_loader(path, 5, recipe=EVAL, **options) as test:
        for _, labels, indices in test:
            tested += len(labels)
            found["evaluation"].append(indices.tolist())
    found["tested"] = float(accelerator.reduce(tested))
    found["parameters"] = [parameter.flatten().tolist() for parameter in model.parameters()]
    (out / f"{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()


def main() -> None:
    debug_launcher(train, (sys.argv[1], Path(sys.argv[2])), num_processes=2)


if __name__ == "__main__":
    main()
