"""Faults from outside: damaged images, full and read-only disks, rights, rivals, changed sources.

All are real: a file system that is full (a small tmpfs in a mount namespace of our own, or a limit
on file sizes where that is not allowed), permissions that bind, processes that run at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fastdata import (
    DestinationError,
    ImageError,
    SourceError,
    UnfinishedError,
    convert,
    open_dataset,
)
from fastdata.manifest import STAGING
from tests.converters.conftest import HANG_GUARD

FORMATS = ("webdataset", "lmdb", "memmap")
Digests = Callable[[Path], dict[str, str]]


def needed(to: str) -> dict[str, Any]:
    return {"to": to, "size": 64, "workers": 1} if to == "memmap" else {"to": to, "workers": 1}


class Watching:
    """A progress that does something once, when the conversion has come to a point."""

    def __init__(self, point: str, action: Callable[[], object]) -> None:
        self._point, self._action, self.done = point, action, False

    def _at(self, point: str) -> None:
        if point == self._point and not self.done:
            self.done = True
            self._action()

    def scanned(self, images: int) -> None:
        self._at("scanned")

    def planned(self, images: int, done: int) -> None:
        self._at("planned")

    def converted(self, images: int) -> None:
        self._at("converted")

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...


# Damaged images.


@pytest.fixture
def damaged(
    make_folder: Callable[..., Path],
    pixels: Callable[..., NDArray[np.uint8]],
    encode: Callable[..., bytes],
) -> tuple[Path, dict[str, str]]:
    """A source with damaged images of every kind; and what is wrong with each."""
    source = make_folder({"ant": 4, "bee": 4})
    good = encode(pixels(97, 61))
    files = {
        "header.jpg": (good[:100], "truncated"),
        "scan.jpg": (good[: len(good) // 2], "truncated"),
        "forged.jpg": (good[: len(good) // 2] + b"\xff\xd9", "premature end"),
        "empty.jpg": (b"", "empty"),
        "text.jpg": (b"<html>404 Not Found</html>", "not an image"),
        "truncated.png": (encode(pixels(97, 61), "PNG")[:-600], "damaged|truncated"),
    }
    for name, (data, _) in files.items():
        (source / "bee" / name).write_bytes(data)
    (source / "bee" / "link.jpg").symlink_to("gone.jpg")
    return source, {
        **{f"bee/{name}": reason for name, (_, reason) in files.items()},
        "bee/link.jpg": "No such file",
    }


def test_damaged_images_of_every_kind_are_listed_with_their_reasons(
    damaged: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    source, faults = damaged
    result = convert(source, tmp_path / "out", on_error="skip")
    assert (result.samples, result.skipped) == (8, len(faults))
    lines = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    found = {entry["path"]: entry["reason"] for entry in map(json.loads, lines)}
    assert found.keys() == faults.keys()
    for path, reason in faults.items():
        assert any(word in found[path] for word in reason.split("|")), found[path]


def test_each_damaged_image_stops_a_strict_conversion_by_name(
    damaged: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    source, faults = damaged
    for path in faults:
        only = tmp_path / "only" / Path(path).name.replace(".", "-")
        (only / "bee").mkdir(parents=True)
        shutil.copy(source / path, only / path, follow_symlinks=False)
        with pytest.raises(ImageError, match=f"{only}/{path}: "):
            convert(only, tmp_path / "out" / only.name, workers=1)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_a_file_that_vanishes_before_it_is_read_is_an_image_at_fault(
    on_error: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    vanish = Watching("planned", (source / "bee" / "bee_002.jpg").unlink)
    options = {"on_error": on_error, "progress": vanish}
    if on_error == "raise":
        with pytest.raises(ImageError, match=r"bee/bee_002\.jpg: cannot be read: No such file"):
            convert(source, tmp_path / "out", **options)  # type: ignore[arg-type]
    else:
        result = convert(source, tmp_path / "out", **options)  # type: ignore[arg-type]
        assert (result.samples, result.skipped) == (21, 1)
    assert vanish.done


def test_a_pipe_with_an_images_name_does_not_hang_the_conversion(
    make_folder: Callable[..., Path], tmp_path: Path, start: Callable[..., Any]
) -> None:
    source = make_folder({"ant": 2})
    os.mkfifo(source / "ant" / "pipe.jpg")
    process = start(source, tmp_path / "out", on_error="skip", workers=1)
    _, errors = process.communicate(timeout=HANG_GUARD)  # opening one waits for a writer
    assert process.returncode == 0, errors
    assert len(open_dataset(tmp_path / "out")) == 2


def test_a_header_that_promises_gigabytes_of_pixels_costs_one_image_and_no_memory(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    # Two damaged bytes are enough: 65,500 x 65,500 pixels take 13 GB.
    source = make_folder({"ant": 3})
    path = source / "ant" / "ant_001.jpg"
    data = bytearray(path.read_bytes())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = (65_500).to_bytes(2, "big") * 2
    path.write_bytes(data)
    code = """
