"""Options of ``fastdata convert``: that each reaches the conversion, and what is printed of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastdata
from fastdata import open_dataset
from fastdata.cli import main

Capture = pytest.CaptureFixture[str]


def run(*arguments: str | Path) -> int:
    """The exit code of a command, also where argparse ends it."""
    try:
        return main([os.fspath(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture
def converted(tmp_path: Path, capsys: Capture) -> Callable[..., str]:
    """Run ``fastdata convert source out --to webdataset`` with further arguments; what it says."""

    def convert(*arguments: str | Path, code: int = 0, to: str = "webdataset") -> str:
        command = ["convert", tmp_path / "source", tmp_path / "out", "--to", to, "--workers", "1"]
        assert run(*command, *arguments) == code
        printed = capsys.readouterr()
        return printed.err if code else printed.out

    return convert


@pytest.fixture
def source(make_folder: Callable[..., Path]) -> Path:
    """Two JPEGs in each of two class folders, 40x30."""
    return make_folder({"ant": 2, "bee": 2}, sizes=[(40, 30)])


def labels(root: Path) -> dict[str, Any]:
    dataset = open_dataset(root)
    return {dataset.path_of(i).decode(): dataset.labels[i].tolist() for i in range(len(dataset))}


def test_a_label_file_with_columns_of_other_names(
    source: Path, tmp_path: Path, converted: Callable[..., str], capsys: Capture
) -> None:
    rows = "file,x,y,note\nant/ant_000.jpg,1,0.5,a\nbee/bee_001.jpg,-2,3,b\n"
    (tmp_path / "l.csv").write_text(rows)
    columns = ["--path-column", "file", "--label-column", "y", "x"]
    out = converted("--labels", tmp_path / "l.csv", *columns)
    assert "2 images, 0 classes" in out
    assert "  2 files or folders ignored: an image without a row in l.csv\n" in out
    assert labels(tmp_path / "out") == {"ant/ant_000.jpg": [0.5, 1], "bee/bee_001.jpg": [3, -2]}
    assert run("info", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "no labels" not in out
    assert "y, x" in out


def test_info_tells_targets_from_no_labels(
    source: Path, tmp_path: Path, converted: Callable[..., str], capsys: Capture
) -> None:
    (tmp_path / "l.csv").write_text("path,label\nant/ant_000.jpg,0.5\n")
    converted("--labels", tmp_path / "l.csv")
    assert run("info", tmp_path / "out") == 0
    out = capsys.readouterr().out
    assert "no labels" not in out


def test_one_label_column_of_names_and_a_class_list(
    source: Path, tmp_path: Path, converted: Callable[..., str], capsys: Capture
) -> None:
    (tmp_path / "l.jsonl").write_text('{"path": "ant/ant_000.jpg", "kind": "bee"}\n')
    (tmp_path / "classes.txt").write_text("cat\nbee\n")
    table = ["--labels", tmp_path / "l.jsonl", "--label-column", "kind"]
    assert "1 images, 2 classes" in converted(*table, "--classes", tmp_path / "classes.txt")
    assert labels(tmp_path / "out") == {"ant/ant_000.jpg": 1}
    assert run("info", tmp_path / "out") == 0
    assert "classes     2: cat, bee\n" in capsys.readouterr().out


def test_the_classes_of_a_training_set(
    source: Path, make_folder: Callable[..., Path], tmp_path: Path, converted: Callable[..., str]
) -> None:
    training = make_folder({"aa": 1, "ant": 1, "bee": 1}, sizes=[(40, 30)], name="training")
    fastdata.convert(training, tmp_path / "train", workers=1)
    converted("--classes", tmp_path / "train")
    assert sorted(labels(tmp_path / "out").values()) == [1, 1, 2, 2]


def test_variants_and_copies(source: Path, tmp_path: Path, converted: Callable[..., str]) -> None:
    out = converted("--augment", "PIL.ImageOps:mirror", "--copies", "3")
    assert "12 images, 2 classes" in out
    assert "  12 images converted: augmented\n" in out
    pairs = np.load(tmp_path / "out" / "copies.npy").tolist()
    assert sorted(pairs) == [[i, copy] for i in range(4) for copy in range(3)]


def test_variants_by_a_module_where_the_command_is_run(source: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.py").write_text(
        "def small(image):\n    return image.resize((20, 10))\n"
    )
    # As the installed command is run: its own folder is on the path, the current one is not.
    code = "import sys; del sys.path[0]; from fastdata.cli import main; sys.exit(main())"
    command = ["convert", source, tmp_path / "out", "--to", "lmdb", "--augment", "mine:small"]
    done = subprocess.run(
        [sys.executable, "-c", code, *command, "--workers", "1"],
        cwd=tmp_path / "here",
        env={**os.environ, "PYTHONPATH": os.fspath(Path(fastdata.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert np.load(tmp_path / "out" / "sizes.npy").tolist() == [[20, 10]] * 4


@pytest.mark.parametrize(("exif", "size"), [("apply", (30, 40)), ("ignore", (40, 30))])
def test_exif_orientation_is_applied_or_ignored(
    exif: str,
    size: tuple[int, int],
    source: Path,
    tmp_path: Path,
    converted: Callable[..., str],
    capsys: Capture,
) -> None:
    tag = Image.Exif()
    tag[0x0112] = 6
    with Image.open(source / "ant" / "ant_000.jpg") as image:
        image.save(source / "ant" / "ant_000.jpg", exif=tag)
    out = converted("--exif", exif, "--no-shuffle")
    words = "EXIF orientation" + (" ignored" if exif == "ignore" else "")
    assert f"  1 images converted: {words}\n" in out
    assert tuple(np.load(tmp_path / "out" / "sizes.npy")[0]) == size
    run("info", tmp_path / "out")
    printed = capsys.readouterr().out
    assert f"  converted   {words} 1\n" in printed
    assert f"exif={exif}" in printed


def test_what_was_converted_repaired_and_left_out_is_printed(
    source: Path, tmp_path: Path, converted: Callable[..., str], capsys: Capture
) -> None:
    with Image.open(source / "ant" / "ant_000.jpg") as image:
        image.save(source / "ant" / "ant_000.jpg", "PNG")
    with (source / "bee" / "bee_000.jpg").open("ab") as file:
        file.write(b"rest")
    (source / "bee" / "bad.jpg").write_bytes(b"no image")
    out = converted("--on-error", "skip", "--max-errors", "20%")
    folder, flaw = tmp_path / "out", "bytes behind the end of the picture"
    assert "4 images, 2 classes" in out
    assert "  1 images converted: PNG\n" in out
    assert f"  1 images repaired: {flaw}: see {folder}/repaired.jsonl\n" in out
    assert f"  1 images left out: see {folder}/skipped.jsonl\n" in out
    again = converted("--on-error", "skip", "--max-errors", "20%")
    assert "already converted" in again
    assert again.splitlines()[1:] == out.splitlines()[1:]
    assert run("info", folder) == 0
    printed = capsys.readouterr().out
    assert "  left out    1\n" in printed
    assert "  converted   PNG 1\n" in printed
    assert f"  repaired    {flaw} 1\n" in printed
    assert run("info", folder, "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["skipped"], facts["treated"], facts["repaired"]) == (1, {"PNG": 1}, {flaw: 1})
    assert "repaired.jsonl" in os.listdir(folder)
    (line,) = (folder / "repaired.jsonl").read_text().splitlines()
    assert json.loads(line) == {"path": "bee/bee_000.jpg", "reason": flaw}


def test_json_says_the_same(source: Path, converted: Callable[..., str]) -> None:
    with (source / "bee" / "bee_000.jpg").open("ab") as file:
        file.write(b"rest")
    (source / "ant" / "notes.txt").write_text("notes")
    facts = json.loads(converted("--json"))
    assert (facts["treated"], facts["skipped"]) == ({}, 0)
    assert facts["repaired"] == {"bytes behind the end of the picture": 1}
    assert facts["ignored"] == {"not an image's name": 1}


def test_strict_takes_no_repaired_image(source: Path, converted: Callable[..., str]) -> None:
    with (source / "bee" / "bee_000.jpg").open("ab") as file:
        file.write(b"rest")
    message = converted("--strict", code=1)
    assert f"{source}/bee/bee_000.jpg" in message
    assert "--strict takes no repaired image" in message
    assert "1 images left out" in converted("--strict", "--on-error", "skip")


def test_max_errors_ends_the_conversion(source: Path, converted: Callable[..., str]) -> None:
    (source / "bee" / "bad.jpg").write_bytes(b"no image")
    message = converted("--on-error", "skip", "--max-errors", "0", code=1)
    assert "1 of 5 images cannot be used, more than --max-errors 0" in message
    assert "1 images left out" in converted("--on-error", "skip", "--max-errors", "1")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--max-errors", "1"], "--max-errors bounds what --on-error skip leaves out"),
        (["--on-error", "skip", "--max-errors", "many"], "got 'many'"),
        (["--copies", "2"], "--copies without --augment"),
        (["--copies", "0", "--augment", "flip"], "--copies from 1 to 1000"),
        (["--augment", "zoom"], "crop, flip, rotate, color, blur"),
        (["--augment", "no_such_module:f"], "cannot import 'no_such_module:f'"),
        (["--labels", "absent.csv"], "cannot read absent.csv"),
        (["--labels", "labels.xls"], ".csv, .tsv or .jsonl"),
        (["--classes", "absent.txt"], "cannot read absent.txt"),
    ],
)
def test_wrong_values_end_in_one_clear_line(
    arguments: list[str], words: str, source: Path, tmp_path: Path, converted: Callable[..., str]
) -> None:
    message = converted(*arguments, code=2)
    assert message.startswith("fastdata convert: ")
    assert len(message.splitlines()) == 1
    assert words in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["--exif", "turn"], ["--copies", "two"], ["--label-column"], ["--labels"]]
)
def test_calls_that_cannot_be_parsed_exit_with_2(arguments: list[str], capsys: Capture) -> None:
    assert run("convert", "a", "b", "--to", "lmdb", *arguments) == 2
    assert "usage: fastdata" in capsys.readouterr().err
