"""What a process has not collected yet: processes that it starts must not do so either."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import make_loader, tune_dataloader
from fastdata.garbage import spared_garbage

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")


class Garbage:
    """Notes the process that destroys it, for which a collector of cycles is needed."""

    def __init__(self, notes: Path) -> None:
        self._notes, self._itself = notes, self

    def __del__(self) -> None:
        with open(self._notes, "a") as file:
            print(os.getpid(), file=file)


@pytest.fixture
def collectors(tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """Leaves garbage; a function that collects it here, and tells who has destroyed it."""
    notes = tmp_path / "notes"
    gc.collect()
    gc.disable()  # nobody but who is asked to
    Garbage(notes)

    def find() -> list[int]:
        gc.collect()
        return [int(line) for line in notes.read_text().split()]

    yield find
    gc.enable()


@pytest.fixture(params=[False, True], ids=["not frozen before", "frozen before"])
def frozen(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether the program has frozen objects itself, before there was the garbage."""
    if request.param:
        gc.freeze()
    yield request.param
    gc.unfreeze()


def test_a_fork_does_not_collect_its_parents_garbage(
    frozen: bool, collectors: Callable[[], list[int]]
) -> None:
    before = gc.get_freeze_count()
    with spared_garbage():
        child = os.fork()
        if child == 0:
            gc.collect()
            os._exit(0)
    os.waitpid(child, 0)
    assert collectors() == [os.getpid()]
    assert gc.get_freeze_count() == before
    assert (before > 0) == frozen


def test_it_is_collected_again_after_an_error(collectors: Callable[[], list[int]]) -> None:
    with pytest.raises(OSError, match="no more processes"), spared_garbage():
        raise OSError("no more processes")
    assert collectors() == [os.getpid()]


def collect_and_stack(image: NDArray[np.uint8]) -> torch.Tensor:
    gc.collect()
    return torch.zeros(1)


def test_workers_of_a_loader_do_not(
    collectors: Callable[[], list[int]], make_folder: Callable[..., Path]
) -> None:
    options: dict[str, Any] = {"num_workers": 2, "engine_options": {"start_method": "fork"}}
    with make_loader(
        make_folder(), 4, recipe="raw", transform=collect_and_stack, **options
    ) as loader:
        for _ in range(2):
            assert sum(len(images) for images, _ in loader) == 22
        assert collectors() == [os.getpid()]


class Collecting(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        gc.collect()
        return torch.zeros(1)


def test_workers_that_the_tuner_starts_do_not(collectors: Callable[[], list[int]]) -> None:
    tune_dataloader(
        Collecting(),
        4,
        target_rate=1e9,
        budget=0.5,
        num_workers=1,
        multiprocessing_context="fork",
    )
    assert collectors() == [os.getpid()]
