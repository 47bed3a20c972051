"""A pool of workers that stands for a smaller one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, make_loader
from fastdata.errors import UsageError

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")


def whose(image: NDArray[np.uint8]) -> torch.Tensor:
    """The process that made a sample."""
    return torch.tensor(os.getpid())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_only_so_many_workers_get_work(count: int, packed: Path) -> None:
    with make_loader(
        packed, 2, recipe=TRAIN, transform=whose, num_workers=3, shuffle=True, profile=None
    ) as loader:
        everybody = {int(pid) for pids, _ in loader for pid in pids}
        assert len(everybody) == 3
        assert loader.use_workers(count)
        working = {int(pid) for pids, _ in loader for pid in pids}
        assert len(working) == count
        assert working <= everybody  # nobody was started


@pytest.mark.parametrize("count", [1, 2])
def test_the_batches_are_the_same(count: int, packed: Path) -> None:
    options = {"recipe": TRAIN, "with_index": True, "seed": 3, "profile": None}
    with make_loader(packed, 4, num_workers=3, **options) as loader:
        loader.use_workers(count)
        found = [list(loader), list(loader)]
    with make_loader(packed, 4, num_workers=0, **options) as loader:
        expected = [list(loader), list(loader)]
    for ours, theirs in zip(found, expected, strict=True):
        for batch, other in zip(ours, theirs, strict=True):
            assert all(a.equal(b) for a, b in zip(batch, other, strict=True))


@pytest.mark.parametrize("count", [0, 4])
def test_a_pool_cannot_stand_for_more_or_for_none(count: int, packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=3, profile=None) as loader:
        assert not loader.use_workers(count)


def test_an_iteration_that_goes_on_is_ended(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=2, profile=None) as loader:
        iterator = iter(loader)
        next(iterator)
        loader.use_workers(1)
        with pytest.raises(UsageError, match="one iterator of a loader at a time"):
            next(iterator)
        assert len(list(loader)) == len(loader)
