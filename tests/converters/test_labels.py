"""Labels from a file, and class lists: how they are read, numbered and kept by every format."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray
from torchvision.datasets import ImageFolder

import converters.conversion
import fastdata
from converters.labels import Labels, encode_labels, read_classes, read_table
from converters.plan import Plan
from converters.write import ShardWriter
from fastdata import (
    DataError,
    ImageError,
    SourceError,
    UsageError,
    make_loader,
    open_dataset,
)

convert = functools.partial(fastdata.convert, workers=1)
FORMATS = ("webdataset", "lmdb", "memmap")
Write = Callable[[str, str | bytes], Path]


def needed(to: str) -> dict[str, Any]:
    """The options that a format cannot do without."""
    return {"to": to, "size": (24, 32)} if to == "memmap" else {"to": to}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file: ``write(name, content)`` -> its path."""

    def to(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return to


@pytest.fixture
def numbers(write: Write) -> Callable[..., Labels]:
    """Labels -> numbers: ``numbers("1", "2", classes=None)``, one label column."""

    def encode(*labels: str, classes: list[str] | None = None) -> Labels:
        rows = "".join(f"{i}.jpg,{label}\n" for i, label in enumerate(labels))
        return encode_labels(read_table(write("n.csv", f"path,label\n{rows}")), classes)

    return encode


@pytest.fixture
def images(
    tmp_path: Path, pixels: Callable[..., NDArray[np.uint8]], encode: Callable[..., bytes]
) -> Callable[..., Path]:
    """Write JPEGs of 40x30 by name: ``images("a.jpg", "sub/b.jpg", root="source")`` -> the root."""

    def make(*names: str | bytes, root: str = "source") -> Path:
        for seed, name in enumerate(names):
            path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path / root), os.fsencode(name))))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode(pixels(40, 30, seed=seed)))
        return tmp_path / root

    return make


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are written in this process, for tests of many conversions."""

    def run(
        staging: Path,
        shards: list[int],
        workers: int,
        on_error: str,
        progress: Callable[[int, int], None],
    ) -> None:
        writer = ShardWriter(Plan.load(staging), staging, on_error)
        for shard in shards:
            writer.write(shard, progress)

    monkeypatch.setattr(converters.conversion, "run_shards", run)


def labels_by_path(root: Path) -> dict[bytes, Any]:
    dataset = open_dataset(root)
    return {dataset.path_of(i): dataset.labels[i].tolist() for i in range(len(dataset))}


# Reading a table.


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".CSV"])
def test_every_kind_of_file_says_the_same(ending: str, write: Write) -> None:
    rows = [("a/1.jpg", "ant"), ("b/2.jpg", "bee"), ("c d/3.jpg", "é")]
    if ending == ".jsonl":
        text = "".join(json.dumps({"path": path, "label": label}) + "\n" for path, label in rows)
    else:
        comma = "\t" if ending == ".tsv" else ","
        text = "".join(f"{path}{comma}{label}\n" for path, label in [("path", "label"), *rows])
    table = read_table(write("labels" + ending, text))
    assert table.paths == [path.encode() for path, _ in rows]
    assert table.values == [(label,) for _, label in rows]
    assert table.columns == ["label"]
    assert table.repeated == 0


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte-order mark"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL], ids=["few", "all quoted"])
def test_what_spreadsheets_write_is_read(mark: str, end: str, quoting: int, write: Write) -> None:
    rows = [
        ("a, b/1.jpg", "likes, commas"),
        ('say "2".jpg', 'a "quoted" name'),
        ("3\n.jpg", "two\nlines"),
    ]
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator=end, quoting=quoting)  # type: ignore[arg-type]
    writer.writerows([("path", "label"), *rows])
    table = read_table(write("labels.csv", mark + buffer.getvalue()))
    assert table.paths == [path.encode() for path, _ in rows]
    assert table.values == [(label,) for _, label in rows]


def test_a_byte_order_mark_and_crlf_in_json_lines(write: Write) -> None:
    text = '\ufeff{"path": "1.jpg", "label": 4}\r\n\r\n{"path": "2.jpg", "label": 5}\r\n'
    table = read_table(write("labels.jsonl", text))
    assert (table.values, table.lines) == ([("4",), ("5",)], [1, 3])


def test_empty_lines_count_as_lines_and_hold_nothing(write: Write) -> None:
    table = read_table(write("labels.csv", "path,label\n\n1.jpg,ant\n\n\n2.jpg,bee\n\n"))
    assert (table.paths, table.lines) == ([b"1.jpg", b"2.jpg"], [3, 6])


def test_spaces_around_names_of_columns_and_labels_do_not_count(write: Write) -> None:
    table = read_table(write("labels.csv", "path , label\n1.jpg, ant \n2 .jpg,bee\n"))
    assert (table.paths, table.values) == ([b"1.jpg", b"2 .jpg"], [("ant",), ("bee",)])


def test_columns_are_chosen_by_name_and_others_do_not_matter(write: Write) -> None:
    path = write("labels.tsv", "x\tnotes\tfile\ty\n1\ta\tone.jpg\t2\n3\t\ttwo.jpg\t4\n")
    table = read_table(path, "file", ["y", "x"])
    assert table.paths == [b"one.jpg", b"two.jpg"]
    assert (table.columns, table.values) == (["y", "x"], [("2", "1"), ("4", "3")])


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("file,label", "'file', 'label'"),
        ("path,class", "'path', 'class'"),
        ("path,label,label", "'path', 'label', 'label'"),
        ("path;label", "'path;label'"),
        ("", "of an empty file"),
    ],
)
def test_a_missing_or_doubled_column_is_told_with_those_found(
    header: str, found: str, write: Write
) -> None:
    path = write("labels.csv", header and f"{header}\n1.jpg,ant,ant\n")
    with pytest.raises(UsageError, match="expected one column") as caught:
        read_table(path)
    assert found in str(caught.value)
    assert str(path) in str(caught.value)
    assert "--label-column" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "path,label\n1.jpg,ant\n2.jpg,\n", "line 3: the label of 2.jpg is missing"),
        ("l.csv", "path,label\n1.jpg,   \n", "line 2: the label of 1.jpg is missing"),
        ("l.csv", "path,label\n\n,ant\n", "line 3: the path is missing"),
        ("l.csv", "path,label\n1.jpg,ant\n2.jpg\n", "line 3: expected 2 fields, found 1"),
        ("l.csv", "path,label\n1.jpg,a,b\n", "line 2: expected 2 fields, found 3"),
        ("l.tsv", "path\tlabel\n1.jpg ant\n", "line 2: expected 2 fields, found 1"),
        ("l.csv", 'path,label\n1.jpg,"ant\n2.jpg,bee\n', "line 3: "),  # the quote never ends
        ("l.csv", 'path,label\n"1"x.jpg,ant\n', "line 2: "),
        ("l.csv", "path,label\n", "found none"),
        ("l.jsonl", "\n\n", "found none"),
        ("l.jsonl", '{"path": "1.jpg", "label": 1}\n{"path": "2.jpg"}\n', "line 2: .*label"),
        ("l.jsonl", '{"label": 1}\n', "line 1: .*path"),
        ("l.jsonl", '{"path": "1.jpg", "label": null}\n', "line 1: "),
        ("l.jsonl", '{"path": "1.jpg", "label": ""}\n', "line 1: the label of 1.jpg is missing"),
        ("l.jsonl", '{"path": 1, "label": 1}\n', "line 1: .*a path must be text"),
        ("l.jsonl", '{"path": "1.jpg", "label": {"a": 1}}\n', "line 1: "),
        ("l.jsonl", '{"path": "1.jpg", "label": [[1], [2]]}\n', "line 1: "),
        ("l.jsonl", '{"path": "1.jpg", "label": 1\n', "line 1: "),
        ("l.jsonl", '["1.jpg", 1]\n', "line 1: "),
        ("l.jsonl", '{"path": "1.jpg", "label": []}\n', "line 1: "),
        (
            "l.jsonl",
            '{"path": "1.jpg", "label": [1, 2]}\n{"path": "2.jpg", "label": [1]}\n',
            r"as many labels in every row.*\[1, 2\]",
        ),
        # No file can have these names.
        ("l.jsonl", '{"path": "a\\u0000b.jpg", "label": 1}\n', "line 1: "),
        ("l.jsonl", '{"path": "a\\ud800b.jpg", "label": 1}\n', "line 1: "),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_line(
    name: str, text: str, message: str, write: Write
) -> None:
    path = write(name, text)
    with pytest.raises(SourceError, match=message) as caught:
        read_table(path)
    assert str(path) in str(caught.value)


def test_the_line_of_a_row_behind_a_quoted_line_break_is_the_files(write: Write) -> None:
    path = write("labels.csv", 'path,label\n1.jpg,"two\nlines"\n2.jpg,\n')
    with pytest.raises(SourceError, match=r"line 4: the label of 2\.jpg"):
        read_table(path)


def test_a_row_said_twice_is_counted_and_a_contradiction_names_both_lines(write: Write) -> None:
    same = read_table(write("l.csv", "path,label\n1.jpg,ant\n2.jpg,bee\n./1.jpg,ant\n1.jpg,ant\n"))
    assert (same.paths, same.lines, same.repeated) == ([b"1.jpg", b"2.jpg"], [2, 3], 2)
    path = write("l.csv", "path,label\n1.jpg,ant\n2.jpg,bee\nx/../1.jpg,cat\n")
    with pytest.raises(SourceError, match=r"labelled ant on line 2 and cat on line 4"):
        read_table(path)


def test_utf_16_is_refused_and_not_guessed_at(write: Write) -> None:
    path = write("labels.csv", "path,label\n1.jpg,ant\n".encode("utf-16"))
    with pytest.raises(SourceError, match=r"labels\.csv.*UTF-8.*UTF-16"):
        read_table(path)


def test_paths_keep_bytes_that_are_no_utf8(write: Write) -> None:
    table = read_table(write("labels.csv", b"path,label\nJos\xe9.jpg,ant\n\xff/2.jpg,bee\n"))
    assert table.paths == [b"Jos\xe9.jpg", b"\xff/2.jpg"]


def test_json_labels_may_be_numbers_text_bools_or_lists(write: Write) -> None:
    lines = '{"path": "1.jpg", "label": true}\n{"path": "2.jpg", "label": 0}\n'
    labels = encode_labels(read_table(write("l.jsonl", lines))).labels
    assert (labels.dtype, labels.tolist()) == (np.int64, [1, 0])
    lines = '{"path": "1.jpg", "label": [1, 0.5]}\n{"path": "2.jpg", "label": [false, 2]}\n'
    found = encode_labels(read_table(write("l.jsonl", lines)))
    assert (found.labels.dtype, found.labels.tolist()) == (np.float32, [[1, 0.5], [0, 2]])
    assert found.columns == ["label[0]", "label[1]"]
    lines = '{"path": "1.jpg", "label": "ant"}\n{"path": "2.jpg", "label": "3"}\n'
    assert encode_labels(read_table(write("l.jsonl", lines))).classes == ["3", "ant"]


def test_a_file_of_another_kind_or_that_is_not_there_is_a_wrong_call(
    write: Write, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"\.csv, \.tsv or \.jsonl.*labels\.xlsx"):
        read_table(write("labels.xlsx", "path,label\n"))
    with pytest.raises(UsageError, match=r"cannot read .*absent\.csv: No such file"):
        read_table(tmp_path / "absent.csv")


# Numbering labels.


def test_whole_numbers_are_class_indices_as_they_are(numbers: Callable[..., Labels]) -> None:
    found = numbers("3", "0", "3")
    assert (found.labels.dtype, found.labels.tolist()) == (np.int64, [3, 0, 3])
    assert found.classes == ["0", "1", "2", "3"]


def test_names_are_numbered_as_torchvision_numbers_folders(
    numbers: Callable[..., Labels], tmp_path: Path
) -> None:
    names = ["bee", "Ant", "ant", "10", "9", "é", "z", "_", "ant 2"]
    for name in names:
        (tmp_path / "folders" / name).mkdir(parents=True)
        (tmp_path / "folders" / name / "1.jpg").touch()
    expected = ImageFolder(str(tmp_path / "folders"))
    found = numbers(*names)
    assert found.classes == expected.classes
    assert found.labels.tolist() == [expected.class_to_idx[name] for name in names]


def test_other_numbers_are_targets(numbers: Callable[..., Labels]) -> None:
    found = numbers("1", "0.1", "-2.5e-3", ".5", "7.")
    assert found.labels.dtype == np.float32
    assert found.labels.tobytes() == np.array([1, 0.1, -2.5e-3, 0.5, 7], np.float32).tobytes()
    assert (found.classes, found.columns) == ([], [])


@pytest.mark.parametrize(
    ("rows", "dtype", "expected"),
    [
        (["1,0", "0,-1", "1,9007199254740993"], np.int64, [[1, 0], [0, -1], [1, 2**53 + 1]]),
        (["1,0.5", "0,-1"], np.float32, [[1, 0.5], [0, -1]]),
    ],
)
def test_several_columns_are_numbers(
    rows: list[str], dtype: type, expected: list[list[float]], write: Write
) -> None:
    text = "path,x,y\n" + "".join(f"{i}.jpg,{row}\n" for i, row in enumerate(rows))
    found = encode_labels(read_table(write("l.csv", text), label_columns=["x", "y"]))
    assert found.labels.dtype == dtype
    assert found.labels.tolist() == expected
    assert (found.classes, found.columns) == ([], ["x", "y"])


def test_a_name_among_several_columns_is_named(write: Write) -> None:
    path = write("l.csv", "path,x,y\n1.jpg,1,2\n2.jpg,1,ant\n")
    with pytest.raises(SourceError, match=r"l\.csv, line 3: .*number in column 'y'.*'ant'"):
        encode_labels(read_table(path, label_columns=["x", "y"]))


@pytest.mark.parametrize("label", ["-1", "1000000", "99999999999999999999"])
def test_what_cannot_be_a_class_index_is_named(label: str, numbers: Callable[..., Labels]) -> None:
    with pytest.raises(SourceError, match=rf"n\.csv, line 3: expected a class index.*{label}\.0"):
        numbers("1", label)


def test_a_number_with_leading_zeros_is_a_name(numbers: Callable[..., Labels]) -> None:
    found = numbers("007", "1", "010")
    assert found.classes == ["007", "010", "1"]
    assert found.labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize("missing", ["nan", "NaN", "NA", "null", "None", "?"])
def test_a_missing_value_among_numbers_is_no_class(
    missing: str, numbers: Callable[..., Labels]
) -> None:
    for values in (("0.5", missing), ("3", missing)):
        with pytest.raises(SourceError, match=r"n\.csv, line 3: the label is '"):
            numbers(*values)
    assert numbers("ant", missing).labels.tolist() in ([0, 1], [1, 0])  # Namibia is a name


@pytest.mark.parametrize("large", ["1e39", "-1e400", "inf"])
def test_a_target_that_float32_cannot_hold_is_named(
    large: str, numbers: Callable[..., Labels]
) -> None:
    with pytest.raises(SourceError, match=r"n\.csv, line 3: "):
        numbers("0.5", large)


# Counting by given classes.


def test_classes_number_names_and_bound_indices(numbers: Callable[..., Labels]) -> None:
    known = ["cat", "ant", "bee"]
    found = numbers("ant", "cat", "ant", classes=known)
    assert (found.labels.tolist(), found.classes) == ([1, 0, 1], known)
    found = numbers("2", "0", classes=known)
    assert (found.labels.tolist(), found.classes) == ([2, 0], known)
    found = numbers("8", "7", classes=["7", "8"])  # names come first
    assert found.labels.tolist() == [1, 0]


def test_a_label_that_the_classes_lack_is_named_by_its_line(
    numbers: Callable[..., Labels],
) -> None:
    with pytest.raises(SourceError, match=r"line 3: 'dog' is none of the 2 classes of --classes"):
        numbers("ant", "dog", classes=["ant", "bee"])
    with pytest.raises(SourceError, match=r"line 3: expected a class index from 0 to 1, found 2"):
        numbers("0", "2", classes=["ant", "bee"])
    with pytest.raises(SourceError, match=r"line 2: '0.5' is none of"):
        numbers("0.5", "1", classes=["ant", "bee"])


def test_classes_are_for_one_column(write: Write) -> None:
    table = read_table(write("l.csv", "path,x,y\n1.jpg,1,2\n"), label_columns=["x", "y"])
    with pytest.raises(UsageError, match="--classes is for one label column"):
        encode_labels(table, ["ant"])


def test_a_class_list_in_a_file_keeps_its_order(write: Write) -> None:
    path = write("classes.txt", "\ufeffcat\r\n\r\n ant \r\nlarge dog\r\n")
    assert read_classes(path) == ["cat", "ant", "large dog"]


def test_a_class_list_of_a_dataset_is_its_labels_order(
    images: Callable[..., Path], tmp_path: Path
) -> None:
    source = images("b/1.jpg", "a/2.jpg", "C/3.jpg")
    convert(source, tmp_path / "train")
    expected = ImageFolder(str(source)).classes
    assert read_classes(tmp_path / "train") == expected
    assert read_classes(tmp_path / "train" / "fastdata.json") == expected


def test_class_lists_at_fault(write: Write, tmp_path: Path, images: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"two\.txt names 'ant' twice"):
        read_classes(write("two.txt", "ant\nbee\nant \n"))
    with pytest.raises(UsageError, match=r"empty\.txt names no classes"):
        read_classes(write("empty.txt", "\n \n"))
    with pytest.raises(UsageError, match=r"--classes: cannot read .*absent"):
        read_classes(tmp_path / "absent")
    convert(images("1.jpg", root="flat"), tmp_path / "unlabelled")
    with pytest.raises(UsageError, match="unlabelled names no classes"):
        read_classes(tmp_path / "unlabelled")
    with pytest.raises(DataError, match="no dataset in"):
        read_classes(images("a/1.jpg", root="folder"))


# Whole conversions.

NAMES = ("sub/1.jpg", "sub/2.jpg", "3.jpg", "other/deep/4.jpg")
KINDS: list[tuple[str, list[str], type, list[Any], list[str]]] = [
    # kind, values by row, dtype, labels, classes
    ("names", ["dog", "ant", "dog", "bee"], np.int64, [2, 0, 2, 1], ["ant", "bee", "dog"]),
    ("indices", ["2", "0", "2", "1"], np.int64, [2, 0, 2, 1], ["0", "1", "2"]),
    ("targets", ["0.1", "-2", "3", "1e-3"], np.float32, [0.1, -2, 3, 1e-3], []),
    ("whole", ["1,0", "0,1", "1,1", "7,-9"], np.int64, [[1, 0], [0, 1], [1, 1], [7, -9]], []),
    ("columns", ["1,.5", "0,1", "1,1", "7,9"], np.float32, [[1, 0.5], [0, 1], [1, 1], [7, 9]], []),
]  # fmt: skip


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
@pytest.mark.parametrize("to", FORMATS)
def test_labels_of_every_kind_in_every_format(
    to: str,
    kind: tuple[str, list[str], type, list[Any], list[str]],
    images: Callable[..., Path],
    write: Write,
    tmp_path: Path,
) -> None:
    _, values, dtype, labels, classes = kind
    columns = ["x", "y"] if "," in values[0] else ["x"]
    rows = [f"{name},{value}\n" for name, value in zip(NAMES, values, strict=True)]
    file = write("labels.csv", "".join([f"path,{','.join(columns)}\n", *rows]))
    out = tmp_path / "out"
    options = {"to": to, "size": (24, 32), "labels": file, "label_column": columns}
    result = convert(images(*NAMES), out, **options)
    assert (result.samples, result.classes) == (4, len(classes))
    paths = (out / "paths.bin").read_bytes().split(b"\0")[:-1]
    assert sorted(paths) == sorted(name.encode() for name in NAMES)
    by_name = dict(zip(NAMES, labels, strict=True))
    expected = np.array([by_name[path.decode()] for path in paths], dtype)
    stored = np.load(out / "labels.npy")
    assert (stored.dtype, stored.shape) == (expected.dtype, expected.shape)
    assert stored.tobytes() == expected.tobytes()
    dataset = open_dataset(out)
    assert dataset.labels.dtype == dtype
    assert np.array_equal(dataset.labels, expected)
    assert dataset.classes == classes
    loader = make_loader(out, 4, recipe="raw", num_workers=0)
    ((batch, found),) = list(loader)
    assert tuple(batch.shape) == (4, 3, 24, 32)
    assert found.numpy().dtype == dtype
    assert np.array_equal(found.numpy(), expected)
    if to == "webdataset":
        check_members(out, expected, len(classes) > 0)
    if to == "lmdb":
        with (
            lmdb.open(str(out / "data.mdb"), subdir=False, readonly=True, lock=False) as database,
            database.begin() as reading,
        ):
            for i in range(4):
                text = reading.get(b"label-%09d" % (i + 1)).decode()
                numbers = np.array(list(map(float, text.split())), np.float32)
                assert np.array_equal(numbers, expected[i].reshape(-1).astype(np.float32))
                assert ("." in text or "e" in text) == (dtype is np.float32)


def check_members(out: Path, expected: NDArray[Any], indices: bool) -> None:
    """A .cls is a class index to everyone who reads it; other labels stand in the .json."""
    members: dict[str, bytes] = {}
    with tarfile.open(out / "shard-000000.tar") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            members[member.name] = file.read()
    keys = sorted({name.partition(".")[0] for name in members})
    assert len(keys) == len(expected)
    for key, label in zip(keys, expected, strict=True):
        fields = json.loads(members[f"{key}.json"])
        if indices:
            assert int(members[f"{key}.cls"]) == label
            assert "label" not in fields
        else:
            assert f"{key}.cls" not in members
            assert np.array_equal(np.array(fields["label"], expected.dtype), label)


def test_columns_keep_their_names(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    file = write("l.csv", "path,y,x\n1.jpg,1,2\n")
    convert(images("1.jpg"), tmp_path / "out", labels=file, label_column=["x", "y"])
    document = json.loads((tmp_path / "out" / "fastdata.json").read_text())
    assert document["columns"] == ["x", "y"]
    assert np.load(tmp_path / "out" / "labels.npy").tolist() == [[2, 1]]


def test_paths_that_are_no_utf8_find_their_files(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source = images(b"Jos\xe9.jpg", b"\xff/2.jpg")
    file = write("l.csv", b"path,label\n\xff/2.jpg,bee\nJos\xe9.jpg,ant\n")
    convert(source, tmp_path / "out", labels=file)
    assert labels_by_path(tmp_path / "out") == {b"Jos\xe9.jpg": 0, b"\xff/2.jpg": 1}


def test_the_order_of_the_rows_is_the_order_of_the_samples(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    file = write("l.csv", "path,label\n3.jpg,b\n1.jpg,c\n2.jpg,a\n")
    convert(images("1.jpg", "2.jpg", "3.jpg"), tmp_path / "out", labels=file, shuffle=False)
    assert (tmp_path / "out" / "paths.bin").read_bytes() == b"3.jpg\x001.jpg\x002.jpg\0"
    assert np.load(tmp_path / "out" / "labels.npy").tolist() == [1, 2, 0]


@pytest.mark.parametrize("to", FORMATS)
def test_a_row_without_an_image_is_an_error_or_is_listed(
    to: str, images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source, out = images("1.jpg", "2.jpg"), tmp_path / "out"
    # The image with the least class is the one that is missing: the others keep their labels.
    file = write("l.csv", "path,label\n1.jpg,bee\ngone.jpg,ant\n2.jpg,cat\n")
    options = {"labels": file, **needed(to)}
    with pytest.raises(ImageError, match=r"gone\.jpg: .*No such file.*--on-error skip"):
        convert(source, out, **options)
    assert not list(out.glob(".fastdata-partial/plan*"))  # before any work
    result = convert(source, out, on_error="skip", **options)
    assert (result.samples, result.skipped) == (2, 1)
    (line,) = (out / "skipped.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == "gone.jpg"
    assert labels_by_path(out) == {b"1.jpg": 1, b"2.jpg": 2}
    assert open_dataset(out).classes == ["ant", "bee", "cat"]


def test_images_without_a_row_and_repeated_rows_are_counted(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source = images("1.jpg", "sub/2.jpg", "sub/3.jpg", "4.jpg")
    (source / "notes.txt").write_text("no image")
    file = write("rows.csv", "path,label\n1.jpg,ant\nsub/3.jpg,bee\n./1.jpg,ant\n")
    result = convert(source, tmp_path / "out", labels=file)
    assert (result.samples, result.skipped) == (2, 0)
    assert result.ignored == {
        "an image without a row in rows.csv": 2,
        "a repeated row in rows.csv": 1,
        "not an image's name": 1,
    }


def test_absolute_paths_inside_the_source_are_paths_in_it(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source = images("1.jpg", "sub/2.jpg")
    file = write("l.csv", f"path,label\n{source}/sub/2.jpg,bee\n1.jpg,ant\n")
    result = convert(source, tmp_path / "out", labels=file)
    assert labels_by_path(tmp_path / "out") == {b"1.jpg": 0, b"sub/2.jpg": 1}
    assert result.ignored == {}


def test_an_image_labelled_by_both_its_names_is_one_image(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source = images("1.jpg", "2.jpg")
    rows = f"path,label\n1.jpg,ant\n2.jpg,bee\n{source}/1.jpg,"
    result = convert(source, tmp_path / "same", labels=write("same.csv", f"{rows}ant\n"))
    assert result.samples == 2
    assert labels_by_path(tmp_path / "same") == {b"1.jpg": 0, b"2.jpg": 1}
    with pytest.raises(SourceError, match=r"other\.csv.*ant on line 2 and cat on line 4"):
        convert(source, tmp_path / "other", labels=write("other.csv", f"{rows}cat\n"))


@pytest.mark.parametrize("row", ["../2.jpg", "sub/../../2.jpg", "{parent}/2.jpg", ".."])
def test_a_path_outside_of_the_source_is_refused_by_its_line(
    row: str, images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    images("2.jpg", root="")
    source = images("1.jpg")
    row = row.format(parent=tmp_path)
    file = write("l.csv", f"path,label\n1.jpg,ant\n{row},bee\n")
    with pytest.raises(SourceError, match=r"l\.csv, line 3: .*lies outside of the source folder"):
        convert(source, tmp_path / "out", labels=file)
    assert not (tmp_path / "out").exists()


def test_a_name_that_begins_with_dots_is_no_way_out(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    file = write("l.csv", "path,label\n..1.jpg,ant\n")
    convert(images("..1.jpg"), tmp_path / "out", labels=file)
    assert labels_by_path(tmp_path / "out") == {b"..1.jpg": 0}


def test_other_labels_do_not_pass_for_the_same_conversion(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source, out = images("1.jpg", "2.jpg"), tmp_path / "out"
    convert(source, out, labels=write("l.csv", "path,label\n1.jpg,ant\n2.jpg,bee\n"))
    same = write("other name.tsv", "path\tlabel\n1.jpg\tant\n2.jpg\tbee\n")
    assert convert(source, out, labels=same).already_done
    with pytest.raises(fastdata.DestinationError, match="another conversion"):
        convert(source, out, labels=write("l.csv", "path,label\n1.jpg,bee\n2.jpg,ant\n"))


# Class folders counted by a training set's classes.


@pytest.mark.parametrize("to", FORMATS)
def test_a_class_that_is_missing_does_not_shift_the_labels(
    to: str, images: Callable[..., Path], tmp_path: Path
) -> None:
    training = images("ant/1.jpg", "bee/2.jpg", "cat/3.jpg", "dog/4.jpg", root="training")
    expected = ImageFolder(str(training)).class_to_idx
    convert(training, tmp_path / "train")
    validation = images("dog/1.jpg", "bee/2.jpg", root="validation")
    (validation / "ant").mkdir()  # an empty class is no mistake here
    convert(validation, tmp_path / "val", classes=tmp_path / "train", **needed(to))
    found = labels_by_path(tmp_path / "val")
    assert found == {b"dog/1.jpg": expected["dog"], b"bee/2.jpg": expected["bee"]}
    assert open_dataset(tmp_path / "val").classes == list(expected)


def test_without_classes_an_empty_class_folder_is_refused(
    images: Callable[..., Path], tmp_path: Path
) -> None:
    source = images("bee/1.jpg")
    (source / "ant").mkdir()
    with pytest.raises(SourceError, match=r"source/ant: expected images in the class folder"):
        convert(source, tmp_path / "out")


def test_a_class_folder_that_the_classes_lack_is_named(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    source = images("ant/1.jpg", "wasp/2.jpg")
    listed = write("classes.txt", "cat\nant\n")
    with pytest.raises(SourceError, match=r"class 'wasp' is none of the 2 classes"):
        convert(source, tmp_path / "out", classes=listed)
    assert not (tmp_path / "out").exists()
    (source / "wasp" / "2.jpg").unlink()  # an empty one takes no label
    convert(source, tmp_path / "out", classes=listed)
    assert labels_by_path(tmp_path / "out") == {b"ant/1.jpg": 1}


def test_images_without_labels_cannot_be_counted(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match="no class labels that --classes could count"):
        convert(images("1.jpg"), tmp_path / "out", classes=write("classes.txt", "ant\n"))


def test_a_table_and_a_class_list_go_together(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    file = write("l.csv", "path,label\n1.jpg,cat\n2.jpg,ant\n")
    listed = write("classes.txt", "dog\ncat\nant\n")
    source = images("1.jpg", "2.jpg")
    convert(source, tmp_path / "out", labels=file, classes=listed)
    assert labels_by_path(tmp_path / "out") == {b"1.jpg": 1, b"2.jpg": 2}
    assert open_dataset(tmp_path / "out").classes == ["dog", "cat", "ant"]
    with pytest.raises(SourceError, match=re.escape("line 2: 'cat' is none of the 1 classes")):
        convert(source, tmp_path / "no", labels=file, classes=write("one.txt", "ant\n"))


def test_datasets_have_labels_of_their_own(
    images: Callable[..., Path], write: Write, tmp_path: Path
) -> None:
    convert(images("ant/1.jpg"), tmp_path / "set")
    file = write("l.csv", "path,label\nant/1.jpg,bee\n")
    with pytest.raises(UsageError, match="has its own labels"):
        convert(tmp_path / "set", tmp_path / "out", labels=file)