import resource, sys
from fastdata import convert
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
print(convert(*sys.argv[1:], workers=1, on_error="skip").skipped)
"""
    result = python(code, source, tmp_path / "out")
    assert result.stdout == "1\n", result.stderr[-600:]


# Disks.


def mounted(disk: Path) -> list[str] | None:
    """A command prefix that runs a program with a 16 MB disk at ``disk``; None if not allowed."""
    namespace = ["unshare", *(["-r"] if os.getuid() else []), "-m"]
    mount = 'mount -t tmpfs -o size=16m tmpfs "$0" && exec "$@"'
    wrap = [*namespace, "sh", "-c", mount, str(disk)]
    try:
        trial = [*wrap, sys.executable, "-c", ""]
        tried = subprocess.run(trial, capture_output=True, timeout=60, check=False)
    except FileNotFoundError:
        return None
    return wrap if tried.returncode == 0 else None


# Fills the disk but for some bytes, converts, looks; then frees it and converts again.
FULL_DISK = """
import hashlib, json, os, resource, shutil, sys
from pathlib import Path
from fastdata import FastdataError, convert, open_dataset

given = json.loads(sys.argv[1])
disk, out = Path(given["disk"]), Path(given["disk"]) / "out"
ballast = disk / "ballast"

def digests():
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in out.iterdir()
            if p.is_file()}

def fill(free):
    if not given["mounted"]:  # a limit on the size of a file instead
        limit = resource.RLIM_INFINITY if free is None else free // 2
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        return
    ballast.unlink(missing_ok=True)
    if free is not None:
        status = os.statvfs(disk)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, status.f_bavail * status.f_bsize - free)

old = given["old"]
if old:
    convert(dst=out, **old)
    before = digests()
report = []
for free in given["free"]:
    if not old:
        shutil.rmtree(out, ignore_errors=True)
    fill(free)
    found = {"free": free}
    try:
        convert(dst=out, **given["options"])
        found["error"] = None
    except FastdataError as error:
        found["error"], found["message"] = type(error).__name__, str(error)
    try:
        open_dataset(out)
        found["opened"] = "as a dataset"
    except FastdataError as error:
        found["opened"] = type(error).__name__
    found["outside"] = sorted(p.name for p in out.iterdir() if p.is_file()) if out.exists() else []
    if old:
        now = digests()
        found["old"] = all(now.get(name) == digest for name, digest in before.items())
    report.append(found)
