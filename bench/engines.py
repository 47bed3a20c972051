"""Every engine beside other loaders, in interleaved rounds.

    python -m bench.engines SRC [--device cpu|cuda] [--peers LIST|all|none] [--python NAME=PATH ...]
        [--workers 2] [--rounds N] [--seconds 5] [--sets s256,orig,t32,raw256,raw32]
        [--batch 128] [--images N] [--engines LIST] [--no-outputs] [--json FILE]

SRC is a folder of photographs with a folder per class. From it are made, in a temporary folder:

    orig     the files as they are        s256    short side 256, quality 90
    t32      32x32 JPEGs                  raw256  256x256 pixels    raw32  32x32 pixels

repeated until an epoch has 50 batches (32x32: 400). fastdata reads them as webdataset or memmap,
the others as a plain folder or in their own format. All give uint8 batches of the same size with
the same number of workers or threads and a warm page cache; what each does to an image is printed
beside it. Nobody looks at the batches while the clock runs; before that every contestant's are
compared with a reference (bench.outputs), and who fails there is measured but does not compete.
Every measurement is a process of its own.

--peers names modules of bench.peers; one that is not installed is listed, and is no failure.
--python ffcv=/path/to/python runs that peer under another Python, which needs nothing of fastdata.
With --device cuda see bench.engines_cuda.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environment import environment, facts
from bench.measure import interleave, last_line, ratio, report, save, spread
from bench.outputs import BATCH, judge, reference
from bench.peers import PEERS, ours
from bench.peers.common import JPEG_SETS
from bench.sets import BATCHES, Sets
from fastdata.registry import ENGINES

_ROOT = Path(__file__).resolve().parent.parent
_TRIAL_SECONDS = 0.3
_BASELINES = ("ImageFolder, PIL", "FFCV", "bound: torch.index_select")


@dataclass
class Contestant:
    """One row of a table.

    Attributes:
        title: of the row.
        module: of bench.peers, without the prefix.
        python: the interpreter that runs it.
        place: what it reads.
        extra: further words of its command line.
        does: what it does to an image.
        firsts: seconds to the first batch, of each run; with imports, and without.
        cpu: CPU seconds for 10,000 images, of each run.
    """

    title: str
    module: str
    python: str
    place: Path
    extra: list[str]
    does: str
    firsts: list[tuple[float, float]] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


def main() -> None:
    arguments = _arguments()
    machine = environment(arguments)
    print(facts(machine))
    with tempfile.TemporaryDirectory(prefix="bench-engines-") as scratch:
        sets = Sets(arguments, Path(scratch))
        if arguments.device == "cuda":
            from bench.engines_cuda import compare_on_gpu

            tables = compare_on_gpu(arguments, sets)
        else:
            pythons = dict(pair.split("=", 1) for pair in arguments.python)
            peers, machine["peers"], absent = _installed(arguments.peers, pythons)
            tables = _compare_on_cpu(arguments, sets, peers, absent)
        for table in tables:  # each as soon as it is there: who ends this early has the others
            save(arguments.json, machine, [table])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--peers", default="all", help=f"of {','.join(PEERS)}; all; none")
    parser.add_argument("--python", nargs="+", default=[], metavar="NAME=PATH")
    parser.add_argument("--workers", type=int, help="CPU: 2; cuda: as many as CPUs")
    parser.add_argument("--rounds", type=int, help="CPU: 5; cuda: 3")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sets", help="CPU: all five; cuda: s256,raw256")
    parser.add_argument("--batch", type=int, help="CPU: 128; cuda: 512")
    parser.add_argument("--engines", help="of fastdata's, all by default; cuda: also direct:host")
    parser.add_argument("--models", default="resnet50,resnet18", help="cuda: trained; none")
    parser.add_argument(
        "--limit",
        type=float,
        default=float("inf"),
        help="cuda: begin no round of a set that would end after so many seconds",
    )
    parser.add_argument("--images", type=int, help="at least so many images an epoch")
    parser.add_argument("--no-outputs", action="store_true", help="compare no outputs")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    cuda = arguments.device == "cuda"
    arguments.sets = arguments.sets or ("s256,raw256" if cuda else ",".join(BATCHES))
    arguments.batch = arguments.batch or (512 if cuda else 128)
    arguments.rounds = arguments.rounds or (3 if cuda else 5)
    cpus = len(os.sched_getaffinity(0))
    arguments.workers = arguments.workers or (cpus if cuda else 2)
    arguments.engines = arguments.engines.split(",") if arguments.engines else []
    for name in arguments.sets.split(","):
        if name not in BATCHES:
            parser.error(f"--sets: expected some of {', '.join(BATCHES)}, found {name}")
    return arguments


def _installed(
    chosen: str, pythons: dict[str, str]
) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Peer -> the Python that runs it; peer -> version; and those that are not installed. Prints
    them all."""
    names = {"all": PEERS, "none": ()}.get(chosen, chosen.split(","))
    found, versions, absent = {}, {}, []
    for name in names:
        if name not in PEERS:
            raise SystemExit(f"--peers: expected some of {', '.join(PEERS)}, found {name}")
        python = pythons.get(name, sys.executable)
        done = _run(python, name, ["check"])
        if done.returncode:
            install = importlib.import_module(f"bench.peers.{name}").INSTALL
            print(f"  {name}: not installed: {install}")
            absent.append(name)
        else:
            found[name], versions[name] = python, done.stdout.strip()
            print(f"  {name}: {versions[name]}")
    return found, versions, absent


