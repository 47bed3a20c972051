"""torchvision: ImageFolder + DataLoader, decoded by Pillow or by torchvision.io."""

from __future__ import annotations

from bench.peers.common import Task, main

TITLES = {"ImageFolder, PIL": ["pil"], "ImageFolder, torchvision.io": ["io"]}
INSTALL = "pip install torchvision"
_CROP = "RandomResizedCrop(224) of a tensor, antialias on (its default), flip"
SETS = {"orig": _CROP, "s256": _CROP, "t32": "flip"}


def _check() -> str:
    import torchvision

    return torchvision.__version__


def _batches(task: Task):
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    steps = [] if task.size == 32 else [v2.RandomResizedCrop(task.size)]
    steps.append(v2.RandomHorizontalFlip())
    if task.extra == ["io"]:
        images = ImageFolder(str(task.place), v2.Compose(steps), loader=_read)
    else:
        images = ImageFolder(str(task.place), v2.Compose([v2.ToImage(), *steps]))
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
    main(_check, _batches)
