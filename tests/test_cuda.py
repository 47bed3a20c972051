"""What needs a CUDA device: batches there are the batches on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastdata import convert, make_loader

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


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
        make_loader(dataset, 8, device="cuda", **options) as gpu,
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
        make_loader(dataset, 8, device="cuda", **options) as gpu,
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
