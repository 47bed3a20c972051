"""Loading speed: fastdata's workers engine beside torchvision's ImageFolder + DataLoader.

    python -m bench.loading SRC [--rounds 5] [--workers 2] [--seconds 6]
        [--sets orig,s256,t32] [--formats webdataset,lmdb,memmap] [--images N] [--json FILE]

SRC is a folder of photographs with a folder per class. From it three sets are made: as it is
("orig"), at short side 256 and quality 90 ("s256"), and 32x32 ("t32"), repeated until an epoch has
50 batches (32x32: 400). Both sides give random resized crops of 224 with flips (32x32: pad 4,
random crop 32, flip) in uint8 batches of the same size, with the same number of workers and a warm
page cache. Each runs as its users run it:
torchvision with its antialiasing filter, fastdata with reduction and bilinear (Recipe.antialias).
Every measurement is a process of its own; it warms up for an epoch's first batches, then counts
whole batches for the given time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.environment import environment, facts
from bench.measure import interleave, report, run_module, save
from bench.peers.common import JPEG_SETS
from bench.sets import Sets

BATCH = 128
_RAW = {"s256": "raw256", "t32": "raw32"}  # the same images as pixels; originals have many sizes
_WARM_UP_BATCHES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--sets", default=",".join(JPEG_SETS))
    parser.add_argument("--images", type=int, help="at least so many images an epoch")
    parser.add_argument("--formats", default="webdataset,lmdb,memmap")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    machine = environment(arguments)
    print(facts(machine))
    arguments.batch = BATCH
    with tempfile.TemporaryDirectory(prefix="bench-loading-") as scratch:
        sets = Sets(arguments, Path(scratch))
        for name in arguments.sets.split(","):
            save(arguments.json, machine, [_compare(arguments, name, sets)])
            for made in (name, _RAW.get(name, name)):
                sets.forget(made)


def _compare(arguments: argparse.Namespace, name: str, sets: Sets) -> dict[str, Any]:
    folder = sets.folder(name)
    tall = "32" if name == "t32" else "224"
    options = [str(arguments.workers), str(arguments.seconds), tall]
    places = {"fastdata folder": folder}
    for to in arguments.formats.split(","):
        if to != "memmap":
            places[f"fastdata {to}"] = sets.dataset(name, to)
        elif name in _RAW:
            places[f"fastdata {to}"] = sets.dataset(_RAW[name])

    def contestant(side: str, place: Path) -> Callable[[], float]:
        return lambda: run_module("bench.loading_rate", [side, str(place), *options])

    contestants = {"ImageFolder + DataLoader": contestant("torchvision", folder)}
    contestants |= {name: contestant("fastdata", place) for name, place in places.items()}
    rates = interleave(contestants, arguments.rounds)
    target = {"s256": 2.2, "t32": 6.0}.get(name)
    title = f"{name}: images/s, {arguments.workers} workers, output {tall}x{tall} uint8"
    return report(title, rates, "ImageFolder + DataLoader", "images/s", target)


def rate(batches: Callable[[], Iterable[Any]], seconds: float) -> float:
    """Images per second over whole batches, epoch after epoch."""
    count, images, started = 0, 0, 0.0
    while True:
        for pixels, _ in batches():
            count += 1
            if count == _WARM_UP_BATCHES:
                started = time.perf_counter()
            elif count > _WARM_UP_BATCHES:
                images += len(pixels)
                if time.perf_counter() - started > seconds:
                    return images / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