fill(None)
convert(dst=out, **given["options"])
print(json.dumps({"report": report, "digests": digests()}))
"""


@pytest.fixture
def on_full_disk(
    tmp_path: Path, python: Callable[..., Any]
) -> Callable[..., tuple[dict[str, Any], bool]]:
    disk = tmp_path / "disk"
    disk.mkdir()
    wrap = mounted(disk)

    def run(
        free: list[int], options: dict[str, Any], old: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], bool]:
        given = {
            "disk": str(disk),
            "free": free,
            "options": options,
            "old": old,
            "mounted": wrap is not None,
        }
        result = python(FULL_DISK, json.dumps(given), wrap=wrap)
        assert result.returncode == 0, result.stderr
        report: dict[str, Any] = json.loads(result.stdout)
        return report, wrap is not None

    return run


@pytest.mark.parametrize("to", FORMATS)
def test_a_full_disk_ends_in_a_storage_error_and_freeing_it_lets_the_conversion_go_on(
    to: str,
    make_folder: Callable[..., Path],
    tmp_path: Path,
    on_full_disk: Callable[..., tuple[dict[str, Any], bool]],
    digests: Digests,
) -> None:
    source = make_folder({"ant": 20, "bee": 20})
    (source / "bee" / "bad.jpg").write_bytes(b"no image")  # so that memmap has a gap to close
    options = {"src": str(source), "on_error": "skip", **needed(to)}
    convert(dst=tmp_path / "fresh", **options)
    total = sum(path.stat().st_size for path in (tmp_path / "fresh").iterdir())
    # Full from the start, at the plan, in the middle of the shards, near the end of them; and,
    # for the formats that write their data twice, while the second is written.
    parts = [0, 0.05, 0.3, 0.6, 0.9] + ([1.3] if to != "webdataset" else [])
    found, really_full = on_full_disk([int(total * part) for part in parts], options)
    for case in found["report"]:
        assert case["error"] == "StorageError", case
        assert str(tmp_path / "disk" / "out") in case["message"]
        if really_full:
            assert "No space left on device" in case["message"]
            assert "free some space on that disk and run the same command again" in case["message"]
        assert case["opened"] == "UnfinishedError"
        assert case["outside"] == []
    assert found["digests"] == digests(tmp_path / "fresh")


def test_a_full_disk_leaves_the_old_dataset_whole(
    make_folder: Callable[..., Path],
    tmp_path: Path,
    on_full_disk: Callable[..., tuple[dict[str, Any], bool]],
    digests: Digests,
) -> None:
    source = make_folder({"ant": 20, "bee": 20})
    options = {"src": str(source), **needed("webdataset"), "overwrite": True, "seed": 1}
    convert(dst=tmp_path / "fresh", **options)
    total = sum(path.stat().st_size for path in (tmp_path / "fresh").iterdir())
    found, _ = on_full_disk([0, total // 2], options, {"src": str(source), "to": "lmdb"})
    for case in found["report"]:
        assert case["error"] == "StorageError"
        assert case["opened"] == "as a dataset"
        assert case["old"]
    assert found["digests"] == digests(tmp_path / "fresh")


@pytest.mark.parametrize("to", FORMATS)
def test_a_limit_on_file_sizes_ends_in_a_storage_error(
    to: str, make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    code = """
import json, resource, sys
from fastdata import StorageError, convert
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, resource.RLIM_INFINITY))
try:
    convert(**json.loads(sys.argv[1]))
except StorageError as error:
    print(error)
"""
    options = {"src": str(make_folder()), "dst": str(tmp_path / "out"), **needed(to)}
    result = python(code, json.dumps(options))
    assert f"cannot write {tmp_path}/out/" in result.stdout, result.stderr
    assert "run the same command again" in result.stdout
    with pytest.raises(UnfinishedError):
        open_dataset(tmp_path / "out")
    convert(**options)
    assert len(open_dataset(tmp_path / "out")) == 22


READ_ONLY = """
import json, os, subprocess, sys
from pathlib import Path
from fastdata import StorageError, convert, open_dataset
given = json.loads(sys.argv[1])
disk, options = Path(given["disk"]), given["options"]
for to in ("webdataset", "lmdb", "memmap"):
    convert(dst=disk / to, to=to, **options)
(disk / "empty").mkdir()
if given["mounted"]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
else:
    for folder in (*disk.iterdir(), disk):
        folder.chmod(0o555)
found = {}
for name, changed in (
    ("new", {}), ("empty", {}), ("webdataset", {"seed": 1, "overwrite": True}),
):
    try:
        convert(dst=disk / name, **{**options, **changed})
    except StorageError as error:
        found[name] = str(error)
for to in ("webdataset", "lmdb", "memmap"):
    found[to + " again"] = convert(dst=disk / to, to=to, **options).already_done
    dataset = open_dataset(disk / to)
    found[to + " read"] = [int(dataset.decode(i).sum() > 0) for i in range(len(dataset))]
if not given["mounted"]:
    for folder in (disk, *disk.iterdir()):
        folder.chmod(0o755)
