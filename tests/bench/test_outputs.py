"""The check of peers' batches sees who does less than was asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from bench.outputs import BATCH, judge, link_classes, reference
from bench.peers.common import classes_of
from bench.peers.outputs import describe
from fastdata.demo.images import write_folder

SIDE = 32
COUNT = 4 * BATCH
Batches = list[tuple[NDArray[Any], NDArray[np.int64]]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("outputs")
    write_folder(place / "drawn", COUNT, sizes=[(SIDE, SIDE)])
    link_classes(place / "drawn", place / "checked", workers=1)
    return place / "checked"


@pytest.fixture(scope="module")
def batches(folder: Path) -> Batches:
    """An epoch as it should be, channels first, in an order of its own."""
    images = np.stack([cv2.imread(str(file))[:, :, ::-1] for file, _ in classes_of(folder)])
    order = np.random.default_rng(0).permutation(COUNT)
    pixels = images.transpose(0, 3, 1, 2)
    return [(pixels[some], some) for some in np.split(order, COUNT // BATCH)]


def faults(folder: Path, batches: Batches) -> list[str]:
    found: list[str] = judge(describe(batches), reference(folder, "t32"), SIDE)["faults"]
    return found


def test_what_is_as_it_should_be_has_no_fault(folder: Path, batches: Batches) -> None:
    assert faults(folder, batches) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda images: images.astype(np.float32), "expected uint8"),
        (lambda images: images[:, :, : SIDE // 2], "expected uint8"),
        (lambda images: images // 2, "mean level off"),
        (lambda images: images[:, :, ::4].repeat(4, 2)[:, :, :, ::4].repeat(4, 3), "sharpness"),
    ],
    ids=["floats", "half", "dark", "coarse"],
)
def test_images_that_are_not(
    folder: Path,
    batches: Batches,
    spoil: Callable[[NDArray[Any]], NDArray[Any]],
    said: str,
) -> None:
    found = faults(folder, [(spoil(images), labels) for images, labels in batches])
    assert any(said in fault for fault in found), found


def test_an_epoch_that_leaves_images_out(folder: Path, batches: Batches) -> None:
    [fault] = faults(folder, batches[1:])
    assert f"{COUNT - BATCH} of {COUNT} came once" in fault


def test_an_epoch_that_repeats_images(folder: Path, batches: Batches) -> None:
    [fault] = faults(folder, [*batches[1:], batches[1]])
    assert f"{COUNT - 2 * BATCH} of {COUNT} came once" in fault


def test_labels_of_other_images(folder: Path, batches: Batches) -> None:
    [fault] = faults(folder, [(images, labels[::-1]) for images, labels in batches])
    assert "labels belong to other images" in fault
