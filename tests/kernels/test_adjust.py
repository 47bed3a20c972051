"""The kernels of colours and erasing against what the CPU does, which torchvision is held to."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from fastdata.adjust import Adjustments, adjust
from fastdata.kernels import ADJUST_COLUMNS, adjust_table

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SCALE, BIAS = np.array([0.02, 0.018, 0.017]), np.array([-2.1, -2.0, -1.8])
COLOUR = (124, 116, 104)
FACTORS = [[1, 1, 1], [0.5, 1, 1], [1.7, 1, 1], [1, 0.3, 1], [1, 1.7, 1], [1, 1, 0], [1.2, 0.8, 2]]
ERASED = [[0, 0, 0, 0], [2, 3, 5, 1], [0, 0, 45, 38], [44, 38, 1, 1], *[[7, 1, 3, 9]] * 3]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("module", ["adjust_triton", "adjust_torch"])
def test_a_batch_is_what_the_cpu_makes_of_it(module: str, dtype: torch.dtype) -> None:
    levels = np.random.default_rng(0).integers(0, 256, (7, 39, 45, 3), np.uint8)
    adjustments = Adjustments(np.array(FACTORS, np.float32), np.array(ERASED, np.int32))
    expected = levels.copy()
    adjust(expected, adjustments, COLOUR)
    table = torch.from_numpy(adjust_table(adjustments)).to(DEVICE)
    out = torch.zeros(levels.shape, dtype=dtype, device=DEVICE)
    affine = torch.from_numpy(np.stack([SCALE, BIAS])).float().to(DEVICE)
    kernels = importlib.import_module(f"fastdata.kernels.{module}")
    kernels.adjust(torch.from_numpy(levels).to(DEVICE), table, out, affine, COLOUR)
    found = out.cpu().double().numpy()
    if dtype != torch.uint8:
        found = (found - BIAS) / SCALE  # back to levels
    rounding = 0.15 if dtype == torch.float16 else 1e-3
    error = np.abs(found - expected)
    # A level where a float32 comes to lie on the other side of a half; later steps may double it.
    assert error.max() <= 2 + rounding
    assert (error > rounding).mean() < 0.002
    for image, (left, top, width, height) in zip(found, ERASED, strict=True):
        box = image[top : top + height, left : left + width]
        assert np.abs(box - np.array(COLOUR)).max(initial=0) <= rounding


def test_the_table_holds_factors_and_edges() -> None:
    adjustments = Adjustments(np.array(FACTORS, np.float32), np.array(ERASED, np.int32))
    table = adjust_table(adjustments)
    assert table.shape == (7, ADJUST_COLUMNS)
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table[:, :3], adjustments.factors)
    assert table[1, 3:7].tolist() == [2, 3, 7, 4]
