"""Loading speed: fastdata's workers engine beside torchvision's ImageFolder + DataLoader.

    python -m bench.loading SRC [--rounds 5] [--workers 2] [--seconds 6]
        [--sources orig,s256,32x32] [--formats webdataset,lmdb,memmap] [--json FILE]

SRC is a folder of photographs with a folder per class. From it three sources are made: as it is
("orig"), at short side 256 and quality 90 ("s256"), and 32x32 ("32x32"). Both sides give random
resized crops of 224 with flips (32x32: pad 4, random crop 32, flip) in uint8 batches of the same
size, with the same number of workers and a warm page cache. Each runs as its users run it:
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

from bench.measure import environment, interleave, report, run_module, save

_BATCH = 128
_WARM_UP_BATCHES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--sources", default="orig,s256,32x32")
    parser.add_argument("--formats", default="webdataset,lmdb,memmap")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    machine = environment()
    print(", ".join(f"{key} {value}" for key, value in machine.items() if key != "versions"))
    tables = []
    with tempfile.TemporaryDirectory(prefix="bench-loading-") as scratch:
        for source in arguments.sources.split(","):
            tables.append(_compare(arguments, source, Path(scratch)))
    save(arguments.json, machine, tables)


def _compare(arguments: argparse.Namespace, source: str, scratch: Path) -> dict[str, Any]:
    folder = image_folder(arguments.src, source, scratch)
    from fastdata import convert

    tall = "32" if source == "32x32" else "224"
    options = [str(arguments.workers), str(arguments.seconds), tall]
    places = {"fastdata folder": folder}
    for to in arguments.formats.split(","):
        if to == "memmap" and source == "orig":  # pixels of one size are no originals
            continue
        places[f"fastdata {to}"] = made = scratch / f"{source}-{to}"
        side = 32 if source == "32x32" else 256
        convert(folder, made, to=to, size=side if to == "memmap" else None)

    def contestant(side: str, place: Path) -> Callable[[], float]:
        return lambda: run_module("bench.loading_rate", [side, str(place), *options])

    contestants = {"ImageFolder + DataLoader": contestant("torchvision", folder)}
    contestants |= {name: contestant("fastdata", place) for name, place in places.items()}
    rates = interleave(contestants, arguments.rounds)
    target = {"s256": 2.2, "32x32": 6.0}.get(source)
    title = f"{source}: images/s, {arguments.workers} workers, output {tall}x{tall} uint8"
    return report(title, rates, "ImageFolder + DataLoader", "images/s", target)


def image_folder(src: Path, source: str, scratch: Path) -> Path:
    """The folder to measure: SRC, or its images made smaller by the converter's own scaling."""
    if source == "orig":
        return src
    from fastdata import convert, open_dataset

    made = scratch / f"{source}-source"
    if source == "s256":
        convert(src, made, resize=256, shuffle=False)
    else:
        convert(src, made, size=32, shuffle=False)
    folder = scratch / source
    with open_dataset(made) as dataset:
        for i, label in enumerate(dataset.labels.tolist()):
            place = folder / dataset.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i:06d}.jpg").write_bytes(dataset.read(i))
    return folder


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
