"""What a batch of the loader is, and what is taken where nothing is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import fastdata
from fastdata import Loader, Recipe, make_loader
from fastdata.registry import READERS

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

FORMATS = ["folder", *READERS]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders


def label_of(number: int) -> int:
    return number * 3 // COUNT


def test_a_batch_is_images_and_labels(packed: Path) -> None:
    with make_loader(packed, 4, recipe="imagenet-train", num_workers=0, with_index=True) as loader:
        assert isinstance(loader, Loader)
        assert loader.batch_size == 4
        assert loader.engine == "workers"
        assert len(loader.dataset) == COUNT
        batches = list(loader)
    assert len(batches) == len(loader) == 5
    for images, labels, indices in batches:
        assert images.shape == (4, 3, 224, 224)
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == indices.dtype == torch.int64
        assert labels.tolist() == [label_of(index) for index in indices.tolist()]


def test_the_index_is_handed_out_only_when_asked_for(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        assert {len(batch) for batch in loader} == {2}
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        assert {len(batch) for batch in loader} == {3}


def test_without_a_recipe_the_images_own_pixels_are_handed_out(
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    order: Callable[..., list[int]],
) -> None:
    files = sorted(uniform.rglob("*.jpg"))
    for name in FORMATS:
        batches = run(in_format(name, uniform), recipe=None)
        assert order(batches) == list(range(COUNT))
        for images, _, indices in batches:
            assert images.dtype == torch.uint8
            for image, index in zip(images, indices.tolist(), strict=True):
                expected = np.asarray(Image.open(files[index]).convert("RGB"))
                np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_a_plain_folder_loads_without_conversion(folder: Path) -> None:
    with fastdata.make_loader(folder, 4, recipe=TRAIN, num_workers=1) as loader:
        assert loader.dataset.format == "folder"
        assert len(list(loader)) == 5
        assert "fastdata convert" in loader.explain()


def test_samples_without_class_folders_have_labels_of_no_columns(
    tmp_path: Path, in_format: Callable[[str, Path], Path], encode: Callable[[int, int, int], bytes]
) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(5):
        (tmp_path / "flat" / f"{number}.jpg").write_bytes(encode(number, 48, 40))
    for name in FORMATS:
        for workers in (0, 1):
            path = in_format(name, tmp_path / "flat")
            with make_loader(path, 3, recipe=EVAL, num_workers=workers) as loader:
                labels = [labels for _, labels in loader]
            assert [tuple(each.shape) for each in labels] == [(3, 0), (2, 0)]
            assert all(each.dtype == torch.int64 for each in labels)


# Defaults


@pytest.mark.parametrize("preset", ["imagenet-train", "cifar-train"])
def test_training_recipes_shuffle_and_drop_the_last_incomplete_batch(
    preset: str, packed: Path, run: Callable[..., list[Any]], order: Callable[..., list[int]]
) -> None:
    taken = order(run(packed, 4, recipe=preset))
    assert len(taken) == 20
    assert taken != sorted(taken)
    assert len(order(run(packed, 4, recipe=preset, drop_last=False))) == COUNT
    # drop_last follows shuffle, not the recipe
    assert order(run(packed, 4, recipe=preset, shuffle=False)) == list(range(COUNT))


@pytest.mark.parametrize("preset", ["imagenet-eval", "cifar-eval", "raw", None])
def test_other_recipes_keep_the_order_and_every_sample(
    preset: str | None,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    order: Callable[..., list[int]],
) -> None:
    path = in_format("webdataset", uniform)
    assert order(run(path, 4, recipe=preset)) == list(range(COUNT))
    assert order(run(path, 4, recipe=preset, drop_last=True)) == list(range(20))
    taken = order(run(path, 4, recipe=preset, shuffle=True))
    assert len(taken) == len(set(taken)) == 20
    assert taken != sorted(taken)
