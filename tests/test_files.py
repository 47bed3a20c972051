"""Files are whole or absent, and their checksums are hashlib's."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastdata.errors import DatasetError, StorageError
from fastdata.files import (
    TEMPORARY,
    npy_bytes,
    open_array,
    sha256_range,
    storage_errors,
    sync_directory,
    write_whole,
)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_under_its_name_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    with write_whole(path) as file:
        file.write(b"first ")
        assert names(tmp_path) == ["data.bin" + TEMPORARY]
        file.write(b"second")
    assert path.read_bytes() == b"first second"
    assert names(tmp_path) == ["data.bin"]


def test_the_old_content_stays_until_the_new_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")
    with write_whole(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(3)])
@pytest.mark.parametrize("existed", [False, True])
def test_any_error_leaves_nothing_of_the_new_file(
    tmp_path: Path, error: BaseException, existed: bool
) -> None:
    path = tmp_path / "data.bin"
    if existed:
        path.write_bytes(b"old")

    def fail() -> None:
        with write_whole(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)) as caught:
        fail()
    assert caught.value is error
    assert names(tmp_path) == (["data.bin"] if existed else [])
    assert not existed or path.read_bytes() == b"old"


def test_a_temporary_file_of_a_killed_process_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ("data.bin" + TEMPORARY)).write_bytes(b"half of something much longer")
    with write_whole(tmp_path / "data.bin") as file:
        file.write(b"new")
    assert (tmp_path / "data.bin").read_bytes() == b"new"
    assert names(tmp_path) == ["data.bin"]


def test_a_file_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The order that survives a power cut: the data, then the name, then the folder's entry.
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def spy_fsync(descriptor: int) -> None:
        opened = Path(f"/proc/self/fd/{descriptor}").readlink()
        size = "" if opened.is_dir() else f" {opened.stat().st_size}"
        events.append(f"sync {opened.name}{size}")
        fsync(descriptor)

    def spy_replace(self: Path, target: Path) -> Path:
        events.append(f"rename to {Path(target).name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", spy_fsync)
    monkeypatch.setattr(Path, "replace", spy_replace)
    folder = tmp_path / "d"
    folder.mkdir()
    with write_whole(folder / "x") as file:
        file.write(b"12345")
    assert events == ["sync x.tmp 5", "rename to x", "sync d"]


def test_a_full_disk_names_the_file_and_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left") as caught, write_whole(path) as file:
        file.write(b"new")
    assert str(path) in str(caught.value)
    assert "free some space" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["data.bin"]


def test_a_folder_that_does_not_exist_is_a_storage_error(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "data.bin"
    with pytest.raises(StorageError) as caught, write_whole(path):
        raise AssertionError("the block must not begin")
    assert str(path) in str(caught.value)
    assert isinstance(caught.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (errno.ENOSPC, "free some space"),
        (errno.EDQUOT, "disk quota"),
        (errno.EROFS, "file system that can be written"),
        (errno.EACCES, "permissions"),
        (errno.EPERM, "permissions"),
        (errno.EIO, "check the disk"),
    ],
)
def test_errors_of_the_system_say_what_to_do(code: int, advice: str) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("/some/file"):
        raise OSError(code, os.strerror(code))
    message = str(caught.value)
    assert message.startswith(f"cannot write /some/file: {os.strerror(code)}; ")
    assert advice in message
    assert isinstance(caught.value.__cause__, OSError)


def test_another_action_is_named_and_an_error_without_a_number_keeps_its_text() -> None:
    with (
        pytest.raises(StorageError, match="cannot read /x: odd; "),
        storage_errors(Path("/x"), "read"),
    ):
        raise OSError("odd")


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(KeyError), storage_errors("/x"):
        raise KeyError("y")


def test_a_folder_can_be_synced_and_a_missing_one_is_an_error(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    sync_directory(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before  # nothing is left open
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "missing")


@pytest.mark.parametrize(
    ("offset", "size"),
    [(0, 0), (0, 1), (0, 2_500_000), (1, 1 << 20), (1_000_003, 1_048_577), (2_499_999, 1), (7, 0)],
)
def test_checksums_of_ranges_are_hashlibs(tmp_path: Path, offset: int, size: int) -> None:
    data = np.random.default_rng(0).bytes(2_500_000)
    path = tmp_path / "data.bin"
    path.write_bytes(data)
    steps: list[int] = []
    found = sha256_range(path, offset, size, steps.append)
    assert found == hashlib.sha256(data[offset : offset + size]).hexdigest()
    assert found == sha256_range(path, offset, size)
    assert sum(steps) == size
    assert 0 not in steps


@pytest.mark.parametrize(("offset", "size", "early"), [(0, 11, 1), (10, 5, 5), (50, 3, 3)])
def test_a_range_that_the_file_does_not_have_is_an_error(
    tmp_path: Path, offset: int, size: int, early: int
) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(b"0123456789")
    with pytest.raises(OSError, match=f"ends {early} bytes early"):
        sha256_range(path, offset, size)


def test_arrays_become_npy_files() -> None:
    for array in (
        np.arange(6, dtype=np.int32).reshape(3, 2),
        np.empty((4, 0), np.int64),
        np.empty(0, np.float32),
    ):
        data = npy_bytes(array)
        found = np.load(io.BytesIO(data), allow_pickle=False)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
        assert npy_bytes(array.copy()) == data


def test_objects_are_never_pickled_into_npy_files() -> None:
    with pytest.raises(ValueError, match="allow_pickle"):
        npy_bytes(np.array([{}], dtype=object))


@pytest.mark.parametrize(
    ("array", "shape"),
    [
        (np.arange(6, dtype=np.int32).reshape(3, 2), (3, 2)),
        (np.arange(6, dtype=np.int32).reshape(3, 2), (None, 2)),
        (np.arange(5, dtype=np.int64), (None,)),
        (np.empty((4, 0), np.int64), (4, None)),
        (np.empty(0, np.int64), (None,)),
        (np.zeros((2, 3, 4, 3), np.uint8), (2, 3, 4, 3)),
    ],
)
def test_arrays_are_mapped_from_their_files(
    tmp_path: Path, array: NDArray[Any], shape: tuple[int | None, ...]
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, array)
    found = open_array(path, array.dtype.type, *shape)
    assert type(found) is np.ndarray
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)
    assert not array.size or not found.flags.writeable


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (np.int64, (3, 2)),
        (np.uint32, (3, 2)),
        (np.int32, (3, 3)),
        (np.int32, (None,)),
        (np.int32, ()),
    ],
)
def test_an_array_of_another_kind_says_what_was_expected_and_found(
    tmp_path: Path, dtype: type[np.generic], shape: tuple[int | None, ...]
) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.zeros((3, 2), np.int32))
    with pytest.raises(DatasetError) as caught:
        open_array(path, dtype, *shape)
    message = str(caught.value)
    assert f"{path}: expected {np.dtype(dtype)} of shape {shape}" in message
    assert "found int32 of shape (3, 2)" in message
    assert "convert the source again" in message


def test_a_missing_array_is_a_damaged_dataset(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    with pytest.raises(DatasetError, match=r"a\.npy cannot be read .*convert the source again"):
        open_array(path, np.int32, None)


NPY = npy_bytes(np.arange(40, dtype=np.int32).reshape(20, 2))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no array" * 40,
        NPY[:100],
        NPY[:200],
        NPY.replace(b"'<i4'", b"'<i4'("),
        NPY.replace(b"'descr'", b"b'desc'"),
        NPY.replace(b"(20, 2)", b"(99, 2)"),
        b"PK\x03\x04" + bytes(200),  # numpy takes it for a zip archive
        b"\x80\x04" + bytes(200),  # and this for a pickle
    ],
)
def test_a_damaged_array_is_a_damaged_dataset(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.npy"
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"a\.npy cannot be read .*convert the source again"):
        open_array(path, np.int32, None, 2)
