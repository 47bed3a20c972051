"""What grows with what: rate, start and memory against samples, batch, image size and workers.

    python -m bench.scale [--index 100000000] [--records 100000] [--workers 4] [--images 2048]
        [--seconds 2] [--rounds 3] [--series index,records,batch,side,workers] [--out bench-report]

    index    plans of batches for an epoch of 1,000 samples and ten times as many again and again,
             up to --index; no sample exists, so this is the order, the draws, and nothing else
    records  memmaps of 1,000 to --records real 32x32 images (3 KB each), engine gather, batch 256
    batch    16 to 1,024 images a batch; side: images of 64 to 448 pixels a side, kept and given
             whole; workers: 0 to --workers processes that decode JPEGs

Start is from the first line of Python to the first batch, imports left out; memory the peak of
anonymous and shared memory of the process and its children. Growth is the exponent b of a fit
y ~ x^b to all samples, with a 90 % bootstrap interval: 0 does not grow, 1 grows as x does. Rounds
are interleaved, every measurement is a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.environment import environment, facts
from bench.measure import interleave
from bench.plots import lines
from bench.report import OUT, Table, publish
from bench.scanning import link_images

_LEAST = 1000
_BATCHES, _SIDES = (16, 64, 256, 1024), (64, 128, 224, 448)
_RESAMPLES = 500
_SERIES = {
    "index": "samples (index only)",
    "records": "samples (real records)",
    "batch": "images a batch",
    "side": "pixels a side",
    "workers": "workers",
}
_FIGURES = {"rate": "samples/s", "start": "first batch, s", "memory": "memory, MB"}


class Point(NamedTuple):
    """A measurement: where it stands on its axis, and what to run."""

    x: int
    words: list[str]


def main() -> None:
    arguments = _arguments()
    machine = environment(arguments)
    print(facts(machine))
    parts: list[Table | str] = []
    results = []
    for name in arguments.series:
        with tempfile.TemporaryDirectory(prefix="bench-scale-") as scratch:
            points = list(_POINTS[name](arguments, Path(scratch)))
            runs: dict[int, list[dict[str, float]]] = {point.x: [] for point in points}
            contestants = {str(point.x): _contestant(point, runs[point.x]) for point in points}
            interleave(contestants, arguments.rounds)
        growth = {figure: _growth(runs, figure) for figure in _FIGURES}
        results.append(
            {"title": f"scale: {name}", "unit": _SERIES[name], "rows": runs, "growth": growth}
        )
        table, plot = _shown(name, runs, growth)
        print(table.text())
        parts += [table, plot]
    publish(arguments.out, "scale", "What grows with what", machine, results, parts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--index", type=int, default=10**8, help="samples, at most")
    parser.add_argument("--records", type=int, default=10**5, help="samples, at most; 3 KB each")
    parser.add_argument("--images", type=int, default=2048, help="of batch, side and workers")
    parser.add_argument("--workers", type=int, default=2 * len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--series", default=",".join(_SERIES))
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.series = arguments.series.split(",")
    for name in arguments.series:
        if name not in _SERIES:
            parser.error(f"--series: expected some of {', '.join(_SERIES)}, found {name!r}")
    return arguments


def _powers(most: int) -> list[int]:
    return [_LEAST * 10**power for power in range(int(math.log10(max(most, _LEAST) / _LEAST)) + 1)]


def _index(arguments: argparse.Namespace, scratch: Path) -> Iterator[Point]:
    for samples in _powers(arguments.index):
        yield Point(samples, ["index", str(samples), "256", str(arguments.seconds)])


def _records(arguments: argparse.Namespace, scratch: Path) -> Iterator[Point]:
    from fastdata import convert
    from fastdata.demo.images import write_folder

    drawn = scratch / "drawn"
    write_folder(drawn, _LEAST, sizes=[(32, 32)])
    for samples in _powers(arguments.records):
        folder, place = scratch / f"folder-{samples}", scratch / f"memmap-{samples}"
        place.parent.mkdir(exist_ok=True)
        link_images(drawn, folder, scratch, samples)
        convert(folder, place, to="memmap", size=32)
        shutil.rmtree(folder)
        yield Point(samples, _load(arguments, place, "gather", 256, 2, 32))


def _batches(arguments: argparse.Namespace, scratch: Path) -> Iterator[Point]:
    place = _dataset(arguments.images, scratch, 256, to="memmap", size=256)
    for batch in (batch for batch in _BATCHES if 2 * batch <= arguments.images):
        yield Point(batch, _load(arguments, place, "gather", batch, 2, 224))


def _sides(arguments: argparse.Namespace, scratch: Path) -> Iterator[Point]:
    for side in _SIDES:
        place = _dataset(arguments.images, scratch, side, to="memmap", size=side)
        yield Point(side, _load(arguments, place, "gather", 64, 2, side))


def _workers(arguments: argparse.Namespace, scratch: Path) -> Iterator[Point]:
    place = _dataset(arguments.images, scratch, 256)
    for workers in range(arguments.workers + 1):
        yield Point(workers, _load(arguments, place, "workers", 64, workers, 224))


_POINTS: dict[str, Callable[[argparse.Namespace, Path], Iterator[Point]]] = {
    "index": _index,
    "records": _records,
    "batch": _batches,
    "side": _sides,
    "workers": _workers,
}


def _dataset(images: int, scratch: Path, side: int, **options: Any) -> Path:
    from fastdata import convert
    from fastdata.demo.images import write_folder

    folder, place = scratch / f"drawn-{side}", scratch / f"dataset-{side}"
    write_folder(folder, images, sizes=[(side, side)])
    convert(folder, place, **options)
    shutil.rmtree(folder)
    return place


def _load(
    arguments: argparse.Namespace, place: Path, engine: str, batch: int, workers: int, side: int
) -> list[str]:
    numbers = map(str, (batch, workers, side, arguments.seconds))
    return ["load", str(place), engine, *numbers]


def _contestant(point: Point, runs: list[dict[str, float]]) -> Callable[[], float]:
    def measure() -> float:
        command = [sys.executable, "-m", "bench.scale_one", *point.words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(point.words)} failed:\n{done.stderr}")
        runs.append(json.loads(done.stdout.splitlines()[-1]))
        return runs[-1]["rate"]

    return measure


def _growth(runs: dict[int, list[dict[str, float]]], figure: str) -> list[float] | None:
    """The exponent, and the ends of its interval; None of a single point. Points at zero have no
    logarithm."""
    points = [
        (math.log(x), math.log(run[figure]))
        for x, several in runs.items()
        for run in several
        if x > 0 and run[figure] > 0
    ]
    if len({x for x, _ in points}) < 2:
        return None
    sampler = random.Random(0)
    drawn = (sampler.choices(points, k=len(points)) for _ in range(_RESAMPLES))
    slopes = sorted(_slope(some) for some in drawn if len({x for x, _ in some}) > 1)
    return [_slope(points), slopes[len(slopes) // 20], slopes[-1 - len(slopes) // 20]]


def _slope(points: list[tuple[float, float]]) -> float:
    xs, ys = zip(*points, strict=True)
    return statistics.linear_regression(xs, ys).slope


def _shown(
    name: str, runs: dict[int, list[dict[str, float]]], growth: dict[str, list[float] | None]
) -> tuple[Table, str]:
    rows, curves = [], {title: [] for title in _FIGURES.values()}
    for x, several in runs.items():
        middle = {key: statistics.median(run[key] for run in several) for key in _FIGURES}
        middle["memory"] /= 1e6
        for key, title in _FIGURES.items():
            curves[title].append((x, middle[key]))
        rows.append(
            [
                f"{x:,}",
                f"{middle['rate']:,.0f}",
                f"{middle['start']:.3f}",
                f"{middle['memory']:,.0f}",
            ]
        )
    fits = [
        "" if fit is None else "x^{:.2f} [{:.2f}, {:.2f}]".format(*fit) for fit in growth.values()
    ]
    named = [f"{title} {fit}" for title, fit in zip(_FIGURES.values(), fits, strict=True) if fit]
    notes = [f"growth: {', '.join(named) or 'of a single point there is none'}"]
    table = Table(f"Against {_SERIES[name]}", [_SERIES[name], *_FIGURES.values()], rows, notes)
    return table, lines(curves, _SERIES[name], "each in its own unit", fits)


if __name__ == "__main__":
    main()
