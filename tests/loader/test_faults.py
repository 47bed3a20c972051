"""What goes wrong during training: told in words, in time, and with nothing left behind.

Workers that die and Ctrl-C are in test_processes.py as well; samples that were at fault from the
beginning in test_faulty_samples.py.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, make_loader, open_dataset
from fastdata.errors import DatasetError, ImageError, StorageError
from fastdata.registry import READERS, load

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

PROGRAM = Path(__file__).with_name("training_program.py")
SHARED = Path("/dev/shm")
ENCODED = [name for name in READERS if load(READERS, name, "format").encoded]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders
BAD = 13


# A transform that raises


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_in_a_transform_names_the_sample(workers: int, folder: Path) -> None:
    """Else nobody finds the one image in a million that a pipeline cannot take."""

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        if image.shape[:2] == (270, 300) and (image == picky).all():
            raise LookupError("not this one")
        return torch.zeros(1)

    with open_dataset(folder) as dataset:
        picky = dataset.decode(BAD)
        assert picky.shape[:2] == (270, 300)
        name = dataset.name_of(BAD)
        options = {"shuffle": True, "transform": transform, "num_workers": workers}
        with (
            make_loader(dataset, 4, recipe="raw", **options) as loader,
            pytest.raises(LookupError) as caught,
        ):
            list(loader)
    assert name in "".join(traceback.format_exception(caught.value))


# Samples that are damaged while workers read the dataset


def spoil(path: Path, data: bytes) -> None:
    """Overwrite the picture of a JPEG, wherever in a dataset's files it lies."""
    for file in path.rglob("*"):
        if file.is_file() and (at := file.read_bytes().find(data)) >= 0:
            with file.open("r+b") as opened:
                opened.seek(at + len(data) // 2)
                opened.write(b"\xff\xd9" * 20)  # ends the picture
            return
    raise AssertionError("no file of the dataset holds the image")


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["folder", *ENCODED])
def test_a_sample_that_is_damaged_during_training_is_raised_or_skipped(
    name: str,
    workers: int,
    on_error: str,
    folder: Path,
    in_format: Callable[[str, Path], Path],
    tmp_path: Path,
    order: Callable[..., list[int]],
) -> None:
    path = Path(shutil.copytree(in_format(name, folder), tmp_path / "copy"))
    options = {"recipe": EVAL, "num_workers": workers, "with_index": True, "on_error": on_error}
    with make_loader(path, 4, **options) as loader:
        assert order(loader) == list(range(COUNT))  # the workers have opened everything
        spoil(path, sorted(folder.rglob("*.jpg"))[BAD].read_bytes())
        if on_error == "raise":
            with pytest.raises(ImageError, match=rf"{BAD}\.jpg"):
                list(loader)
            assert loader.skipped == []
        else:
            assert order(loader) == [index for index in range(COUNT) if index != BAD]
            assert [skipped.index for skipped in loader.skipped] == [BAD]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_disk_that_fails_is_not_skipped(
    workers: int, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample on it would be left out, without a word."""
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers, on_error="skip") as loader:

        def read(index: int) -> bytes:
            raise OSError(5, os.strerror(5))

        monkeypatch.setattr(type(loader.dataset.reader), "read", lambda self, index: read(index))
        with pytest.raises(StorageError, match=r"cannot read a sample.*check the disk"):
            list(loader)
        assert loader.skipped == []


# A dataset that is replaced


@pytest.fixture
def replaced(
    in_format: Callable[[str, Path], Path], uniform: Path, folder: Path, tmp_path: Path
) -> tuple[Path, Callable[[str], None], Callable[[str], None]]:
    """A path, and two functions that put the one or the other dataset of a format there, as a
    conversion does: each file is another one, moved to its name."""
    path = tmp_path / "dataset"

    def put(name: str, source: Path) -> None:
        path.mkdir(exist_ok=True)
        for file in in_format(name, source).iterdir():
            Path(shutil.copy(file, tmp_path / "file")).replace(path / file.name)

    return path, lambda name: put(name, uniform), lambda name: put(name, folder)


Replaced = tuple[Path, Callable[[str], None], Callable[[str], None]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", READERS)
def test_a_dataset_that_is_replaced_during_training_never_mixes_with_the_new_one(
    name: str,
    workers: int,
    replaced: Replaced,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    path, put_first, put_second = replaced
    put_first(name)
    expected = run(in_format(name, uniform), epoch=1)
    with make_loader(path, 4, recipe=TRAIN, num_workers=workers, with_index=True) as loader:
        list(loader)
        put_second(name)
        try:
            found = list(loader)
        except DatasetError:
            pass  # refusing is as good as keeping the files that were opened
        else:
            assert same(found, expected)
        loader.close()
        with pytest.raises(DatasetError, match=f"{path}.*(replaced|open it again)"):
            list(loader)


@pytest.mark.parametrize("name", READERS)
def test_a_dataset_that_is_replaced_before_the_workers_start_is_refused(
    name: str, replaced: Replaced
) -> None:
    path, put_first, put_second = replaced
    put_first(name)
    with make_loader(path, 4, recipe=TRAIN, engine="workers", num_workers=1) as loader:
        put_second(name)
        with pytest.raises(DatasetError, match=f"{path}.*(replaced|open it again)"):
            list(loader)


# Shared memory that runs out


def without_shared_memory(megabytes: int) -> tuple[list[str], Callable[[], None] | None]:
    """How to start a process to which so little shared memory is left: with a small /dev/shm of
    its own where that can be had, else by forbidding larger files."""
    small = f'mount -t tmpfs -o size={megabytes}m none {SHARED} && exec "$@"'
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        command = [*unshare, "sh", "-c", small, "sh"]
        try:
            if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
                return command, None
        except FileNotFoundError:
            break
    limit = megabytes << 20
    return [], lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))


def test_shared_memory_that_runs_out_is_an_error_that_says_so(packed: Path) -> None:
    prefix, limit = without_shared_memory(1)
    command = [*prefix, sys.executable, str(PROGRAM), str(packed), "2", "4", "transform"]
    done = subprocess.run(
        command, env=environment(), preexec_fn=limit, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    *_, error, left = done.stdout.splitlines()
    assert re.match(r"(WorkerError|StorageError): .*/dev/shm.*fewer workers", error), error
    assert left == "0 left"


@pytest.mark.parametrize("kind", ["number", "array", "tensor", "several"])
def test_a_worker_that_cannot_share_what_a_transform_made_does_not_hang(
    kind: str,
    packed: Path,
    tmp_path: Path,
    before: set[int],
    children: Callable[[], set[int]],
) -> None:
    """Not all of it is put into shared memory where it is made."""
    result: Any = {"number": 1.0, "array": np.zeros(3), "tensor": torch.zeros(3)}
    result["several"] = {"a": 1.0, "b": (np.zeros(3), "text", [1.5, 2.5])}

    def transform(image: NDArray[np.uint8]) -> Any:
        (tmp_path / str(os.getpid())).touch()
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        return result[kind]

    options: dict[str, Any] = {"recipe": TRAIN, "transform": transform, "num_workers": 2}
    with make_loader(packed, 4, **options) as loader:
        with pytest.raises(StorageError, match=r"shared memory.*/dev/shm"):
            list(loader)
        assert children() == before
    for worker in tmp_path.iterdir():  # torch leaves an empty segment where it fails
        for segment in SHARED.glob(f"torch_{worker.name}_*"):
            segment.unlink()


def test_batches_take_nothing_of_dev_shm(packed: Path) -> None:
    """Containers have 64 MB of it by default, which is not two batches of 256 at 224 x 224."""
    with make_loader(packed, 4, recipe=TRAIN, num_workers=1) as loader:
        for images, _ in loader:
            (mapping,) = [
                line
                for line in Path("/proc/self/maps").read_text().splitlines()
                for low, high in [line.split()[0].split("-")]
                if int(low, 16) <= images.data_ptr() < int(high, 16)
            ]
            assert "/memfd:" in mapping


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


# The end of the process that trains


def left_in_shared_memory(before: set[str], pids: list[int]) -> set[str]:
    """What ``pids`` have left in /dev/shm: torch's segments have the process in their name.
    Semaphores have not; those of other programs come and go, or are in use."""
    ours = {name for pid in pids for name in os.listdir(SHARED) if f"_{pid}_" in f"{name}_"}
    left = {name for name in os.listdir(SHARED) if name.startswith("sem.")} - before
    ends = time.monotonic() + 5
    while left and time.monotonic() < ends:
        time.sleep(0.01)
        left &= set(os.listdir(SHARED))
    return ours | {name for name in left if not is_mapped(name)}


def is_mapped(name: str) -> bool:
    """Whether a process that lives has something of /dev/shm in its memory."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if f"{SHARED}/{name}\n" in maps.read_text():
                return True
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("everyone", [True, False], ids=["the whole group", "the trainer alone"])
def test_a_training_that_is_ended_leaves_no_process_and_no_shared_memory(
    everyone: bool, how: signal.Signals, packed: Path
) -> None:
    before = set(os.listdir(SHARED))
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(packed), "2", "4"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        trainer, *workers = map(int, process.stdout.readline().split())
        assert len(workers) == 2
        assert trainer == process.pid
        time.sleep(0.1)  # amid the epochs
        (os.killpg if everyone else os.kill)(trainer, how)
        try:
            output, errors = process.communicate(timeout=200)
        finally:
            process.kill()
    assert process.returncode == -how
    assert output == ""
    if how == signal.SIGINT:
        # One traceback, that of the training, which may have been handling another exception:
        # workers are silent.
        chained = errors.count("During handling of the above") + errors.count("direct cause of the")
        assert errors.count("Traceback") == 1 + chained
        assert errors.rstrip().endswith("KeyboardInterrupt")
    while any(Path(f"/proc/{pid}").exists() for pid in workers):  # guarded against hanging
        time.sleep(0.01)
    assert left_in_shared_memory(before, [trainer, *workers]) == set()


@pytest.mark.parametrize("ended", ["closed", "forgotten", "left by an exception"])
def test_a_loader_leaves_no_shared_memory(ended: str, packed: Path) -> None:
    before = set(os.listdir(SHARED))
    loader = make_loader(packed, 4, recipe=TRAIN, num_workers=2)
    next(iter(loader))
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
    assert len(pids) == 3
    if ended == "closed":
        loader.close()
    elif ended == "left by an exception":
        with pytest.raises(LookupError), loader:
            raise LookupError
    del loader
    assert left_in_shared_memory(before, pids) == set()
