"""Which images DALI is given: what a header says is known as long as its bytes are the same."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fastdata import open_dataset
from fastdata.engines.dali.headers import Headers


def encoded(width: int, height: int, seed: int = 0, **options: object) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "JPEG", **options)
    return np.frombuffer(file.getvalue(), np.uint8)


@pytest.fixture
def headers(make_folder: Callable[..., Path]) -> Headers:
    with open_dataset(make_folder({"a": 4})) as dataset:
        return Headers(dataset)


def test_a_header_is_read_again_where_its_bytes_have_changed(headers: Headers) -> None:
    text = np.frombuffer(b"This is no image. " * 100, np.uint8)
    same_size = encoded(40, 30, seed=1)
    steps = [
        ([encoded(40, 30), encoded(32, 16)], [(40, 30), (32, 16)], []),
        ([encoded(40, 30), encoded(32, 16)], [(40, 30), (32, 16)], []),
        ([same_size, encoded(24, 48)], [(40, 30), (24, 48)], []),
        ([text, encoded(24, 48)], [(1, 1), (24, 48)], [0]),
        ([same_size, encoded(24, 48, progressive=True)], [(40, 30), (24, 48)], [1]),
        ([encoded(40, 30), encoded(24, 48)], [(40, 30), (24, 48)], []),
    ]
    indices = np.array([2, 0])
    for images, sizes, bad in steps:
        found, _, slots = headers.read(indices, images)
        assert found.tolist() == [list(size) for size in sizes]
        assert slots.tolist() == bad


def test_what_was_read_of_one_sample_is_not_another_ones(headers: Headers) -> None:
    headers.read(np.array([1]), [encoded(40, 30)])
    sizes, _, bad = headers.read(np.array([3, 1, 1]), [encoded(32, 16)] + 2 * [encoded(40, 30)])
    assert sizes.tolist() == [[32, 16], [40, 30], [40, 30]]
    assert bad.tolist() == []


def test_a_file_may_change_between_two_reads_of_one_batch(headers: Headers) -> None:
    text = np.frombuffer(b"This is no image. " * 100, np.uint8)
    first, second = encoded(40, 30), encoded(24, 16)
    sizes, _, bad = headers.read(np.array([1, 1, 1]), [first, text, second])
    assert sizes.tolist() == [[40, 30], [1, 1], [24, 16]]
    assert bad.tolist() == [1]
    sizes, _, bad = headers.read(np.array([1, 1]), [text, second])
    assert sizes.tolist() == [[1, 1], [24, 16]]
    assert bad.tolist() == [0]
