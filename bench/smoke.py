"""Run every benchmark on a few drawn images: that they run, not what they print.

    python -m bench.smoke

Several run at once, which ruins their figures and saves half of the time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from fastdata.demo.images import write_folder

_IMAGES = 300
_LIMIT = 300.0  # seconds of a benchmark: nothing hangs


class Brief(NamedTuple):
    """A benchmark, brief: its options, whether it takes a source, and whether it leaves a folder
    (``--out``) or a file (``--json``)."""

    module: str
    options: str
    source: bool = True
    folder: bool = False


_ALL = (
    Brief("engines", "--peers none --engines workers --sets t32 --rounds 1 --seconds 0.2 "
          "--images 1200"),
    Brief("loading", "--rounds 1 --seconds 0.2 --sets t32 --images 1200 --formats memmap"),
    Brief("run", "--rounds 1 --seconds 0.2 --formats memmap --engines gather", folder=True),
    Brief("ladder", "--device cpu --images 150 --steps 2 --seconds 0.2 --batch 8 "
          "--rungs memmap+gather", folder=True),
    Brief("scale", "--index 10000 --records 1000 --workers 0 --images 128 --rounds 1 --seconds 0.2 "
          "--series index,records,workers", source=False, folder=True),
    Brief("cold", "--size 3 --rounds 1 --formats memmap --orders global"),
    Brief("ranks", "--device cpu --model shufflenet_v2_x0_5 --engine gather --batch 4 --steps 1 "
          "--rounds 1 --images 50 --ranks 1"),
    Brief("tuner", "--setups memmap,+fast+step --rounds 1 --seconds 0.1 --budget 1 --images 300 "
          "--batch 16"),
    Brief("conversion", "--rounds 1 --gigabytes 0.01 --seconds 0.1"),
    Brief("checks", "--rounds 1"),
    Brief("scanning", "--files 3000"),
    Brief("memory", "--megapixels 1", source=False),
    Brief("importing", "--rounds 1", source=False),
)  # fmt: skip


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="bench-smoke-") as scratch:
        source = Path(scratch) / "source"
        write_folder(source, _IMAGES)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            done = list(pool.map(lambda brief: _run(brief, source, Path(scratch)), _ALL))
    failed = [brief.module for brief, good in zip(_ALL, done, strict=True) if not good]
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")


def _run(brief: Brief, source: Path, scratch: Path) -> bool:
    """Whether it ended well and left one readable result; prints what it printed."""
    out = scratch / brief.module
    result = out / f"{brief.module}.jsonl"
    out.mkdir()
    command = [sys.executable, "-m", f"bench.{brief.module}"]
    command += [str(source)] if brief.source else []
    command += [word.replace("+", " ") for word in brief.options.split()]
    command += ["--out", str(out)] if brief.folder else ["--json", str(result)]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_LIMIT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads of one wait for cores of another
        check=False,
    )
    print(f"\n== bench.{brief.module}\n{done.stdout}", flush=True)
    if done.returncode:
        return False
    [line] = result.read_text().splitlines()
    return bool(json.loads(line)["tables"])


if __name__ == "__main__":
    main()
