"""The words: what limits, what is wrong, one sentence; from figures that are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from fastdata.tuning.candidates import Space
from fastdata.tuning.ceiling import StepRate
from fastdata.tuning.evidence import profile_of
from fastdata.tuning.found import Found
from fastdata.tuning.limits import Limits
from fastdata.tuning.model import Cost
from fastdata.tuning.plot import plot
from fastdata.tuning.report import report
from fastdata.tuning.subjects import Probes
from fastdata.tuning.trials import Interval, Trial
from fastdata.tuning.verdict import limits_of
from tests.tuning.conftest import LIMITS, PROBES, FakeSubject, model

WORK = {"path": "/data", "identity": "ab", "recipe": "r", "batch_size": 10, "device": "cpu"}


def found(
    rates: list[float],
    *,
    chosen: int = 2,
    beside: list[float] | None = None,
    step: float | None = 3000.0,
    probes: Probes = PROBES,
    limits: Limits = LIMITS,
    **changes: Any,
) -> Found:
    """A search that ended with these rates of the chosen number of workers; two are in use."""
    subject = FakeSubject("photos")
    incumbent = subject.incumbent()
    costs = {"worker": probes.worker, "main": probes.main, "ceiling": step}
    space = Space(subject, "workers", probes, model(**costs), incumbent, limits)
    final = Trial(replace(incumbent, workers=chosen), 1000.0)
    final.rates, final.beside = rates, rates if beside is None else beside
    final.waits, final.seconds = [0.001, 0.002], 1.0
    rate = None if step is None else StepRate(Interval(step, step, step), Cost(1e-5, 1e-5))
    given: dict[str, Any] = {
        "limits": limits,
        "subjects": [subject],
        "spaces": [space],
        "incumbent": incumbent,
        "chosen": final.candidate,
        "trials": [final],
        "final": final,
        "fits": True,
        "step": rate,
        "beside": "there is no step" if rate is None else rate.rate,
        "ceiling": step,
        "alone": Interval(9e9, 9e9, 9e9),
        "stopped": "the budget is spent",
    }
    return Found(**{**given, **changes})


def verdict(one: Found) -> str:
    formats = [subject.name for subject in one.subjects[1:]]
    return profile_of(one, {"num_workers": one.chosen.workers}, WORK, formats).verdict


def codes(one: Found) -> list[str]:
    return [each["code"] for each in profile_of(one, {}, WORK).findings]


def test_a_loader_that_keeps_up_is_step_bound_and_nothing_is_wrong() -> None:
    one = found([2940.0, 2950.0, 2960.0])
    assert verdict(one) == (
        "step-bound: the loader keeps up, at 98% of the CPU step's own rate; keep the current "
        "setting"
    )
    assert codes(one) == []


def test_a_loader_that_does_not_is_data_bound_by_its_longest_stage() -> None:
    limited = replace(LIMITS, quota=4.0)
    one = found([1140.0, 1140.0, 1140.0], limits=limited)
    assert verdict(one) == (
        "data-bound: decode on 4 quota-limited CPUs holds you at 38% of the CPU step's own rate; "
        "keep the current setting"
    )
    assert codes(one) == ["cpu-quota", "data-bound"]


def test_a_better_setting_is_named_with_its_interval() -> None:
    one = found([2000.0] * 3, chosen=4, beside=[1000.0] * 3)
    assert verdict(one).endswith(
        "workers, 4 workers, prefetch 2 is 2.00 times as fast as the current setting (2.00 to 2.00)"
    )
    reaching = found([3000.0] * 3, chosen=4, beside=[1000.0] * 3)
    assert verdict(reaching).startswith("data-bound with the current setting, at 33% of the CPU")
    assert verdict(reaching).endswith("(3.00 to 3.00) and reaches 100%")


def test_a_conversion_that_lifts_it_is_in_the_sentence() -> None:
    one = found([1140.0] * 3)
    other = FakeSubject("memmap 256", ("gather",))
    other.convert_seconds = 0.2  # an epoch of 1,000 samples: 0.877 s before, 0.337 s after
    trial = Trial(other.incumbent(), 3000.0, rates=[2970.0] * 3, beside=[1140.0] * 3)
    one.subjects = [*one.subjects, other]
    one.spaces.append(Space(other, "gather", PROBES, model(), other.incumbent(), LIMITS))
    one.trials.append(trial)
    assert verdict(one) == (
        "data-bound: decode on 8 CPUs holds you at 38% of the CPU step's own rate; converting to "
        "memmap 256 lifts it to 99%, repaid after 0.4 epochs"
    )
    assert profile_of(one, {}, WORK, ["memmap:256"]).convert_to == "memmap:256"
    trial.rates = [1150.0] * 3  # no gain to speak of
    assert "converting" not in verdict(one)
    assert profile_of(one, {}, WORK, ["memmap:256"]).convert_to is None


def test_without_a_ceiling_no_share_is_claimed() -> None:
    one = found([500.0] * 3, step=None)
    assert "%" not in verdict(one)
    assert "500 samples/s, limited by decode on 8 CPUs" in verdict(one)
    assert codes(one) == []


def test_a_slow_step_does_not_hide_a_loader_that_is_slower_in_the_long_run() -> None:
    one = found([3000.0] * 3, alone=Interval(2000.0, 1990.0, 2010.0))
    assert one.rate.middle == 2000.0
    assert verdict(one).startswith("data-bound")
    assert "at 67%" in verdict(one)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"threads": 4.0}, "threads"),
        ({"slow_share": 0.5, "slowest": 0.1}, "slow-samples"),
        ({"worker": Cost(10e-3, 1e-3)}, "storage"),
    ],
)
def test_each_fault_is_found_first(changes: dict[str, Any], code: str) -> None:
    one = found([1000.0] * 3, probes=replace(PROBES, **changes))
    assert codes(one) == [code, "data-bound"]
    healthy = found([3000.0] * 3, probes=replace(PROBES, **changes))
    assert codes(healthy) == []


def test_the_ceilings_are_named_by_what_a_worker_does_most() -> None:
    stages = {"fetch": Cost(8e-4, 1e-4), "decode": Cost(2e-4, 2e-4), "receive": Cost(1e-4, 1e-4)}
    one = found([1.0], probes=replace(PROBES, stages=stages)).spaces[0]
    assert limits_of(one, 2) == ["fetch", "step", "receive"]
    one.model = model(ceiling=1500.0, pause=0.5, epoch=1000)  # 0.67 s an epoch, and 0.5 s more
    assert limits_of(one, 2)[0] == "epoch start"


def test_a_setting_that_does_not_fit_is_the_first_finding() -> None:
    one = found([3000.0] * 3, chosen=0, beside=[], fits=False)
    one.spaces[0].dropped[one.incumbent] = "needs 3 GB of /dev/shm, which has 1 MB free"
    assert codes(one) == ["shm"]
    assert "does not fit this machine; take workers, 0 workers" in verdict(one)


def test_the_profile_is_plain_json_and_the_report_shows_it(tmp_path: Any) -> None:
    profile = profile_of(found([1140.0, 1150.0, 1160.0]), {"num_workers": 2}, WORK)
    assert json.loads(profile.to_json())["share"] == pytest.approx(1150 / 3000)
    assert profile.prediction_error == pytest.approx(abs(1000 / 1150 - 1))
    assert profile.limit == "decode"
    text = report(profile)
    assert profile.verdict in text
    assert "workers, 2 workers, prefetch 2* (current)" in text
    assert "1,150 [1,140, 1,160]" in text
    plot(profile, tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    for words in ("decode", "step or target", "samples/s", "workers", "circle", "polyline"):
        assert words in page
