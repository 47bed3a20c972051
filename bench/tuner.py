"""The tuner's choice beside an exhaustive grid.

    python -m bench.tuner SRC [--device cpu|cuda] [--budget 60] [--seconds 2] [--rounds 3]
        [--prefetch 2,4] [--counts 0,1,...] [--batch 128] [--images 4000] [--setups LIST]
        [--limit SECONDS] [--json FILE]

SRC is a folder of photographs with a folder per class. A set-up is a format of them, the rate of a
step, and the CPUs that may be used; each runs in a process of its own, bound to its CPUs. There the
tuner chooses first. Then every engine, number of workers and prefetch of a grid is run beside the
others, in interleaved rounds; and last the best three of the grid beside the tuner's choice and
make_loader's own, in rounds of their own, because the best of many noisy figures is too good. The
step takes the time that its rate says and none of the CPU, as a GPU's would: it sleeps, or on CUDA
keeps the GPU busy.

Each set-up is saved as soon as it is measured, so the others may be left to another run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.environment import environment, facts
from bench.measure import ratio, save
from bench.sets import Sets

__all__ = ["ENOUGH", "TITLE"]

_SETUPS = {  # name -> set, format, step's rate (0: none, as fast as it goes), share of the CPUs
    "folder, slow step": ("s256", "folder", 600, 1.0),
    "folder, fast step": ("s256", "folder", 20_000, 1.0),
    "webdataset, fast step": ("s256", "webdataset", 20_000, 1.0),
    "webdataset, fast step, half the CPUs": ("s256", "webdataset", 20_000, 0.5),
    "memmap, fast step": ("raw256", "memmap", 20_000, 1.0),
    "memmap, fast step, half the CPUs": ("raw256", "memmap", 20_000, 0.5),
    "webdataset 32x32, fast step": ("t32", "webdataset", 200_000, 1.0),
    "memmap 32x32, medium step, half the CPUs": ("raw32", "memmap", 50_000, 0.5),
}
_FINALISTS = 3
ENOUGH = 0.95  # of the best of the grid
TITLE = "tuner beside a grid"  # of a set-up's table, before its name


def main() -> None:
    arguments = _arguments()
    if arguments.one is not None:
        _one_setup(arguments)
        return
    machine = environment(arguments)
    print(facts(machine))
    rows, end = [], time.monotonic() + arguments.limit
    with tempfile.TemporaryDirectory(prefix="bench-tuner-") as scratch:
        sets = Sets(arguments, Path(scratch))
        for name in arguments.setups.split(";") if arguments.setups else _SETUPS:
            if time.monotonic() > end:
                print(f"{name}: left out: --limit was reached")
                continue
            kind, to, _, _ = _SETUPS[name]
            data = sets.folder(kind) if to == "folder" else sets.dataset(kind, to)
            row = _measured(arguments, name, data)
            if row is None:
                print(f"{name}: failed, see above")
                continue
            _show(name, row)
            save(arguments.json, machine, [{"title": f"{TITLE}: {name}", "rows": {name: row}}])
            rows.append(row)
    reached = sum(row["reached"] >= ENOUGH for row in rows)
    errors = [abs(error) for row in rows for error in row["errors"]]
    error = statistics.median(errors) if errors else float("nan")
    print(f"\n{reached} of {len(rows)} set-ups reach {ENOUGH:.0%} of the best of the grid")
    print(f"median prediction error over {len(errors)} trials: {error:.0%}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one block of the grid")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prefetch", default="2,4", help="of the grid")
    parser.add_argument(
        "--counts",
        default="0,1,2,3,4,6,8,12,16,24,32",
        help="of workers of the grid, up to twice the CPUs; and the CPUs, and twice",
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds, after which no set-up begins"
    )
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument(
        "--workers", type=int, default=len(os.sched_getaffinity(0)), help="to make images"
    )
    parser.add_argument("--images", type=int, default=4000, help="of an epoch, by repetition")
    parser.add_argument("--setups", help=f"separated by ';', of: {'; '.join(_SETUPS)}")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # this process measures one set-up
    return parser.parse_args()


def _measured(arguments: argparse.Namespace, name: str, data: Path) -> dict[str, Any] | None:
    """One set-up, by a process that may use its share of the CPUs; None where that fails."""
    cpus = sorted(os.sched_getaffinity(0))
    cpus = cpus[: max(1, int(_SETUPS[name][3] * len(cpus)))]
    command = [sys.executable, "-W", "ignore", "-m", "bench.tuner", str(data), "--one", name]
    for option in ("device", "budget", "seconds", "rounds", "prefetch", "counts", "batch"):
        command += [f"--{option}", str(getattr(arguments, option))]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, cpus),
    )
    return None if done.returncode else json.loads(done.stdout.splitlines()[-1])


def _one_setup(arguments: argparse.Namespace) -> None:
    """Print one set-up's row as JSON."""
    from fastdata import open_dataset, tune
    from fastdata.tuning.datasets import LoaderSubject
    from fastdata.tuning.subjects import Candidate
    from fastdata.tuning.trials import Pools, Trial, run_block, run_rounds

    kind, _, rate, _ = _SETUPS[arguments.one]
    recipe = "cifar-train" if kind in ("t32", "raw32") else "imagenet-train"
    dtype = "uint8" if arguments.device == "cpu" else None
    options: dict[str, Any] = {"recipe": recipe, "device": arguments.device, "dtype": dtype}
    step = _step(arguments.batch / rate, arguments.device)
    began = time.monotonic()
    profile = tune(
        arguments.src, arguments.batch, step=step, budget=arguments.budget, save=False, **options
    )
    seconds = time.monotonic() - began
    subject = LoaderSubject("data", open_dataset(arguments.src), arguments.batch, options)
    chosen = Candidate(
        "data",
        profile.setting["engine"],
        profile.setting["num_workers"],
        profile.setting["prefetch_factor"],
        tuple(profile.setting["engine_options"].items()),
    )
    default = subject.incumbent()
    grid = {
        Candidate("data", engine, workers, prefetch)
        for engine in subject.engines
        for workers in _counts(arguments, engine)
        for prefetch in map(int, arguments.prefetch.split(","))
    } | {chosen, default}
    pools = Pools([subject])

    def run(candidates: list[Candidate], rounds: int) -> dict[Candidate, Trial]:
        trials = {candidate: Trial(candidate, 0.0) for candidate in candidates}

        def block(trial: Trial) -> None:
            feed = pools.feed(trial.candidate)
            run_block(trial, feed, step, subject, arguments.seconds)

        run_rounds(list(trials.values()), block, rounds, lambda done: True)
        return trials

    try:
        pools.start(list(grid))
        trials = run(sorted(grid, key=lambda one: one.words()), arguments.rounds)
        ranked = sorted(grid, key=lambda one: -statistics.median(trials[one].rates))
        last = dict.fromkeys([*ranked[:_FINALISTS], chosen, default])
        finalists = run(list(last), 2 * arguments.rounds)
    finally:
        pools.close()
        subject.close()
    best = max(finalists, key=lambda one: statistics.median(finalists[one].rates))
    reached = ratio(finalists[chosen].rates, finalists[best].rates)
    by_default = ratio(finalists[default].rates, finalists[best].rates)
    row = {
        "cpus": len(os.sched_getaffinity(0)),
        "cells": len(grid),
        "chosen": chosen.words(),
        "chosen_rates": finalists[chosen].rates,
        "best": best.words(),
        "best_rates": finalists[best].rates,
        "default": default.words(),
        "default_rates": finalists[default].rates,
        "default_reached": by_default[0],
        "reached": reached[0],
        "reached_interval": reached[1:],
        "grid": {one.words(): trial.rates for one, trial in trials.items()},
        "verdict": profile.verdict,
        "errors": [
            trial["error"] for trial in profile.evidence["trials"] if trial["error"] is not None
        ],
        "tuner_seconds": seconds,
        "budget_seconds": profile.evidence["seconds"]["budget"],
        "load": os.getloadavg()[0],
    }
    print(json.dumps(row))


