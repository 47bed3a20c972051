"""What the peers' modules share: command line and clock. Standard library only.

python -m bench.peers.NAME check
python -m bench.peers.NAME prepare SOURCE PLACE SET WORKERS
python -m bench.peers.NAME outputs PLACE SET BATCH WORKERS [EXTRA ...]
python -m bench.peers.NAME rate PLACE SET BATCH WORKERS SECONDS [EXTRA ...]

``outputs`` prints what the batches of an epoch hold, as JSON (bench.peers.outputs). ``rate`` prints
the seconds to the first batch, from the process's beginning with imports included and from where
the library was imported; CPU seconds for 10,000 images, of the process and all its children; and
as its last word images per second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["JPEG_SETS", "RAW_SETS", "Task", "classes_of", "cpu_seconds", "main", "measured_rate"]

JPEG_SETS = ("orig", "s256", "t32")
RAW_SETS = ("raw256", "raw32")
_BEGAN = time.perf_counter()
_WARM_UP_BATCHES = 8
_WARM_UP_SECONDS = 1.0


class Task(NamedTuple):
    """What to measure.

    Attributes:
        place: what ``prepare`` has written, or where the contestant has no such step the source.
        set: name of the set of images.
        batch, workers: batch size, and processes or threads.
        extra: the contestant's own words.
    """

    place: Path
    set: str
    batch: int
    workers: int
    extra: list[str]

    @property
    def size(self) -> int:
        """Side of the output."""
        return 32 if self.set.endswith("32") else 224


def main(
    check: Callable[[], str],
    batches: Callable[[Task], Callable[[], Iterable[Any]]],
    prepare: Callable[[Path, Path, str, int], str | None] | None = None,
) -> None:
    """The command line of a peer's module.

    Args:
        check: imports the library and returns its version.
        batches: task -> a function that begins an epoch; its batches' first items are images,
            their second, but for those of bounds, labels.
        prepare: (source, place, set, workers): makes the library's own format, and returns a
            remark for the table.
    """
    command, *words = sys.argv[1:]
    if command == "check":
        print(check())
    elif command == "prepare" and prepare is not None:
        source, place, name, workers = words
        print(prepare(Path(source), Path(place), name, int(workers)) or "")
    elif command == "outputs":
        from bench.peers.outputs import describe

        place, name, batch, workers, *extra = words
        task = Task(Path(place), name, int(batch), int(workers), extra)
        print(json.dumps(describe(batches(task)())))
    elif command == "rate":
        place, name, batch, workers, seconds, *extra = words
        task = Task(Path(place), name, int(batch), int(workers), extra)
        check()
        imported = time.perf_counter()
        first, cpu, rate = measured_rate(batches(task), float(seconds))
        print(f"{first - _BEGAN:.3f} {first - imported:.3f} {cpu:.3f} {rate:.2f}")
    else:
        raise SystemExit(__doc__)


def measured_rate(epoch: Callable[[], Iterable[Any]], seconds: float) -> tuple[float, float, float]:
    """When the first batch came; CPU seconds for 10,000 images; images per second over whole
    batches, epoch after epoch."""
    count, images, first, started, cpu = 0, 0, 0.0, 0.0, 0.0
    while True:
        before = count
        for pixels, *_ in epoch():
            now = time.perf_counter()
            count += 1
            if not first:
                first = now
            if started:
                images += len(pixels)
                if now - started > seconds:
                    cpu = cpu_seconds() - cpu
                    return first, cpu / images * 10_000, images / (now - started)
            elif count >= _WARM_UP_BATCHES and now - first > min(seconds, _WARM_UP_SECONDS):
                cpu, started = cpu_seconds(), time.perf_counter()
        if count == before:
            raise SystemExit("an epoch without a batch: use more images or a smaller batch")


def classes_of(folder: Path) -> list[tuple[Path, int]]:
    """Files and class indices of a folder of class folders, in order."""
    found = []
    for label, name in enumerate(sorted(p.name for p in folder.iterdir() if p.is_dir())):
        found += [(file, label) for file in sorted((folder / name).iterdir())]
    return found


def cpu_seconds() -> float:
    """CPU time of this process and of all below it, those that have ended included."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            process = int(entry.name)
            children.setdefault(int(fields[1]), []).append(process)
            ticks[process] = sum(map(int, fields[11:15]))  # its own, and of children it waited for
    total, left = 0, [os.getpid()]
    while left:
        process = left.pop()
        total += ticks.get(process, 0)
        left += children.get(process, [])
    return total / os.sysconf("SC_CLK_TCK")
