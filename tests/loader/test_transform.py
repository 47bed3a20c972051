"""The loader with transform=: what it gets, may return, may raise and may draw."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

from fastdata import Recipe, make_loader
from fastdata.registry import READERS

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

FORMATS = ["folder", *READERS]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
COUNT = 22  # images in the folders


def identity(image: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(image)


def label_of(number: int) -> int:
    return number * 3 // COUNT


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_a_transform_gets_the_whole_image_as_an_array_of_its_own(
    name: str, workers: int, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    files = sorted(uniform.rglob("*.jpg"))

    def transform(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        assert type(image) is np.ndarray
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
        copy = image.copy()
        image[:] = 0  # its own: nothing else may see this
        return copy

    options = {"recipe": None, "transform": transform, "num_workers": workers}
    with make_loader(in_format(name, uniform), 4, with_index=True, **options) as loader:
        for _ in range(2):
            for images, labels, indices in loader:
                for image, label, index in zip(images, labels, indices.tolist(), strict=True):
                    expected = np.asarray(Image.open(files[index]).convert("RGB"))
                    np.testing.assert_array_equal(image.numpy(), expected)
                    assert label == label_of(index)


def test_a_transform_gets_what_the_recipe_makes(
    packed: Path, run: Callable[..., list[Any]]
) -> None:
    found = run(packed, transform=identity)
    for batch, plain in zip(found, run(packed), strict=True):
        assert torch.equal(batch[0].permute(0, 3, 1, 2), plain[0])
        assert all(map(torch.equal, batch[1:], plain[1:]))


def test_a_transform_gets_the_recipes_colours_and_erasing(
    packed: Path, run: Callable[..., list[Any]]
) -> None:
    recipe = replace(TRAIN, brightness=0.5, saturation=0.5, erase=0.5)
    found = run(packed, recipe=recipe, transform=identity, shuffle=True)
    for (images, *_), (expected, *_) in zip(found, run(packed, recipe=recipe), strict=True):
        assert torch.equal(images, expected.permute(0, 2, 3, 1))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchvisions_transforms_work_on_images_of_any_size(
    workers: int, folder: Path, run: Callable[..., list[Any]], order: Callable[..., list[int]]
) -> None:
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize((32, 40), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    files = sorted(folder.rglob("*.jpg"))
    found = run(folder, recipe=None, transform=transform, num_workers=workers)
    assert order(found) == list(range(COUNT))
    for images, _, indices in found:
        assert images.shape == (len(indices), 3, 32, 40)
        assert images.dtype == torch.float32
        for image, index in zip(images, indices.tolist(), strict=True):
            pixels = np.array(Image.open(files[index]).convert("RGB"))
            torch.testing.assert_close(image, transform(pixels).as_subclass(torch.Tensor))


def drawn(image: NDArray[np.uint8]) -> torch.Tensor:
    """A number of each generator that a transform may use, twice."""
    numbers = [random.random(), np.random.rand(), torch.rand(1).item()]
    return torch.tensor(
        [*numbers, random.gauss(0, 1), np.random.normal(), torch.randn(1).item()],
        dtype=torch.float64,
    )


def drawn_by_index(batches: list[Any]) -> dict[int, tuple[float, ...]]:
    numbers = [tuple(each) for batch in batches for each in batch[0].tolist()]
    indices = [index for batch in batches for index in batch[-1].tolist()]
    return dict(zip(indices, numbers, strict=True))


def test_random_numbers_in_a_transform_are_the_samples_own(
    packed: Path, run: Callable[..., list[Any]]
) -> None:
    options = {"transform": drawn, "drop_last": False}
    expected = drawn_by_index(run(packed, **options))
    assert len(expected) == COUNT
    # For any workers, batch size, ranks, and whatever this process has drawn before ...
    for workers in (1, 3):
        assert drawn_by_index(run(packed, num_workers=workers, **options)) == expected
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    assert drawn_by_index(run(packed, 7, num_workers=1, **options)) == expected
    assert drawn_by_index(run(packed, 5, shuffle=False, **options)) == expected
    half = drawn_by_index(run(packed, rank=1, world_size=2, **options))
    assert half.items() <= expected.items()
    # ... but for every generator different in each sample, epoch and seed.
    epoch = drawn_by_index(run(packed, epoch=1, **options))
    seed = drawn_by_index(run(packed, seed=1, **options))
    for generator in range(6):
        numbers = [each[index][generator] for each in (expected, epoch, seed) for index in each]
        assert len(set(numbers)) == 3 * COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_may_return_dictionaries_tuples_and_floats(
    workers: int, packed: Path, run: Callable[..., list[Any]]
) -> None:
    def everything(image: NDArray[np.uint8]) -> Any:
        mean = float(image.mean())
        return {"image": torch.from_numpy(image), "pair": (mean, np.float32(mean)), "name": "x"}

    plain = run(packed)
    found = run(packed, transform=everything, num_workers=workers)
    for (results, labels, indices), batch in zip(found, plain, strict=True):
        assert results["image"].shape == (4, 32, 32, 3)
        assert torch.equal(results["image"].permute(0, 3, 1, 2), batch[0])
        means = batch[0].double().mean((1, 2, 3))
        first, second = results["pair"]
        assert (first.dtype, second.dtype) == (torch.float64, torch.float32)
        torch.testing.assert_close(first, means)
        torch.testing.assert_close(second, means.float())
        assert results["name"] == ["x"] * 4
        assert torch.equal(labels, batch[1])
        assert torch.equal(indices, batch[2])


class Unhappy(Exception):
    """Raised by a transform of a test."""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "on_error"),
    [(Unhappy, "raise"), (KeyError, "raise"), (ValueError, "skip"), (OSError, "skip")],
)
def test_an_exception_in_a_transform_arrives_with_its_type(
    kind: type[Exception],
    on_error: str,
    workers: int,
    packed: Path,
    tmp_path: Path,
    before: set[int],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
    children: Callable[[], set[int]],
) -> None:
    """Also with on_error="skip": it is the transform that is at fault, not the sample."""
    lock = tmp_path / "unhappy"
    lock.touch()

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        if lock.exists():
            raise kind("so be it")
        return identity(image)

    options = {"transform": transform, "num_workers": workers, "on_error": on_error}
    with make_loader(packed, 4, recipe=TRAIN, with_index=True, **options) as loader:
        with pytest.raises(kind, match="so be it") as caught:
            list(loader)
        assert type(caught.value) is kind
        assert children() == before  # a pool that has failed is ended, not forgotten
        lock.unlink()
        loader.set_epoch(0)
        assert same(list(loader), run(packed, transform=identity))
        assert loader.skipped == []


# Random numbers of the process that trains


def global_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # type: ignore[misc]
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [None, drawn], ids=["no transform", "transform"])
def test_loading_leaves_the_random_generators_of_the_process_alone(
    transform: Any, workers: int, packed: Path
) -> None:
    """Else a model's dropout and initial weights would depend on how its images were loaded."""
    with make_loader(packed, 4, recipe=TRAIN, transform=transform, num_workers=workers) as loader:
        before = global_state()
        for _ in range(2):
            for _ in loader:
                pass
    changed = [
        name
        for name, old, new in zip(["random", "numpy", "torch"], before, global_state(), strict=True)
        if old != new
    ]
    assert changed == []
