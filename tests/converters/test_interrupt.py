"""Conversions that are killed, and go on.

Real processes are killed with real signals: the whole conversion at moments spread over the run
(FASTDATA_KILLS sets how many, by default 3), one of its workers, and, operation by operation, at
each change that the parent makes to the destination while it finishes and publishes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from converters.options import Options
from converters.plan import Plan
from converters.sources import scan_source
from fastdata import DestinationError, UnfinishedError, UsageError, WorkerError, convert
from fastdata.dataset import open_dataset
from fastdata.manifest import STAGING
from tests.converters.conftest import HANG_GUARD

FORMATS = ("webdataset", "lmdb", "memmap")
KILLS = int(os.environ.get("FASTDATA_KILLS", "3"))
SHARD_SIZE = 8000

Digests = Callable[[Path], dict[str, str]]
Start = Callable[..., "subprocess.Popen[str]"]


def needed(to: str) -> dict[str, Any]:
    options: dict[str, Any] = {"to": to, "shard_size": SHARD_SIZE}
    return {**options, "size": 24} if to == "memmap" else options


@pytest.fixture(scope="module")
def source(memory: Path) -> Path:
    """200 images that make about 30 shards; read by all tests of this module, changed by none."""
    root, generator = memory / "interrupt" / "source", np.random.default_rng(0)
    for number in range(200):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        coarse = generator.integers(0, 256, (5, 5, 3), np.uint8)
        image = Image.fromarray(coarse).resize((60 + number % 7, 48), Image.Resampling.BICUBIC)
        image.save(folder / f"{number:03d}.jpg", quality=90)
    return root


@pytest.fixture(scope="module")
def undisturbed(source: Path, memory: Path) -> Callable[[str], Path]:
    """The dataset that a conversion of ``source`` makes when nothing happens to it."""
    root = memory / "undisturbed"

    def dataset(to: str) -> Path:
        if not (root / to).exists():
            convert(source, root / to, **needed(to))
        return root / to

    return dataset


@pytest.fixture
def long_source(source: Path, tmp_path: Path) -> Path:
    """Work for seconds: thousands of names of one image, to be converted as one shard."""
    image, folder = next(source.rglob("*.jpg")), tmp_path / "long" / "class"
    folder.mkdir(parents=True)
    for number in range(6000):
        os.link(image, folder / f"{number:05d}.jpg")
    return folder.parent


ONE_SHARD: dict[str, Any] = {"shard_size": 10**9, "resize": 40}


def records(out: Path) -> int:
    """How many shards are done."""
    return len(list((out / STAGING).glob("shard-*.npz")))


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_GUARD
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for has not happened"
        time.sleep(0.005)


def workers_of(out: Path) -> list[int]:
    """Process ids of the workers that write below ``out``."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            arguments = (path / "cmdline").read_bytes().split(b"\0")
            stopped = "State:\tZ" in (path / "status").read_text()
        except OSError:  # no process, or it has ended meanwhile
            continue
        ours = any(os.fsencode(out / STAGING) == argument for argument in arguments)
        if ours and not stopped:
            found.append(int(path.name))
    return found


def check_between(out: Path, whole: dict[str, str], digests: Digests) -> None:
    """Between kill and resumption: no dataset, or the whole one."""
    try:
        open_dataset(out).close()
    except UnfinishedError:
        pass
    else:
        found = digests(out)
        assert {name: found.get(name) for name in whole} == whole


# The whole conversion.


