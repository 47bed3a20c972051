"""From a starving GPU to a full one: training on one GPU, a step at a time.

    python -m bench.ladder SRC [--models resnet18,resnet50] [--device cuda|cpu] [--batch 512]
        [--workers N] [--images 30000] [--steps 50] [--seconds 4] [--rounds 3] [--passes 1]
        [--rungs LIST] [--budget 20] [--limit SECONDS] [--out bench-report]

SRC is a folder of photographs with a folder per class; hard links repeat it up to --images. The
first rungs change what feeds the training, each beside the ceiling that the same process reaches on
a batch that stays on the GPU; all train with AMP (bf16; not on a CPU), channels_last, benchmark and
TF32. "The tuner's advice" is what fastdata tune says of the folder with both conversions beside it,
done. The last rungs change one of these alone, fed by the fastest loader.

    share       of the ceiling, measured in turns with it
    stretch     ends after --steps or --seconds, when each worker's batch was taken as often
    data wait   share of the time in which the GPU had no batch to work on (its own clock)
    epoch       1.28 million images, as ImageNet has, at this rate

A rung that cannot run here is listed with its reason. Without a GPU a small network stands in, and
what only a GPU has is "not measured". Each rung is a process of its own for each model; on a
machine that others use, too, several --passes over the whole ladder let its drift meet all alike.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.environment import environment, facts
from bench.ladder_rung import Rung
from bench.measure import last_line, ratio, spread
from bench.plots import Bar, bars
from bench.report import OUT, Table, publish
from bench.sets import Sets

_IMAGENET = 1_281_167
_ALL = ["amp", "channels_last", "benchmark", "tf32"]
_LIMIT = 300.0  # seconds of a rung besides tuning, which one does twice: nothing hangs
_FEEDING = {  # rung -> loader, source
    "DataLoader defaults": ("torch:default", "folder"),
    "workers": ("torch:workers", "folder"),
    "pin_memory + prefetch": ("torch:pinned", "folder"),
    "fastdata on the folder": ("workers", "folder"),
    "tuned profile": ("tuned", "folder"),
    "the tuner's advice": ("advised", "folder"),
    "converted JPEG": ("workers", "webdataset"),
    "memmap gather": ("gather", "memmap"),
    "DALI": ("dali", "webdataset"),
    "direct/host": ("direct:host", "memmap"),
    "direct/hbm": ("direct:hbm", "memmap"),
}
_TRAINING = {  # rung -> flags
    "float32": [],
    "float32 + TF32": ["tf32"],
    "float32 + channels_last": ["channels_last"],
    "float32 + cudnn.benchmark": ["benchmark"],
    "float32 + AMP": ["amp"],
    "all four": _ALL,
}
_FOR_A_GPU = ("pin_memory + prefetch", "float32 + TF32", "float32 + cudnn.benchmark")


def main() -> None:
    arguments = _arguments()
    machine = environment(arguments)
    print(facts(machine))
    end = time.monotonic() + arguments.limit
    with tempfile.TemporaryDirectory(prefix="bench-ladder-") as scratch:
        places = _places(arguments, Path(scratch))
        measured, missing = _climb(arguments, places, end)
    if not measured:
        raise SystemExit("no rung could run here; see the reasons above")
    parts: list[Table | str] = []
    for model in arguments.models:
        parts += _shown(arguments, model, measured, missing)
    for part in parts:
        if isinstance(part, Table):
            print(part.text())
    title = f"The ladder, batch {arguments.batch}, {arguments.device}"
    results = [{"title": title, "unit": "images/s", "rows": measured, "missing": missing}]
    publish(arguments.out, "ladder", title, machine, results, parts)


def _climb(
    arguments: argparse.Namespace, places: dict[str, str], end: float
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Rung -> what each model's processes printed, and the rungs without all of that -> why."""
    measured: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    for _ in range(arguments.passes):
        for name, model in itertools.product(arguments.rungs, arguments.models):
            if name in missing:
                continue
            if arguments.device == "cpu" and name in _FOR_A_GPU:
                result: dict[str, Any] | str = "it changes nothing on a CPU"
            elif time.monotonic() > end:
                result = "left out: --limit was reached"
            else:
                result = _measure(_rung(arguments, places, name, model))
            if isinstance(result, str):
                missing[name] = result
                print(f"  {name}: {result}")
                continue
            models = measured.setdefault(name, {"models": {}})["models"]
            pairs = models.setdefault(model, result | {"cached": [], "fed": []})
            for key in ("cached", "fed"):
                pairs[key] += result[key]
            print(f"  {name}: {model} at {_middle(pairs['fed'], 'rate'):,.0f} images/s", flush=True)
    for name in list(measured):  # in every model's table, or in none
        if len(measured[name]["models"]) < len(arguments.models):
            del measured[name]
        else:
            missing.pop(name, None)  # some passes went well
    return measured, missing


