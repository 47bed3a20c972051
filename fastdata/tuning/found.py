"""What a search has found out, before it is put into words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastdata.tuning.candidates import Space
from fastdata.tuning.ceiling import StepRate
from fastdata.tuning.limits import Limits
from fastdata.tuning.subjects import Candidate, Subject
from fastdata.tuning.trials import Interval, Trial, interval

__all__ = ["ENOUGH", "GAIN", "Found", "space_of"]

ENOUGH = 0.97  # of the ceiling: nothing is left to gain
GAIN = 0.03  # what is less is not worth a trial, and no difference between two settings


@dataclass
class Found:
    """All that a search has found out.

    Attributes:
        limits: of this machine.
        subjects: what was looked at; the first one is what is tuned, the others are other formats.
        spaces: engine by engine of each: probes, model, and what did not fit.
        incumbent: what is in use.
        chosen: what to use: the incumbent, unless another one was faster beyond doubt.
        trials: of the rounds.
        final: what decided: the chosen setting's blocks, with those of the incumbent beside them.
        fits: whether the incumbent fits this machine and was tried.
        step: None where there is none.
        beside: the step's rate while workers run; a reason where that was not measured.
        ceiling: samples a second of the step or the target; None: neither.
        alone: samples a second of the chosen setting without the step.
        stopped: why the search ended.
        seconds: spent within the budget, and outside of it.
    """

    limits: Limits
    subjects: Sequence[Subject]
    spaces: list[Space]
    incumbent: Candidate
    chosen: Candidate
    trials: list[Trial]
    final: Trial
    fits: bool
    step: StepRate | None
    beside: Interval | str
    ceiling: float | None
    alone: Interval
    stopped: str
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def rate(self) -> Interval:
        """Of the chosen setting in the loop. Never more than the loader alone can keep up: a slow
        step sees batches that were ready before for a long time."""
        found = interval(self.final.rates)
        if self.step is not None and self.alone.high < found.low:
            return self.alone
        return found

    @property
    def keeps_up(self) -> bool:
        """Whether the loader reaches the ceiling, as far as anybody can tell; no without one."""
        return self.ceiling is not None and self.rate.high >= ENOUGH * self.ceiling


def space_of(spaces: Sequence[Space], candidate: Candidate) -> Space:
    """The space that a setting belongs to."""
    return next(
        space
        for space in spaces
        if (space.subject.name, space.engine) == (candidate.subject, candidate.engine)
    )
