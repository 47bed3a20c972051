"""Labels that come in a file of their own, and lists of classes to count by."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import SourceError, UsageError
from fastdata.manifest import MANIFEST, Manifest
from fastdata.paths import display

__all__ = [
    "LABEL_COLUMN",
    "PATH_COLUMN",
    "LabelTable",
    "Labels",
    "encode_labels",
    "read_classes",
    "read_table",
    "renumber",
]

PATH_COLUMN, LABEL_COLUMN = "path", "label"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)  # 007 is a name
_NUMBER = re.compile(r"[+-]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NO_NUMBER = re.compile(r"na|n/a|null|none|\?|[+-]?(nan|inf|infinity)", re.IGNORECASE)
_MOST_CLASSES = 1_000_000
_MOST_FLOAT32 = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class LabelTable:
    """The rows of a label file.

    Attributes:
        file: its name, for messages.
        columns: names of the label columns.
        paths: of the images, as the rows have them.
        values: the labels of each row, as text.
        lines: line number of each row, from 1.
        repeated: number of rows that say again what an earlier one said.
    """

    file: str
    columns: list[str]
    paths: list[bytes]
    values: list[tuple[str, ...]]
    lines: list[int]
    repeated: int = 0

    def moved(self, paths: list[bytes]) -> LabelTable:
        """The table with other paths for its rows; rows of the same path become one.

        Raises:
            SourceError: two of them disagree.
        """
        seen: dict[bytes, int] = {}
        kept: list[int] = []
        for row, path in enumerate(paths):
            first = seen.setdefault(path, row)
            if first == row:
                kept.append(row)
            elif self.values[first] != self.values[row]:
                raise SourceError(
                    f"{self.file}: {display(path)} is labelled {_shown(self.values[first])} on "
                    f"line {self.lines[first]} and {_shown(self.values[row])} on line "
                    f"{self.lines[row]}; keep one of them"
                )
        return replace(
            self,
            paths=[paths[row] for row in kept],
            values=[self.values[row] for row in kept],
            lines=[self.lines[row] for row in kept],
            repeated=self.repeated + len(paths) - len(kept),
        )


@dataclass(frozen=True)
class Labels:
    """Labels as numbers.

    Attributes:
        labels: int64 [N] class indices, float32 [N] targets, or int64 or float32 [N, K].
        classes: names in label order, of class indices.
        columns: names of K columns; empty for [N].
    """

    labels: NDArray[Any]
    classes: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)


def read_table(
    path: str | os.PathLike[str],
    path_column: str = PATH_COLUMN,
    label_columns: Sequence[str] = (LABEL_COLUMN,),
) -> LabelTable:
    """Read a ``.csv``, ``.tsv`` or ``.jsonl`` file of paths and labels.

    Args:
        path: the file, in UTF-8, with or without a byte-order mark. The first line of a CSV or TSV
            names its columns; a line of JSON is an object, whose label may be a list of numbers.
        path_column: the column of paths relative to the source folder.
        label_columns: the columns of labels.

    Raises:
        UsageError: the file, or a column, is not there.
        SourceError: a row cannot be used, or two disagree; the message has its line.
    """
    name = os.fspath(path)
    ending = os.path.splitext(name)[1].lower()
    if ending not in (*_DELIMITERS, ".jsonl"):
        raise UsageError(f"--labels: expected a .csv, .tsv or .jsonl file, got {name}")
    try:
        text = Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")
    except OSError as error:
        raise UsageError(f"--labels: cannot read {name}: {error.strerror}") from error
    if "\0" in text:
        raise SourceError(f"{name}: expected text in UTF-8, found NUL bytes (UTF-16?); convert it")
    wanted = [path_column, *label_columns]
    if ending == ".jsonl":
        rows = _json_rows(name, text, wanted)
    else:
        rows = _csv_rows(name, text, _DELIMITERS[ending], wanted)
    return _table(name, list(label_columns), rows)


_Row = tuple[int, str, tuple[str, ...]]


def _table(name: str, columns: list[str], rows: Iterator[_Row]) -> LabelTable:
    table = LabelTable(name, columns, [], [], [])
    for line, text, values in rows:
        if not text:
            raise SourceError(f"{name}, line {line}: the path is missing")
        for value in values:
            if not value:
                raise SourceError(f"{name}, line {line}: the label of {text} is missing")
        table.paths.append(os.path.normpath(os.fsencode(text)))
        table.values.append(values)
        table.lines.append(line)
    table = table.moved(table.paths)
    if not table.paths:
        raise SourceError(f"{name}: expected rows of paths and labels, found none")
    widths = {len(values) for values in table.values}
    if len(widths) > 1:
        raise SourceError(f"{name}: expected as many labels in every row, found {sorted(widths)}")
    width = widths.pop()
    if width != len(columns):  # a list in JSON
        columns = [f"{columns[0]}[{i}]" for i in range(width)]
    return replace(table, columns=columns)


def _shown(values: tuple[str, ...]) -> str:
    return ", ".join(values)


def _csv_rows(name: str, text: str, delimiter: str, wanted: list[str]) -> Iterator[_Row]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [column.strip() for column in next(reader, [])]
        for column in wanted:
            if header.count(column) != 1:
                raise UsageError(
                    f"{name}: expected one column {column!r}, found the columns "
                    f"{', '.join(map(repr, header)) or 'of an empty file'}; its first line must "
                    "name the columns, or choose others with --path-column and --label-column"
                )
        at = [header.index(column) for column in wanted]
        for row in reader:
            if not row:  # an empty line
                continue
            if len(row) != len(header):
                raise SourceError(
                    f"{name}, line {reader.line_num}: expected {len(header)} fields, "
                    f"found {len(row)}"
                )
            path, *values = (row[i] for i in at)
            yield reader.line_num, path, tuple(value.strip() for value in values)
    except csv.Error as error:
        raise SourceError(f"{name}, line {reader.line_num}: {error}") from error


def _json_rows(name: str, text: str, wanted: list[str]) -> Iterator[_Row]:
    for line, row in enumerate(text.split("\n"), 1):
        if not row.strip():
            continue
        try:
            fields = json.loads(row)
            path, *labels = (fields[column] for column in wanted)
            values: list[Any] = []
            for label in labels:
                values += label if isinstance(label, list) else [label]
            if not isinstance(path, str) or not all(
                isinstance(value, str | int | float) for value in values
            ):
                raise TypeError("a path must be text, a label text, a number or a list of numbers")
            if not values:
                raise ValueError("the list of labels is empty")
            if b"\0" in os.fsencode(path):  # UnicodeEncodeError is a ValueError
                raise ValueError("no path has a NUL byte")
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"{name}, line {line}: {type(error).__name__}: {error}") from error
        yield line, path, tuple(v if isinstance(v, str) else repr(_number(v)) for v in values)


def _number(value: int | float) -> int | float:
    return int(value) if isinstance(value, bool) else value


def encode_labels(table: LabelTable, classes: list[str] | None = None) -> Labels:
    """Turn a table's labels into numbers.

    One column of whole numbers is taken as class indices, of other numbers as targets, of text as
    class names, which sort as torchvision sorts class folders. Several columns are numbers.

    Args:
        classes: names in label order to count by.

    Raises:
        SourceError: a label does not fit; the message has its line.
        UsageError: classes for several columns.
    """
    if len(table.columns) > 1:
        if classes is not None:
            raise UsageError("--classes is for one label column, not for several")
        return Labels(_numbers(table), columns=table.columns)
    values = [value for (value,) in table.values]
    whole = all(map(_INTEGER.fullmatch, values))
    if classes is not None:
        index = {name: label for label, name in enumerate(classes)}
        if not whole or set(values) <= index.keys():
            for value, line in zip(values, table.lines, strict=True):
                if value not in index:
                    raise SourceError(
                        f"{table.file}, line {line}: {value!r} is none of the {len(classes)} "
                        "classes of --classes"
                    )
            return Labels(np.array([index[value] for value in values], np.int64), classes)
        return Labels(_indices(table, values, len(classes)), classes)
    if whole:
        labels = _indices(table, values, _MOST_CLASSES)
        return Labels(labels, [str(i) for i in range(int(labels.max()) + 1)])
    if all(map(_NUMBER.fullmatch, values)):
        return Labels(_numbers(table)[:, 0])
    if any(map(_NUMBER.fullmatch, values)):  # then these are no names
        for value, line in zip(values, table.lines, strict=True):
            if _NO_NUMBER.fullmatch(value):
                raise SourceError(f"{table.file}, line {line}: the label is {value!r}")
    names = sorted(set(values))
    index = {name: label for label, name in enumerate(names)}
    return Labels(np.array([index[value] for value in values], np.int64), names)


def _indices(table: LabelTable, values: list[str], most: int) -> NDArray[np.int64]:
    for value, line in zip(values, table.lines, strict=True):
        if not 0 <= int(value) < most:
            raise SourceError(
                f"{table.file}, line {line}: expected a class index from 0 to {most - 1}, found "
                f"{value}; a number that is no class needs a decimal point, such as {value}.0"
            )
    return np.array([int(value) for value in values], np.int64)


def _numbers(table: LabelTable) -> NDArray[Any]:
    """The columns as int64 where all are whole, else float32, [N, K]."""
    whole = True
    for row, line in zip(table.values, table.lines, strict=True):
        for column, value in zip(table.columns, row, strict=True):
            if not _NUMBER.fullmatch(value):
                raise SourceError(
                    f"{table.file}, line {line}: expected a number in column {column!r}, found "
                    f"{value!r}"
                )
            if abs(float(value)) > _MOST_FLOAT32:
                raise SourceError(
                    f"{table.file}, line {line}: {value} is beyond float32, in which numbers are "
                    "kept"
                )
            whole = whole and _INTEGER.fullmatch(value) is not None and len(value) < 19
    if whole:
        return np.array([[int(value) for value in row] for row in table.values], np.int64)
    return np.array([[float(value) for value in row] for row in table.values], np.float32)


def read_classes(path: str | os.PathLike[str]) -> list[str]:
    """The class names of a dataset, or of a text file with one in a line, in label order.

    Raises:
        UsageError: there is neither, or its list cannot be used.
        DatasetError: the dataset's manifest cannot be read.
    """
    name = os.fspath(path)
    if os.path.isdir(path) or os.path.basename(name) == MANIFEST:
        root = Path(path) if os.path.isdir(path) else Path(path).parent
        classes = Manifest.read(root).classes
    else:
        try:
            text = Path(path).read_bytes().decode("utf-8-sig", "surrogateescape")
        except OSError as error:
            raise UsageError(f"--classes: cannot read {name}: {error.strerror}") from error
        classes = [line.strip() for line in io.StringIO(text) if line.strip()]
    if not classes:
        raise UsageError(f"--classes: {name} names no classes")
    if len(set(classes)) < len(classes):
        twice = next(label for label in classes if classes.count(label) > 1)
        raise UsageError(f"--classes: {name} names {twice!r} twice")
    return classes


def renumber(
    labels: NDArray[Any], names: list[str], classes: list[str], what: str
) -> NDArray[np.int64]:
    """Class indices by ``names`` -> class indices by ``classes``.

    Args:
        what: the source, for the message.

    Raises:
        SourceError: a name is not among the classes, or there are no names.
    """
    if not names:
        raise SourceError(f"{what} has no class labels that --classes could count")
    index = {name: label for label, name in enumerate(classes)}
    used = np.unique(labels)
    for label in used.tolist():
        if names[label] not in index:
            raise SourceError(
                f"{what}: class {names[label]!r} is none of the {len(classes)} classes of "
                "--classes; add it there, or remove it here"
            )
    table = np.array([index.get(name, -1) for name in names], np.int64)
    renumbered: NDArray[np.int64] = table[labels]
    return renumbered