print(json.dumps(found))
"""


@pytest.mark.parametrize("way", ["file system", "permissions"])
def test_what_cannot_be_written_is_a_storage_error_and_can_still_be_read(
    way: str, make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    wrap = mounted(disk) if way == "file system" else None
    options = {"src": str(make_folder({"ant": 3})), "size": 32, "workers": 1}
    given = {"disk": str(disk), "options": options, "mounted": wrap is not None}
    result = python(READ_ONLY, json.dumps(given), wrap=wrap, unprivileged=wrap is None)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    reason = "Permission denied; check the perm" if wrap is None else "Read-only file system; ch"
    for name in ("new", "empty", "webdataset"):
        assert found[name].startswith(f"cannot write {disk}/{name}"), found
        assert reason in found[name]
    for to in FORMATS:
        assert found[f"{to} again"] is True
        assert found[f"{to} read"] == [1, 1, 1]


# Rights.


def refused(
    python: Callable[..., Any], source: Path, out: Path, *, on_error: str = "raise"
) -> tuple[str, str]:
    """Type and message of the error of a conversion by a user whom permissions bind."""
    code = """
import sys
from fastdata import FastdataError, convert
try:
    convert(sys.argv[1], sys.argv[2], on_error=sys.argv[3], workers=1)
    print("nothing")
except FastdataError as error:
    print(type(error).__name__, error, sep="\\n", end="")
"""
    result = python(code, source, out, on_error, unprivileged=True)
    assert result.returncode == 0, result.stderr
    kind, _, message = result.stdout.partition("\n")
    return kind, message


def test_an_image_that_must_not_be_read_is_named(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    source = make_folder({"ant": 3})
    (source / "ant" / "ant_001.jpg").chmod(0)
    kind, message = refused(python, source, tmp_path / "out")
    assert kind == "ImageError"
    assert message.startswith(f"{source}/ant/ant_001.jpg: cannot be read: Permission denied; ")


def test_a_source_that_must_not_be_listed_is_named(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    source = make_folder({"ant": 3})
    source.chmod(0)
    kind, message = refused(python, source, tmp_path / "out")
    source.chmod(0o755)
    assert kind == "SourceError"
    assert f"{source}: cannot list the folder: Permission denied" in message


def test_a_destination_that_must_not_be_looked_into_is_named(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    out = tmp_path / "out"
    out.mkdir(mode=0)
    kind, message = refused(python, make_folder({"ant": 3}), out)
    out.chmod(0o755)
    assert kind in ("DestinationError", "StorageError")
    assert str(out) in message
    assert "Permission denied" in message


# What is in the way.


def test_a_destination_inside_the_source_is_refused(
    make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    source = make_folder()
    before = digests(source)
    (tmp_path / "link").symlink_to(source / "ant")
    for out in (source, source / "out", source / "ant", tmp_path / "link" / "deeper"):
        with pytest.raises(DestinationError, match="lies inside the source"):
            convert(source, out)
    assert digests(source) == before


def test_a_destination_that_is_a_file_is_refused_and_kept(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(DestinationError, match=f"{out} exists and is no folder"):
            convert(make_folder(name=f"source{overwrite}"), out, overwrite=overwrite)
    assert out.read_text() == "mine"


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("resume", [None, False])
def test_a_folder_of_someone_elses_is_never_touched(
    overwrite: bool,
    resume: bool | None,
    make_folder: Callable[..., Path],
    tmp_path: Path,
    digests: Digests,
) -> None:
    source, out = make_folder(), tmp_path / "out"
    (out / "deep").mkdir(parents=True)
    (out / "labels.npy").write_text("mine")
    (out / "deep" / "shard-000000.tar").write_text("mine")
    for destination in (out, tmp_path):  # the latter holds the source itself
        before = digests(destination)
        with pytest.raises(DestinationError, match="no dataset of fastdata's"):
            convert(source, destination, overwrite=overwrite, resume=resume)
        assert digests(destination) == before


@pytest.mark.parametrize("text", ["", "{}", '{"fastdata": 99}', "[1]", "no json"])
def test_a_manifest_that_is_none_is_not_overwritten(
    text: str, make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "fastdata.json").write_text(text)
    before = digests(out)
    with pytest.raises(DestinationError, match=r"damaged dataset .*fastdata\.json"):
        convert(make_folder({"a": 1}), out, overwrite=True)
    assert digests(out) == before


# Rivals.


def test_a_second_conversion_into_the_same_destination_is_refused_while_one_runs(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    source, out = make_folder(), tmp_path / "out"
    code = """
