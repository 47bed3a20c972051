"""--max-errors: how many images may be left out, and folders that cannot be listed."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fastdata
from fastdata import DataError, UnfinishedError, UsageError, open_dataset

convert = functools.partial(fastdata.convert, workers=1, on_error="skip", shard_size=3000)
Digests = Callable[[Path], dict[str, str]]


@pytest.fixture
def source(
    tmp_path: Path, pixels: Callable[..., NDArray[np.uint8]], encode: Callable[..., bytes]
) -> Path:
    """Sixteen images of 40x30, and four files that are none: 20 %."""
    for i in range(20):
        path = tmp_path / "source" / "ab"[i % 2] / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(40, 30, seed=i)) if i % 5 else b"no image")
    return tmp_path / "source"


@pytest.mark.parametrize(
    ("bound", "workers"),
    [(4, 1), (4, 2), ("4", 1), (5, 1), ("20%", 1), ("20 %", 2), ("20.5%", 1), (None, 1)],
)
def test_as_many_as_the_bound_may_be_left_out(
    bound: int | str | None, workers: int, source: Path, tmp_path: Path
) -> None:
    result = convert(source, tmp_path / "out", max_errors=bound, workers=workers)
    assert (result.samples, result.skipped) == (16, 4)


@pytest.mark.parametrize(("bound", "workers"), [(3, 1), (3, 2), ("0", 2), ("19.9%", 1), ("0%", 1)])
def test_one_more_than_the_bound_ends_it_and_a_larger_bound_resumes(
    bound: int | str, workers: int, source: Path, tmp_path: Path, digests: Digests
) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=rf"of 20 images cannot be used.*--max-errors {bound}"):
        convert(source, out, max_errors=bound, workers=workers)
    with pytest.raises(UnfinishedError):
        open_dataset(out)
    done = len(list((out / ".fastdata-partial").glob("shard-*.npz")))
    result = convert(source, out, max_errors=4, resume=True)
    assert (result.skipped, result.resumed) == (4, done)
    convert(source, tmp_path / "fresh")  # nor does the bound change a byte
    assert digests(out) == digests(tmp_path / "fresh")


def test_what_an_earlier_run_left_out_counts(
    source: Path, tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    options = {"shuffle": False, "shard_size": 3000}
    interrupt(source, tmp_path / "out", images=15, on_error="skip", **options)
    done = len(list((tmp_path / "out" / ".fastdata-partial").glob("shard-*.npz")))
    assert done > 0
    with pytest.raises(DataError, match=r"4 of 20 images.*more than --max-errors 3"):
        convert(source, tmp_path / "out", max_errors=3, **options)
    assert convert(source, tmp_path / "out", max_errors=4, **options).resumed >= done


def test_a_finished_dataset_must_meet_the_bound_as_well(
    source: Path, tmp_path: Path, digests: Digests
) -> None:
    out = tmp_path / "out"
    convert(source, out)
    before = digests(out)
    for bound in (3, "19%"):
        with pytest.raises(DataError, match=r"4 of 20 images.*out/skipped\.jsonl"):
            convert(source, out, max_errors=bound)
    assert convert(source, out, max_errors="20%").already_done
    assert digests(out) == before


def test_copies_of_an_image_count_once(source: Path, tmp_path: Path) -> None:
    options = {"augment": "PIL.ImageOps:mirror", "copies": 3}
    result = convert(source, tmp_path / "out", max_errors=4, **options)
    assert (result.samples, result.skipped) == (48, 4)


def test_files_that_have_gone_count_before_any_work(source: Path, tmp_path: Path) -> None:
    rows = [f"{'ab'[i % 2]}/{i:02d}.jpg,{i}\n" for i in range(1, 5)]
    (tmp_path / "l.csv").write_text("path,label\n" + "".join(rows) + "gone.jpg,0\n")
    with pytest.raises(DataError, match=r"1 of 5 images cannot be used.*--max-errors 0"):
        convert(source, tmp_path / "out", labels=tmp_path / "l.csv", max_errors=0)
    assert not list(tmp_path.glob("out/.fastdata-partial/plan*"))
    result = convert(source, tmp_path / "out", labels=tmp_path / "l.csv", max_errors="20%")
    assert (result.samples, result.skipped) == (4, 1)


@pytest.mark.parametrize(
    "bound", ["", "many", "-1", -1, 1.5, "1.5", "101%", "-1%", "%", "5 percent", "1e2%", "nan%"]
)
def test_what_is_no_bound_is_refused(bound: Any, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-errors: expected a number or a percentage"):
        convert(source, tmp_path / "out", max_errors=bound)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("bound", [0, "5%"])
def test_a_bound_without_skip_is_refused(bound: int | str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-errors bounds what --on-error skip leaves out"):
        convert(source, tmp_path / "out", max_errors=bound, on_error="raise")
    assert not (tmp_path / "out").exists()


# Folders that cannot be listed. As root their permissions do not bind, hence a process without.

CONVERT = """
import json, sys
from fastdata import FastdataError, convert
try:
    done = convert(**json.loads(sys.argv[1]))
    print(done.samples, done.skipped)
