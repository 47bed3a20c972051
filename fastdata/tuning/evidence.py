"""A search's result as a profile: plain JSON values that tables and pictures are made of."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from fastdata.profile import Profile, environment
from fastdata.tuning.candidates import Space
from fastdata.tuning.found import Found, space_of
from fastdata.tuning.gpu import why_not_watched
from fastdata.tuning.trials import Trial, interval
from fastdata.tuning.verdict import (
    findings_of,
    limits_of,
    repaid,
    sentence_of,
    worker_stages,
    worth_it,
)

__all__ = ["profile_of"]


def profile_of(
    found: Found,
    setting: dict[str, Any],
    work: dict[str, Any],
    formats_given: Sequence[str] = (),
) -> Profile:
    """The profile of a search.

    Args:
        found: its result.
        setting: the arguments of what was chosen.
        work: what was tuned, see :class:`Profile`.
        formats_given: what the subjects after the first one were called by who gave them.
    """
    rate, ceiling = found.rate, found.ceiling
    share = None if ceiling is None else min(1.0, rate.middle / ceiling)
    space = space_of(found.spaces, found.chosen)
    names = limits_of(space, found.chosen.workers)
    top = "step" if found.step is not None else "target"
    names = [top if name == "step" else name for name in names]
    if share is not None:  # what was measured has the last word
        others = [name for name in names if name != top]
        names = [top, *others] if found.keeps_up else [*others, top]
    errors = [abs(trial.error) for trial in found.trials if trial.error is not None]
    formats = _formats(found)
    other = worth_it(found, formats)
    findings = findings_of(found, space, names[0], share)
    return Profile(
        setting=setting,
        rate=rate.middle,
        rate_interval=(rate.low, rate.high),
        loader_rate=found.alone.middle,
        step_rate=None if found.step is None else found.step.rate.middle,
        ceiling=ceiling,
        share=share,
        limit=names[0],
        next_limit=names[1] if len(names) > 1 else "nothing known",
        prediction_error=statistics.median(errors) if errors else None,
        verdict=sentence_of(found, space, names, share, other),
        convert_to=None if other is None else formats_given[formats.index(other)],
        findings=findings,
        not_measured=_not_measured(found, space),
        work=work,
        environment=environment(work["device"]),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        evidence=_evidence(found, formats),
    )


def _formats(found: Found) -> list[dict[str, Any]]:
    """The other formats beside what is in use: rate, what converting costs, when it is repaid."""
    home = found.subjects[0]
    rows = []
    for subject in found.subjects[1:]:
        spaces = [space for space in found.spaces if space.subject is subject]
        tried = [trial for trial in found.trials if trial.candidate.subject == subject.name]
        rated = [trial for trial in tried if trial.rates]
        gain = rated[0].gain if rated else None
        before = found.rate.middle
        if rated:
            rate = statistics.median(rated[0].rates)
            before = statistics.median(rated[0].beside or [before])
        else:
            best = [(one, one.best()) for one in spaces]
            rate = max((one.rate(c) for one, c in best if c is not None), default=0.0)
        if found.ceiling is not None and found.step is None:
            rate, before = min(rate, found.ceiling), min(before, found.ceiling)
        saved = home.epoch / before - home.epoch / rate if rate and before else 0.0
        rows.append(
            {
                "name": subject.name,
                "rate": rate,
                "measured": bool(rated),
                "gain": None if gain is None else [gain.middle, gain.low, gain.high],
                "convert_seconds": subject.convert_seconds,
                "seconds_saved_an_epoch": saved,
                "repaid": repaid(subject.convert_seconds, saved),
            }
        )
    return rows


def _not_measured(found: Found, space: Space) -> dict[str, str]:
    missing = dict(space.probes.missing)
    if found.step is None:
        missing["step"] = "no step was given"
    if isinstance(found.beside, str):
        missing["step while workers run"] = found.beside
    device = space.subject.device
    if not found.final.busy:
        reason = why_not_watched(device) or "the blocks were too short"
        missing["GPU utilisation"] = reason
    if not found.final.sm_active:
        missing["SM activity"] = why_not_watched(device) or "the GPU or its driver gives none"
    for trial in found.trials:
        if not trial.rates:
            missing[trial.candidate.words()] = found.stopped
    return missing


def _evidence(found: Found, formats: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that was measured, as plain JSON values."""
    spaces = []
    for space in found.spaces:
        counts = space.counts() or [space.base.workers]
        spaces.append(
            {
                "subject": space.subject.name,
                "engine": space.engine,
                "stages": {
                    name: {"cpu": cost.cpu, "blocked": cost.blocked, "wall": cost.wall}
                    for name, cost in space.probes.stages.items()
                },
                "not_measured": space.probes.missing,
                "worker": asdict(space.probes.worker),
                "start_seconds": space.probes.start,
                "curve": [[count, space.model.rate(count)] for count in counts],
                "in_a_worker": sorted(worker_stages(space)),
            }
        )
    step = None
    if found.step is not None:
        beside = None if isinstance(found.beside, str) else asdict(found.beside)
        step = {**asdict(found.step.rate), "beside_workers": beside}
    gain = found.final.gain
    return {
        "limits": found.limits.to_json(),
        "step": step,
        "spaces": spaces,
        "trials": [_row(found, trial) for trial in found.trials],
        "dropped": [
            {"setting": candidate.words(), "subject": candidate.subject, "reason": reason}
            for space in found.spaces
            for candidate, reason in list(space.dropped.items())[:1]
        ],
        "refused": {subject.name: subject.refused for subject in found.subjects},
        "formats": formats,
        "chosen": found.chosen.words(),
        "chosen_to_incumbent": None if gain is None else asdict(gain),
        "stopped": found.stopped,
        "seconds": {"budget": found.seconds[0], "start_up": found.seconds[1]},
    }


def _row(found: Found, trial: Trial) -> dict[str, Any]:
    return {
        "subject": trial.candidate.subject,
        "setting": trial.candidate.words(),
        "workers": trial.candidate.workers,
        "engine": trial.candidate.engine,
        "incumbent": trial.candidate == found.incumbent,
        "chosen": trial.candidate == found.chosen,
        "predicted": trial.predicted,
        "rate": asdict(interval(trial.rates)) if trial.rates else None,
        "blocks": trial.rates,
        "error": trial.error,
        "to_incumbent": None if trial.gain is None else asdict(trial.gain),
        "wait_p50": trial.wait(50),
        "wait_p95": trial.wait(95),
        "start_seconds": trial.start_seconds,
        "gpu_utilisation": statistics.mean(trial.busy) if trial.busy else None,
        "sm_activity": statistics.mean(trial.sm_active) if trial.sm_active else None,
    }