def _counts(arguments: argparse.Namespace, engine: str) -> list[int]:
    """Numbers of workers of the grid."""
    if engine == "direct":
        return [0]
    cpus = len(os.sched_getaffinity(0))
    counts = {*map(int, arguments.counts.split(",")), cpus, 2 * cpus}
    least = 1 if engine.startswith("dali") else 0
    return sorted(count for count in counts if least <= count <= 2 * cpus)


def _step(seconds: float, device: str) -> Callable[[Any], None]:
    """A step that takes so long and leaves the CPU alone."""
    if device == "cpu":
        return lambda batch: time.sleep(seconds)
    import torch

    matrix = torch.ones(2048, 2048, device=device, dtype=torch.float16)
    torch.cuda.synchronize()
    began, trial = time.perf_counter(), 200
    for _ in range(trial):
        matrix @ matrix
    torch.cuda.synchronize()
    turns = max(1, round(seconds / ((time.perf_counter() - began) / trial)))

    def step(batch: Any) -> None:
        for _ in range(turns):
            matrix @ matrix

    return step


def _show(name: str, row: dict[str, Any]) -> None:
    low, high = row["reached_interval"]
    errors = ", ".join(f"{error:+.0%}" for error in row["errors"])
    print(
        f"\n{name} ({row['cpus']} CPUs, {row['cells']} cells, load {row['load']:.1f})\n"
        f"  tuner  {row['chosen']:38}{statistics.median(row['chosen_rates']):>10,.0f} samples/s\n"
        f"  grid   {row['best']:38}{statistics.median(row['best_rates']):>10,.0f}\n"
        f"  reached {row['reached']:.1%} [{low:.1%}, {high:.1%}], "
        f"{row['default_reached']:.1%} by default ({row['default']}); errors {errors}; "
        f"{row['budget_seconds']:.0f} s of budget, {row['tuner_seconds']:.0f} s in all\n"
        f"  {row['verdict']}",
        flush=True,
    )


if __name__ == "__main__":
    main()
