"""The model's predictions, against sums done by hand."""

from __future__ import annotations

import pytest

from fastdata.tuning.model import Cost, Model
from tests.tuning.conftest import model


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (1, 1000),  # one worker's 1 ms
        (4, 4000),
        (7, 7000),
        (8, 8 / 0.0011),  # 8 CPUs share 1.1 ms a sample: 7,273
        (20, 8 / 0.0011),
        (0, 1 / 0.0011),  # one process does both, one after the other
    ],
)
def test_the_lowest_ceiling_is_the_rate(workers: int, expected: float) -> None:
    assert model().rate(workers) == pytest.approx(expected)


def test_workers_that_wait_are_not_limited_by_the_cpus() -> None:
    waiting = model(worker=Cost(wall=10e-3, cpu=1e-3), cpus=2.0)
    # 2 CPUs allow 2 / 1.1 ms = 1,818 samples/s, 10 workers bring 1,000 of them.
    assert waiting.rate(10) == pytest.approx(1000)
    assert waiting.rate(40) == pytest.approx(2 / 1.1e-3)
    assert waiting.worker.blocked == pytest.approx(9e-3)


def test_the_training_process_does_the_step_after_it_has_received() -> None:
    # 0.1 ms to receive and 0.4 ms of a step on the CPU: 2,000 samples/s however many workers.
    stepped = model(step=Cost(4e-4, 4e-4), ceiling=2500.0)
    assert stepped.rate(6) == pytest.approx(2000)
    assert stepped.limits(6)[0] == "main process"
    # With one CPU all is shared: 1 / (1 + 0.1 + 0.4 ms) = 667.
    assert Model(worker=stepped.worker, main=stepped.main, cpus=1.0, step=stepped.step).rate(
        6
    ) == pytest.approx(1 / 1.5e-3)


def test_a_ceiling_is_never_exceeded() -> None:
    assert model(ceiling=500.0).rate(4) == 500.0
    assert model(ceiling=500.0).limits(4) == ["step", "workers", "CPUs", "main process"]


def test_an_epoch_begins_with_a_pause() -> None:
    # 1,000 samples at 4,000/s take 0.25 s, and 0.05 s more: 3,333/s.
    short = model(pause=0.05, epoch=1000)
    assert short.rate(4) == pytest.approx(1000 / 0.3)
    assert short.steady(4) == pytest.approx(4000)
    assert short.rate(0) == pytest.approx(1 / 0.0011)  # in one process nothing is started


def test_an_engine_without_workers_has_one_rate() -> None:
    assert model(fixed=123.0, ceiling=500.0).rate(0) == 123.0
    assert model(fixed=123.0, ceiling=100.0).rate(3) == 100.0


@pytest.mark.parametrize(("ceiling", "expected"), [(None, 8), (2500.0, 3), (10.0, 0)])
def test_the_best_is_the_fewest_workers_that_reach_it(ceiling: float | None, expected: int) -> None:
    assert model(ceiling=ceiling).best(range(12)) == expected