except FastdataError as error:
    print(type(error).__name__, error)
"""
Closed = Callable[..., str]


@pytest.fixture
def closed(
    tmp_path: Path,
    pixels: Callable[..., NDArray[np.uint8]],
    encode: Callable[..., bytes],
    python: Callable[..., Any],
) -> Closed:
    """Convert nine images, and a folder that must not be listed, to ``out``; what it printed."""
    for i in range(9):
        path = tmp_path / "source" / "ab"[i % 2] / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels(40, 30, seed=i)))
    shut = tmp_path / "source" / "a" / "shut"
    shut.mkdir()
    (shut / "9.jpg").write_bytes(encode(pixels(40, 30, seed=9)))

    def run(**options: Any) -> str:
        given = {"src": f"{tmp_path}/source", "dst": f"{tmp_path}/out", "workers": 1, **options}
        shut.chmod(0)
        try:
            result = python(CONVERT, json.dumps(given), unprivileged=True)
        finally:
            shut.chmod(0o755)
        assert result.returncode == 0, result.stderr
        return str(result.stdout).strip()

    return run


def test_a_folder_that_cannot_be_listed_is_an_error_by_name(closed: Closed, tmp_path: Path) -> None:
    message = closed()
    assert message.startswith(f"SourceError {tmp_path}/source/a/shut: cannot list the folder: ")
    assert "Permission denied" in message
    assert not list(tmp_path.glob("out/.fastdata-partial/plan*"))


def test_a_folder_that_cannot_be_listed_can_be_left_out(closed: Closed, tmp_path: Path) -> None:
    assert closed(on_error="skip") == "9 1"
    (line,) = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    entry = json.loads(line)
    assert (entry["path"], entry["error"]) == ("a/shut", "OSError")
    assert "Permission denied" in entry["reason"]
    assert closed(on_error="skip") == "9 1"  # and so it is there already
    assert closed().startswith("ImageError a/shut: ")


@pytest.mark.parametrize(("bound", "enough"), [(0, False), (1, True), ("9%", False), ("10%", True)])
def test_such_a_folder_counts_as_one_image(bound: int | str, enough: bool, closed: Closed) -> None:
    message = closed(on_error="skip", max_errors=bound)
    if enough:
        assert message == "9 1"
        assert closed(on_error="skip", max_errors=bound) == "9 1"
    else:
        assert message.startswith("DataError 1 of 10 images cannot be used")
        assert message.count(f"--max-errors {bound}") == 1


def test_a_label_table_may_point_into_such_a_folder(closed: Closed, tmp_path: Path) -> None:
    rows = "a/0.jpg,ant\nb/1.jpg,bee\na/shut/9.jpg,cat\n"
    (tmp_path / "l.csv").write_text(f"path,label\n{rows}")
    options = {"labels": f"{tmp_path}/l.csv"}
    assert "a/shut" in closed(**options)
    assert closed(on_error="skip", **options).startswith("2 ")
    lines = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    assert "a/shut/9.jpg" in [json.loads(line)["path"] for line in lines]
