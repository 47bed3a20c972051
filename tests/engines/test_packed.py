"""Crops that workers only cut, finished by the kernels: the batches that workers would make."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from fastdata import Recipe, convert, make_loader, open_dataset
from fastdata.engines.fetch import Fetcher, HostBatch
from fastdata.engines.packed import can_pack, slot_bytes
from fastdata.engines.slots import Slots
from fastdata.errors import UsageError
from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import draw_key
from tests.engines.settings import RECIPE, settings

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SIDE = RECIPE.size or 0
# Smaller than the output, larger, and so large that crops are reduced.
SIZES = [(20, 16), (30, 28), (60, 47), (200, 150), (400, 310)]


def finished(slots: Slots, batch: HostBatch, module: str) -> NDArray[np.uint8]:
    """What the device makes of packed crops."""
    assert batch.slot is not None
    assert batch.table is not None
    source = torch.from_numpy(slots.array(batch.slot, batch.shape).copy()).to(DEVICE)
    table = torch.from_numpy(batch.table).to(DEVICE)
    out = torch.zeros((len(batch.table), SIDE, SIDE, 3), dtype=torch.uint8, device=DEVICE)
    affine = torch.zeros((2, 3), device=DEVICE)
    kernels = importlib.import_module(f"fastdata.kernels.{module}")
    kernels.crop(source, table, batch.table, (0, 0), out, affine, packed=True)
    found: NDArray[np.uint8] = out.cpu().numpy()
    return found


@pytest.mark.parametrize("module", ["crop_triton", "crop_torch"])
@pytest.mark.parametrize("crop", ["random_resized", "center", "none"])
@pytest.mark.parametrize("kind", ["folder", "webdataset"])
def test_packed_crops_become_the_batch_that_workers_make(
    kind: str, crop: str, module: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_folder({"a": 6, "b": 4}, SIZES)
    if kind != "folder":
        convert(path, tmp_path / "out", to=kind, workers=1)
        path = tmp_path / "out"
    recipe = Recipe(size=SIDE, crop=crop, hflip=0.5)
    with open_dataset(path) as dataset:
        options = settings(dataset, recipe)
        assert can_pack(options)
        indices = np.array([9, 1, 1, 3, 0, 2, 8, 4, 5, 7])
        sizes = dataset.sizes if dataset.plain else None
        plan = plan_batches(recipe, draw_key(0, 0), [indices], sizes)[0]
        slots = Slots(2, slot_bytes(10, SIDE))
        slots.memory(1)[:] = 99  # of an earlier batch
        batch = Fetcher(options, shared=True, slots=slots, packed=True)(plan, 1)
        alone = Fetcher(options, shared=False)(plan)
        found = finished(slots, batch, module)
        # OpenCV's weights have 11 bits, so rounding may go to the other side.
        assert np.abs(found.astype(int) - alone.images.numpy()).max() <= 1
        np.testing.assert_array_equal(batch.labels, alone.labels)
        np.testing.assert_array_equal(batch.indices, alone.indices)
        assert batch.table is not None
        boxes = {tuple(box) for box in batch.table[:, 3:5].tolist()}
        assert len(boxes) > 1  # there are some that were not scaled
        slots.close()


def test_crops_find_room_whatever_their_size(make_folder: Callable[..., Path]) -> None:
    path = make_folder({"a": 10}, [(47, 47)])
    recipe = Recipe(size=SIDE, crop="none")  # 47 < 2 x 24: not reduced, and four times the output
    with open_dataset(path) as dataset:
        slots = Slots(1, slot_bytes(10, SIDE))
        plan = BatchPlan(draw_key(0, 0), np.arange(10))
        fetcher = Fetcher(settings(dataset, recipe), shared=True, slots=slots, packed=True)
        batch = fetcher(plan, 0)
        assert batch.table is not None
        sides = batch.table[:, 3].tolist()
        assert sides.count(24) >= 8  # scaled by the worker
        assert set(sides) <= {24, 47}
        assert batch.shape[0] == 3 * sum(side * side for side in sides) <= len(slots.memory(0))
        alone = Fetcher(settings(dataset, recipe), shared=False)(plan)
        found = finished(slots, batch, "crop_torch")
        assert np.abs(found.astype(int) - alone.images.numpy()).max() <= 1
        slots.close()


@pytest.mark.parametrize("training", [False, True])
def test_samples_at_fault_are_dropped_or_filled(
    training: bool, make_folder: Callable[..., Path]
) -> None:
    source = make_folder({"a": 6})
    (source / "a" / "a_000.jpg").write_bytes(b"no image")
    whole = (source / "a" / "a_002.jpg").read_bytes()
    (source / "a" / "a_002.jpg").write_bytes(whole[: len(whole) // 2])
    recipe = Recipe(size=SIDE, crop="random_resized", hflip=0.5, brightness=0.5, erase=0.9)
    with open_dataset(source) as dataset:
        options = settings(dataset, recipe, skip_errors=True, training=training)
        plan = plan_batches(recipe, draw_key(0, 0), [np.array([0, 1, 2, 3])], None)[0]
        slots = Slots(1, slot_bytes(4, SIDE))
        batch = Fetcher(options, shared=True, slots=slots, packed=True)(plan, 0)
        plain = settings(dataset, RECIPE, skip_errors=True, training=training)
        alone = Fetcher(plain, shared=False)(BatchPlan(plan.key, plan.indices))
        found = finished(slots, batch, "crop_torch")
        assert found.shape == tuple(alone.images.shape) == (4 if training else 2, SIDE, SIDE, 3)
        assert np.abs(found.astype(int) - alone.images.numpy()).max() <= 1
        assert batch.skipped == alone.skipped
        assert plan.adjustments is not None
        assert batch.adjustments is not None
        rows = [1, 1, 1, 3] if training else [1, 3]
        np.testing.assert_array_equal(batch.adjustments.factors, plan.adjustments.factors[rows])
        np.testing.assert_array_equal(batch.adjustments.erased, plan.adjustments.erased[rows])
        slots.close()


def test_unusual_images_of_a_folder_are_packed_as_well(make_folder: Callable[..., Path]) -> None:
    path = make_folder({"a": 2}, [(300, 200)])
    pixels = np.random.default_rng(0).integers(0, 256, (90, 70, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    (path / "a" / "z.png").write_bytes(buffer.getvalue())
    with open_dataset(path) as dataset:
        for crop in ("none", "random_resized"):
            recipe = Recipe(size=SIDE, crop=crop, hflip=0.5)
            plan = BatchPlan(draw_key(0, 0), np.array([2, 0, 2, 1]))
            slots = Slots(1, slot_bytes(4, SIDE))
            options = settings(dataset, recipe)
            batch = Fetcher(options, shared=True, slots=slots, packed=True)(plan, 0)
            alone = Fetcher(options, shared=False)(plan)
            found = finished(slots, batch, "crop_torch")
            assert np.abs(found.astype(int) - alone.images.numpy()).max() <= 1
            slots.close()


def test_what_cannot_be_packed(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    path = make_folder()
    convert(path, tmp_path / "pixels", to="memmap", size=32, workers=1)
    with open_dataset(path) as dataset, open_dataset(tmp_path / "pixels") as pixels:
        assert can_pack(settings(dataset))
        assert not can_pack(settings(pixels))
        assert not can_pack(settings(dataset, transform=np.array))
        assert not can_pack(settings(dataset, Recipe()))
        assert not can_pack(settings(dataset, Recipe(size=8, crop="random_pad")))
        assert not can_pack(settings(dataset, Recipe(size=8, antialias=True)))


def test_the_option_is_checked(make_folder: Callable[..., Path]) -> None:
    path = make_folder()
    with pytest.raises(UsageError, match=r"resize_on.*auto.*'gpu'"):
        make_loader(path, 4, engine="workers", engine_options={"resize_on": "gpu"})
    with pytest.raises(UsageError, match=r"resize_on.*CUDA"):
        make_loader(path, 4, engine="workers", engine_options={"resize_on": "device"})
    make_loader(path, 4, engine="workers", engine_options={"resize_on": "workers"}).close()
