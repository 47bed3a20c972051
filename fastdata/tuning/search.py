"""The search: limits, probes, the ceiling, a prediction, and then trials; all within a budget.

What starts processes is outside of the budget and reported by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from fastdata.errors import UsageError
from fastdata.tuning.candidates import MOST_TRIALS, Space, pick
from fastdata.tuning.ceiling import StepRate, time_beside, time_step
from fastdata.tuning.found import ENOUGH, GAIN, Found, space_of
from fastdata.tuning.limits import busy_cpus, read_limits
from fastdata.tuning.model import NOTHING, Model
from fastdata.tuning.subjects import Subject
from fastdata.tuning.trials import Interval, Pools, Trial, interval, ratio, run_block, run_rounds

__all__ = ["Search"]

_PROBE, _STEP, _BESIDE, _LOOK, _ALONE = 0.15, 0.05, 0.04, 0.06, 0.04  # shares of the budget
_IDLE, _IDLE_SECONDS = 0.02, 1.0  # in which others are looked at: of the budget, and at most
_ROUNDS, _LEAST_ROUNDS, _MOST_ROUNDS = 5, 3, 15  # planned, and what it may become
_OVERHEAD = 1.7  # of a block: what comes before it is counted, and the end of an epoch
_LEAST_BLOCK, _MOST_BLOCK = 0.05, 4.0  # seconds
_UNEVEN, _WAITING = 2.0, 0.03  # waits whose p95 is so many times the p50, and cost so much time

Report = Callable[[str], None]


class _Budget:
    """Seconds that may be spent, not counting what is done :meth:`outside`."""

    def __init__(self, seconds: float) -> None:
        self.total = seconds
        self._end = time.perf_counter() + seconds
        self.outside_seconds = 0.0

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()

    def give_back(self, seconds: float) -> None:
        """What was spent starting something."""
        self._end += seconds
        self.outside_seconds += seconds

    @contextmanager
    def outside(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.give_back(time.perf_counter() - began)


class Search:
    """One search; :meth:`run` leaves no process behind, however it ends."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        *,
        step: Callable[[Any], Any] | None,
        target_rate: float | None,
        budget: float,
        report: Report,
    ) -> None:
        """
        Args:
            subjects: the first one is tuned, the others are other formats of the same data.
            step: of the training, on one batch.
            target_rate: samples a second to reach, where there is no step.
            budget: seconds.
            report: told what is going on, a line at a time.
        """
        self._subjects = subjects
        self._home = subjects[0]
        self._step, self._target = step, target_rate
        self._budget_seconds = budget
        self._report = report
        self._incumbent = self._home.incumbent()
        self._pools = Pools(subjects)
        self._step_rate: StepRate | None = None
        self._beside: Interval | str = "there is no step"

    def run(self) -> Found:
        """Search.

        Raises:
            UsageError: no setting fits this machine.
            Exception: whatever the step or the data raise.
        """
        self._budget = _Budget(self._budget_seconds)
        began = time.perf_counter()
        try:
            found = self._run()
        finally:
            self._pools.close()
        outside = self._budget.outside_seconds
        found.seconds = (time.perf_counter() - began - outside, outside)
        return found

    def _run(self) -> Found:
        self._limits = replace(
            read_limits(), others=busy_cpus(min(_IDLE_SECONDS, _IDLE * self._budget.total))
        )
        self._report(
            f"limits: {self._limits.words()}; others keep {self._limits.others:.1f} CPUs busy"
        )
        if self._step is not None:
            self._time_step(self._step)
        spaces = self._probe()
        picked = pick(spaces, self._incumbent)
        if not picked:
            reason = next(iter(spaces[0].dropped.values()), "nothing is known of it")
            raise UsageError(
                f"no setting of {self._home.name} fits this machine: {reason}; use a smaller "
                "batch_size, or free what is missing"
            )
        trials = [Trial(candidate, rate) for candidate, rate in picked]
        if trials[0].candidate == self._incumbent:
            self._measure_beside(spaces, trials[0])
            stopped = self._look(trials)
            if stopped is not None:
                return self._found(spaces, trials[:1], trials[0], stopped)
        return self._compare(spaces, trials)

    def _time_step(self, step: Callable[[Any], Any]) -> None:
        home, budget = self._home, self._budget
        with budget.outside():
            feed = home.open(replace(self._incumbent, workers=min(1, self._incumbent.workers)))
            try:
                feed.begin(1)
                self._batch = next(feed)
            finally:
                feed.close()
        self._step_rate = time_step(
            step, self._batch, home.batch_size, _STEP * budget.total, home.device
        )
        self._report(f"the step on a cached batch: {self._step_rate.rate.middle:,.0f} samples/s")

    def _probe(self) -> list[Space]:
        """What a sample costs, engine by engine, and the models that follow."""
        spaces = []
        count = sum(len(subject.engines) for subject in self._subjects)
        for subject in self._subjects:
            for engine in subject.engines:
                probes = subject.probe(engine, _PROBE * self._budget.total / count)
                self._budget.give_back(probes.start)
                model = Model(
                    worker=probes.worker,
                    main=probes.main,
                    cpus=self._limits.free_cpus,
                    step=NOTHING if self._step_rate is None else self._step_rate.host,
                    ceiling=self._ceiling,
                    # Each worker's first batch has to be made before any arrives.
                    pause=subject.batch_size * probes.worker.wall if subject.pauses else 0.0,
                    epoch=subject.epoch,
                    fixed=probes.fixed,
                )
                base = subject.base(engine, probes)
                if (base.subject, engine) == (self._incumbent.subject, self._incumbent.engine):
                    base = replace(base, prefetch=self._incumbent.prefetch)
                spaces.append(Space(subject, engine, probes, model, base, self._limits))
                self._report(
                    f"{subject.name}, {engine}: a sample takes {probes.worker.wall * 1e6:,.0f} us "
                    f"of a worker and {probes.main.wall * 1e6:,.0f} us of the training process"
                )
        return spaces

    @property
    def _ceiling(self) -> float | None:
        if self._step_rate is not None:
            return self._step_rate.rate.middle
        return self._target

    def _measure_beside(self, spaces: list[Space], trial: Trial) -> None:
        """The step while workers run; on a GPU that is the ceiling of the predictions to come."""
        self._start([trial])
        if self._step is None or self._step_rate is None:
            return
        if not trial.candidate.workers:
            self._beside = "the current setting has no workers"
            return
        candidate, home = trial.candidate, self._home
        feed = self._pools.feed(candidate)
        seconds = _BESIDE * self._budget.total
        self._beside = time_beside(
            self._step, self._batch, feed, candidate.workers, self._step_rate, home, seconds
        )
        self._report(f"the step while workers run: {self._beside.middle:,.0f} samples/s")
        if home.device.type == "cuda" and self._ceiling is not None:
            for space in spaces:
                ceiling = min(self._ceiling, self._beside.middle)
                space.model = replace(space.model, ceiling=ceiling)
            trial.predicted = space_of(spaces, candidate).rate(candidate)

    def _look(self, trials: list[Trial]) -> str | None:
        """Measure the incumbent alone; why nothing else has to be tried, or None."""
        mine = trials[0]
        seconds = self._block_seconds(_LOOK * self._budget.total / _LEAST_ROUNDS / _OVERHEAD)
        run_rounds([mine], lambda one: self._block(one, seconds), _LEAST_ROUNDS, lambda _: True)
        rate, ceiling = interval(mine.rates), self._ceiling
        self._report(f"the current setting: {rate.middle:,.0f} samples/s")
        if ceiling is not None and rate.low >= ENOUGH * ceiling:
            return f"the current setting reaches {ENOUGH:.0%} of the ceiling"
        gain = max(trial.predicted for trial in trials) / mine.predicted - 1
        if gain + abs(mine.error or 0.0) < GAIN:
            return f"no setting is predicted to gain {GAIN:.0%}"
        mine.rates.clear()  # the rounds' blocks are compared with each other
        mine.waits.clear()
        mine.waiting = mine.seconds = 0.0
        return None

    def _compare(self, spaces: list[Space], trials: list[Trial]) -> Found:
        self._start(trials)
        stopped = self._rounds(trials, 0.6)
        home = [trial for trial in trials if trial.candidate.subject == self._home.name]
        best = self._best(spaces, home)
        first = next((one for one in trials if one.candidate == self._incumbent), None)
        again = [best]
        refined = self._refined(spaces, trials, best)
        trials += refined
        again += refined
        self._start(refined)
        if first is None:
            return self._found(spaces, trials, best, stopped)
        if again == [first]:
            return self._found(spaces, trials, first, stopped)
        if first not in again:
            again.insert(0, first)
        confirmed = [Trial(one.candidate, one.predicted) for one in again]
        self._report("confirming: " + "; ".join(one.candidate.words() for one in confirmed))
        self._rounds(confirmed, 0.9)
        if refined:
            trials[-len(refined) :] = confirmed[-len(refined) :]
            for one, before in zip(confirmed[-len(refined) :], refined, strict=True):
                one.start_seconds = before.start_seconds
        mine = next(one for one in confirmed if one.candidate == self._incumbent)
        winner = self._best(spaces, confirmed)
        if winner is not mine:
            gain = ratio(winner.rates, mine.rates)
            if gain.low <= 1 or gain.middle < 1 + GAIN:
                winner = mine
                stopped = "no setting is faster than the current one beyond doubt"
        return self._found(spaces, trials, winner, stopped)

    def _rounds(self, trials: list[Trial], share: float) -> str:
        """Blocks in turn, for a share of what is left of the budget; why they ended."""
        budget, ended = self._budget, "the budget is spent"
        until = (1 - share) * budget.left
        seconds = self._block_seconds((budget.left - until) / (_ROUNDS * len(trials)) / _OVERHEAD)

        def more(done: int) -> bool:
            nonlocal ended
            if done < _LEAST_ROUNDS:
                return True
            highest = max(interval(trial.rates).low for trial in trials)
            if self._ceiling is not None and highest >= ENOUGH * self._ceiling:
                ended = f"a setting reaches {ENOUGH:.0%} of the ceiling"
                return False
            return budget.left - until > _OVERHEAD * len(trials) * seconds

        run_rounds(trials, lambda one: self._block(one, seconds), _MOST_ROUNDS, more)
        mine = [trial for trial in trials if trial.candidate == self._incumbent]
        for trial in trials:
            trial.beside = mine[0].rates if mine else []
        return ended

    def _refined(self, spaces: list[Space], trials: list[Trial], best: Trial) -> list[Trial]:
        """Settings that may be better than the best, by what its blocks have shown; no more than
        there are trials left: twice the prefetch where waits are uneven, else what the engine
        itself has to offer."""
        if len(self._subjects) > 1:  # the other formats have the trials
            return []
        if best.waiting < _WAITING * best.seconds:
            return []
        if best.candidate.workers and best.wait(95) > _UNEVEN * best.wait(50):
            found = [replace(best.candidate, prefetch=2 * best.candidate.prefetch)]
        else:
            found = self._home.refinements(best.candidate)
        space = space_of(spaces, best.candidate)
        fitting = [one for one in found if space.fits(one)]
        return [Trial(one, space.rate(one)) for one in fitting[: MOST_TRIALS - len(trials)]]

    def _best(self, spaces: list[Space], trials: list[Trial]) -> Trial:
        """The fastest; of those that nobody can tell from it, the one that takes least."""
        top = max(trials, key=lambda trial: interval(trial.rates).middle)

        def equal(trial: Trial) -> bool:
            against = ratio(trial.rates, top.rates)
            return against.high >= 1 and against.middle >= 1 - GAIN

        def takes(trial: Trial) -> tuple[int, int]:
            space = space_of(spaces, trial.candidate)
            return trial.candidate.workers, space.probes.need(trial.candidate).memory

        return min((one for one in trials if one is top or equal(one)), key=takes)

    def _start(self, trials: list[Trial]) -> None:
        """Start what is to run; how long each takes is part of its trial."""
        with self._budget.outside():
            self._pools.start([trial.candidate for trial in trials])
        for trial in trials:
            trial.start_seconds = self._pools.feed(trial.candidate).start_seconds or 0.0

    def _block(self, trial: Trial, seconds: float, alone: bool = False) -> None:
        subject = next(one for one in self._subjects if one.name == trial.candidate.subject)
        step = None if alone else self._step
        feed = self._pools.feed(trial.candidate)
        run_block(trial, feed, step, subject, seconds)

    @staticmethod
    def _block_seconds(seconds: float) -> float:
        return min(max(seconds, _LEAST_BLOCK), _MOST_BLOCK)

    def _found(
        self,
        spaces: list[Space],
        trials: list[Trial],
        winner: Trial,
        stopped: str,
    ) -> Found:
        alone = Trial(winner.candidate, winner.predicted)
        if self._step is None:
            alone = winner
        else:
            seconds = self._block_seconds(_ALONE * self._budget.total / _LEAST_ROUNDS)
            for _ in range(_LEAST_ROUNDS):
                self._block(alone, seconds, alone=True)
        return Found(
            limits=self._limits,
            subjects=self._subjects,
            spaces=spaces,
            incumbent=self._incumbent,
            chosen=winner.candidate,
            trials=trials,
            final=winner,
            fits=any(trial.candidate == self._incumbent for trial in trials),
            step=self._step_rate,
            beside=self._beside,
            ceiling=self._ceiling,
            alone=interval(alone.rates),
            stopped=stopped,
        )
