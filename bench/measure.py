"""Measuring side by side: interleaved rounds, medians, ratios with an interval, environment."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["environment", "interleave", "ratio", "report", "run_module", "save"]

_PACKAGES = (
    "numpy", "torch", "torchvision", "simplejpeg", "opencv-python-headless", "pillow", "lmdb",
)  # fmt: skip
_OPTIONAL = (
    "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg-cu12", "nvidia-nvjpeg",
)  # fmt: skip
_RESAMPLES = 2000


def environment() -> dict[str, Any]:
    """What a figure depends on besides the code: machine, versions, date."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    for package in _OPTIONAL:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "versions": versions,
    }


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
    """Median of the rounds' ratios, and a 90 % bootstrap interval of that median."""
    pairs = [a / b for a, b in zip(ours, theirs, strict=True)]
    sampler = random.Random(0)
    medians = sorted(
        statistics.median(sampler.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES)
    )
    return statistics.median(pairs), medians[_RESAMPLES // 20], medians[-_RESAMPLES // 20]


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
    print(f"  {'':28}{'median':>10}  {'min..max':>17}  ratio to {baseline} [90 % interval]")
    rows = {}
    for name, values in rates.items():
        middle, low, high = ratio(values, rates[baseline])
        spread = f"{min(values):,.0f}..{max(values):,.0f}"
        print(
            f"  {name:28}{statistics.median(values):>10,.0f}  {spread:>17}  "
            f"{middle:.2f} [{low:.2f}, {high:.2f}]"
        )
        rows[name] = {"samples": values, "ratio": [middle, low, high]}
    if target is not None:
        print(f"  target: {target}x")
    return {"title": title, "unit": unit, "baseline": baseline, "target": target, "rows": rows}


def save(path: Path | None, environment: dict[str, Any], tables: list[dict[str, Any]]) -> None:
    """Append one JSON line with all that was measured."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps({"environment": environment, "tables": tables}) + "\n")
