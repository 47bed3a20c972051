"""One contestant of bench.loading, in a process of its own; prints its rate in images/s.

python -m bench.loading_rate fastdata|torchvision PATH WORKERS SECONDS 224|32
"""

from __future__ import annotations

import sys

from bench.loading import BATCH, rate


def main() -> None:
    side, path, workers, seconds, size = sys.argv[1:]
    make = {"fastdata": _fastdata, "torchvision": _torchvision}[side]
    print(rate(make(path, int(workers), int(size)), float(seconds)))


def _fastdata(path: str, workers: int, size: int):
    from fastdata import make_loader

    recipe = "imagenet-train" if size == 224 else "cifar-train"
    loader = make_loader(path, BATCH, recipe=recipe, num_workers=workers, dtype="uint8")
    return lambda: loader


def _torchvision(path: str, workers: int, size: int):
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    if size == 224:
        crop = v2.RandomResizedCrop(224, antialias=True)
    else:
        crop = v2.RandomCrop(32, padding=4)
    transform = v2.Compose([v2.ToImage(), crop, v2.RandomHorizontalFlip()])
    loader = DataLoader(
        ImageFolder(path, transform),
        batch_size=BATCH,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=True,
    )
    return lambda: loader


if __name__ == "__main__":
    main()