import sys
from fastdata import DestinationError, convert
try:
    convert(*sys.argv[1:])
except DestinationError as error:
    print(error)
"""
    told = []
    rival = Watching("planned", lambda: told.append(python(code, source, out).stdout))
    assert convert(source, out, progress=rival).samples == 22
    assert f"another conversion into {out} is running" in told[0]
    assert len(open_dataset(out)) == 22


def test_a_conversion_that_finishes_while_another_scans_is_not_overwritten(
    make_folder: Callable[..., Path], tmp_path: Path, digests: Digests
) -> None:
    # Scanning millions of files takes minutes; the second must look again once it has the lock.
    source, out = make_folder(), tmp_path / "out"
    before: list[dict[str, str]] = []

    def finish_first() -> None:
        convert(source, out, seed=1, workers=1)
        before.append(digests(out))

    with pytest.raises(DestinationError, match="--seed was 1 and is now 2"):
        convert(source, out, seed=2, progress=Watching("scanned", finish_first))
    assert digests(out) == before[0]


def test_the_same_conversion_that_finishes_while_another_scans_is_not_repeated(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder(), tmp_path / "out"
    first = Watching("scanned", lambda: convert(source, out, workers=1))
    assert convert(source, out, progress=first).already_done


def test_the_lock_ends_with_the_conversion(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    (source / "ant" / "bad.jpg").write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(ImageError):
            convert(source, tmp_path / "out", workers=1)
    assert convert(source, tmp_path / "out", on_error="skip").skipped == 1


# A source that changes.


def test_a_changed_source_is_not_resumed(
    make_folder: Callable[..., Path],
    tmp_path: Path,
    interrupt: Callable[..., None],
    digests: Digests,
) -> None:
    source, out = make_folder(), tmp_path / "out"
    options: dict[str, Any] = {"shard_size": 4000, "workers": 1}
    interrupt(source, out, images=4, shard_size=4000)
    before = digests(out)
    image = source / "bee" / "bee_002.jpg"
    status, data = image.stat(), image.read_bytes()

    def restore() -> None:
        image.write_bytes(data)
        os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
        (source / "bee" / "new.jpg").unlink(missing_ok=True)

    def keep_time(size: int) -> None:
        image.write_bytes(data + bytes(size))
        os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))

    changes: list[tuple[Callable[[], object], str]] = [
        (lambda: shutil.copy2(image, source / "bee" / "new.jpg"), "22 images and has now 23|new"),
        (image.unlink, "bee_002"),
        (lambda: keep_time(1), "bee/bee_002.jpg was changed"),
        (lambda: os.utime(image, ns=(0, 0)), "bee/bee_002.jpg was changed"),
    ]
    for change, message in changes:
        change()
        with pytest.raises(DestinationError, match=f"cannot be resumed: .*({message})"):
            convert(source, out, **options)
        assert digests(out) == before
        restore()
    assert convert(source, out, **options).resumed >= 1


def test_a_changed_source_can_be_converted_from_the_beginning(
    make_folder: Callable[..., Path],
    tmp_path: Path,
    interrupt: Callable[..., None],
    digests: Digests,
) -> None:
    source, out = make_folder(), tmp_path / "out"
    interrupt(source, out, images=4, shard_size=4000)
    (source / "bee" / "bee_002.jpg").unlink()
    result = convert(source, out, shard_size=4000, resume=False)
    assert (result.samples, result.resumed) == (21, 0)
    convert(source, tmp_path / "fresh", shard_size=4000)
    assert digests(out) == digests(tmp_path / "fresh")


def test_a_source_that_is_gone_is_named_and_what_was_done_is_kept(
    make_folder: Callable[..., Path], tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    source, out = make_folder(), tmp_path / "out"
    interrupt(source, out, images=4, shard_size=4000)
    source.rename(tmp_path / "away")
    with pytest.raises(SourceError, match=f"{source}: .*found nothing"):
        convert(source, out, shard_size=4000)
    (tmp_path / "away").rename(source)
    assert convert(source, out, shard_size=4000).resumed >= 1
    assert not (out / STAGING).exists()


# What is not installed.


def test_a_missing_package_is_named_with_the_line_that_installs_it(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    source = make_folder({"a": 2})
    convert(source, tmp_path / "made", to="lmdb")
    code = """
