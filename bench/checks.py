"""What the checks for odd files cost: conversion with them to conversion without, in one run.

    python -m bench.checks SRC [--rounds 9] [--json FILE]

One process converts the same images to webdataset shards, everything included (reading, decoding
once, archive, checksums, writing), with the whole policy and with the least that a converter needs:
a look at the header, and for the end marker anywhere behind it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from unittest import mock

from bench.environment import environment
from bench.measure import interleave, report, save
from converters.options import Options
from converters.plan import Plan
from converters.policy import Verdict
from converters.sources import scan_source
from converters.write import ShardWriter
from fastdata.header import read_header

_MOST_BYTES = 200_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    machine = environment(arguments)
    source = scan_source(arguments.src)
    plan = Plan.make(Options("webdataset", shard_size=_MOST_BYTES), source)
    count = int(plan.starts[1])
    with tempfile.TemporaryDirectory(prefix="bench-checks-") as scratch:
        plan.save(Path(scratch))
        writer = ShardWriter(plan, Path(scratch), "skip")

        def convert() -> float:
            started = time.perf_counter()
            writer.write(0, lambda images, skipped: None)
            return count / (time.perf_counter() - started)

        def unchecked() -> float:
            with mock.patch("converters.transform.judge", _least):
                return convert()

        contestants = {"without checks": unchecked, "with checks": convert}
        convert()  # fills the page cache
        rates = interleave(contestants, arguments.rounds)
    title = f"checks for odd files, {count} images of {arguments.src.name}, one process"
    save(arguments.json, machine, [report(title, rates, "without checks", "images/s", target=0.9)])


def _least(data: bytes, *, exif: bool = True) -> Verdict:
    header = read_header(data)
    if data.rfind(b"\xff\xd9") < 0:
        raise ValueError("truncated")
    return Verdict(header, data, header.plain)


if __name__ == "__main__":
    main()
