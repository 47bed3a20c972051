"""LitData: optimize, then StreamingDataset + StreamingDataLoader; its JPEG items are the files'
bytes, which it decodes by torchvision.io."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from bench.peers import steps
from bench.peers.common import Task, classes_of, main

TITLES = {"LitData": []}
INSTALL = "pip install litdata torchvision"
SETS = {"orig": steps.CROP, "s256": steps.CROP, "t32": "flip"}


def _check() -> str:
    import litdata

    return f"{litdata.__version__}, torchvision {steps.version()}"


def _item(record: tuple[str, int]) -> dict[str, Any]:
    from PIL import Image

    return {"image": Image.open(record[0]), "label": record[1]}


def _prepare(source: Path, place: Path, name: str, workers: int) -> None:
    # By default its cleaning-up removes folders under the machine's own temporary folder.
    for variable in ("TMPDIR", "DATA_OPTIMIZER_CACHE_FOLDER", "DATA_OPTIMIZER_DATA_CACHE_FOLDER"):
        folder = place.with_name(f"{place.name}-{variable.lower()}")
        folder.mkdir()
        os.environ[variable] = str(folder)
    import litdata

    records = [(str(file), label) for file, label in classes_of(source)]
    litdata.optimize(
        fn=_item, inputs=records, output_dir=str(place), chunk_bytes="64MB", num_workers=workers
    )


def _batches(task: Task):
    import torch
    from litdata import StreamingDataLoader, StreamingDataset

    change = steps.transform(task.size)

    class Images(StreamingDataset):
        def __getitem__(self, index: Any) -> tuple[torch.Tensor, int]:
            item = super().__getitem__(index)
            return change(item["image"]), item["label"]

    loader = StreamingDataLoader(
        Images(str(task.place), shuffle=True, drop_last=True),
        batch_size=task.batch,
        num_workers=task.workers,
        drop_last=True,
        persistent_workers=task.workers > 0,
    )
    return lambda: loader


if __name__ == "__main__":
    main(_check, _batches, _prepare)
