"""Intervals, rounds and blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fastdata.tuning.subjects import Candidate, Feed, Subject
from fastdata.tuning.trials import Pools, Trial, _is_whole, interval, ratio, run_block, run_rounds
from tests.tuning.conftest import FakeSubject


def trial(name: str = "workers", workers: int = 2, predicted: float = 100.0) -> Trial:
    return Trial(Candidate("data", name, workers, 2), predicted)


def test_an_interval_lies_around_the_median() -> None:
    found = interval([5.0, 1.0, 3.0, 2.0, 4.0])
    assert found.middle == 3.0
    assert 1.0 <= found.low < 3.0 < found.high <= 5.0
    assert interval([2.0]) == interval([2.0, 2.0])  # nothing varies
    assert interval([2.0]).low == interval([2.0]).high == 2.0


def test_a_ratio_pairs_the_blocks_of_a_round() -> None:
    # A machine that slows down to a tenth: the ratio within each round stays 2.
    drift = [100.0, 50.0, 10.0]
    found = ratio([2 * rate for rate in drift], drift)
    assert (found.low, found.middle, found.high) == (2.0, 2.0, 2.0)


def test_every_other_round_goes_backwards_and_they_end_when_told() -> None:
    trials = [trial("a"), trial("b"), trial("c")]
    order: list[str] = []
    run_rounds(trials, lambda one: order.append(one.candidate.engine), 5, lambda done: done < 3)
    assert "".join(order) == "abccbaabc"


def test_a_prediction_is_compared_with_the_median() -> None:
    one = trial(predicted=120.0)
    assert one.error is None
    one.rates += [90.0, 100.0, 500.0]
    assert one.error == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("done", "now", "turns", "whole"),
    [
        (5, 0.9, (10, 1), False),  # too short
        (10, 1.0, (10, 1), True),  # an epoch of 10 batches
        (12, 1.2, (10, 2), False),  # the next epoch ends after 0.8 s more
        (20, 2.0, (10, 2), True),
        (12, 1.0, (1000, 4), True),  # an epoch is far; a turn of 4 workers is over
        (13, 1.0, (1000, 4), False),
        (3, 9.0, (1000, 4), False),  # 3 s a batch: the turn's last one is not near ...
        (3, 3.0, (1000, 7), True),  # ... here it is farther than a second's block may wait
    ],
)
def test_blocks_hold_whole_epochs_or_whole_turns(
    done: int, now: float, turns: tuple[int, ...], whole: bool
) -> None:
    seconds = 9.0 if now == 9.0 else 1.0
    assert _is_whole(done, now, seconds, turns) is whole


class CountingSubject(FakeSubject):
    """Its loaders count up, from 0 in each epoch of 4 batches."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[int] = []
        self.closed = 0
        self.limits: list[int] = []

    def open(self, candidate: Candidate) -> Feed:
        self.opened.append(candidate.workers)

        def close() -> None:
            self.closed += 1

        return Feed(range(4), self.limits.append, close, 0.0)


def test_a_feed_goes_on_over_the_end_of_an_epoch() -> None:
    feed = CountingSubject().open(trial().candidate)
    feed.begin(2)
    assert [next(feed) for _ in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    feed.begin(1)
    assert next(feed) == 0


def test_one_pool_is_started_at_its_largest_size() -> None:
    subject = CountingSubject()
    pools = Pools([subject])
    settings = [Candidate("data", "workers", count, 2) for count in (1, 3, 2)]
    pools.start(settings)
    assert subject.opened == [3]
    for setting in settings:
        pools.feed(setting).begin(setting.workers)
    assert subject.limits[-3:] == [1, 3, 2]
    pools.start([Candidate("data", "workers", 2, 4)])  # another prefetch needs another pool
    assert subject.opened == [3, 2]
    pools.close()
    assert subject.closed == 2


def test_a_block_gives_every_batch_to_the_step_and_counts_from_where_it_is_running() -> None:
    subject: Subject = CountingSubject()
    feed = subject.open(trial().candidate)
    seen: list[Any] = []
    one = trial()
    run_block(one, feed, seen.append, subject, 0.05)
    assert seen[:5] == list(itertools.islice(itertools.cycle(range(4)), 5))
    assert len(one.waits) == len(seen) - 5  # 2 workers x 2 batches ahead, and one, were ready
    assert len(one.rates) == 1
    assert one.rates[0] == pytest.approx(len(one.waits) * subject.batch_size / one.seconds)
