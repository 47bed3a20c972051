"""Batches in shared memory that is used again: what a GPU copies from, without the GPU."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata import convert, make_loader, open_dataset
from fastdata.engines.fetch import Fetcher
from fastdata.engines.slots import Slots
from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import draw_key
from tests.engines.settings import RECIPE, settings


class Event:
    """Stands for a CUDA event: passed once it was waited for."""

    def __init__(self, passed: bool) -> None:
        self.passed = passed
        self.waited = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        self.waited = self.passed = True


@pytest.fixture
def dataset(make_folder: Callable[..., Path], tmp_path: Path) -> Any:
    source = make_folder({"a": 6, "b": 5})
    convert(source, tmp_path / "out", workers=1)
    with open_dataset(tmp_path / "out") as opened:
        yield opened


def plan_of(dataset: Any, indices: list[int]) -> BatchPlan:
    return plan_batches(RECIPE, draw_key(0, 0), [np.array(indices)], dataset.sizes)[0]


@pytest.mark.parametrize("indices", [[3, 0, 7, 10], [5], [9, 9, 9, 9]])
def test_a_batch_in_a_slot_is_the_batch_on_its_own(dataset: Any, indices: list[int]) -> None:
    slots = Slots(3, 4 * 24 * 24 * 3)
    slots.array(1, (4, 24, 24, 3))[:] = 77  # of an earlier batch
    plan = plan_of(dataset, indices)
    batch = Fetcher(settings(dataset), shared=True, slots=slots)(plan, 1)
    alone = Fetcher(settings(dataset), shared=False)(plan)
    assert batch.images is None
    assert batch.slot == 1
    assert batch.shape == tuple(alone.images.shape)
    np.testing.assert_array_equal(slots.array(1, batch.shape), alone.images.numpy())
    np.testing.assert_array_equal(batch.labels, alone.labels)
    slots.close()


@pytest.mark.parametrize("training", [False, True])
def test_samples_at_fault_are_dropped_or_filled_in_a_slot_too(
    training: bool, make_folder: Callable[..., Path]
) -> None:
    source = make_folder({"a": 6})
    (source / "a" / "a_002.jpg").write_bytes(b"no image")
    with open_dataset(source) as dataset:
        options = settings(dataset, skip_errors=True, training=training)
        plan = BatchPlan(draw_key(0, 0), np.array([1, 2, 3]))
        slots = Slots(2, 4 * 24 * 24 * 3)
        batch = Fetcher(options, shared=True, slots=slots)(plan, 0)
        alone = Fetcher(options, shared=False)(plan)
        assert batch.shape == tuple(alone.images.shape) == (3 if training else 2, 24, 24, 3)
        np.testing.assert_array_equal(slots.array(0, batch.shape), alone.images.numpy())
        assert batch.skipped == alone.skipped
        slots.close()


def write(slots: Slots, slot: int) -> None:
    slots.array(slot, (5,))[:] = [1, 2, 3, 4, slot]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_writes_to_the_same_memory(method: str) -> None:
    slots = Slots(4, 5)
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_write_pickled, args=(pickle.dumps(slots), 2))
    process.start()
    process.join(240)
    assert process.exitcode == 0
    assert slots.array(2, (5,)).tolist() == [1, 2, 3, 4, 2]
    assert slots.array(1, (5,)).tolist() == [0] * 5
    slots.close()


def _write_pickled(pickled: bytes, slot: int) -> None:
    write(pickle.loads(pickled), slot)


def test_a_slot_is_taken_again_only_after_it_was_read() -> None:
    slots = Slots(2, 10)
    first, second = slots.take(), slots.take()
    assert {first, second} == {0, 1}
    slow, quick = Event(passed=False), Event(passed=True)
    slots.give_back(first, slow)  # type: ignore[arg-type]
    slots.give_back(second, quick)  # type: ignore[arg-type]
    found = slots.take()
    assert slow.waited  # it was the first to be read
    assert {found, slots.take()} == {first, second}
    assert slots.take() is None


def test_after_a_reset_all_slots_are_free() -> None:
    slots = Slots(3, 10)
    taken = [slots.take() for _ in range(3)]
    event = Event(passed=False)
    slots.give_back(taken[0], event)  # type: ignore[arg-type]
    slots.reset()
    assert event.waited
    assert sorted(slots.take() for _ in range(3)) == [0, 1, 2]


def test_a_slot_is_lent_for_as_long_as_anything_refers_to_its_memory() -> None:
    slots = Slots(2, 12)
    slot = slots.take()
    assert slot is not None
    array = slots.array(slot, (2, 2, 3)).transpose(2, 0, 1)
    slots.lend(slot, array)
    tensor = torch.from_numpy(array)
    del array
    other = slots.take()
    assert {slot, other} == {0, 1}
    assert slots.take() is None
    slots.reset()
    assert slots.take() == other  # what is lent is not free, whatever else was abandoned
    assert slots.take() is None
    view = tensor[0]
    del tensor
    assert slots.take() is None
    del view
    assert slots.take() == slot


def test_what_is_lent_outlives_the_slots() -> None:
    slots = Slots(1, 4)
    slots.array(0, (4,))[:] = [1, 2, 3, 4]
    lent = slots.array(0, (4,))
    slots.lend(0, lent)
    slots.close()
    assert lent.tolist() == [1, 2, 3, 4]
    lent[0] = 9
    assert lent.tolist() == [9, 2, 3, 4]


def test_closing_gives_the_memory_back() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what earlier tests have left may go in between
    before = descriptors()
    for _ in range(20):
        slots = Slots(2, 1 << 20)
        slots.array(0, (1 << 20,))[:] = 1
        slots.close()
        slots.close()
    del slots
    assert descriptors() == before


def test_a_forgotten_loader_gives_the_memory_back(make_folder: Callable[..., Path]) -> None:
    def ours() -> int:
        links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
        return sum("fastdata-slots" in os.readlink(link) for link in links if os.path.islink(link))

    gc.collect()  # what earlier tests have left may go in between
    before = ours()
    loader = make_loader(make_folder(), 4, recipe=RECIPE, dtype="uint8", num_workers=1)
    images, _ = next(iter(loader))
    kept = images.clone()
    assert ours() > before
    del loader
    assert torch.equal(images, kept)
    del images  # its map holds a descriptor of its own
    assert ours() == before


def test_abandoned_iterations_give_their_slots_back(make_folder: Callable[..., Path]) -> None:
    options: dict[str, Any] = {"recipe": RECIPE, "dtype": "uint8", "num_workers": 1}
    with make_loader(make_folder(), 4, **options) as loader:
        for _ in range(12):
            next(iter(loader))
        slots: Any = loader._engine._slots  # type: ignore[attr-defined]
        slots.reset()
        assert len(slots._free) > slots._count / 2
