"""The part of bench.engines that needs a GPU: every engine's loading, its check, and training.

    python -m bench.engines SRC --device cuda [--workers N] [--rounds 3] [--seconds 5]
        [--engines direct:host,workers,...] [--models resnet50,resnet18|none] [--limit SECONDS] ...

Loading: normalised float16 batches of 512 at 224x224 on the GPU, images/s and CPU seconds per
10,000 images (of the process and its children, and of the thread that asks for batches), from the
end of the first epoch over at least two epochs and 50 batches. "dali:coarse" and "dali_files" do
not interpolate colours, which is DALI's default; "dali" and "dali_files:fancy" do. In the
first round the first batch is compared, in the same process, with what the engine "workers" makes
of it on the CPU in float32; DALI, which decodes and reduces otherwise, in the mean only. The
synthetic bound is a copy of a batch in the GPU's own memory.

Training: ResNet-50 and ResNet-18, SGD, bf16 autocast, channels_last. Stretches of steps on a cached
batch and on the loader's take turns; the figure is the median of the pairs' ratios.

Each measurement is a process of its own, see bench.engines_cuda_run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bench.engines_cuda_run import OTHER_WORK, PEERS, tolerance
from bench.measure import interleave, last_line, ratio, report, spread
from bench.peers.common import RAW_SETS

__all__ = ["compare_on_gpu"]


def compare_on_gpu(arguments: argparse.Namespace, sets: Any) -> Iterator[dict[str, Any]]:
    """Measure every engine on every set; prints the tables, and gives each when it is there.

    Args:
        arguments: of bench.engines.
        sets: its Sets.
    """
    end = time.monotonic() + arguments.limit
    for name in arguments.sets.split(","):
        if name.endswith("32"):
            print(f"  {name}: left out; on the GPU the photographs' sets are measured")
            continue
        words = [str(arguments.batch), str(arguments.workers), str(arguments.seconds)]
        names = arguments.engines or _names(name)
        missing: dict[str, str] = {}
        able = _able({one: _place(name, one, sets) for one in names}, words, missing)
        if able:
            yield _loading(name, able, words, arguments.rounds, end, missing)
            models = [] if arguments.models == "none" else arguments.models.split(",")
            ours = {one: place for one, place in able.items() if one not in PEERS}
            yield from _training(name, ours, models, words, arguments.rounds, end)
        sets.forget(name)


def _names(name: str) -> list[str]:
    """Engines, other choices of theirs than "auto" would make, and for JPEGs what others do."""
    from fastdata.registry import ENGINES

    names = list(ENGINES)
    if name in RAW_SETS:
        return [*names, "direct:host"]
    return [*names, "dali@lmdb", "dali@folder", "dali:coarse", *PEERS]


def _place(set_name: str, name: str, sets: Any) -> Path:
    """What a contestant reads."""
    form = "folder" if name in PEERS else name.partition("@")[2]
    return sets.folder(set_name) if form == "folder" else sets.dataset(set_name, form)


def _able(places: dict[str, Path], words: list[str], missing: dict[str, str]) -> dict[str, Path]:
    """Those that can load on this machine; prints what the others say, and adds it to ``missing``
    where it is not the work itself that an engine has nothing to do with."""
    able = {}
    several = max(2, len(os.sched_getaffinity(0)) // 2)
    with ThreadPoolExecutor(several) as pool:  # each is the start of a process; none is timed
        every = pool.map(lambda one: _run(["check", one, str(places[one]), *words]), places)
        checks = dict(zip(places, every, strict=True))
    for name, place in places.items():
        done = checks[name]
        if done.returncode:
            why = last_line(done.stderr)
            print(f"  {name}: {why}")
            if not why.startswith(OTHER_WORK):
                missing[name] = why
        else:
            able[name] = place
    return able


def _loading(
    name: str,
    places: dict[str, Path],
    words: list[str],
    rounds: int,
    end: float,
    missing: dict[str, str],
) -> dict[str, Any]:
    notes: dict[str, list[dict[str, Any]]] = {one: [] for one in ("synthetic", *places)}
    extra = {}
    for one in places:
        if one.startswith("dali_files"):
            best = _result(["sweep", one, str(places[one]), *words])
            print(f"  {one}: {best or 'its sweep failed'}")
            if best:
                extra[one] = ["--load", str(best["load"]), "--threads", str(best["threads"])]

    def contestant(one: str) -> Callable[[], float]:
        def measure() -> float:
            place = str(places.get(one, "-"))
            checked = ["--unchecked"] if notes[one] else []  # once is enough
            result = _result(["load", one, place, *words, *extra.get(one, []), *checked])
            if not result:
                return math.nan
            notes[one].append(result)
            return result["rate"]

        return measure

    rates = interleave({one: contestant(one) for one in notes}, rounds, end)
    failed = [one for one, measured in rates.items() if any(map(math.isnan, measured))]
    missing |= dict.fromkeys(failed, "it failed in one of the rounds")
    rates = {one: measured for one, measured in rates.items() if one not in failed}
    title = f"{name}: images/s on the GPU, float16 224x224, batch {words[0]}, {words[1]} workers"
    baseline = next((one for one in PEERS if one in rates), list(rates)[-1])
    table = report(title, rates, baseline, "images/s", None)
    print(
        f"  {'':28}{'CPU s per 10,000':>17}  {'own':>5}  {'1st batch':>9}  "
        "greatest difference to the CPU"
    )
    for one in rates:
        results = notes[one]
        cpu = statistics.median(result["cpu_seconds"] for result in results)
        own = statistics.median(result["own_seconds"] for result in results)
        first = statistics.median(result["first"] for result in results)
        worst = max(result.get("difference", 0.0) for result in results)
        compared = "difference" in results[0]
        says = f"{worst:.4f} (allowed {tolerance():.4f})" if compared else "-"
        print(f"  {one:28}{cpu:>17.2f}  {own:>5.2f}  {first:>7.1f} s  {says}")
        table["rows"][one] |= {"runs": results, "settings": extra.get(one)}
    return table | {"tolerance": tolerance(), "missing": missing}


def _training(
    name: str,
    places: dict[str, Path],
    models: list[str],
    words: list[str],
    rounds: int,
    end: float,
) -> Iterator[dict[str, Any]]:
    for model in models:
        rows, missing = {}, {}
        print(f"\n{name}: {model}, bf16, batch {words[0]}: images/s")
        print(f"  {'':28}{'cached':>9}  {'fed':>9}  ratio [{spread(rounds)}]")
        for one, place in places.items():
            if time.monotonic() > end:
                missing[one] = "--limit was reached"
                continue
            options = ["--model", model, "--rounds", str(rounds)]
            pairs = _result(["train", one, str(place), *words, *options])
            if not pairs:
                missing[one] = "it failed"
                continue
            cached, fed = pairs["cached"], pairs["fed"]
            middle, low, high = ratio(fed, cached)
            print(
                f"  {one:28}{statistics.median(cached):>9,.0f}  {statistics.median(fed):>9,.0f}  "
                f"{middle:.3f} [{low:.3f}, {high:.3f}]"
            )
            rows[one] = {**pairs, "ratio": [middle, low, high]}
        if rows:
            title = f"{name}: {model} fed to cached"
            yield {"title": title, "unit": "images/s", "rows": rows, "missing": missing}


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.engines_cuda_run", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def _result(words: list[str]) -> dict[str, Any] | None:
    """What it prints; None where it failed, which is printed."""
    done = _run(words)
    if done.returncode:
        print(f"  {' '.join(words)} failed: {last_line(done.stderr)}")
        return None
    return json.loads(done.stdout.splitlines()[-1])
