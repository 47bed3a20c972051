"""BatchStream: no gap between epochs, and nothing of the next one in this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fastdata.engines import Batch
from fastdata.plan import BatchPlan
from fastdata.planner import EpochPlanner
from fastdata.recipe import Recipe
from fastdata.sampling import BatchSampler
from fastdata.stream import BatchStream

AHEAD = 2
SAMPLER = BatchSampler(n=22, batch_size=4, shuffle=True, drop_last=True)  # 5 batches


class FakeEngine:
    """Its batches are their plans; it asks for two of them more than it was asked for."""

    def __init__(self) -> None:
        self.asked: list[BatchPlan] = []
        self.begun = self.ended = 0
        self.fails_at: int | None = None

    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Any]:
        self.begun += 1
        waiting: deque[BatchPlan] = deque()
        try:
            for plan in plans:
                if len(self.asked) == self.fails_at:
                    raise LookupError("so be it")
                self.asked.append(plan)
                waiting.append(plan)
                if len(waiting) > AHEAD:
                    yield waiting.popleft()
            yield from waiting
        finally:
            self.ended += 1


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


def stream_of(engine: FakeEngine, sampler: BatchSampler = SAMPLER) -> BatchStream:
    sizes = np.full((22, 2), 32, np.int32)
    planner = EpochPlanner(sampler, Recipe(size=32), sizes, where="here")
    return BatchStream(engine, planner, sampler)  # type: ignore[arg-type]


def indices(batches: Iterator[Batch]) -> list[list[int]]:
    return [batch.indices.tolist() for batch in batches]


def expected(epoch: int, position: int = 0, sampler: BatchSampler = SAMPLER) -> list[list[int]]:
    positions = sampler.positions(position, 0, 100)
    return [sampler.indices(7, epoch, each).tolist() for each in positions]


def test_the_next_epoch_is_under_way_when_one_ends(engine: FakeEngine) -> None:
    stream = stream_of(engine)
    for epoch in range(3):
        assert indices(stream.batches(7, epoch, 0)) == expected(epoch)
        under_way = [plan.indices.tolist() for plan in engine.asked[-AHEAD:]]
        assert under_way == expected(epoch + 1)[:AHEAD]
    assert (engine.begun, engine.ended) == (1, 0)
    stream.close()
    assert (engine.begun, engine.ended) == (1, 1)


@pytest.mark.parametrize("begin", [(7, 5, 0), (7, 1, 8), (8, 1, 0), (7, 0, 0)])
def test_another_beginning_is_another_stream(
    begin: tuple[int, int, int], engine: FakeEngine
) -> None:
    stream = stream_of(engine)
    list(stream.batches(7, 0, 0))
    found = indices(stream.batches(*begin))
    assert (engine.begun, engine.ended) == (2, 1)
    if begin[0] == 7:
        assert found == expected(*begin[1:])


def test_an_abandoned_epoch_ends_what_is_under_way(engine: FakeEngine) -> None:
    stream = stream_of(engine)
    epoch = stream.batches(7, 0, 0)
    next(epoch)
    epoch.close()
    assert (engine.begun, engine.ended) == (1, 1)
    assert indices(stream.batches(7, 1, 0)) == expected(1)


def test_what_an_older_iteration_leaves_behind_is_its_own(engine: FakeEngine) -> None:
    stream = stream_of(engine)
    old = stream.batches(7, 0, 0)
    next(old)
    new = stream.batches(7, 1, 0)
    begun = next(new).indices.tolist()
    old.close()
    assert [begun, *indices(new)] == expected(1)


def test_an_error_ends_what_is_under_way(engine: FakeEngine) -> None:
    stream = stream_of(engine)
    engine.fails_at = 4
    with pytest.raises(LookupError):
        list(stream.batches(7, 0, 0))
    engine.fails_at = None
    assert indices(stream.batches(7, 1, 0)) == expected(1)
    assert (engine.begun, engine.ended) == (2, 1)


def test_an_evaluation_ends_with_its_epoch(engine: FakeEngine) -> None:
    sampler = BatchSampler(n=22, batch_size=4, shuffle=False, drop_last=False)
    stream = stream_of(engine, sampler)
    for epoch in range(2):
        assert indices(stream.batches(7, epoch, 0)) == expected(epoch, sampler=sampler)
        assert (engine.begun, engine.ended) == (epoch + 1, epoch + 1)
    assert len(engine.asked) == 2 * 6


def test_a_rank_without_a_share_has_no_batches_and_does_not_hang(engine: FakeEngine) -> None:
    sampler = BatchSampler(n=3, batch_size=4, shuffle=False, drop_last=False, rank=1, world_size=2)
    stream = stream_of(engine, sampler)
    for epoch in range(2):
        assert indices(stream.batches(7, epoch, 0)) == []