import sys
sys.modules["lmdb"] = None  # as if it were not installed
from fastdata import MissingExtraError, convert, open_dataset
source, made, out, other = sys.argv[1:]
try:
    convert(source, out, to="lmdb")
except MissingExtraError as error:
    assert isinstance(error, ImportError)
    print(error)
print(len(open_dataset(made).decode(0)))  # to read, nothing is missing
print(convert(source, other, to="webdataset").samples)
"""
    result = python(code, source, tmp_path / "made", tmp_path / "out", tmp_path / "other")
    lines = result.stdout.splitlines()
    assert len(lines) == 3, result.stderr
    assert "'lmdb'" in lines[0]
    assert 'pip install "fastdata-vision[lmdb]"' in lines[0]
    assert lines[1:] == ["60", "2"]
    assert not (tmp_path / "out").exists()


def test_a_worker_that_cannot_start_is_an_error_that_shows_why(
    make_folder: Callable[..., Path], tmp_path: Path, python: Callable[..., Any]
) -> None:
    # The parent has cv2 loaded already, its workers find a broken one.
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "cv2.py").write_text("raise ImportError('libGL.so.1 is missing')")
    code = """
import sys
from fastdata import WorkerError, convert
import cv2
sys.path.insert(0, sys.argv.pop(1))
try:
    convert(*sys.argv[1:])
except WorkerError as error:
    print(error)
"""
    result = python(code, broken, make_folder({"a": 2}), tmp_path / "out")
    assert "libGL.so.1 is missing" in result.stdout, result.stderr


def test_a_manifest_that_names_files_elsewhere_is_refused_and_removes_nothing(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder({"ant": 3}), tmp_path / "out"
    convert(source, out, to="webdataset")
    precious = tmp_path / "precious.txt"
    precious.write_text("not ours")
    for name in ("../precious.txt", str(precious), "..", ".", "", "fastdata.json"):
        manifest = json.loads((out / "fastdata.json").read_text())
        manifest["parts"].append({"file": name, "offset": 0, "bytes": 8, "sha256": "0" * 64})
        (out / "fastdata.json").write_text(json.dumps(manifest))
        with pytest.raises(DestinationError, match="no name of a data file"):
            convert(source, out, to="lmdb", overwrite=True)
        assert precious.read_text() == "not ours"
        manifest["parts"].pop()
        (out / "fastdata.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("change", ["longer", "shorter", "touched"])
def test_a_file_that_changes_after_the_scan_stops_the_conversion_by_name(
    make_folder: Callable[..., Path], tmp_path: Path, on_error: str, change: str
) -> None:
    source, out = make_folder({"ant": 3}), tmp_path / "out"
    victim = source / "ant" / "ant_001.jpg"
    whole = victim.read_bytes()

    def meddle() -> None:
        if change == "touched":
            os.utime(victim, ns=(0, 0))
        else:
            victim.write_bytes(whole + b"more" if change == "longer" else whole[:-9])

    with pytest.raises(SourceError, match=f"{victim} was changed while"):
        convert(
            source, out, to="webdataset", on_error=on_error, progress=Watching("planned", meddle)
        )
    with pytest.raises(UnfinishedError):
        open_dataset(out)


def test_an_image_too_long_to_cover_the_size_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "source" / "ant").mkdir(parents=True)
    thread = tmp_path / "source" / "ant" / "thread.png"
    Image.new("RGB", (1, 60_000)).save(thread)
    with pytest.raises(ImageError, match=r"thread\.png: scaled to cover 512x512, its 1x60000"):
        convert(tmp_path / "source", tmp_path / "out", to="memmap", size=512)
