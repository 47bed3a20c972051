"""EpochPlanner: whatever it plans ahead, an epoch's plans are those of its batches one by one."""

from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import numpy as np
import pytest

from fastdata.errors import WorkerError
from fastdata.plan import BatchPlan, Planning, plan_batches
from fastdata.plan_process import PlanProcess
from fastdata.planner import EpochPlanner
from fastdata.recipe import PRESETS, draw_key
from fastdata.sampling import BatchSampler

SAMPLES = 21_000  # more than are planned at once at the beginning, and some twice that
SIZES = np.random.default_rng(0).integers(40, 500, (SAMPLES, 2)).astype(np.int32)
RECIPE = PRESETS["imagenet-train"]


def sampler_of(batch_size: int, n: int = SAMPLES, *, shuffle: bool = True) -> BatchSampler:
    return BatchSampler(n, batch_size, shuffle=shuffle, drop_last=False)


def expected(sampler: BatchSampler, epoch: int, position: int = 0) -> list[BatchPlan]:
    """Batch after batch, each planned alone."""
    plans = []
    for step in range(sampler.steps(position)):
        (positions,) = sampler.positions(position, step, 1)
        indices = sampler.indices(5, epoch, positions)
        plans += plan_batches(RECIPE, draw_key(5, epoch), [indices], SIZES)
    return plans


def assert_same(found: list[BatchPlan], wanted: list[BatchPlan]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.key == other.key
        for name in ("indices", "boxes", "flips", "reductions"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("where", ["here", "thread", "process"])
@pytest.mark.parametrize("batch_size", [100, 4096, 5000, SAMPLES + 1])
def test_epochs_are_planned_as_batch_by_batch(batch_size: int, where: Planning) -> None:
    sampler = sampler_of(batch_size)
    planner = EpochPlanner(sampler, RECIPE, SIZES, where=where)
    for epoch in (0, 1, 2, 7, 8, 8):  # in a row, and by leaps: what was prepared is not wanted
        assert_same(list(planner.plans(5, epoch, 0)), expected(sampler, epoch))


def test_an_epoch_goes_on_where_it_was() -> None:
    sampler = sampler_of(64)
    planner = EpochPlanner(sampler, RECIPE, SIZES, where="thread")
    begun = list(islice(planner.plans(5, 3, 0), 70))
    rest = list(planner.plans(5, 3, 70 * 64))
    assert_same(begun + rest, expected(sampler, 3))
    assert_same(list(planner.plans(5, 4, 640)), expected(sampler, 4, 640))
    assert_same(list(planner.plans(5, 5, 0)), expected(sampler, 5))


def test_another_seed_is_another_plan() -> None:
    planner = EpochPlanner(sampler_of(500), RECIPE, SIZES, where="thread")
    list(planner.plans(6, 0, 0))
    assert_same(list(planner.plans(5, 1, 0)), expected(sampler_of(500), 1))


def test_an_epoch_that_is_over_has_no_plans() -> None:
    planner = EpochPlanner(sampler_of(10, 30, shuffle=False), RECIPE, SIZES[:30], where="thread")
    assert list(planner.plans(5, 0, 30)) == []
    assert [len(plan) for plan in planner.plans(5, 0, 15)] == [10, 5]


def test_images_of_unknown_size_have_no_draws_yet() -> None:
    plans = list(EpochPlanner(sampler_of(10, 30), RECIPE, None, where="thread").plans(5, 0, 0))
    assert [len(plan) for plan in plans] == [10, 10, 10]
    assert all(plan.boxes is None for plan in plans)


def test_many_abandoned_epochs_leave_no_thread() -> None:

    planner = EpochPlanner(sampler_of(64), RECIPE, SIZES, where="thread")
    for _ in range(30):
        next(planner.plans(5, 0, 0))
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("fastdata-plan") for name in names)


@pytest.mark.parametrize("lost", [WorkerError, KeyboardInterrupt])
def test_plans_go_on_after_their_process_was_lost(
    lost: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    planner = EpochPlanner(sampler_of(64), RECIPE, SIZES, where="process")
    plans = planner.plans(5, 0, 0)
    begun = list(islice(plans, 64))  # so many are planned at once in the beginning

    def receive(process: PlanProcess[Any]) -> None:
        process.close()
        raise lost

    with monkeypatch.context() as patch:
        patch.setattr(PlanProcess, "_receive", receive)
        with pytest.raises(lost):
            next(plans)
    assert_same(begun, expected(sampler_of(64), 0)[:64])
    assert_same(list(planner.plans(5, 1, 0)), expected(sampler_of(64), 1))
    planner.close()
    assert_same(list(planner.plans(5, 2, 0)), expected(sampler_of(64), 2))
    planner.close()


def test_an_iterator_may_be_collected_in_its_own_thread() -> None:
    planner = EpochPlanner(sampler_of(64), RECIPE, SIZES, where="thread")
    plans = planner.plans(5, 0, 0)
    next(plans)
    thread = threading.Thread(target=plans.close, name="fastdata-plan_0")
    thread.start()
    thread.join()
    assert list(plans) == []
    assert_same(list(planner.plans(5, 1, 0)), expected(sampler_of(64), 1))
