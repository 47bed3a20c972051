"""Iterators that are made and not used, as frameworks make them to see what a loader is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastdata import Recipe, make_loader

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_is_not_asked_for_a_batch_begins_no_epoch(
    workers: int, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    """Lightning makes two before it trains; the first epoch would be left out without a word."""
    options: dict[str, Any] = {"recipe": TRAIN, "num_workers": workers, "with_index": True}
    with make_loader(packed, 4, **options) as loader:
        for epoch in range(2):
            iter(loader)
            iter(loader)
            assert loader.state_dict()["epoch"] == epoch
            assert same(list(loader), run(packed, epoch=epoch))


def test_an_iterator_that_is_not_asked_for_a_batch_keeps_the_loaded_position(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        state = loader.state_dict()
        loader.load_state_dict(state)
        iter(loader)
        assert loader.state_dict() == state
        assert same(list(loader), run(packed)[2:])


def test_naming_the_epoch_after_the_iterator_was_made_keeps_the_iterator(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    """As in Lightning's on_train_epoch_start, which comes after it."""
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        iterator = iter(loader)
        loader.set_epoch(0)
        assert same(list(iterator), run(packed))
        loader.set_epoch(1)
        assert same(list(loader), run(packed, epoch=1))
