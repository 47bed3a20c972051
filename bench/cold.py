"""Loading with a cold page cache: what reading ahead and ``order="blocks"`` are worth.

    python -m bench.cold SRC [--size 1500] [--rounds 5] [--formats memmap,webdataset]
        [--orders global,blocks] [--json FILE]

SRC is a folder of photographs with a folder per class. Its images, repeated, make a memmap dataset
(256x256) and a webdataset of at least --size MB each, in a temporary folder (TMPDIR says on which
disk). Before every measurement all of the dataset's pages are dropped from the page cache, or read
into it ("warm"). Each measurement is a process of its own, which loads the last batches of an
epoch, the same number from every dataset: half an epoch of the smaller one. Random resized crops of
224 with flips, uint8 batches of 128, 2 workers; the workers' start counts.

Bytes from the disk are those of the process and its children. A page that is missing in a map
makes the kernel read its surroundings, as much as the disk's read_ahead_kb, so from a dataset that
fits the page cache a run without reading ahead soon has all: the larger the dataset beside what is
loaded, the more is read for each image.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.environment import environment, facts
from bench.measure import interleave, report, run_module, save
from bench.sets import Sets

_BATCH, _WORKERS, _SIDE = 128, 2, 256
_BLOCK = 16 << 20
_MOST_LEFT = 0.03  # of a dataset's pages in the cache, where it is to be cold
_BASELINE = "cold global"
_ENGINES = {"memmap": "gather", "webdataset": "workers"}
_ORDERS = ("global", "blocks")


@dataclass
class Cache:
    """The page cache before each run of a contestant: what was done to it, and what came of it.

    Attributes:
        cold: whether the dataset's pages are dropped, or all read.
        resident: their share in the cache after that, of each run.
        read: bytes that the run then read from the disk, of each run.
    """

    cold: bool
    resident: list[float] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def prepare(self, place: Path) -> None:
        files = [path for path in place.rglob("*") if path.is_file() and path.stat().st_size]
        for file in files:
            _drop(file) if self.cold else _read(file)
        pages = [_resident(file) for file in files]
        self.resident.append(sum(found for found, _ in pages) / sum(count for _, count in pages))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--size", type=float, default=1500, help="MB of each dataset, at least")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--formats", default=",".join(_ENGINES))
    parser.add_argument("--orders", default=",".join(_ORDERS), help="global is the baseline")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        _measure(arguments.src, *arguments.measure)
        return
    machine = environment(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-cold-") as scratch:
        machine["read_ahead_kb"] = _read_ahead_kb(Path(scratch))
        print(facts(machine))
        formats = arguments.formats.split(",")
        datasets = _datasets(arguments.src, arguments.size * 1e6, Path(scratch), formats)
        batches = max(1, min(_samples(place) for place in datasets.values()) // _BATCH // 2)
        tables = [_compare(name, place, batches, arguments) for name, place in datasets.items()]
    save(arguments.json, machine, tables)


def _datasets(src: Path, size: float, scratch: Path, formats: list[str]) -> dict[str, Path]:
    from fastdata import convert

    lengths = [file.stat().st_size for file in src.glob("*/*") if file.is_file()]
    if not lengths:
        raise SystemExit(f"{src}: expected class folders with images in them")
    bytes_each = {"memmap": _SIDE * _SIDE * 3, "webdataset": statistics.mean(lengths)}
    made = {}
    for name in formats:
        if name not in bytes_each:
            raise SystemExit(f"--formats: expected some of {', '.join(bytes_each)}, found {name}")
        each = bytes_each[name]
        images = max(2 * _BATCH, int(size / each) + 1)
        wanted = argparse.Namespace(src=src, batch=_BATCH, images=images, workers=_WORKERS)
        place = scratch / name
        folder = Sets(wanted, place).folder("orig")
        made[name] = place / "dataset"
        convert(folder, made[name], to=name, size=_SIDE if name == "memmap" else None)
    return made


def _samples(place: Path) -> int:
    from fastdata import open_dataset

    with open_dataset(place) as dataset:
        return len(dataset)


def _compare(name: str, place: Path, batches: int, arguments: argparse.Namespace) -> dict[str, Any]:
    caches: dict[str, Cache] = {}
    contestants = {}
    for order, ahead in itertools.product(arguments.orders.split(","), (False, True)):
        for temperature in ("cold", "warm"):
            title = f"{temperature} {order}" + (", read ahead" if ahead else "")
            caches[title] = Cache(temperature == "cold")
            words = [_ENGINES[name], order, str(ahead), str(batches)]
            contestants[title] = _contestant(place, words, caches[title])
    run_module("bench.cold", [str(place), "--measure", *words])  # Python's own files are warm now
    rates = interleave(contestants, arguments.rounds)
    megabytes = sum(path.stat().st_size for path in place.rglob("*")) / 1e6
    images = batches * _BATCH
    title = (
        f"{name}, {megabytes:,.0f} MB, engine {_ENGINES[name]}: images/s of {images:,} images, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    table = report(title, rates, _BASELINE, "images/s", None)
    print(f"  {'':28}{'kB/image':>10}  from the disk; of the dataset in memory before")
    for title, cache in caches.items():
        kilobytes = statistics.median(cache.read) / images / 1000
        lowest, highest = min(cache.resident), max(cache.resident)
        failed = highest > _MOST_LEFT if cache.cold else lowest < 1 - _MOST_LEFT
        note = f"  NOT {'COLD' if cache.cold else 'WARM'}" if failed else ""
        print(f"  {title:28}{kilobytes:>10,.0f}  {lowest:.1%}..{highest:.1%}{note}")
        table["rows"][title] |= {"bytes_read": cache.read, "resident": cache.resident}
    return table | {"images": images}


def _contestant(place: Path, words: list[str], cache: Cache) -> Callable[[], float]:
    def measure() -> float:
        cache.prepare(place)
        before = _bytes_read()
        rate = run_module("bench.cold", [str(place), "--measure", *words])
        cache.read.append(_bytes_read() - before)
        return rate

    return measure


def _measure(place: Path, engine: str, order: str, ahead: str, batches: str) -> None:
    """Load the last batches of an epoch, and print the rate."""
    from fastdata import make_loader

    loader = make_loader(
        place,
        _BATCH,
        recipe="imagenet-train",
        engine=engine,
        order=order,
        num_workers=_WORKERS,
        dtype="uint8",
        engine_options={"read_ahead": ahead == "True"},
    )
    skipped = (len(loader) - int(batches)) * _BATCH
    loader.load_state_dict(loader.state_dict() | {"position": skipped})
    started = time.perf_counter()
    images = sum(len(pixels) for pixels, _ in loader)
    seconds = time.perf_counter() - started
    loader.close()  # waits for the workers, whose reads only then are this process's
    assert images == int(batches) * _BATCH
    print(images / seconds)


def _drop(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())  # pages that are not on the disk yet stay
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> None:
    buffer = bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def _resident(path: Path) -> tuple[int, int]:
    """Pages of a file in the page cache, and all of its pages."""
    with path.open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
    flags = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    pages, size = ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(len(mapped))
    if libc.mincore(pages, size, ctypes.c_void_p(flags.ctypes.data)):
        raise OSError(ctypes.get_errno(), f"mincore of {path}")
    return int((flags & 1).sum()), len(flags)


def _bytes_read() -> int:
    """What this process, and those that it has waited for, have read from disks."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def _read_ahead_kb(place: Path) -> int | None:
    """What the kernel reads around a page that is missing in a map of a file at ``place``."""
    device = place.stat().st_dev
    setting = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    return int(setting.read_text()) if setting.exists() else None


if __name__ == "__main__":
    main()
