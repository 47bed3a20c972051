"""What needs a CUDA device: batches there are the batches on the CPU."""

from __future__ import annotations

import gc
import itertools
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import Recipe, convert, make_loader

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


ON_WORKERS: dict[str, Any] = {"engine": "workers", "engine_options": {"resize_on": "workers"}}
"""The same arithmetic as on the CPU; the device's own differs by its rounding, and is held to the
reference by the conformance suite."""


@pytest.fixture
def dataset(make_folder: Callable[..., Path], tmp_path: Path) -> Path:
    source = make_folder({"ant": 20, "bee": 23}, sizes=[(300, 240), (900, 700), (100, 120)])
    convert(source, tmp_path / "dataset")
    return tmp_path / "dataset"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("recipe", ["imagenet-train", "imagenet-eval"])
def test_uint8_batches_on_the_gpu_equal_those_on_the_cpu(
    dataset: Path, recipe: str, num_workers: int
) -> None:
    options = {"recipe": recipe, "dtype": "uint8", "num_workers": num_workers, "with_index": True}
    with (
        make_loader(dataset, 8, device="cuda", **ON_WORKERS, **options) as gpu,
        make_loader(dataset, 8, **options) as cpu,
    ):
        for there, here in zip(gpu, cpu, strict=True):
            assert there[0].is_cuda
            assert there[1].is_cuda
            assert not there[2].is_cuda
            assert there[0].is_contiguous(memory_format=torch.channels_last)
            for a, b in zip(there, here, strict=True):
                assert torch.equal(a.cpu(), b)


def test_images_are_half_precision_and_normalised_by_default(dataset: Path) -> None:
    options = {"recipe": "imagenet-eval", "num_workers": 2}
    mean = torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1)
    with (
        make_loader(dataset, 8, device="cuda", **ON_WORKERS, **options) as gpu,
        make_loader(dataset, 8, dtype="uint8", **options) as cpu,
    ):
        for (images, _), (pixels, _) in zip(gpu, cpu, strict=True):
            assert images.dtype == torch.float16
            expected = ((pixels.double() / 255 - mean) / std).half()
            # Computed in float32 and rounded once: at most one unit in the last place away.
            torch.testing.assert_close(images.cpu(), expected, rtol=2**-10, atol=2**-11)


def test_batches_that_were_handed_out_are_never_overwritten(dataset: Path) -> None:
    with make_loader(dataset, 4, recipe="imagenet-train", device="cuda", num_workers=2) as loader:
        kept = [(images, images.clone()) for images, _ in loader]
        torch.cuda.synchronize()
        assert len(kept) == len(loader)
        assert all(torch.equal(images, copy) for images, copy in kept)


def test_worker_processes_do_not_touch_the_gpu(dataset: Path) -> None:
    torch.zeros(1, device="cuda")  # CUDA is up in this process, and a fork must not use it
    options = {"engine_options": {"start_method": "fork"}, "num_workers": 2}
    with make_loader(dataset, 8, recipe="imagenet-train", device="cuda", **options) as loader:
        assert sum(len(labels) for _, labels in loader) == len(loader) * 8


WAYS: dict[str, dict[str, Any]] = {
    "hbm": {"engine": "direct", "engine_options": {"tier": "hbm"}},
    "copies": {"engine": "direct", "engine_options": {"tier": "host", "host_read": "copies"}},
    "kernel": {"engine": "direct", "engine_options": {"tier": "host", "host_read": "kernel"}},
    "gather": {"engine": "gather", "num_workers": 2},
}
"""How pixels reach the GPU."""


@pytest.fixture
def pixels(make_folder: Callable[..., Path], tmp_path: Path) -> Callable[[int], Path]:
    """Makes a memmap dataset of 90 images of a size."""
    source = make_folder({"ant": 40, "bee": 50}, sizes=[(300, 240), (900, 700), (100, 120)])

    def make(size: int) -> Path:
        convert(source, tmp_path / f"{size}", to="memmap", size=size)
        return tmp_path / f"{size}"

    return make


JITTERED = replace(Recipe.preset("imagenet-train"), brightness=0.4, saturation=0.4, erase=0.5)
PADDED = Recipe(size=32, crop="random_pad", pad=40, hflip=0.5)  # some boxes hold no pixel


@pytest.mark.parametrize("recipe", [JITTERED, PADDED], ids=["jittered", "padded"])
@pytest.mark.parametrize("size", [256, 32])
def test_pixels_are_the_same_whatever_way_they_take(
    size: int, recipe: Recipe, pixels: Callable[[int], Path]
) -> None:
    path, found = pixels(size), {}
    for name, way in WAYS.items():
        with make_loader(path, 8, recipe=recipe, device="cuda", dtype="uint8", **way) as loader:
            assert loader.engine == way["engine"]
            first = [images.cpu() for images, _ in loader]
            loader.close()  # it can be used again
            loader.set_epoch(0)
            again = [images.cpu() for images, _ in loader]
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        found[name] = torch.cat(first)
    assert found["hbm"].float().std() > 1
    for name, images in found.items():
        assert torch.equal(images, found["hbm"]), name


@pytest.mark.parametrize("name", WAYS)
def test_no_batch_of_pixels_is_ever_overwritten(name: str, pixels: Callable[[int], Path]) -> None:
    options = {"recipe": "imagenet-train", "device": "cuda", **WAYS[name]}
    with make_loader(pixels(256), 4, **options) as loader:
        kept = [(images, images.clone()) for images, _ in loader]
        torch.cuda.synchronize()
        assert len(kept) == len(loader)
        assert all(torch.equal(images, copy) for images, copy in kept)


@pytest.mark.parametrize(("size", "words"), [(256, "copy engines read"), (32, "a kernel reads")])
def test_small_images_are_read_by_a_kernel(
    size: int, words: str, pixels: Callable[[int], Path]
) -> None:
    options = {"recipe": "imagenet-train", "device": "cuda", "engine_options": {"tier": "host"}}
    with make_loader(pixels(size), 4, engine="direct", **options) as loader:
        assert words in loader.explain()


@pytest.mark.parametrize("name", [*WAYS, "workers"])
def test_breaking_and_iterating_again_a_hundred_times_keeps_nothing_on_the_gpu(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name == "workers":
        path = request.getfixturevalue("dataset")
    else:
        path = request.getfixturevalue("pixels")(256)
    way = WAYS.get(name, {"engine": "workers", "num_workers": 2})
    with make_loader(path, 4, recipe="imagenet-train", device="cuda", **way) as loader:

        def held() -> dict[str, int]:
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()  # batches differ in size: what torch sets aside, too
            return {
                "allocated": torch.cuda.memory_allocated() >> 20,
                "reserved": torch.cuda.memory_reserved() >> 20,
                "descriptors": len(os.listdir("/proc/self/fd")),
                "threads": threading.active_count(),
            }

        def break_and_iterate(times: int) -> None:
            for number in range(times):
                for _ in itertools.islice(loader, number % 3):
                    pass

        break_and_iterate(25)
        first = held()
        break_and_iterate(100)
        # A batch has 1.2 MB: a hundred that are kept would be seen, a few on their way are none.
        allowed = {"allocated": 20, "reserved": 20, "descriptors": 10, "threads": 2}
        now = held()
        more = {key: now[key] - first[key] for key in now if now[key] > first[key] + allowed[key]}
        assert more == {}
