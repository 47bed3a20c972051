"""torchvision: ImageFolder + DataLoader, decoded by Pillow or by torchvision.io."""

from __future__ import annotations

from bench.peers import steps
from bench.peers.common import Task, main

TITLES = {"ImageFolder, PIL": ["pil"], "ImageFolder, torchvision.io": ["io"]}
INSTALL = "pip install torchvision"
SETS = {"orig": steps.CROP, "s256": steps.CROP, "t32": "flip"}


def _batches(task: Task):
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    if task.extra == ["io"]:
        images = ImageFolder(str(task.place), steps.transform(task.size), loader=_read)
    else:
        images = ImageFolder(str(task.place), steps.transform(task.size, v2.ToImage()))
    loader = DataLoader(
        images,
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return lambda: loader


def _read(path: str):
    from torchvision.io import ImageReadMode, decode_image, read_file

    return decode_image(read_file(path), ImageReadMode.RGB)


if __name__ == "__main__":
    main(steps.version, _batches)
