"""Datasets of every format that were replaced by another one at their path."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import open_dataset
from fastdata.dataset import Dataset
from fastdata.errors import DataError, DatasetError


@pytest.fixture(scope="session")
def twins(
    write_source: Callable[..., Any], picture: Callable[..., Any], jpeg: Callable[..., bytes]
) -> list[Any]:
    """Two sources whose datasets have files of the same names, sizes and structure, so that
    nothing but the contents tells one from the other: the worst case of a replacement."""
    encoded = [jpeg(picture(48, 40, 100 + i)) for i in range(4)]
    length = max(map(len, encoded))
    encoded = [_padded(data, length + 4) for data in encoded]
    names = [b"a/0.jpg", b"b/0.jpg"]
    return [write_source(dict(zip(names, encoded[i : i + 2], strict=True))) for i in (0, 2)]


@pytest.fixture
def replaceable(
    twins: list[Any], in_format: Callable[..., Path], tmp_path: Path
) -> tuple[Path, Callable[[str], Any], Callable[[str], Any]]:
    """A path, and two functions that put a dataset there, one after the other, as a conversion
    does: each file is another one, moved to its name."""
    path = tmp_path / "dataset"

    def put(name: str, source: Any) -> Any:
        path.mkdir(exist_ok=True)
        for file in in_format(name, source).iterdir():
            Path(shutil.copy(file, tmp_path / "file")).replace(path / file.name)
        return source

    return path, lambda name: put(name, twins[0]), lambda name: put(name, twins[1])


def _padded(data: bytes, length: int) -> bytes:
    """A JPEG with a comment that makes it so long."""
    spare = length - len(data) - 4
    comment = b"\xff\xfe" + (spare + 2).to_bytes(2, "big") + b"x" * spare
    return data[:2] + comment + data[2:]


Replaceable = tuple[Path, Callable[[str], Any], Callable[[str], Any]]


def test_the_replacement_cannot_be_told_by_sizes(
    converted_format: str, replaceable: Replaceable
) -> None:
    """Else the tests below would show less than they say."""
    path, put_first, put_second = replaceable
    sizes = []
    for put in (put_first, put_second):
        put(converted_format)
        sizes.append({p.name: p.stat().st_size for p in path.iterdir()})
    assert sizes[0] == sizes[1]


def test_a_pickled_dataset_that_was_replaced_is_refused(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    with open_dataset(path) as dataset:
        pickled = pickle.dumps(dataset)
    put_second(converted_format)
    with pytest.raises(DatasetError, match=f"{path}.*replaced.*open it again"):
        pickle.loads(pickled)


def test_a_dataset_that_was_replaced_after_it_was_closed_is_refused(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    dataset = open_dataset(path)
    dataset.close()
    put_second(converted_format)
    with pytest.raises(DatasetError, match=str(path)):
        dataset.decode(0)


def test_a_forked_dataset_that_was_replaced_is_refused(
    converted_format: str,
    replaceable: Replaceable,
    fork: Callable[[Callable[[], Any]], Any],
    digest: Callable[..., str],
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    with open_dataset(path) as dataset:
        dataset.decode(0)
        put_second(converted_format)
        answer = fork(lambda: digest(dataset.decode(0))).answer()
    assert answer[:2] == ("error", DatasetError), answer


def test_an_open_dataset_that_was_replaced_never_gives_the_others_data(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    first = put_first(converted_format)
    with open_dataset(path) as dataset:
        put_second(converted_format)
        try:
            pixels = dataset.decode(1)
        except DataError:
            pass  # refusing is as good as keeping the files that were opened
        else:
            np.testing.assert_array_equal(pixels, first.pixels(1))


@pytest.mark.parametrize("how", ["closed", "still open", "forgotten"])
def test_opening_a_replaced_dataset_gives_the_new_one(
    how: str, converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    old: Dataset | None = open_dataset(path)
    assert old is not None
    old.decode(0)
    if how == "closed":
        old.close()
    elif how == "forgotten":
        old = None
    second = put_second(converted_format)
    with open_dataset(path) as new:
        for index in range(2):
            np.testing.assert_array_equal(new.decode(index), second.pixels(index))
    if old is not None:
        old.close()
