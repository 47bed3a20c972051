"""A hundred million samples: nothing that starts a loader grows with them.

The dataset's files are sparse, so that they hold next to nothing: what the first batches need is
written, everything else is a hole.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastdata import Recipe, make_loader
from fastdata.manifest import Manifest, Part
from fastdata.sampling import BatchSampler

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

MANY = 10**8
FEW = 10**4
SIDE, BATCH, STEPS = 8, 64, 6
RECIPE = Recipe(size=SIDE, crop="none", hflip=0.5, dtype="uint8")
LOADED = 4096  # samples of the beginning of an epoch that are more than a hole
MEGABYTE = 1 << 20
BOUND = 200 * MEGABYTE  # of labels and sizes alone there are 1.6 GB


def sparse_array(path: Path, dtype: type[np.generic], *shape: int) -> NDArray[Any]:
    """A .npy file that is one hole, mapped to be written to."""
    header = f"{{'descr': '{np.dtype(dtype).str}', 'fortran_order': False, 'shape': {shape}, }}"
    length = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    with path.open("wb") as file:
        start = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
        file.write(start + header.encode("ascii").ljust(117) + b"\n")
        file.truncate(128 + length)
    return np.memmap(path, dtype, "r+", 128, shape)


def first_samples(n: int, positions: int) -> NDArray[np.int64]:
    """The samples at the beginning of epoch 0."""
    sampler = BatchSampler(n, BATCH, shuffle=True, drop_last=True)
    return sampler.indices(0, 0, np.arange(positions))


def value_of(samples: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The level of all pixels of samples; the product is one of 64 bits."""
    return (samples * 2_654_435_761 % 251).astype(np.uint8)


@pytest.fixture(scope="module")
def make_dataset(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Number of samples -> a memmap dataset of so many, 8 x 8 pixels each."""
    made: dict[int, Path] = {}

    def make(n: int) -> Path:
        if n not in made:
            root = tmp_path_factory.mktemp("many")
            samples = np.append(first_samples(n, LOADED), [0, n - 1])
            pixels = sparse_array(root / "images.npy", np.uint8, n, SIDE, SIDE, 3)
            pixels[samples] = value_of(samples)[:, None, None, None]
            sizes = sparse_array(root / "sizes.npy", np.int32, n, 2)
            sizes[samples] = SIDE
            labels = sparse_array(root / "labels.npy", np.int64, n)
            labels[samples] = samples % 10
            # Every sample's path is empty but the last one's.
            (root / "paths.bin").touch()
            os.truncate(root / "paths.bin", n - 1)
            with (root / "paths.bin").open("ab") as file:
                file.write(b"c/last.jpg\0")
            manifest(root, n).write(root)
            made[n] = root
        return made[n]

    return make


def manifest(root: Path, n: int) -> Manifest:
    parts = []
    for path in sorted(root.iterdir()):
        size = path.stat().st_size
        small = size < 64 * MEGABYTE  # the checksums of larger files are not looked at
        digest = hashlib.sha256(path.read_bytes() if small else b"").hexdigest()
        samples = n if path.name == "images.npy" else None
        parts.append(Part(path.name, 0, size, digest, samples))
    return Manifest(
        format="memmap",
        samples=n,
        classes=[str(label) for label in range(10)],
        image_size=(SIDE, SIDE),
        conversion={},
        source={},
        skipped=0,
        created_by="a test",
        parts=parts,
    )


def memory() -> int:
    """Bytes of this process that are mapped from no file."""
    text = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * sum(map(int, re.findall(r"^Anonymous:\s+(\d+)", text, re.MULTILINE)))


def test_the_files_hold_next_to_nothing(make_dataset: Callable[[int], Path]) -> None:
    """Else the tests below would fill the disk."""
    files = list(make_dataset(MANY).iterdir())
    assert sum(file.stat().st_size for file in files) > 20e9
    assert sum(file.stat().st_blocks * 512 for file in files) < BOUND


@pytest.mark.parametrize("engine", ["workers", "gather"])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_first_batches_hold_what_the_plan_says(
    workers: int, engine: str, make_dataset: Callable[[int], Path]
) -> None:
    """Pixels lie 19 GB apart, labels 800 MB: positions that 32 bits cannot count."""
    options: dict[str, Any] = {"engine": engine, "num_workers": workers, "with_index": True}
    with make_loader(make_dataset(MANY), BATCH, recipe=RECIPE, **options) as loader:
        assert len(loader) == MANY // BATCH
        batches = list(itertools.islice(loader, STEPS))
    samples = np.concatenate([indices.numpy() for *_, indices in batches])
    np.testing.assert_array_equal(samples, first_samples(MANY, STEPS * BATCH))
    for images, labels, indices in batches:
        np.testing.assert_array_equal(labels.numpy(), indices.numpy() % 10)
        assert (images.numpy() == value_of(indices.numpy())[:, None, None, None]).all()


def test_an_epoch_is_gone_on_with_at_its_very_end(make_dataset: Callable[[int], Path]) -> None:
    options: dict[str, Any] = {"num_workers": 0, "with_index": True, "recipe": "raw"}
    with make_loader(make_dataset(MANY), BATCH, **options) as loader:
        loader.load_state_dict({**loader.state_dict(), "position": MANY - 1})
        ((images, labels, indices),) = loader
        assert indices.tolist() == [MANY - 1]
        assert labels.tolist() == [(MANY - 1) % 10]
        assert (images.numpy() == value_of(np.array([MANY - 1]))[0]).all()


@pytest.mark.parametrize("engine", ["workers", "gather"])
@pytest.mark.parametrize("workers", [0, 2])
def test_starting_takes_no_memory_for_each_sample(
    workers: int, engine: str, make_dataset: Callable[[int], Path]
) -> None:
    path = make_dataset(MANY)
    gc.collect()
    before = memory()
    options: dict[str, Any] = {"engine": engine, "num_workers": workers}
    with make_loader(path, BATCH, recipe=RECIPE, **options) as loader:
        list(itertools.islice(loader, STEPS))
        assert memory() - before < BOUND


def private(pid: int | None) -> int:
    """Bytes that a process has written to since it was forked, and so no longer shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    found = re.findall(r"^Private_Dirty:\s+(\d+)", text, re.MULTILINE)
    return 1024 * sum(map(int, found))


def test_workers_share_what_is_kept_of_the_samples(make_dataset: Callable[[int], Path]) -> None:
    held = []
    for n in (FEW, MANY):
        options: dict[str, Any] = {"engine": "workers", "num_workers": 2}
        with make_loader(make_dataset(n), BATCH, recipe=RECIPE, **options) as loader:
            list(itertools.islice(loader, STEPS))
            workers = multiprocessing.active_children()
            assert len(workers) == 2
            held.append(max(private(worker.pid) for worker in workers))
    assert held[1] - held[0] < BOUND / 4


def test_a_sample_is_named_without_an_index_of_all_paths(
    make_dataset: Callable[[int], Path],
) -> None:
    """Each worker that meets a damaged image names it: 8 bytes a sample are 13 GB in 16 workers."""
    script = f"""
import re
from fastdata import open_dataset
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
with open_dataset({str(make_dataset(MANY))!r}) as dataset:
    before = peak()
    print([dataset.path_of(i) for i in (0, {MANY // 2}, {MANY - 1})], peak() - before, sep="\\n")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    paths, taken = done.stdout.splitlines()
    assert paths == str([b"", b"", b"c/last.jpg"])
    assert int(taken) < BOUND
