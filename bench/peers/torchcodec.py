"""torchcodec, which takes the place of torchvision.io's decoders: ImageFolder + DataLoader."""

from __future__ import annotations

from bench.peers import steps
from bench.peers.common import Task, main

TITLES = {"ImageFolder, torchcodec": []}
INSTALL = "apt-get install ffmpeg; pip install torchcodec torchvision"
SETS = {"orig": steps.CROP, "s256": steps.CROP, "t32": "flip"}


def _check() -> str:
    from importlib.metadata import version

    from torchcodec.decoders import decode_image  # noqa: F401 - old versions have videos only

    return f"{version('torchcodec')}, torchvision {steps.version()}"


def _batches(task: Task):
    from torch.utils.data import DataLoader
    from torchcodec.decoders import decode_image
    from torchvision.datasets import ImageFolder

    loader = DataLoader(
        ImageFolder(str(task.place), steps.transform(task.size), loader=decode_image),
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return lambda: loader


if __name__ == "__main__":
    main(_check, _batches)
