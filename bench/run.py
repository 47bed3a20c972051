"""Formats and engines on your images: what converting costs, and what loading gives for it.

    python -m bench.run [SRC] [--images 2000] [--formats folder,webdataset,lmdb,memmap]
        [--engines LIST] [--device cpu|cuda] [--batch 128] [--workers 2] [--rounds 3] [--seconds 5]
        [--resize 256] [--size 256] [--out bench-report]

SRC is a folder of images with a folder per class; without it --images are drawn. It is converted to
every format (webdataset and lmdb at short side --resize, 0 leaves the files as they are; memmap to
--size squares) and loaded by every engine that can: random resized crops of 224 with flips, uint8
batches, in interleaved rounds. Every measurement is a process of its own.

    warm     images/s over whole batches, after warm-up, the files in the page cache
    cold     images/s of an epoch (or of --seconds of it) right after the dataset's files were
             dropped from the page cache; starting the workers counts
    memory   peak of anonymous and shared memory, of the process and all its children
    start    make_loader; first batch: from there to the first batch

An epoch is the dataset's images at the warm rate; 90 epochs include converting. The terminal shows
the tables; --out has every sample (run.jsonl, appended to), Markdown, and a page with plots.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cold import Cache
from bench.environment import environment, facts
from bench.measure import interleave, last_line, ratio, spread
from bench.plots import Bar, bars
from bench.report import OUT, Table, publish
from fastdata.registry import ENGINES, WRITERS

_FORMATS = ("folder", *WRITERS)
_EPOCHS = 90
_TRIAL_SECONDS = 0.2


def main() -> None:
    arguments = _arguments()
    machine = environment(arguments)
    print(facts(machine))
    with tempfile.TemporaryDirectory(prefix="bench-run-") as scratch:
        source = arguments.src or _draw(Path(scratch) / "images", arguments.images)
        places = {to: source if to == "folder" else Path(scratch) / to for to in arguments.formats}
        made = {"folder": {"seconds": 0.0, "bytes": _size(source)}}
        made |= {
            to: _convert(arguments, source, place, to)
            for to, place in places.items()
            if to != "folder"
        }
        loads = _measure(arguments, places)
    if not loads:
        raise SystemExit("no engine can load any of these formats here; see the reasons above")
    title = f"fastdata on {arguments.src.name if arguments.src else 'drawn images'}"
    results = [{"title": title, "conversions": made, "loads": loads}]
    parts = [*_convert_tables(made), *_load_tables(made, loads)]
    for part in parts:
        if isinstance(part, Table):
            print(part.text())
    publish(arguments.out, "run", title, machine, results, parts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path, nargs="?")
    parser.add_argument("--images", type=int, default=2000, help="drawn, where there is no SRC")
    parser.add_argument("--formats", default=",".join(_FORMATS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--resize", type=int, default=256)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    for name, known in (("formats", _FORMATS), ("engines", ENGINES)):
        chosen = getattr(arguments, name).split(",")
        setattr(arguments, name, chosen)
        for one in chosen:
            if one not in known:
                parser.error(f"--{name}: expected some of {', '.join(known)}, found {one!r}")
    if arguments.src is not None and not arguments.src.is_dir():
        parser.error(f"SRC: expected a folder with a folder per class, found {arguments.src}")
    return arguments


def _draw(folder: Path, count: int) -> Path:
    from fastdata.demo.images import write_folder

    print(f"drawing {count:,} images")
    write_folder(folder, count)
    return folder


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.run_one", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _convert(arguments: argparse.Namespace, source: Path, place: Path, to: str) -> dict[str, Any]:
    sizes = [str(arguments.resize), str(arguments.size), str(arguments.workers)]
    done = _run(["convert", str(source), str(place), to, *sizes])
    if done.returncode:
        raise SystemExit(f"converting {source} to {to} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _measure(arguments: argparse.Namespace, places: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Row -> its format, its engine, what each warm run gave, and the rates of the cold ones."""
    able: dict[str, dict[str, Any]] = {}
    common = [arguments.device, str(arguments.batch), str(arguments.workers)]
    for to, place in places.items():
        for engine in arguments.engines:
            words = [str(place), engine, *common]
            trial = _run(["load", "warm", *words, str(_TRIAL_SECONDS)])
            if trial.returncode:
                print(f"  {to}, {engine}: {last_line(trial.stderr)}")
                continue
            able[f"{to}, {engine}"] = {
                "format": to, "engine": engine, "words": words, "warm": [], "cold": [],
            }  # fmt: skip

    def contestant(row: dict[str, Any], cache: str) -> Callable[[], float]:
        files, state = places[row["format"]], Cache(cache == "cold")

        def measure() -> float:
            state.prepare(files)
            done = _run(["load", cache, *row["words"], str(arguments.seconds)])
            if done.returncode:
                raise SystemExit(f"{row['format']}, {row['engine']} failed:\n{done.stderr}")
            result = json.loads(done.stdout.splitlines()[-1])
            row[cache].append(result | {"resident_before": state.resident[-1]})
            return result["rate"]

        return measure

    contestants = {
        f"{name}, {cache}": contestant(row, cache)
        for name, row in able.items()
        for cache in ("warm", "cold")
    }
    interleave(contestants, arguments.rounds)
    for row in able.values():
        del row["words"]
    return able