def _arguments() -> argparse.Namespace:
    import torch

    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if cuda else "cpu")
    parser.add_argument("--models", help="of torchvision, or small; cpu: small")
    parser.add_argument("--batch", type=int, help="cuda: 512; cpu: 64")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--images", type=int, help="at least so many; cuda: 30000, cpu: 2000")
    parser.add_argument("--steps", type=int, default=50, help="of a stretch, or --seconds")
    parser.add_argument("--seconds", type=float, default=4.0, help="and what workers make in turn")
    parser.add_argument("--rounds", type=int, default=3, help="stretches on either side")
    parser.add_argument("--passes", type=int, default=1, help="over all rungs")
    parser.add_argument("--rungs", default=",".join([*_FEEDING, *_TRAINING]))
    parser.add_argument("--budget", type=float, default=20.0, help="seconds for tuning")
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds, after which no rung begins"
    )
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    arguments.models = (arguments.models or ("resnet18,resnet50" if cuda else "small")).split(",")
    arguments.batch = arguments.batch or (512 if cuda else 64)
    arguments.images = arguments.images or (30_000 if cuda else 2_000)
    arguments.rungs = arguments.rungs.split(",")
    for name in arguments.rungs:
        if name not in _FEEDING and name not in _TRAINING:
            known = ",".join([*_FEEDING, *_TRAINING])
            parser.error(f"--rungs: expected some of {known}, found {name!r}")
    return arguments


def _places(arguments: argparse.Namespace, scratch: Path) -> dict[str, str]:
    """The folder, and both conversions of it."""
    from fastdata import convert

    folder = Sets(arguments, scratch).folder("orig")
    places = {"folder": folder, "webdataset": scratch / "webdataset", "memmap": scratch / "memmap"}
    made = convert(folder, places["webdataset"], resize=256)
    print(f"{made.samples:,} images; to webdataset in {made.seconds:.0f} s", end="")
    made = convert(folder, places["memmap"], to="memmap", size=256)
    print(f", to memmap in {made.seconds:.0f} s")
    return {name: str(place) for name, place in places.items()}


def _rung(arguments: argparse.Namespace, places: dict[str, str], name: str, model: str) -> Rung:
    fastest = ("direct:hbm" if arguments.device == "cuda" else "gather", "memmap")
    loader, source = _FEEDING.get(name, fastest)
    return Rung(
        loader=loader,
        place=places[source],
        others=[places["webdataset"], places["memmap"]] if loader == "advised" else [],
        flags=_TRAINING.get(name, _flags(arguments.device)),
        model=model,
        device=arguments.device,
        batch=arguments.batch,
        workers=arguments.workers,
        steps=arguments.steps,
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        budget=arguments.budget,
    )


def _flags(device: str) -> list[str]:
    """What all rungs that are about feeding train with; most CPUs only emulate bf16."""
    return [flag for flag in _ALL if flag != "amp" or device == "cuda"]


def _measure(rung: Rung) -> dict[str, Any] | str:
    """What the rung's process prints, or why it could not run."""
    command = [sys.executable, "-m", "bench.ladder_rung", json.dumps(asdict(rung))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT + 2 * rung.budget
        )
    except subprocess.TimeoutExpired as expired:
        return f"ended after {expired.timeout:.0f} s; try fewer --steps or less --seconds"
    if done.returncode:
        return last_line(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _middle(stretches: list[dict[str, Any]], key: str) -> float:
    return statistics.median(stretch[key] for stretch in stretches)


def _shown(
    arguments: argparse.Namespace,
    model: str,
    measured: dict[str, dict[str, Any]],
    missing: dict[str, str],
) -> list[Table | str]:
    """A model's table and plot."""
    ends = spread(arguments.rounds * arguments.passes)
    header = [
        "rung", "images/s", "ceiling", f"share [{ends}]", "GPU used", "SM activity", "data wait",
        "CPU, cores", "epoch, min", "to the first",
    ]  # fmt: skip
    rows, shown, first = [], [], 0.0
    for name in arguments.rungs:
        if name in missing:
            rows.append([name, *["-"] * (len(header) - 1)])
            continue
        pairs = measured[name]["models"][model]
        fed, cached = ([one["rate"] for one in pairs[key]] for key in ("fed", "cached"))
        rate, (share, low, high) = statistics.median(fed), ratio(fed, cached)
        pairs["share"] = [share, low, high]
        first = first or rate
        rows.append(
            [
                name,
                f"{rate:,.0f}",
                f"{statistics.median(cached):,.0f}",
                f"{share:.1%} [{low:.1%}, {high:.1%}]",
                _percent(pairs["fed"], "utilisation"),
                _percent(pairs["fed"], "sm_activity"),
                f"{_middle(pairs['fed'], 'data_wait'):.1%}",
                f"{_middle(pairs['fed'], 'cpu_cores'):.1f}",
                f"{_IMAGENET / rate / 60:,.1f}",
                f"{rate / first:,.1f}x",
            ]
        )
        note = f"{rate:,.0f}: {share:.1%}"
        shown.append(Bar(name, rate, min(fed), max(fed), note, grey=name == arguments.rungs[0]))
    remarks = {name: one["models"][model]["remark"] for name, one in measured.items()}
    notes = [f"{name}: {remark}" for name, remark in remarks.items() if remark]
    notes += [f"{name}: not measured: {reason}" for name, reason in missing.items()]
    title = f"{model}, batch {arguments.batch}, {arguments.workers} workers"
    return [Table(title, header, rows, notes), bars(shown, "images/s, and share of the ceiling")]


def _percent(stretches: list[dict[str, Any]], key: str) -> str:
    known = [stretch[key] for stretch in stretches if stretch[key] is not None]
    return f"{statistics.median(known):.0f} %" if known else "not measured"


if __name__ == "__main__":
    main()
