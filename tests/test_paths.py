"""Tables of paths: round trips of any bytes, and names for messages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastdata.paths import PathTable, display

ODD = [
    b"ant/a.jpg",
    b"b\xe4r/k\xf6nig.jpg",  # Latin-1: no UTF-8
    "日本/猫.png".encode(),
    b"two\nlines\r\n.jpg",
    b" spaces \t.jpg",
    b"",
    b"\xff\xfe\xfd",
    b"a" * 5000,
]


def test_paths_of_any_bytes_come_back() -> None:
    table = PathTable.of(ODD)
    assert len(table) == len(ODD)
    assert [table[i] for i in range(len(ODD))] == ODD
    assert list(table) == ODD
    assert all(type(path) is bytes for path in table)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.lists(st.binary(max_size=20).map(lambda path: path.replace(b"\0", b"/"))))
def test_any_list_of_paths_comes_back(paths: list[bytes]) -> None:
    table = PathTable.of(iter(paths))
    assert list(table) == paths
    assert list(PathTable(table.tobytes())) == paths


def test_each_path_is_ended_by_a_nul_as_xargs_reads_it() -> None:
    assert PathTable.of([b"a", b"", b"b c"]).tobytes() == b"a\0\0b c\0"


def test_a_table_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "paths.bin"
    file.write_bytes(b"".join(path + b"\0" for path in ODD))
    table = PathTable.open(file)
    assert list(table) == ODD
    assert table[6] == b"\xff\xfe\xfd"
    assert table.tobytes() == file.read_bytes()


def test_an_empty_table_has_an_empty_file(tmp_path: Path) -> None:
    file = tmp_path / "paths.bin"
    file.write_bytes(PathTable.of([]).tobytes())
    assert file.read_bytes() == b""
    for table in (PathTable.of([]), PathTable(b""), PathTable.open(file)):
        assert len(table) == 0
        assert list(table) == []
        with pytest.raises(IndexError, match="path 0 of 0"):
            table[0]


@pytest.mark.parametrize("wrap", [bytes, bytearray, lambda data: np.frombuffer(data, np.uint8)])
def test_bytes_and_arrays_make_the_same_table(wrap: type) -> None:
    assert list(PathTable(wrap(b"x\0yy\0"))) == [b"x", b"yy"]


@pytest.mark.parametrize("index", [-1, 3, 10**12])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(IndexError, match=f"path {index} of 3"):
        PathTable.of([b"a", b"b", b"c"])[index]


def test_bytes_that_are_no_utf_8_are_escaped_for_messages() -> None:
    assert display("日本/猫.png".encode()) == "日本/猫.png"
    assert display(b"b\xe4r/\xff.jpg") == "b\\xe4r/\\xff.jpg"
    assert display(b"") == ""
