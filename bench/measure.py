"""Measuring side by side: interleaved rounds, medians, ratios with an interval."""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["interleave", "last_line", "ratio", "report", "run_module", "save", "spread"]

_RESAMPLES = 2000
_ENOUGH = 5  # rounds: the ends of fewer hold their median in less than 90 % of cases


def interleave(
    contestants: dict[str, Callable[[], float]], rounds: int, end: float = float("inf")
) -> dict[str, list[float]]:
    """Run every contestant once a round, so that a drift of the machine meets them all alike.

    Args:
        contestants: name -> a function that does its work once and returns its rate.
        rounds: number of rounds; the order within each is another.
        end: by time.monotonic; no round but the first is begun that would end later, if it took as
            long as the longest so far.

    Returns:
        name -> rates, one a round.
    """
    longest = 0.0
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    order, shuffler = list(contestants), random.Random(0)
    for number in range(rounds):
        began = time.monotonic()
        if number and began + longest > end:
            print(f"  {number} of {rounds} rounds: there is no time for another one")
            break
        shuffler.shuffle(order)
        for name in order:
            rates[name].append(contestants[name]())
        longest = max(longest, time.monotonic() - began)
    return rates


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """Median of the rounds' ratios, and a 90 % bootstrap interval of that median; of fewer than
    five rounds that is no more than the lowest and the highest, see :func:`spread`."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    sampler = random.Random(0)
    medians = sorted(
        statistics.median(sampler.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES)
    )
    return statistics.median(pairs), medians[_RESAMPLES // 20], medians[-_RESAMPLES // 20]


def spread(rounds: int) -> str:
    """What the two figures behind a ratio are."""
    return "90 % interval" if rounds >= _ENOUGH else "lowest, highest"


def last_line(text: str) -> str:
    """What a process printed last."""
    return (text.strip().splitlines() or ["nothing was printed"])[-1]


def run_module(module: str, arguments: list[str]) -> float:
    """Run ``python -m module`` in a process of its own; the last line that it prints is a rate."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{module} {' '.join(arguments)} failed:\n{done.stderr}")
    return float(done.stdout.split()[-1])


def report(
    title: str, rates: dict[str, list[float]], baseline: str, unit: str, target: float | None
) -> dict[str, Any]:
    """Print a table of medians and of ratios to ``baseline``; return it as a JSON row."""
    print(f"\n{title}")
    print(f"  {'':28}{'median':>10}  {'min..max':>17}  ", end="")
    print(f"ratio to {baseline} [{spread(len(rates[baseline]))}]")
    rows = {}
    for name, values in rates.items():
        middle, low, high = ratio(values, rates[baseline])
        ends = f"{min(values):,.0f}..{max(values):,.0f}"
        print(
            f"  {name:28}{statistics.median(values):>10,.0f}  {ends:>17}  "
            f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        )
        rows[name] = {"samples": values, "ratio": [middle, low, high]}
    if target is not None:
        print(f"  target: {target}x")
    return {"title": title, "unit": unit, "baseline": baseline, "target": target, "rows": rows}


def save(path: Path | None, environment: dict[str, Any], tables: list[dict[str, Any]]) -> None:
    """Append one JSON line with all that was measured."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps({"environment": environment, "tables": tables}) + "\n")
