"""Train a small network on a folder of images through fastdata, and test it on a held-out tenth.

    python examples/train_small_cnn.py SRC [--to webdataset lmdb memmap folder] [--epochs 15]

SRC has a folder of images per class. Every tenth image of each class is held out. For each format
both parts are converted, loaded by make_loader, and a network is trained from the same start.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fastdata import Recipe, convert, make_loader

BATCH = 32
STATISTICS = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
# Hands differ by left and right, so there is no flip; crops keep most of the picture.
TRAIN = Recipe(size=64, crop="random_resized", scale=(0.7, 1.0), **STATISTICS)
TEST = Recipe(size=64, crop="center", crop_fraction=1.0, **STATISTICS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--to", nargs="+", default=["webdataset", "lmdb", "memmap", "folder"])
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        train_folder, test_folder = split(arguments.src, Path(scratch))
        for to in arguments.to:
            started = time.monotonic()
            if to == "folder":
                train_path, test_path = train_folder, test_folder
            else:
                train_path, test_path = Path(scratch) / f"train-{to}", Path(scratch) / f"test-{to}"
                options = {"size": 96} if to == "memmap" else {}
                convert(train_folder, train_path, to=to, **options)
                convert(test_folder, test_path, to=to, **options)
            accuracy = train(train_path, test_path, arguments.epochs, arguments.seed)
            seconds = time.monotonic() - started
            print(f"{to:12} {accuracy:.1%} of held-out images right, {seconds:.0f} s")


def split(src: Path, scratch: Path) -> tuple[Path, Path]:
    """Two folders of links: every tenth image of each class, and the rest."""
    train_folder, test_folder = scratch / "train", scratch / "test"
    for label in sorted(path for path in src.iterdir() if path.is_dir()):
        for number, image in enumerate(sorted(label.iterdir())):
            folder = (test_folder if number % 10 == 0 else train_folder) / label.name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / image.name).symlink_to(image.resolve())
    return train_folder, test_folder


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128, 256):
        layers += [
            nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
        channels = width
    head = [
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(4 * channels, classes),
    ]
    return nn.Sequential(*layers, *head)


def train(train_path: Path, test_path: Path, epochs: int, seed: int) -> float:
    """Train from scratch; return the share of test images that are classified right."""
    torch.manual_seed(seed)
    loader = make_loader(train_path, BATCH, recipe=TRAIN, seed=seed)
    model = network(len(loader.dataset.classes)).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=3e-3, total_steps=epochs * len(loader)
    )
    with loader:
        for epoch in range(epochs):
            loader.set_epoch(epoch)
            model.train()
            for images, labels in loader:
                loss = cross_entropy(model(images), labels, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    model.eval()
    right = seen = 0
    with make_loader(test_path, 128, recipe=TEST) as loader, torch.no_grad():
        for images, labels in loader:
            right += int((model(images).argmax(dim=1) == labels).sum())
            seen += len(labels)
    return right / seen


if __name__ == "__main__":
    main()