def _convert_tables(made: dict[str, dict[str, Any]]) -> list[Table | str]:
    header = ["format", "converted in, s", "images/s", "on disk, MB", "peak memory, MB"]
    rows = [
        [
            to,
            f"{one['seconds']:.1f}" if one["seconds"] else "-",
            f"{one['images'] / one['seconds']:,.0f}" if one["seconds"] else "-",
            f"{one['bytes'] / 1e6:,.1f}",
            f"{one['peak_memory'] / 1e6:,.0f}" if one["seconds"] else "-",
        ]
        for to, one in made.items()
    ]
    sizes = [
        Bar(to, size := one["bytes"] / 1e6, size, size, grey=to == "folder")
        for to, one in made.items()
    ]
    return [Table("Converting", header, rows), bars(sizes, "MB on disk")]


def _load_tables(
    made: dict[str, dict[str, Any]], loads: dict[str, dict[str, Any]]
) -> list[Table | str]:
    base = next(iter(loads))
    rates = {
        (name, cache): [run["rate"] for run in row[cache]]
        for name, row in loads.items()
        for cache in ("warm", "cold")
    }
    ends = spread(len(rates[base, "warm"]))
    header = [
        "format, engine", "warm, images/s", f"to {base} [{ends}]", "cold, images/s",
        "CPU s / 1,000", "memory, MB", "start, s", "first batch, s", "epoch, s", "90 epochs, s",
    ]  # fmt: skip
    rows, shown = [], {"warm": [], "cold": []}
    for name, row in loads.items():
        warm = statistics.median(rates[name, "warm"])
        middle, low, high = ratio(rates[name, "warm"], rates[base, "warm"])
        row["ratio"] = [middle, low, high]
        epoch = row["warm"][0]["images"] / warm
        several = _EPOCHS * epoch + made[row["format"]]["seconds"]
        rows.append(
            [
                name,
                f"{warm:,.0f}",
                f"{middle:.2f} [{low:.2f}, {high:.2f}]",
                f"{statistics.median(rates[name, 'cold']):,.0f}",
                f"{_middle(row, 'cpu_seconds_per_1000'):.2f}",
                f"{_middle(row, 'peak_memory') / 1e6:,.0f}",
                f"{_middle(row, 'start_seconds'):.2f}",
                f"{_middle(row, 'first_batch_seconds'):.2f}",
                f"{epoch:,.2f}",
                f"{several:,.0f}",
            ]
        )
        for cache, bar in shown.items():
            samples = rates[name, cache]
            middle = statistics.median(samples)
            bar.append(Bar(name, middle, min(samples), max(samples), grey=name == base))
    warmest = max(share for row in loads.values() for share in _resident(row))
    notes = [f"Before a cold run at most {warmest:.1%} of the files were in the page cache."]
    return [
        Table("Loading", header, rows, notes),
        bars(shown["warm"], "images/s, warm page cache; whiskers: slowest and fastest round"),
        bars(shown["cold"], "images/s, cold page cache"),
    ]


def _middle(row: dict[str, Any], key: str) -> float:
    return statistics.median(run[key] for run in row["warm"])


def _resident(row: dict[str, Any]) -> list[float]:
    return [run["resident_before"] for run in row["cold"]]


if __name__ == "__main__":
    main()
