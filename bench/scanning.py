"""Scanning and planning a large folder: seconds and peak memory.

    python -m bench.scanning SRC [--files 1000000] [--json FILE]

The folder is made of hard links to the images in SRC (each image is copied as often as the file
system's limit on links demands), a thousand classes, names of a usual length.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.environment import environment
from bench.measure import save

_CLASSES = 1000
_LINKS = 30_000  # of one file; ext4 allows 65,000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--files", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        _measure(arguments.src)
        return
    machine = environment(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-scanning-") as scratch:
        folder = Path(scratch) / "source"
        link_images(arguments.src, folder, Path(scratch), arguments.files)
        command = [sys.executable, "-m", "bench.scanning", str(folder), "--measure"]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        seconds, megabytes = map(float, printed.split())
    print(
        f"{arguments.files:,} files scanned and planned in {seconds:.1f} s with a peak of "
        f"{megabytes:.0f} MB (target for 1,000,000: 60 s, 600 MB)"
    )
    row = {"files": arguments.files, "seconds": seconds, "megabytes": megabytes}
    save(arguments.json, machine, [{"title": "scanning", "rows": row}])


def _measure(folder: Path) -> None:
    from converters.options import Options
    from converters.plan import Plan
    from converters.sources import scan_source

    started = time.perf_counter()
    plan = Plan.make(Options("webdataset"), scan_source(folder))
    with tempfile.TemporaryDirectory() as staging:
        plan.save(Path(staging))
        seconds = time.perf_counter() - started
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000)


def link_images(src: Path, folder: Path, scratch: Path, count: int) -> None:
    originals = [path for path in sorted(src.rglob("*")) if path.is_file()]
    copies: list[Path] = []
    for i in range(max(1, -(-count // _LINKS))):
        copies.append(scratch / f"original-{i}.jpg")
        shutil.copyfile(originals[i % len(originals)], copies[-1])
    per_class = -(-count // min(_CLASSES, count))
    made = 0
    while made < count:
        label = folder / f"class_{made // per_class:04d}"
        label.mkdir(parents=True)
        for _ in range(min(per_class, count - made)):
            os.link(copies[made % len(copies)], label / f"ILSVRC2012_train_{made:08d}.JPEG")
            made += 1


if __name__ == "__main__":
    main()
