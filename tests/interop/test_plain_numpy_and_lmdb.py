"""A few lines of NumPy and of lmdb, as training codes have them."""

from __future__ import annotations

import io
import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import lmdb
import numpy as np
import pytest
from PIL import Image, ImageOps

Pairs = list[tuple[bytes, int]]
EPOCHS, WORKERS = 10, 2
_kept: list[lmdb.Environment] = []  # of a process of its own


def test_numpy_maps_pixels_and_labels(
    made: Callable[..., Path], expected: Callable[[Path], Pairs]
) -> None:
    out = made(to="memmap", size=(24, 32))
    pairs = expected(out)
    images, labels = np.load(out / "images.npy", mmap_mode="r"), np.load(out / "labels.npy")
    assert (images.dtype, images.shape) == (np.uint8, (len(pairs), 24, 32, 3))
    assert (labels.dtype, labels.tolist()) == (np.int64, [label for _, label in pairs])
    for image, (data, _) in zip(images, pairs, strict=True):
        # Nearly ours: Pillow scales and cuts in one step, without whole pixels in between.
        fitted = ImageOps.fit(Image.open(io.BytesIO(data)), (32, 24), Image.Resampling.BOX)
        difference = np.abs(image.astype(int) - np.asarray(fitted).astype(int)).mean()
        assert difference < 8  # from any other image it is 36 and more


def _epoch(path: str, **options: int) -> Pairs:
    with (
        lmdb.open(path, subdir=False, readonly=True, **options) as environment,
        environment.begin() as transaction,
    ):
        return [
            (transaction.get(b"image-%09d" % i), int(transaction.get(b"label-%09d" % i)))
            for i in range(1, int(transaction.get(b"num-samples")) + 1)
        ]


def test_lmdb_reads_images_and_labels_and_leaves_nothing(
    made: Callable[..., Path], expected: Callable[[Path], Pairs]
) -> None:
    out = made(to="lmdb")
    before = sorted(out.iterdir())
    assert _epoch(str(out / "data.mdb"), lock=False) == expected(out)
    assert sorted(out.iterdir()) == before


def _keep_open(path: str, **options: int) -> None:
    _kept.append(lmdb.open(path, subdir=False, readonly=True, **options))


@pytest.mark.parametrize("lock", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_new_processes_in_every_epoch_never_run_out_of_readers(
    method: str,
    lock: bool,
    made: Callable[..., Path],
    expected: Callable[[Path], Pairs],
    tmp_path: Path,
) -> None:
    out = made(to="lmdb")
    pairs = expected(out)
    # With a lock, which is lmdb's default, a file for it comes to lie beside the database.
    path = str(shutil.copy(out / "data.mdb", tmp_path / "copy.mdb"))
    options = {"lock": lock, "max_readers": WORKERS}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        # The table of readers lives as long as any process has the database open. It has no place
        # for a reader that an earlier epoch has left behind.
        other.submit(_keep_open, path, **options).result()
        for _ in range(EPOCHS):
            with ProcessPoolExecutor(WORKERS, multiprocessing.get_context(method)) as pool:
                found = list(pool.map(partial(_epoch, **options), [path] * WORKERS))
            assert found == [pairs] * WORKERS
    assert Path(f"{path}-lock").exists() == lock
