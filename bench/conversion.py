"""Conversion speed: fastdata beside what bounds it, in one run.

    python -m bench.conversion SRC [--gigabytes 2] [--rounds 3] [--workers 2] [--seconds 4]
        [--json FILE]

SRC is a folder of photographs with a folder per class; it is copied until the given size is
reached (below 2 GB start-up is what is measured). Three ratios, each of interleaved rounds:

- pass-through to webdataset, every image decoded once, to workers x the rate at which one process
  decodes the same images from memory (and, beside it, to as many such processes at once: what the
  machine gives when all its cores are busy);
- pass-through that only walks the JPEG's markers, to ``tar -cf`` on the same files (the whole
  command, both reading from a warm page cache; ours syncs its files to the disk, tar does not);
- re-encoding at short side 256, to workers x the rate of one process that decodes, scales and
  encodes the same images in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.environment import environment, facts
from bench.measure import interleave, report, run_module, save

_SAMPLE = 400  # images of a single-process round


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--seconds", type=float, default=4.0, help="of what runs in memory")
    parser.add_argument("--scratch", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    machine = environment(arguments)
    print(facts(machine))
    with tempfile.TemporaryDirectory(prefix="bench-conversion-", dir=arguments.scratch) as scratch:
        source, count = _grow(arguments.src, Path(scratch) / "source", arguments.gigabytes * 1e9)
        out, workers = Path(scratch) / "out", arguments.workers

        def convert(*options: str) -> float:
            shutil.rmtree(out, ignore_errors=True)
            command = [sys.executable, "-m", "fastdata", "convert", str(source), str(out)]
            command += ["--to", "webdataset", "--workers", str(workers), *options]
            return count / _seconds(command)

        def tar() -> float:
            out.with_suffix(".tar").unlink(missing_ok=True)
            return count / _seconds(["tar", "-cf", str(out.with_suffix(".tar")), str(source)])

        def limits(what: str, work: str) -> dict[str, Callable[[], float]]:
            options = [what, str(arguments.src), str(_SAMPLE), str(arguments.seconds)]

            def side_by_side(_: int) -> float:
                return run_module("bench.conversion_rate", options)

            def all_at_once() -> float:
                with ThreadPoolExecutor(workers) as pool:
                    return sum(pool.map(side_by_side, range(workers)))

            return {
                f"{workers} x one process: {work}": lambda: workers * side_by_side(0),
                f"{workers} processes: {work}": all_at_once,
            }

        comparisons = [
            ("pass-through, --check decode", limits("decode", "decode"), [], 0.8),
            ("pass-through, --check structure", {"tar -cf": tar}, ["--check", "structure"], 0.6),
            ("--resize 256", limits("encode", "re-encode"), ["--resize", "256"], 0.8),
        ]
        tables = []
        for title, bounds, options, target in comparisons:
            ours = {"fastdata convert": lambda options=options: convert(*options)}
            rates = interleave({**bounds, **ours}, arguments.rounds)
            base = next(iter(bounds))
            tables.append(report(f"{title}: images/s", rates, base, "images/s", target))
    save(arguments.json, machine, tables)


def _grow(src: Path, folder: Path, size: float) -> tuple[Path, int]:
    """Copy SRC until ``size`` bytes are there; the copies are left in the page cache."""
    files = [path for path in sorted(src.rglob("*")) if path.is_file()]
    if not files:
        raise SystemExit(f"{src}: no files in it")
    written = count = copy = 0
    while written < size:
        for path in files:
            place = folder / path.relative_to(src).parent / f"{copy:04d}_{path.name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
            written += path.stat().st_size
            count += 1
            if written >= size:
                break
        copy += 1
    subprocess.run(["sync"], check=True)
    return folder, count


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
