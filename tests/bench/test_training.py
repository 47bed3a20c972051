"""What a loader has ready is taken before a stretch that is measured, and bursts are whole."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bench.training import batches_a_turn, drain


def dataloader(num_workers: int, prefetch_factor: int | None) -> Any:
    return SimpleNamespace(num_workers=num_workers, prefetch_factor=prefetch_factor)


def ours(engine: str, num_workers: int, prefetch_factor: int, together: int = 1) -> Any:
    carrier = SimpleNamespace(num_workers=num_workers, prefetch_factor=prefetch_factor)
    carrier.together = together
    return SimpleNamespace(carrier=carrier, engine=engine)


@pytest.mark.parametrize(
    ("loader", "ready", "turn"),
    [
        (dataloader(0, None), 0, 1),
        (dataloader(3, 4), 12, 3),
        (ours("workers", 3, 4), 14, 3),  # two may be on the device already
        (ours("workers", 3, 4, together=16), 194, 48),
        (ours("workers", 0, 2), 4, 1),
        (ours("gather", 8, 3), 5, 1),
    ],
)
def test_a_whole_queue_is_taken_and_workers_come_in_turns(
    loader: Any, ready: int, turn: int
) -> None:
    batches = iter(range(1000))
    drain(batches, loader, step=60)
    assert next(batches) == ready
    assert batches_a_turn(loader) == turn


def test_a_queue_that_makes_one_wait_is_empty() -> None:
    def slow_from(number: int) -> Iterator[int]:
        for one in range(100):
            if one >= number:
                time.sleep(0.4)
            yield one

    batches = slow_from(3)
    drain(batches, dataloader(4, 4), step=0.1)
    assert next(batches) <= 4  # a busy machine may have made it wait before
