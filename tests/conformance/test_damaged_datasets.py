"""Damage to datasets of every format is an error that names its file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import open_dataset
from fastdata.dataset import Dataset
from fastdata.errors import DatasetError, ImageError, SourceError, UsageError
from fastdata.manifest import MANIFEST, Manifest


def cut(path: Path, how: str) -> None:
    if how == "removed":
        path.unlink()
        return
    size = path.stat().st_size
    kept = {"emptied": 0, "cut in half": size // 2, "cut by a byte": max(0, size - 1)}[how]
    os.truncate(path, kept)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut in half", "cut by a byte"])
def test_a_damaged_file_of_a_dataset_is_an_error_that_names_it_or_does_no_harm(
    how: str,
    converted_format: str,
    uniform: Any,
    copied: Callable[..., Path],
    fork: Callable[[Callable[[], Any]], Any],
    contents: Callable[[Dataset], dict[str, Any]],
) -> None:
    path = copied(converted_format, uniform)
    pristine = path.with_name("pristine")
    shutil.copytree(path, pristine)
    with open_dataset(path) as dataset:
        assert dataset.manifest is not None
        names = [*dataset.manifest.files, MANIFEST]
        expected = contents(dataset)
    wrong = []
    for name in names:
        cut(path / name, how)
        # In a process of its own, because reading a map of a file that is cut short ends it.
        answer = fork(lambda: contents(open_dataset(path))).answer()
        shutil.copy(pristine / name, path / name)
        if answer == ("value", expected):
            continue  # a file for other programs, which this one does not need
        if answer[0] == "error" and issubclass(answer[1], DatasetError | ImageError):
            if name not in answer[2]:
                wrong.append(f"{name}: the message does not name it: {answer[2]}")
        elif name == MANIFEST and how == "removed" and answer[:2] == ("error", SourceError):
            # Without its manifest it is a folder that holds neither a dataset nor images.
            assert str(path) in answer[2]
        else:
            shown = "other data than before" if answer[0] == "value" else repr(answer)
            wrong.append(f"{name}: {shown}")
    assert not wrong, f"{how}:\n" + "\n".join(wrong)


def test_damage_that_does_no_harm_is_of_files_for_other_programs_only(
    converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    """The test above would also pass for a reader that takes nothing from the dataset's files."""
    path = copied(converted_format, uniform)
    with open_dataset(path) as dataset:
        assert dataset.manifest is not None
        names = dataset.manifest.files
        data = {part.file for part in dataset.manifest.parts if part.samples}
    for name in sorted(data | {"labels.npy", "sizes.npy", "paths.bin"}):
        assert name in names
        (path / name).rename(path / "away")
        with pytest.raises(DatasetError, match=name):
            open_dataset(path)
        (path / "away").rename(path / name)


@pytest.mark.parametrize("name", ["labels.npy", "sizes.npy"])
def test_an_array_of_another_type_or_length_is_refused(
    name: str, converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    array = np.load(path / name)
    for wrong in (array.astype(np.int16), array[:-1], np.concatenate([array, array]), array[0]):
        np.save(path / name, wrong)
        with pytest.raises(DatasetError, match=name):
            open_dataset(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"fastdata": 1}', '{"fastdata": 99}'])
def test_a_manifest_that_says_something_else_is_refused(
    text: str, converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    (path / MANIFEST).write_text(text)
    with pytest.raises(DatasetError, match=MANIFEST):
        open_dataset(path)


def test_a_manifest_of_an_unknown_format_is_refused(
    converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    replace(Manifest.read(path), format="x").write(path)
    with pytest.raises((DatasetError, UsageError), match="'x'"):
        open_dataset(path)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut in half"])
def test_a_damaged_file_of_a_folder_is_an_image_error_that_names_it(
    how: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied("folder", uniform)
    with open_dataset(path) as dataset:
        cut(path / "bee" / "0.jpg", how)
        with pytest.raises(ImageError) as caught:
            dataset.decode(4)
        assert caught.value.path == str(path / "bee" / "0.jpg")
        assert caught.value.reason
        for index in (3, 5):
            np.testing.assert_array_equal(dataset.decode(index), uniform.pixels(index))
        if how != "cut in half":  # half a JPEG still has its header
            with pytest.raises(ImageError, match=r"bee/0\.jpg"):
                _ = dataset.sizes


def test_a_damaged_image_in_a_dataset_is_an_image_error_that_names_its_source(
    encoded_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(encoded_format, uniform)
    overwrite(path, uniform.data(5))
    with open_dataset(path) as dataset:
        with pytest.raises(ImageError) as caught:
            dataset.decode(5)
        assert str(path) in caught.value.path
        assert "bee/1.jpg" in caught.value.path
        for index in (4, 6):
            np.testing.assert_array_equal(dataset.decode(index), uniform.pixels(index))


def overwrite(root: Path, data: bytes) -> None:
    """Overwrite the picture's data of a JPEG, wherever in a dataset's files it lies."""
    for path in root.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(data)) >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(data) // 2)
                file.write(b"\xff\xd9" * 16)
            return
    raise AssertionError("no file of the dataset holds the image")


def test_a_file_that_was_overwritten_altogether_is_an_error_of_the_data(
    encoded_format: str,
    uniform: Any,
    copied: Callable[..., Path],
    fork: Callable[[Callable[[], Any]], Any],
) -> None:
    """As a bad disk, or another program, leaves it: of the right size, and nothing in it is."""
    path = copied(encoded_format, uniform)
    dataset = open_dataset(path)
    if dataset.manifest is None:
        files = [os.path.join(os.fsencode(path), name) for name in uniform.paths]
    else:
        files = [os.fsencode(path / part.file) for part in dataset.manifest.parts if part.samples]
    dataset.close()
    for name in files:
        with open(name, "r+b") as file:
            size = len(file.read())
            kept = 2 * 4096 if size > 2 * 4096 else 0  # so that a database still opens
            file.seek(kept)
            file.write(b"\xff" * (size - kept))

    def last_sample() -> Any:
        return open_dataset(path).decode(10)

    # In a process of its own: a library may also crash on this.
    answer = fork(last_sample).answer()
    assert answer[0] == "error", answer
    assert issubclass(answer[1], DatasetError | ImageError), answer
    assert str(path) in answer[2]