def _run(python: str, module: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return subprocess.run(
        [python, "-m", f"bench.peers.{module}", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )


def _contestants(
    name: str, sets: Sets, peers: dict[str, str], engines: list[str], missing: dict[str, str]
) -> list[Contestant]:
    """Everyone who takes part on a set, with what each reads made ready; who cannot is added to
    ``missing``, with the reason."""
    does, made = ours.SETS[name], sets.dataset(name)
    found = [
        Contestant(f"fastdata {engine}", "ours", sys.executable, made, [engine], does)
        for engine in engines or ENGINES
    ]
    if name in ("orig", "s256"):
        extra = ["workers", "antialias"]
        title = "fastdata workers, antialias"
        found.append(Contestant(title, "ours", sys.executable, made, extra, ours.ANTIALIAS))
    for peer, python in peers.items():
        module = importlib.import_module(f"bench.peers.{peer}")
        if name not in module.SETS:
            continue
        does, place = module.SETS[name], sets.folder(name) if name in JPEG_SETS else made
        if hasattr(module, "_prepare"):
            source, place = place, sets.scratch / f"{name}-of-{peer}"  # no name of a format's
            done = _run(python, peer, ["prepare", str(source), str(place), name, str(sets.workers)])
            if done.returncode:
                print(f"  {peer} on {name}: failed: {last_line(done.stderr)}")
                why = f"preparing its data failed: {last_line(done.stderr)}"
                missing |= dict.fromkeys(module.TITLES, why)
                continue
            remark = last_line(done.stdout)
            does = f"{does} ({remark})" if remark.startswith("quality") else does
        for title, extra in module.TITLES.items():
            found.append(Contestant(title, peer, python, place, extra, does))
    return found


def _outputs(
    arguments: argparse.Namespace, name: str, sets: Sets, peers: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Title -> how the contestant's output compares with the reference; prints it."""
    checked, found = sets.checked(), {}
    contestants = _contestants(name, checked, peers, arguments.engines, {})
    source = checked.folder(name) if name in JPEG_SETS else checked.dataset(name)
    expected = reference(source, name)
    print(f"\n{name}: outputs beside the reference (mean level, contrast, sharpness, match)")
    for one in contestants:
        if one.title.startswith("bound"):
            continue
        words = [str(one.place), name, str(BATCH), str(arguments.workers), *one.extra]
        done = _run(one.python, one.module, ["outputs", *words])
        if done.returncode:
            print(f"  {one.title:28}{last_line(done.stderr)}")
            found[one.title] = {"faults": [f"they could not be had: {last_line(done.stderr)}"]}
            continue
        side = 32 if name.endswith("32") else 224
        result = judge(json.loads(last_line(done.stdout)), expected, side)
        print(
            f"  {one.title:28}{result['mean']:>+6.1f} {result['contrast']:>5.2f} "
            f"{result['sharpness']:>5.2f} {result['match']:>5.2f}  "
            f"{'; '.join(result['faults']) or 'as it should be'}"
        )
        found[one.title] = result
    checked.forget(name)
    return found


def _compare_on_cpu(
    arguments: argparse.Namespace, sets: Sets, peers: dict[str, str], absent: list[str]
) -> Iterator[dict[str, Any]]:
    """Measure every set; prints and gives its tables.

    Args:
        arguments: of the command line.
        sets: the images.
        peers: peer -> the Python that runs it.
        absent: peers that are not installed.
    """
    for name in arguments.sets.split(","):
        outputs = {} if arguments.no_outputs else _outputs(arguments, name, sets, peers)
        missing: dict[str, str] = {}
        for peer in absent:
            module = importlib.import_module(f"bench.peers.{peer}")
            if name in module.SETS:
                missing |= dict.fromkeys(module.TITLES, "not installed")
        contestants = _contestants(name, sets, peers, arguments.engines, missing)
        yield from _compare(arguments, name, contestants, outputs, missing)
        sets.forget(name)


def _compare(
    arguments: argparse.Namespace,
    name: str,
    contestants: list[Contestant],
    outputs: dict[str, dict[str, Any]],
    missing: dict[str, str],
) -> list[dict[str, Any]]:
    """Measure a set; prints and returns its tables, which also say who is missing, and why."""
    able = []
    for one in contestants:
        done = None if one.module != "ours" else _rate(arguments, name, one, _TRIAL_SECONDS)
        if done is not None and done.returncode:  # an engine that needs another device or format
            print(f"  {one.title} on {name}: {last_line(done.stderr)}")
        else:
            able.append(one)
    rates = interleave(
        {one.title: _measured(arguments, name, one) for one in able}, arguments.rounds
    )
    failed = [one.title for one in able if any(map(math.isnan, rates[one.title]))]
    missing |= dict.fromkeys(failed, "it failed in one of the rounds")
    able = [one for one in able if one.title not in failed]
    rates = {one.title: rates[one.title] for one in able}
    if not able:
        return []
    size = 32 if name.endswith("32") else 224
    title = (
        f"{name}: images/s, {arguments.workers} workers, output {size}x{size} uint8, "
        f"batch {arguments.batch}, load {os.getloadavg()[0]:.1f}"
    )
    baseline = next((base for base in _BASELINES if base in rates), able[0].title)
    table = report(title, rates, baseline, "images/s", None)
    reference = able[0].title  # the engine that fastdata itself would take
    words = spread(arguments.rounds)
    print(f"  {'':28}  1st batch  imported  CPU s/10,000  {reference} to it [{words}]")
    for one in able:
        middle, low, high = ratio(rates[reference], rates[one.title])
        first, imported = map(statistics.median, zip(*one.firsts, strict=True))
        cpu = statistics.median(one.cpu)
        print(
            f"  {one.title:28}{first:>9.1f} s  {imported:>6.2f} s  {cpu:>12.2f}  "
            f"{middle:.2f} [{low:.2f}, {high:.2f}]  {one.does}"
        )
        table["rows"][one.title] |= {
            "does": one.does,
            "first_batch_seconds": one.firsts,
            "cpu_seconds_per_10000": one.cpu,
            "reference_to_it": [middle, low, high],
            "outputs": outputs.get(one.title),
        }
    print(f"  {_verdict(name, able, rates, outputs)}")
    return [table | {"missing": missing}]


def _verdict(
    name: str,
    able: list[Contestant],
    rates: dict[str, list[float]],
    outputs: dict[str, dict[str, Any]],
) -> str:
    """Fastdata's fastest engine to the best peer, of those whose outputs are as they should be."""
    sound = [one for one in able if not outputs.get(one.title, {}).get("faults")]
    ours = [one for one in sound if one.module == "ours"]
    peers = [one for one in sound if one.module not in ("ours", "bound")]
    if not ours or not peers:
        return "no peer to compare with"
    best, peer = (
        max(of, key=lambda one: statistics.median(rates[one.title])) for of in (ours, peers)
    )
    middle, low, high = ratio(rates[best.title], rates[peer.title])
    text = f"{best.title} to the best peer, {peer.title}: {middle:.2f} [{low:.2f}, {high:.2f}]"
    if low >= 1:
        return text
    module = importlib.import_module(f"bench.peers.{peer.module}")
    why = getattr(module, "AHEAD", {}).get(name, "not explained yet")
    return f"{text}: {'the peer is ahead' if high < 1 else 'no difference to be seen'} ({why})"


def _measured(arguments: argparse.Namespace, name: str, one: Contestant) -> Callable[[], float]:
    def measure() -> float:
        done = _rate(arguments, name, one, arguments.seconds)
        if done.returncode:
            print(f"  {one.title} on {name}: failed: {last_line(done.stderr)}")
            return math.nan
        first, imported, cpu, rate = map(float, done.stdout.split()[-4:])
        one.firsts.append((first, imported))
        one.cpu.append(cpu)
        return rate

    return measure


def _rate(
    arguments: argparse.Namespace, name: str, one: Contestant, seconds: float
) -> subprocess.CompletedProcess[str]:
    words = [name, str(arguments.batch), str(arguments.workers), str(seconds), *one.extra]
    return _run(one.python, one.module, ["rate", str(one.place), *words])


if __name__ == "__main__":
    main()
