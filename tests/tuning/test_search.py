"""The search's decisions, over settings whose rates are known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastdata import open_dataset
from fastdata.tuning.datasets import LoaderSubject
from fastdata.tuning.found import Found
from fastdata.tuning.search import Search
from fastdata.tuning.subjects import Candidate, Feed
from tests.tuning.conftest import RECIPE, FakeSubject

SECONDS = 0.01  # of a batch


class Clock:
    """Time that passes by a microsecond whenever somebody looks."""

    now = 0.0

    @classmethod
    def look(cls) -> float:
        cls.now += 1e-6
        return cls.now


class Slow(FakeSubject):
    """Its batches take their time, whatever the number of workers; with a share of 0.4 half of it,
    with one of 0.8 twice as long. Nobody sleeps: the clock is what goes on."""

    shares: tuple[float, ...] = (0.4, 0.8)

    def open(self, candidate: Candidate) -> Feed:
        share = dict(candidate.options).get("share")
        factor = {None: 1.0, 0.4: 0.5, 0.8: 2.0}[share]

        class Source:
            def __iter__(self) -> Iterator[int]:
                for number in range(20):
                    Clock.now += factor * SECONDS
                    yield number

        return Feed(Source(), lambda workers: None, lambda: None, time.perf_counter())

    def refinements(self, candidate: Candidate) -> list[Candidate]:
        return [replace(candidate, options=(("share", share),)) for share in self.shares]


def search(subject: FakeSubject, monkeypatch: pytest.MonkeyPatch, **given: Any) -> Found:
    monkeypatch.setattr("fastdata.tuning.search.busy_cpus", lambda seconds: 0.0)
    monkeypatch.setattr(time, "perf_counter", Clock.look)
    arguments: dict[str, Any] = {"step": None, "target_rate": 1e9, "budget": 2.0, **given}
    return Search([subject], report=lambda line: None, **arguments).run()


def test_what_an_engine_offers_is_tried_and_taken_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = search(Slow(), monkeypatch)
    assert found.chosen.options == (("share", 0.4),)
    assert found.final.gain is not None
    assert found.final.gain.low == pytest.approx(2, abs=0.01)
    assert len(found.trials) == 4


def test_and_not_where_it_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Slow()
    subject.shares = (0.8,)
    found = search(subject, monkeypatch)
    assert found.chosen.options == ()
    assert (("share", 0.8),) in [trial.candidate.options for trial in found.trials]


def test_nothing_is_refined_where_the_loader_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = search(Slow(), monkeypatch, target_rate=10.0)
    assert found.chosen == found.incumbent
    assert len(found.trials) == 1


def test_the_share_of_the_hardware_decoder_is_what_dali_offers(packed: Path) -> None:
    with open_dataset(packed) as dataset:
        subject = LoaderSubject("photos", dataset, 8, {"recipe": RECIPE}, engine="workers")
        assert subject.refinements(subject.incumbent()) == []
        offered = subject.refinements(Candidate("photos", "dali", 4, 2))
    assert [one.options for one in offered] == [
        (("hw_decoder_load", 0.45),),
        (("hw_decoder_load", 0.85),),
    ]
    assert {(one.engine, one.workers, one.prefetch) for one in offered} == {("dali", 4, 2)}
