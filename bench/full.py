"""Every benchmark that one machine can run, one after the other, at full length.

    python -m bench.full [SRC] [--out bench-report] [--only LIST] [--python NAME=PATH ...]

SRC is a folder of photographs with a folder per class; without it images are drawn. Every sample
goes to OUT/results.jsonl and the reports' own files; to commit what README is to state, copy these
to bench/results and run bench.readme. A benchmark that fails is named at the end, and the others
run all the same. With two cores this takes about three hours. Where there is a GPU, the ladder and
the tuner use it, and bench.engines and bench.decoder run on it, too ("engines-cuda", "decoder").
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from bench.environment import gpu
from bench.report import OUT
from fastdata.demo.images import write_folder

_IMAGES = 2000
_REPORTS = ("run", "ladder", "scale")  # they take --out
_SOURCELESS = ("scale", "memory", "importing")
_OPTIONS = {
    "run": "--rounds 5",
    "engines": "--rounds 5 --seconds 6",
    "ladder": "--passes 3",
    "scale": "--records 1000000",
    "loading": "",
    "conversion": "",
    "cold": "",
    "checks": "",
    "scanning": "",
    "memory": "",
    "importing": "",
    "tuner": "",
}
_ON_GPU = {
    "engines-cuda": "--device cuda --sets orig,s256,raw256",
    "decoder": "--device cuda --model resnet18",
    "tuner": "--device cuda",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=OUT)
    options = _OPTIONS | ({} if gpu()["gpu"] == "none" else _ON_GPU)
    parser.add_argument("--only", default=",".join(options), help="some of the benchmarks")
    parser.add_argument("--python", nargs="+", default=[], help="of bench.engines")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    for name in names:
        if name not in options:
            parser.error(f"--only: expected some of {', '.join(options)}, found {name!r}")
    if arguments.src is not None and not arguments.src.is_dir():
        parser.error(f"SRC: expected a folder with a folder per class, found {arguments.src}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    source = arguments.src
    if source is None:
        source = arguments.out / "images"
        write_folder(source, _IMAGES)
    failed = []
    for name in names:
        command = [sys.executable, "-m", f"bench.{name.partition('-')[0]}"]
        command += [] if name in _SOURCELESS else [str(source)]
        command += options[name].split()
        if name == "engines" and arguments.python:
            command += ["--python", *arguments.python]
        if name in _REPORTS:
            command += ["--out", str(arguments.out)]
        else:
            command += ["--json", str(arguments.out / "results.jsonl")]
        print(f"\n== {' '.join(command[1:])}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed, see above: {', '.join(failed)}")


if __name__ == "__main__":
    main()
