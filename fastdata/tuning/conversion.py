"""Another format of a folder's images, made of some of them, to see what converting would bring."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastdata.dataset import Dataset
from fastdata.errors import DataError, UsageError
from fastdata.recipe import Recipe
from fastdata.registry import WRITERS

__all__ = ["Made", "make_format", "parse_format"]

_BATCHES, _LEAST = 20, 1000  # of the sample that is converted


@dataclass(frozen=True)
class Made:
    """A converted part of a folder.

    Attributes:
        name: of the format, with its size in pixels.
        path: of the dataset.
        seconds: that converting all of the folder would take at the rate of this part.
    """

    name: str
    path: Path
    seconds: float


def parse_format(text: str, recipe: Recipe) -> tuple[str, int | None]:
    """Format and size of ``"memmap:256"`` or ``"memmap"``; pixels get the recipe's size, with a
    margin for the crop, where none is named.

    Raises:
        UsageError: there is no such format and no dataset at that path, or no size is known.
    """
    to, colon, size = text.partition(":")
    if to not in WRITERS or (colon and not size.isdecimal()):
        raise UsageError(
            f"expected a format to be the path of a dataset, or one of {', '.join(WRITERS)}, each "
            f"with or without a size in pixels such as memmap:256; got {text!r}"
        )
    if colon:
        return to, int(size)
    if to != "memmap":
        return to, None
    if recipe.size is None:
        raise UsageError("a recipe without a size: expected memmap:SIZE, got 'memmap'")
    margin = 1.0 if recipe.crop == "random_pad" else recipe.crop_fraction
    return to, round(recipe.size / margin)


def make_format(
    text: str,
    dataset: Dataset,
    recipe: Recipe,
    batch_size: int,
    scratch: Path,
    say: Callable[[str], None],
) -> Made:
    """Convert some images of a plain folder, by a process of its own.

    Args:
        text: see :func:`parse_format`.
        dataset: the folder.
        recipe: the training's.
        batch_size: samples of a batch.
        scratch: an empty folder for the result.
        say: told what is done.

    Raises:
        UsageError: ``text`` is no format, or the dataset is no plain folder.
        DataError: the conversion failed.
    """
    to, size = parse_format(text, recipe)
    if dataset.manifest is not None:
        raise UsageError(
            f"formats={text!r}: {dataset.path} is converted already, and only a folder can be "
            "converted in part; give the paths of datasets that are there"
        )
    name = to if size is None else f"{to} {size}"
    count = min(len(dataset), max(_LEAST, _BATCHES * batch_size))
    source, path = scratch / f"{to}-{size}-source", scratch / f"{to}-{size}"
    chosen = np.random.default_rng(0).choice(len(dataset), count, replace=False)
    for index in chosen.tolist():
        original = Path(os.fsdecode(dataset.path_of(index)))
        link = source / original
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(dataset.path / original)
    command = [sys.executable, "-m", "fastdata", "convert", str(source), str(path)]
    command += ["--to", to, "--json"]
    if size is not None:
        command += ["--size" if to == "memmap" else "--resize", str(size)]
    say(f"converting {count} of {len(dataset)} images to {name}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DataError(f"converting to {name} failed: {done.stderr.strip()}")
    seconds = json.loads(done.stdout)["seconds"] / count * len(dataset)
    return Made(name, path, seconds)
