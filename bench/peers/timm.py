"""timm: create_dataset and create_loader; its batches before the device's part, which are uint8."""

from __future__ import annotations

from bench.peers.common import Task, main

TITLES = {"timm": []}
INSTALL = "pip install timm"
_CROP = "random resized crop 224 of a PIL image (bilinear, antialiased), flip"
SETS = {"orig": _CROP, "s256": _CROP, "t32": "flip"}


def _check() -> str:
    import timm

    return timm.__version__


def _batches(task: Task):
    import torch
    from timm.data import create_dataset, create_loader
    from timm.data.transforms import ToNumpy
    from torchvision import transforms

    loader = create_loader(
        create_dataset("", root=str(task.place), is_training=True),
        input_size=(3, task.size, task.size),
        batch_size=task.batch,
        is_training=True,
        hflip=0.5,
        color_jitter=None,
        interpolation="bilinear",
        num_workers=task.workers,
        device=torch.device("cpu"),
        persistent_workers=task.workers > 0,
    ).loader  # what wraps it makes floats of the batches, on the device
    if task.size == 32:  # its training transforms always crop
        loader.dataset.transform = transforms.Compose(
            [transforms.RandomHorizontalFlip(), ToNumpy()]
        )
    return lambda: loader


if __name__ == "__main__":
    main(_check, _batches)