@pytest.mark.parametrize("to", FORMATS)
def test_a_killed_conversion_goes_on_to_the_same_bytes(
    to: str,
    source: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    start: Start,
    digests: Digests,
) -> None:
    out, whole = tmp_path / "out", digests(undisturbed(to))
    shards = Plan.make(Options(**_options(to)), scan_source(source)).shards
    assert shards > 20
    kill, tries = 0, 0
    while kill < KILLS:
        goal = max(1, shards * (2 * kill + 1) // (2 * KILLS))
        process = start(source, out, workers=2, **needed(to))
        wait_for(lambda: process.poll() is not None or records(out) >= goal)  # noqa: B023
        process.kill()
        struck = process.wait(HANG_GUARD) == -signal.SIGKILL
        wait_for(lambda: not workers_of(out))  # they die with their parent
        check_between(out, whole, digests)
        if struck:
            kill += 1
        else:  # it was done before: from the beginning
            shutil.rmtree(out)
            kill, tries = 0, tries + 1
            assert tries < 10
    assert convert(source, out, **needed(to)).resumed > 0
    assert digests(out) == whole


def _options(to: str) -> dict[str, Any]:
    options = needed(to)
    return {**options, "size": (24, 24)} if "size" in options else options


def test_a_conversion_killed_before_its_first_shard_begins_again(
    source: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    start: Start,
    digests: Digests,
) -> None:
    out = tmp_path / "out"
    process = start(source, out, **needed("memmap"))
    wait_for(lambda: (out / STAGING).exists())
    process.kill()
    process.wait(HANG_GUARD)
    wait_for(lambda: not workers_of(out))
    with pytest.raises(UnfinishedError):
        open_dataset(out)
    convert(source, out, **needed("memmap"))
    assert digests(out) == digests(undisturbed("memmap"))


def test_workers_die_with_their_parent_in_the_middle_of_a_shard(
    long_source: Path, tmp_path: Path, start: Start
) -> None:
    out = tmp_path / "out"
    process = start(long_source, out, **ONE_SHARD)
    wait_for(lambda: any((out / STAGING).glob("*.tar.tmp")))
    assert workers_of(out)
    process.kill()
    process.wait(HANG_GUARD)
    wait_for(lambda: not workers_of(out))
    before = {path: path.stat().st_mtime_ns for path in (out / STAGING).iterdir()}
    with pytest.raises(UnfinishedError, match="0 of 1 shards"):
        open_dataset(out)
    assert {path: path.stat().st_mtime_ns for path in (out / STAGING).iterdir()} == before


@pytest.mark.parametrize("to", ["webdataset", "memmap"])
def test_ctrl_c_ends_a_conversion_that_can_be_resumed(
    to: str,
    source: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    start: Start,
    digests: Digests,
) -> None:
    out = tmp_path / "out"
    process = start(source, out, workers=2, **needed(to))
    wait_for(lambda: records(out) >= 3)
    os.killpg(process.pid, signal.SIGINT)  # what a terminal sends: to the whole job
    _, errors = process.communicate(timeout=HANG_GUARD)
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1  # the workers are silent about it
    assert not workers_of(out)
    with pytest.raises(UnfinishedError):
        open_dataset(out)
    assert convert(source, out, **needed(to)).resumed >= 3
    assert digests(out) == digests(undisturbed(to))


def test_an_error_in_the_caller_ends_workers_in_the_middle_of_a_shard(
    long_source: Path, tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    out = tmp_path / "out"
    interrupt(long_source, out, **ONE_SHARD)
    assert not workers_of(out)
    assert records(out) == 0  # it was ended, not waited for


# One worker.


class KillsAWorker:
    """A progress that kills one of the conversion's workers after some images."""

    def __init__(self, out: Path, after: int) -> None:
        self.out, self.left, self.killed = out, after, 0

    def scanned(self, images: int) -> None: ...

    def planned(self, images: int, done: int) -> None: ...

    def converted(self, images: int) -> None:
        self.left -= images
        if self.left <= 0 and not self.killed:
            self.killed = workers_of(self.out)[0]
            os.kill(self.killed, signal.SIGKILL)

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("to", "workers"), [("webdataset", 1), ("lmdb", 2), ("memmap", 2)])
def test_a_killed_worker_ends_the_conversion_which_can_be_resumed(
    to: str,
    workers: int,
    source: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    digests: Digests,
) -> None:
    out = tmp_path / "out"
    killer = KillsAWorker(out, after=40)
    with pytest.raises(WorkerError, match=r"signal 9 \(SIGKILL\) while it wrote shard \d+; .*mem"):
        convert(source, out, workers=workers, progress=killer, **needed(to))
    assert killer.killed
    assert not workers_of(out)  # the others have ended too
    with pytest.raises(UnfinishedError):
        open_dataset(out)
    assert convert(source, out, **needed(to)).resumed > 0
    assert digests(out) == digests(undisturbed(to))


# Resume, or not.


def test_resume_is_what_a_repeated_command_does(
    source: Path, tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    out, options = tmp_path / "out", needed("webdataset")
    interrupt(source, out, images=30, **options)
    done = records(out)
    assert done > 0
    assert convert(source, out, resume=True, **options).resumed == done


def test_no_resume_starts_from_the_beginning(
    source: Path,
    undisturbed: Callable[[str], Path],
    tmp_path: Path,
    interrupt: Callable[..., None],
    digests: Digests,
) -> None:
    out = tmp_path / "out"
    interrupt(source, out, images=30, **needed("lmdb"))
    # Another format and other shards: nothing of the first must reach the second.
    assert convert(source, out, resume=False, **needed("webdataset")).resumed == 0
    assert digests(out) == digests(undisturbed("webdataset"))


def test_an_unfinished_conversion_is_not_resumed_with_other_options(
    source: Path, tmp_path: Path, interrupt: Callable[..., None], digests: Digests
) -> None:
    out, options = tmp_path / "out", needed("webdataset")
    interrupt(source, out, images=30, **options)
    before = digests(out)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"to": "lmdb"}, "--to was 'webdataset' and is now 'lmdb'"),
        ({"resize": 20}, "--resize was None and is now 20"),
        ({"seed": 2}, "--seed was 0 and is now 2"),
        ({"shard_size": 1000}, "--shard-size was 8000 and is now 1000"),
    ]
    for changed, message in changes:
        with pytest.raises(DestinationError, match=message):
            convert(source, out, **{**options, **changed})
        assert digests(out) == before
    assert convert(source, out, **options).resumed > 0


