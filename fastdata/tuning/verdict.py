"""What a search comes to, in words: what limits, what is wrong, and one sentence."""

from __future__ import annotations

import statistics
from typing import Any

from fastdata.tuning.candidates import Space
from fastdata.tuning.found import ENOUGH, GAIN, Found, space_of
from fastdata.tuning.probes import COLD, PIN, RECEIVE, TO_DEVICE

__all__ = ["findings_of", "limits_of", "repaid", "sentence_of", "worker_stages", "worth_it"]

_THREADS = 1.25  # threads that a sample keeps busy: more than its own
_SLOW_SHARE = 0.1  # of the time that slow samples take before they are worth a word
_WAITS = 0.5  # of a worker's time: it is not the CPU that limits it
_EPOCH_START = "epoch start"
_OF_A_WORKER = ("workers", "CPUs", "one process")


def limits_of(space: Space, workers: int) -> list[str]:
    """What limits the rate, the lowest ceiling first; workers stand for what they do most."""
    model = space.model
    found: list[str] = []
    enough = ENOUGH * (model.ceiling or 0.0)
    if model.rate(workers) < enough <= model.steady(workers):
        found.append(_EPOCH_START)
    own = {
        name: cost.wall
        for name, cost in space.probes.stages.items()
        if name in worker_stages(space)
    }
    for ceiling in model.limits(workers):
        name = ceiling
        if ceiling in _OF_A_WORKER and own:
            name = max(own, key=own.__getitem__)
        elif ceiling == "main process":
            name = RECEIVE
        if name not in found:
            found.append(name)
    return found


def worker_stages(space: Space) -> set[str]:
    """The stages that a worker goes through."""
    outside = {RECEIVE, COLD, PIN, TO_DEVICE}
    return set(space.probes.stages) - outside


def sentence_of(
    found: Found,
    space: Space,
    names: list[str],
    share: float | None,
    other: dict[str, Any] | None,
) -> str:
    """The verdict: what holds the training, at which share of its ceiling, and what to do.

    Args:
        found: the search's result.
        space: of the chosen setting.
        names: what limits, the first one first.
        share: of the ceiling; None without one.
        other: the row of the format to convert to, see :func:`worth_it`.
    """
    change = _change(found)
    if share is None:
        return (
            f"no step and no target rate: the loader alone gives {found.rate.middle:,.0f} "
            f"samples/s, limited by {_where(names[0], found, space)}; {change}"
        )
    what = "the target rate"
    if found.step is not None:
        what = f"the {space.subject.device.type.upper()} step's own rate"
    if found.keeps_up:
        if found.chosen != found.incumbent and found.final.beside and found.ceiling is not None:
            before = min(1.0, statistics.median(found.final.beside) / found.ceiling)
            return (
                f"data-bound with the current setting, at {before:.0%} of {what}; {change} and "
                f"reaches {share:.0%}"
            )
        kind = "step-bound" if found.step is not None else "on target"
        return f"{kind}: the loader keeps up, at {share:.0%} of {what}; {change}"
    sentence = f"data-bound: {_where(names[0], found, space)} holds you at {share:.0%} of {what}"
    if other is not None:
        lifts = min(1.0, other["rate"] / (found.ceiling or other["rate"]))
        return (
            f"{sentence}; converting to {other['name']} lifts it to {lifts:.0%}, {other['repaid']}"
        )
    return f"{sentence}; {change}"


def worth_it(found: Found, formats: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row of the format to convert to; None where the loader keeps up, nobody knows what with,
    or no format is faster beyond doubt.

    Args:
        found: the search's result.
        formats: rows of other formats, see :mod:`fastdata.tuning.evidence`.
    """
    if found.ceiling is None or found.keeps_up:
        return None
    better = [one for one in formats if one["gain"] is not None and one["gain"][1] > 1 + GAIN]
    return max(better, key=lambda each: each["rate"], default=None)


def _where(name: str, found: Found, space: Space) -> str:
    """A stage, and what carries it."""
    if name in worker_stages(space):
        cost = space.probes.stages[name]
        if cost.blocked > _WAITS * cost.wall:
            return f"{name}, which mostly waits for something else than a CPU,"
        return f"{name} on {found.limits.words()}"
    if name == _EPOCH_START:
        batches = max(1, space.subject.epoch // space.subject.batch_size)
        return (
            f"the start of each epoch, {space.model.pause * 1e3:.0f} ms until the first of its "
            f"{batches} batches,"
        )
    if name == RECEIVE:
        return "receiving batches in the training process"
    return name


def _change(found: Found) -> str:
    gain = found.final.gain
    if not found.fits:
        return f"the current setting does not fit this machine; take {found.chosen.words()}"
    if found.chosen == found.incumbent or gain is None:
        return "keep the current setting"
    return (
        f"{found.chosen.words()} is {gain.middle:.2f} times as fast as the current setting "
        f"({gain.low:.2f} to {gain.high:.2f})"
    )


def findings_of(
    found: Found, space: Space, limit: str, share: float | None
) -> list[dict[str, str]]:
    """What is wrong, the most important first; nothing where the loader keeps up."""
    findings: list[dict[str, str]] = []

    def add(code: str, words: str) -> None:
        findings.append({"code": code, "words": words})

    refused = space_of(found.spaces, found.incumbent).dropped.get(found.incumbent)
    if refused is not None:
        code = "shm" if "/dev/shm" in refused else "memory" if "memory" in refused else "files"
        add(code, f"the current setting cannot run here: it {refused}")
    if found.keeps_up:
        return findings
    probes, limits, own = space.probes, found.limits, worker_stages(space)
    worker, busy = probes.worker, found.chosen.workers
    waits = worker.blocked / max(worker.wall, 1e-12)
    if probes.threads > _THREADS:
        add(
            "threads",
            f"each worker keeps {probes.threads:.1f} threads busy, so {busy} of them want "
            f"{busy * probes.threads:.0f} CPUs of {limits.cpus:.3g}: set OMP_NUM_THREADS=1, or "
            "the library's own number of threads, in the workers",
        )
    if probes.slow_share > _SLOW_SHARE:
        add(
            "slow-samples",
            f"a few samples take {probes.slowest / max(probes.typical, 1e-9):.0f} times the "
            f"median of {probes.typical * 1e3:.3g} ms, {probes.slow_share:.0%} of the time: a "
            "batch waits for its slowest; find them, or prefetch more",
        )
    elif waits > _WAITS and limit in own:
        add(
            "storage",
            f"a worker waits {waits:.0%} of its time ({worker.blocked * 1e3:.3g} ms a sample): "
            "more workers hide that, faster storage or a local copy ends it",
        )
    elif limits.restricted and limit in own:
        add(
            "cpu-quota",
            f"only {limits.words()} of the machine's {limits.machine_cpus} may be used",
        )
    if share is not None:
        add("data-bound", f"{_where(limit, found, space)} limits the training")
    return findings


def repaid(convert_seconds: float | None, saved: float) -> str:
    """After how many epochs a conversion is repaid, in words.

    Args:
        convert_seconds: what it takes; None: not measured.
        saved: seconds that an epoch is shorter by.
    """
    if saved <= 0:
        return "never repaid"
    if convert_seconds is None:
        return "repaid after a number of epochs that was not measured"
    if convert_seconds == 0:
        return "and it is there already"
    return f"repaid after {convert_seconds / saved:.1f} epochs"
