"""Are a contestant's batches what they should be? Nobody is to win by doing less.

Each image of a check set is a class of its own, so a label says which image it is. Of one epoch's
batches are looked at: shape and dtype; whether each image came exactly once; and of each image mean
level, contrast and sharpness, beside those of a slow reference (Pillow: decode, random resized crop
by torchvision's rule, antialiased bilinear). Crops are drawn by everyone himself, so figures are
compared as means over all images, and the label's image by the correlation of mean levels.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.boxes import random_box
from bench.peers.common import RAW_SETS, classes_of
from bench.peers.outputs import levels

__all__ = ["BATCH", "judge", "link_classes", "reference"]

BATCH = 32
_BATCHES_A_WORKER = 4
_PASSES = 3  # of the reference, whose crops are drawn, too
_MEAN = 6.0  # levels of 255 between the means of all images
_CONTRAST = 0.1
_SHARPNESS = (0.8, 1.6)  # below: fewer pixels were decoded than asked for; above: that is noise
_MATCH = 0.7
_SIDE = 224


def link_classes(folder: Path, made: Path, workers: int) -> None:
    """Make ``made`` of images out of ``folder``, each a class of its own, as many for each worker
    as fill whole batches."""
    files = [file for file, _ in classes_of(folder)]
    count = _BATCHES_A_WORKER * BATCH * max(1, workers)
    for index in range(count):
        file = files[index * len(files) // count]
        place = made / f"{index:06d}"
        place.mkdir(parents=True)
        try:
            os.link(file, place / file.name)
        except OSError:  # another file system
            shutil.copyfile(file, place / file.name)


def reference(folder: Path, name: str) -> dict[str, Any]:
    """The figures of a check set, by a means that shares nothing with any contestant.

    Args:
        folder: class folders of one image each; of RAW_SETS a dataset with pixels.
        name: of the set.
    """
    from PIL import Image

    if name in RAW_SETS:
        images = list(map(Image.fromarray, np.load(folder / "images.npy", mmap_mode="r")))
        labels = np.load(folder / "labels.npy").tolist()
    else:
        images = [Image.open(file).convert("RGB") for file, _ in classes_of(folder)]
        labels = list(range(len(images)))
    draw, figures = random.Random(0).random, []
    for _ in range(1 if name.endswith("32") else _PASSES):
        for image in images:
            if not name.endswith("32"):
                x, y, wide, high = random_box(*image.size, draw)
                box = (x, y, x + wide, y + high)
                image = image.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR, box)
            figures.append(levels(np.asarray(image)[None])[:, 0])
    means = np.array(figures).reshape(-1, len(images), 3).mean(axis=0)[np.argsort(labels)]
    mean, contrast, sharpness = means.T.tolist()
    return {"mean": mean, "contrast": contrast, "sharpness": sharpness}


def judge(found: dict[str, Any], expected: dict[str, Any], side: int) -> dict[str, Any]:
    """What a contestant gave beside the reference.

    Args:
        found: of bench.peers.outputs.
        expected: of :func:`reference`.
        side: of the output.

    Returns:
        ``mean`` (levels more than the reference), ``contrast`` and ``sharpness`` (ratios),
        ``match`` (correlation), ``seen_once``, ``images``; ``faults``: what is not as it should be.
    """
    labels, images = found["labels"], len(expected["mean"])
    counts = np.bincount([label for label in labels if 0 <= label < images], minlength=images)
    result: dict[str, Any] = {
        "mean": statistics.fmean(found["mean"]) - statistics.fmean(expected["mean"]),
        "images": images,
        "seen_once": int((counts == 1).sum()),
    }
    for key in ("contrast", "sharpness"):
        result[key] = statistics.fmean(found[key]) / statistics.fmean(expected[key])
    known = [pair for pair in zip(labels, found["mean"], strict=True) if 0 <= pair[0] < images]
    means = np.array([(expected["mean"][label], mean) for label, mean in known])
    result["match"] = float(np.corrcoef(means.T)[0, 1]) if len(known) > 1 else 0.0
    faults = []
    if found["shapes"] != [[side, side, 3]] or found["dtypes"] != ["uint8"]:
        faults.append(
            f"expected uint8 {side}x{side}x3, found {found['dtypes']} of {found['shapes']}"
        )
    if result["seen_once"] != images or len(labels) != images:
        faults.append(
            f"an epoch of {len(labels)} images; {result['seen_once']} of {images} came once"
        )
    if abs(result["mean"]) > _MEAN:
        faults.append(f"mean level off by {result['mean']:+.1f}")
    if abs(result["contrast"] - 1) > _CONTRAST:
        faults.append(f"contrast {result['contrast']:.2f} of the reference")
    if not _SHARPNESS[0] < result["sharpness"] < _SHARPNESS[1]:
        faults.append(f"sharpness {result['sharpness']:.2f} of the reference")
    if result["match"] < _MATCH:
        faults.append(f"labels belong to other images (correlation {result['match']:.2f})")
    return result | {"faults": faults}