def test_resume_demands_something_to_resume(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to resume"):
        convert(source, tmp_path / "out", resume=True, **needed("webdataset"))


# Operation by operation.

# Brings a destination to a state, kills a conversion before one of its operations, and looks.
# Forked from one process, which has imported everything, so that a conversion costs next to
# nothing; kills by an audit hook, which Python calls before each operation on files.
SWEEP = """
import hashlib, json, os, shutil, signal, sys, traceback
from pathlib import Path
import converters.conversion, converters.transform, fastdata.formats.lmdb
import fastdata.formats.memmap, fastdata.formats.webdataset
from fastdata import UnfinishedError, convert, open_dataset

CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def digests(root):
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(root.rglob("*")) if p.is_file()}

def changes(event, args, out):
    if event == "open":
        return isinstance(args[0], (str, bytes)) and os.fsdecode(args[0]).startswith(out) and (
            args[2] & CHANGES)
    if event in ("os.rename", "os.mkdir", "os.rmdir", "os.remove"):
        return os.fsdecode(args[0]).startswith(out) or isinstance(args[-1], int) and args[-1] >= 0
    return False

STOPS = {  # where a phase begins, or ends: before the event that is picked
    # The first look at the shards' records: all of them are done.
    "finish": lambda event, args, out: event == "open" and (
        str(args[0]).endswith("shard-000000.npz")),
    # The first file is moved to its place.
    "publish": lambda event, args, out: event == "os.rename" and (
        Path(args[1]).parent == Path(out)),
    # The first worker is started.
    "start": lambda event, args, out: event == "subprocess.Popen",
}

def run(out, kill_at, options, phase=None):
    # Convert in a fork, killed before change number kill_at, or where a phase begins or ends.
    report, answer = os.pipe()
    process = os.fork()
    if process == 0:
        count = 0
        def hook(event, args):
            nonlocal count
            end = phase is not None and STOPS[phase](event, args, str(out))
            if changes(event, args, str(out)):
                count += 1
                end = end or count == kill_at
            if end:
                os.write(answer, f"{event} {args[0]!r}".encode()[:4000])
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        try:
            convert(dst=out, **options)
        except BaseException as error:
            os.write(answer, f"{type(error).__name__}: {error}".encode()[:4000])
            os._exit(1)
        os._exit(0)
    os.close(answer)
    with open(report, "rb") as file:
        where = file.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), where

def look(out, old, new):
    # What a reader meets: "unfinished", "old" or "new"; or what is wrong.
    found = digests(out)
    try:
        dataset = open_dataset(out)
    except UnfinishedError:
        return None if not (out / "fastdata.json").exists() else "unfinished, with a manifest"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    for files in (old, new):
        if files and found["fastdata.json"] == files["fastdata.json"]:
            wrong = [name for name in files if found.get(name) != files[name]]
            dataset.read(0) if dataset.encoded else dataset.pixels[0]
            return f"not whole: {wrong}" if wrong else None
    return "neither the old dataset nor the new one"

def sweep(work, options, phase, old_options, after, stride):
    work = Path(work)
    template, out, fresh = work / "template", work / "out", work / "fresh"
    convert(dst=fresh, **{**options, "overwrite": False})
    new, old = digests(fresh), {}
    if old_options:
        convert(dst=template, **old_options)
        (template / "mine.txt").write_text("mine")
        old = digests(template)
        new["mine.txt"] = old["mine.txt"]
        shutil.copytree(template, out)
    if phase != "start":
        code, where = run(out, -1, options, phase)
        assert code == -signal.SIGKILL, where
        shutil.rmtree(template, ignore_errors=True)
        out.rename(template)
    failures, kill_at = [], 0
    while True:
        kill_at += 1
        shutil.rmtree(out, ignore_errors=True)
        if template.exists():
            shutil.copytree(template, out)
        code, where = run(out, kill_at, options, "start" if phase == "start" else None)
        if code == 0 or where.startswith("subprocess.Popen"):
            break
        if kill_at % stride:
            continue
        step = f"{kill_at}: killed before {where.replace(str(out), 'OUT')}"
        if code != -signal.SIGKILL:
            failures.append([step, "the conversion failed by itself"])
            break
        if not out.exists():
            continue  # nothing was done yet
        wrong = None if phase == "start" and not any(out.iterdir()) else look(out, old, new)
        if (old or phase == "publish") and not wrong and digests(out).items() >= new.items():
            break  # the manifest has moved: a repeated command would convert from the beginning
        if wrong:
            failures.append([step, "between: " + wrong])
        code, where = run(out, -1, {**options, **after})
        if code:
            failures.append([step, "the next run: " + where.replace(str(out), "OUT")])
            continue
        if (out / ".fastdata-partial").exists():
            failures.append([step, "in the end staging is left"])
            shutil.rmtree(out / ".fastdata-partial")
        found = digests(out)
        if found != new:
            names = {n for n in {*found, *new} if found.get(n) != new.get(n)}
            failures.append([step, f"in the end these differ: {sorted(names)}"])
    print(json.dumps({"steps": kill_at - 1, "failures": failures}))

sweep(**json.loads(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def small_source(source: Path, memory: Path) -> Path:
    root = memory / "small"
    for path in sorted(source.rglob("*.jpg"))[::17]:
        (root / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, root / path.parent.name / path.name)
    (root / "class1" / "bad.jpg").write_bytes(b"no image")  # so that memmap has a gap to close
    return root


@pytest.fixture
def sweep(
    small_source: Path, tmp_path: Path, python: Callable[..., Any]
) -> Callable[..., dict[str, Any]]:
    def run(
        to: str,
        phase: str,
        old: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
        stride: int = 1,
    ) -> dict[str, Any]:
        common = {"src": str(small_source), "workers": 1, "on_error": "skip"}
        options = {**common, **needed(to), "overwrite": old is not None}
        arguments = {
            "work": str(tmp_path),
            "options": options,
            "phase": phase,
            "old_options": old and {**common, **old},
            "after": after or {},
            "stride": stride,
        }
        result = python(SWEEP, json.dumps(arguments))
        assert result.returncode == 0, result.stderr
        report: dict[str, Any] = json.loads(result.stdout)
        return report

    return run


def listed(report: dict[str, Any]) -> Iterator[str]:
    for step, failure in report["failures"]:
        yield f"{step}\n    {failure}"


@pytest.mark.parametrize("to", FORMATS)
def test_a_kill_at_any_step_of_finishing_and_publishing_is_survived(
    to: str, sweep: Callable[..., dict[str, Any]]
) -> None:
    report = sweep(to, "finish")
    assert report["steps"] > 20
    assert not report["failures"], "\n".join(listed(report))


@pytest.mark.parametrize(
    ("to", "old"),
    [
        ("webdataset", {"to": "webdataset", "shard_size": 5000, "seed": 3}),
        ("lmdb", {"to": "webdataset", "shard_size": 10**6}),
        ("memmap", {"to": "memmap", "size": 16}),
    ],
    ids=["webdataset", "lmdb for webdataset", "memmap"],
)
def test_a_kill_at_any_step_of_replacing_a_dataset_is_survived(
    to: str, old: dict[str, Any], sweep: Callable[..., dict[str, Any]]
) -> None:
    report = sweep(to, "finish", old)
    assert report["steps"] > 20
    assert not report["failures"], "\n".join(listed(report))


def test_a_kill_at_any_step_of_publishing_can_be_answered_by_starting_anew(
    sweep: Callable[..., dict[str, Any]],
) -> None:
    # What the library advises where it cannot go on by itself.
    report = sweep("memmap", "publish", {"to": "lmdb"}, {"resume": False})
    assert report["steps"] > 10
    assert not report["failures"], "\n".join(listed(report))


def test_a_kill_at_any_step_of_starting_is_survived(
    sweep: Callable[..., dict[str, Any]],
) -> None:
    # memmap prepares most. A file is opened, then renamed: every third step meets both.
    report = sweep("memmap", "start", stride=3)
    assert report["steps"] > 15
    assert not report["failures"], "\n".join(listed(report))


# After the end.


def test_what_a_killed_end_leaves_behind_is_removed_and_in_nobodys_way(
    small_source: Path, tmp_path: Path, python: Callable[..., Any], digests: Digests
) -> None:
    # Killed when the manifest has moved to its place, and before anything else: the dataset is
    # whole, and the staging folder, which may be as large, of no more use.
    code = """
import json, os, signal, sys
from fastdata import convert
moved = False
def hook(event, args):
    global moved
    if moved and event in ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.scandir"):
        os.kill(os.getpid(), signal.SIGKILL)
    if event == "os.rename" and str(args[1]).endswith("/out/fastdata.json"):
        moved = True
sys.addaudithook(hook)
convert(**json.loads(sys.argv[1]))
"""
    for number, overwrite in enumerate((False, True)):
        out = tmp_path / f"{number}" / "out"
        options = {"on_error": "skip", "workers": 1, **needed("lmdb")}
        arguments = {"src": str(small_source), "dst": str(out), **options}
        assert python(code, json.dumps(arguments)).returncode == -signal.SIGKILL
        assert (out / STAGING).exists()
        assert len(open_dataset(out)) == 12
        if overwrite:
            convert(small_source, out, overwrite=True, seed=1, **options)
            options["seed"] = 1
        else:
            assert convert(small_source, out, **options).already_done
        assert not (out / STAGING).exists()
        convert(small_source, tmp_path / f"{number}" / "fresh", **options)
        assert digests(out) == digests(tmp_path / f"{number}" / "fresh")
