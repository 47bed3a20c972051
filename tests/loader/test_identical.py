"""The loader's batches are the same whatever the workers and the format."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata import Recipe, make_loader, open_dataset
from fastdata.registry import READERS, load

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

FORMATS = ["folder", *READERS]
ENCODED = [name for name in FORMATS if name == "folder" or load(READERS, name, "format").encoded]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders


@pytest.fixture(scope="module")
def reference(folder: Path, run: Callable[..., list[Any]]) -> Callable[[Recipe], list[Any]]:
    """An epoch of the plain folder in this process."""
    made: dict[Recipe, list[Any]] = {}

    def make(recipe: Recipe) -> list[Any]:
        if recipe not in made:
            made[recipe] = run(folder, recipe=recipe, epoch=3, seed=5)
        return made[recipe]

    return make


@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", ENCODED)
def test_batches_are_identical_for_any_workers_and_every_format_of_the_same_bytes(
    name: str,
    workers: int,
    recipe: Recipe,
    folder: Path,
    in_format: Callable[[str, Path], Path],
    reference: Callable[[Recipe], list[Any]],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    path = in_format(name, folder)
    found = run(path, recipe=recipe, epoch=3, seed=5, num_workers=workers)
    assert same(found, reference(recipe))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", sorted(set(FORMATS) - set(ENCODED)))
def test_batches_of_pixels_are_identical_for_any_workers(
    name: str,
    workers: int,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    path = in_format(name, uniform)
    assert same(run(path, epoch=3, num_workers=workers), run(path, epoch=3))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_batches_are_identical_for_every_start_method(
    method: str, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    options = {"start_method": method}
    found = run(packed, 8, num_workers=1, prefetch_factor=1, engine_options=options)
    assert same(found, run(packed, 8))


@pytest.mark.parametrize("name", FORMATS)
def test_batches_are_identical_for_any_prefetch_factor_and_a_dataset_opened_before(
    name: str,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    path = in_format(name, uniform)
    expected = run(path, epoch=1)
    with open_dataset(path) as dataset:
        assert same(run(dataset, epoch=1, num_workers=2, prefetch_factor=5), expected)
        _ = dataset.sizes  # a folder that was asked for its sizes is planned in another way
        assert same(run(dataset, epoch=1, num_workers=2), expected)


def test_epochs_and_seeds_change_order_and_pixels(
    packed: Path,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
    order: Callable[..., list[int]],
) -> None:
    first = run(packed)
    for other in (run(packed, epoch=1), run(packed, seed=1)):
        assert order(first) != order(other)
        assert not same(first, other)
        # Crops are drawn anew as well: a sample is not the same picture in both.
        images = [
            {i: image for batch in epoch for image, i in zip(batch[0], order([batch]), strict=True)}
            for epoch in (first, other)
        ]
        both = images[0].keys() & images[1].keys()
        assert sum(torch.equal(images[0][i], images[1][i]) for i in both) < len(both) / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_named_twice_is_the_same_twice(
    packed: Path, workers: int, same: Callable[..., bool]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers) as loader:
        loader.set_epoch(3)
        first = list(loader)
        loader.set_epoch(3)
        assert same(list(loader), first)


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_again_goes_on_to_the_next_epoch(
    packed: Path, workers: int, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers, with_index=True) as loader:
        epochs = [list(loader) for _ in range(3)]
    assert all(same(found, run(packed, epoch=number)) for number, found in enumerate(epochs))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, Recipe(dtype="uint8")], ids=["cropped", "raw"])
def test_a_batch_that_was_handed_out_is_never_overwritten(
    recipe: Recipe, workers: int, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    for name in FORMATS:
        path, options = in_format(name, uniform), {"recipe": recipe, "num_workers": workers}
        with make_loader(path, 2, with_index=True, **options) as loader:
            pairs = [
                (batch, [part.clone() for part in batch]) for _ in range(2) for batch in loader
            ]
        assert len(pairs) == 2 * COUNT // 2
        assert all(torch.equal(*parts) for pair in pairs for parts in zip(*pair, strict=True))


def test_more_batches_may_be_kept_than_there_is_shared_memory_for(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    options = {"num_workers": 1, "prefetch_factor": 1, "with_index": True}
    with make_loader(packed, 1, recipe=TRAIN, **options) as loader:
        kept = [batch for _ in range(6) for batch in loader]
    expected = [batch for epoch in range(6) for batch in run(packed, batch_size=1, epoch=epoch)]
    assert len(kept) == 6 * COUNT
    assert same(kept, expected)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_may_be_written_to_without_harm(
    packed: Path, workers: int, run: Callable[..., list[Any]]
) -> None:
    expected = run(packed)
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers, with_index=True) as loader:
        for parts, wanted in zip(loader, expected, strict=True):
            assert all(map(torch.equal, parts, wanted))
            for part in parts:
                part.zero_()


@pytest.mark.parametrize("name", FORMATS)
def test_a_training_and_an_evaluation_loader_share_a_dataset(
    name: str,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    path = in_format(name, uniform)
    expected = run(path, recipe=TRAIN), run(path, recipe=EVAL)
    options = {"num_workers": 1, "with_index": True}
    with open_dataset(path) as dataset:
        for sources in ([path, path], [dataset, dataset]):
            with (
                make_loader(sources[0], 4, recipe=TRAIN, **options) as train,
                make_loader(sources[1], 4, recipe=EVAL, **options) as evaluation,
            ):
                found = list(itertools.zip_longest(train, evaluation))
                assert same([pair[0] for pair in found if pair[0]], expected[0])
                assert same([pair[1] for pair in found], expected[1])
                np.testing.assert_array_equal(dataset.decode(0), open_dataset(path).decode(0))
