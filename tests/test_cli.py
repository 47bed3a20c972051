"""The command line: output, exit codes, and one clear line for whatever is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fastdata
from fastdata.cli import main
from fastdata.registry import WRITERS

Capture = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    """The exit code of a command, also where argparse ends it."""
    try:
        return main([os.fspath(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def one_line(text: str) -> str:
    """The only line of an error message."""
    lines = [line for line in text.splitlines() if line]
    assert len(lines) == 1, text
    assert "Traceback" not in text
    return lines[0]


@pytest.mark.parametrize("to", list(WRITERS))
def test_convert_info_and_verify_a_dataset(
    make_folder: Callable[..., Path], capsys: Capture, to: str
) -> None:
    source = make_folder()
    root = source.parent / "dataset"
    options = ["--size", "32x48"] if to == "memmap" else ["--resize", "48"]
    assert run("convert", source, root, "--to", to, *options) == 0
    printed = capsys.readouterr()
    assert "22 images, 3 classes" in printed.out
    assert printed.err == ""  # no terminal, no progress bar
    assert run("convert", source, root, "--to", to, *options) == 0
    assert "already converted" in capsys.readouterr().out
    assert run("info", root) == 0
    printed = capsys.readouterr()
    assert f"22 images as {to}" in printed.out
    assert "ant, bee, cat" in printed.out
    assert run("verify", root, "--decode") == 0
    assert "22 images decoded" in capsys.readouterr().out


def test_json_output_is_one_object(make_folder: Callable[..., Path], capsys: Capture) -> None:
    source = make_folder()
    root = source.parent / "dataset"
    assert run("convert", source, root, "--to", "webdataset", "--json") == 0
    converted = json.loads(capsys.readouterr().out)
    assert (converted["samples"], converted["classes"], converted["skipped"]) == (22, 3, 0)
    assert run("info", root, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["classes"] == ["ant", "bee", "cat"]
    assert facts["short_side"] == [60, 61]
    assert facts["long_side"] == [80, 97]
    assert run("verify", root, "--json") == 0
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_info_of_a_plain_folder(make_folder: Callable[..., Path], capsys: Capture) -> None:
    assert run("info", make_folder()) == 0
    assert "22 images as folder" in capsys.readouterr().out


def test_skipped_and_ignored_files_are_told(
    make_folder: Callable[..., Path], capsys: Capture
) -> None:
    source = make_folder()
    (source / "ant" / "broken.jpg").write_bytes(b"no image at all")
    (source / "ant" / ".hidden.jpg").write_bytes(b"")
    (source / "ant" / "notes.txt").write_text("notes")
    root = source.parent / "dataset"
    assert run("convert", source, root, "--to", "lmdb", "--on-error", "skip") == 0
    out = capsys.readouterr().out
    assert "1 images left out" in out
    assert "skipped.jsonl" in out
    assert "1 files or folders ignored: hidden" in out
    assert "1 files or folders ignored: not an image's name" in out


def test_verify_prints_each_problem_and_fails(
    make_folder: Callable[..., Path], capsys: Capture
) -> None:
    source = make_folder()
    root = source.parent / "dataset"
    run("convert", source, root, "--to", "webdataset")
    (root / "labels.npy").unlink()
    capsys.readouterr()
    assert run("verify", root) == 1
    assert str(root / "labels.npy") in capsys.readouterr().err


def bad_calls(source: Path) -> list[tuple[int, str, list[str | Path]]]:
    """(exit code, words of the message, arguments) for everything that can be wrong."""
    base = source.parent
    (base / "empty").mkdir()
    (base / "text" / "ant").mkdir(parents=True)
    (base / "text" / "ant" / "readme.txt").write_text("no image")
    (base / "foreign").mkdir()
    (base / "foreign" / "thesis.doc").write_text("precious")
    (base / "file").write_text("a file")
    dst = base / "dst"
    return [
        (1, "found nothing", ["convert", base / "no", dst, "--to", "lmdb"]),
        (1, "found none", ["convert", base / "empty", dst, "--to", "lmdb"]),
        (1, "class folder", ["convert", base / "text", dst, "--to", "lmdb"]),
        (1, "found a file", ["convert", base / "file", dst, "--to", "lmdb"]),
        (2, "--size", ["convert", source, dst, "--to", "memmap"]),
        (2, "exclude", ["convert", source, dst, "--to", "lmdb", "--size=8", "--resize=8"]),
        (2, "--quality", ["convert", source, dst, "--to", "lmdb", "--quality", "0"]),
        (2, "--workers", ["convert", source, dst, "--to", "lmdb", "--workers", "0"]),
        (2, "--name", ["convert", source, dst, "--to", "webdataset", "--name", "a/b"]),
        (2, "in it is touched", ["convert", source, base / "foreign", "--to", "lmdb"]),
        (2, "no folder", ["convert", source, base / "file", "--to", "lmdb"]),
        (2, "inside the source", ["convert", source, source / "dst", "--to", "lmdb"]),
        (2, "nothing to resume", ["convert", source, dst, "--to", "lmdb", "--resume"]),
        (1, "no dataset", ["verify", source]),
        (1, "found nothing", ["info", base / "no"]),
        (2, "something else", ["demo", base / "foreign"]),
    ]  # fmt: skip


def test_every_bad_call_ends_in_one_clear_line_and_writes_nothing(
    make_folder: Callable[..., Path], capsys: Capture
) -> None:
    source = make_folder()
    for code, words, arguments in bad_calls(source):
        assert run(*arguments) == code, arguments
        line = one_line(capsys.readouterr().err)
        assert words in line, arguments
        assert line.startswith(f"fastdata {arguments[0]}: ")
    assert not (source.parent / "dst").exists()
    assert [path.name for path in (source.parent / "foreign").iterdir()] == ["thesis.doc"]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["convert"],
        ["convert", "a", "b"],
        ["convert", "a", "b", "--to", "zip"],
        ["convert", "a", "b", "--to", "lmdb", "--size", "big"],
        ["convert", "a", "b", "--to", "lmdb", "--shard-size", "1 parsec"],
        ["frobnicate"],
    ],
)
def test_calls_that_cannot_be_parsed_exit_with_2(arguments: list[str], capsys: Capture) -> None:
    assert run(*arguments) == 2
    assert "usage: fastdata" in capsys.readouterr().err


def test_a_damaged_image_is_named_and_the_same_command_resumes(
    make_folder: Callable[..., Path], capsys: Capture
) -> None:
    source = make_folder()
    victim = source / "cat" / "cat_004.jpg"
    whole = victim.read_bytes()
    victim.write_bytes(whole[: len(whole) // 2])
    command = ["convert", source, source.parent / "dst", "--to", "webdataset"]
    assert run(*command) == 1
    assert str(victim) in one_line(capsys.readouterr().err)
    assert run("info", source.parent / "dst") == 1
    assert "unfinished" in one_line(capsys.readouterr().err)
    assert run(*command, "--on-error", "skip") == 0
    assert "1 images left out" in capsys.readouterr().out


def test_names_that_are_no_utf8_can_be_printed(
    make_folder: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    source = make_folder()
    os.rename(source / "bee", os.fsencode(source) + b"/be\xff")
    done = subprocess.run(
        [sys.executable, "-m", "fastdata", "info", source],
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert b"be\\udcff" in done.stdout


def test_python_m_fastdata_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fastdata", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"fastdata {fastdata.__version__}\n"
