"""Which settings get a trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fastdata.tuning.candidates import Space, pick
from fastdata.tuning.limits import Limits
from fastdata.tuning.model import Cost
from tests.tuning.conftest import LIMITS, PROBES, FakeSubject, model


def space(
    subject: FakeSubject | None = None,
    engine: str = "workers",
    limits: Limits = LIMITS,
    **changes: Any,
) -> Space:
    subject = subject or FakeSubject()
    base = subject.base(engine, PROBES)
    return Space(subject, engine, PROBES, model(**changes), base, limits)


def workers_of(picked: list[Any]) -> list[int]:
    return [candidate.workers for candidate, _ in picked]


def test_the_incumbent_comes_first_then_the_best_then_its_neighbour() -> None:
    picked = pick([space()], FakeSubject().incumbent())
    assert workers_of(picked) == [2, 8, 9]  # 8 CPUs: see test_model
    assert [rate for _, rate in picked] == pytest.approx([2000, 8 / 0.0011, 8 / 0.0011])


def test_the_incumbent_is_no_second_candidate_of_its_own() -> None:
    picked = pick([space(ceiling=1900.0)], FakeSubject().incumbent())
    assert workers_of(picked) == [2, 3, 1]


def test_what_does_not_fit_is_dropped_with_the_reason() -> None:
    little = replace(LIMITS, memory=4 * 10**8)  # three workers of 0.1 GB are within 80 %
    one = space(limits=little)
    assert workers_of(pick([one], FakeSubject().incumbent())) == [2, 3, 1]
    reasons = {candidate.workers: reason for candidate, reason in one.dropped.items()}
    assert min(reasons) == 4
    assert "memory" in reasons[4]


def test_an_incumbent_that_does_not_fit_gets_no_trial() -> None:
    nothing = replace(LIMITS, memory=10**7)
    one = space(limits=nothing)
    assert workers_of(pick([one], FakeSubject().incumbent())) == [0]
    assert FakeSubject().incumbent() in one.dropped


def test_workers_that_wait_may_be_many_more_than_cpus() -> None:
    waiting = Cost(wall=10e-3, cpu=1e-3)
    one = space(limits=replace(LIMITS, memory=10**12), worker=waiting)
    one.probes = replace(PROBES, worker=waiting)
    assert max(one.counts()) == 64  # 8 CPUs x 10, and no more than 64
    assert one.best() == one.with_workers(64)


def test_a_format_gets_one_setting_and_four_are_tried_at_most() -> None:
    home = FakeSubject("folder")
    others = [FakeSubject(name) for name in ("lmdb", "memmap", "tar")]
    spaces = [space(home), *(space(other) for other in others)]
    spaces[2].model = model(worker=Cost(1e-4, 1e-4))  # memmap: ten times as fast
    picked = pick(spaces, home.incumbent())
    assert [candidate.subject for candidate, _ in picked[:2]] == ["folder", "folder"]
    assert picked[2][0].subject == "memmap"
    assert len(picked) == 4


def test_an_engine_that_is_far_behind_gets_no_trial() -> None:
    both = FakeSubject(engines=("workers", "dali-cpu"))
    slow = space(both, "dali-cpu", worker=Cost(5e-3, 5e-3))
    picked = pick([space(both), slow], both.incumbent())
    assert {candidate.engine for candidate, _ in picked} == {"workers"}
    near = space(both, "dali-cpu", worker=Cost(1.2e-3, 1.2e-3))
    picked = pick([space(both), near], both.incumbent())
    assert [candidate.engine for candidate, _ in picked] == ["workers", "workers", "dali-cpu"]
