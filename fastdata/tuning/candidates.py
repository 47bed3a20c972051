"""Which settings are worth a trial: what the model says, among those that fit the machine."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from fastdata.tuning.limits import Limits
from fastdata.tuning.model import Model
from fastdata.tuning.subjects import Candidate, Probes, Subject

__all__ = ["MOST_TRIALS", "Space", "pick"]

MOST_TRIALS = 4
_MOST_WORKERS = 64
_ROOM = 2  # workers beyond those that the model can use
_HOPELESS = 0.7  # of the best prediction, which is hardly ever off by more


@dataclass
class Space:
    """One engine of one subject: its probes, its model and the settings of it that fit.

    Attributes:
        subject, engine, probes, model: of what.
        base: the setting that the others differ from in their number of workers.
        dropped: settings that cannot fit -> why; they get no trial.
    """

    subject: Subject
    engine: str
    probes: Probes
    model: Model
    base: Candidate
    limits: Limits
    dropped: dict[Candidate, str] = field(default_factory=dict)

    def with_workers(self, workers: int) -> Candidate:
        """The setting with so many workers."""
        return replace(self.base, workers=workers)

    def counts(self) -> list[int]:
        """Numbers of workers that fit; those that do not are noted in :attr:`dropped`."""
        if self.model.fixed is not None:
            return [self.base.workers]
        waiting = self.probes.worker.wall / max(self.probes.worker.cpu, 1e-9)
        useful = math.ceil(self.limits.cpus * max(1.0, waiting)) + _ROOM
        most = max(min(useful, _MOST_WORKERS), self.base.workers)
        least = 0 if self.engine != "dali-cpu" else 1  # DALI always has a thread
        return [count for count in range(least, most + 1) if self.fits(self.with_workers(count))]

    def fits(self, candidate: Candidate) -> bool:
        """Whether a setting can be tried; if not, it is noted why."""
        reason = self.limits.refusal(self.probes.need(candidate))
        if reason is not None:
            self.dropped[candidate] = reason
        return reason is None

    def rate(self, candidate: Candidate) -> float:
        """Predicted samples a second."""
        return self.model.rate(candidate.workers)

    def best(self) -> Candidate | None:
        """The fewest workers that reach what the model allows; None where nothing fits."""
        counts = self.counts()
        return self.with_workers(self.model.best(counts)) if counts else None


def pick(spaces: list[Space], incumbent: Candidate) -> list[tuple[Candidate, float]]:
    """The settings to try first and their predicted rates: the incumbent, where it fits, and the
    best of each engine of each subject, in the order of what is predicted.

    Where there are too few of those, neighbours of the best: a model may be off by one. Of one
    subject there are three at most, because the fourth trial is for what these suggest.
    """
    found: dict[Candidate, float] = {}
    home = [space for space in spaces if space.subject.name == incumbent.subject]
    for space in home:
        if space.engine == incumbent.engine and space.fits(incumbent):
            found[incumbent] = space.rate(incumbent)
    ranked = [(space, candidate) for space in spaces if (candidate := space.best()) is not None]
    ranked.sort(key=lambda pair: -pair[0].rate(pair[1]))
    highest = ranked[0][0].rate(ranked[0][1]) if ranked else 0.0
    ranked.sort(key=lambda pair: pair[0] not in home)  # stable: what is to be tuned comes first
    subjects = set()
    for space, candidate in ranked:
        first = space.subject.name not in subjects  # of another format one setting is enough
        subjects.add(space.subject.name)
        if first or (space in home and space.rate(candidate) > _HOPELESS * highest):
            found.setdefault(candidate, space.rate(candidate))
    for space, candidate in ranked:
        fitting = set(space.counts()) if space in home else set()
        for step in (1, -1, 2, -2):
            if candidate.workers + step in fitting and candidate in found:
                neighbour = space.with_workers(candidate.workers + step)
                found.setdefault(neighbour, space.rate(neighbour))
    return list(found.items())[: MOST_TRIALS if len(subjects) > 1 else MOST_TRIALS - 1]
