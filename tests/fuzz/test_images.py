"""Mutated images: refused by name, or written as something that every decoder takes."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from converters.options import Options
from converters.transform import Transform
from fastdata.registry import DECODERS, load

KINDS = [
    *("baseline", "grey", "restarts", "progressive", "turned", "CMYK", "PNG", "palette", "GIF"),
    *("BMP", "TIFF", "WEBP"),
]

# Few examples, and always the same ones; `make fuzz` looks longer, and for new ones.
fuzz = settings(
    max_examples=int(os.environ.get("FASTDATA_FUZZ", "60")),
    derandomize="FASTDATA_FUZZ" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Attempt = Callable[..., tuple[Any, str | None]]


@pytest.fixture(scope="module")
def transforms() -> dict[str, Transform]:
    return {
        "webdataset": Transform(Options("webdataset")),
        "structure": Transform(Options("webdataset", check="structure")),
        "memmap": Transform(Options("memmap", size=(16, 16))),
    }


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(data=st.data())
def test_a_mutated_image_is_refused_or_good(
    kind: str,
    data: st.DataObject,
    images: dict[str, bytes],
    edits: st.SearchStrategy[Any],
    edited: Callable[..., bytes],
    transforms: dict[str, Transform],
    attempt: Attempt,
) -> None:
    mutant = edited(images[kind], data.draw(edits))
    arguments = (mutant, "image", 0, b"image", 0)
    sample, refusal = attempt(transforms["webdataset"], *arguments)
    row, same_refusal = attempt(transforms["memmap"], *arguments)
    assert refusal == same_refusal
    if refusal is not None:
        assert refusal.startswith("image: ")
        return
    size = (sample.width, sample.height)
    decoded = [load(DECODERS, name, "decoder")(sample.data, size) for name in DECODERS]
    for pixels in decoded:
        assert pixels.shape == (sample.height, sample.width, 3)
        # libjpeg-turbo's own two copies may differ by a rounding; damage differs by far more.
        assert np.abs(pixels.astype(int) - decoded[0]).max() <= 3
    with warnings.catch_warnings(), Image.open(io.BytesIO(sample.data)) as image:
        warnings.simplefilter("ignore")  # Pillow's, of EXIF data that nobody needs
        assert image.format == "JPEG"
        assert image.getexif().get(0x0112, 1) == 1
        assert "progressive" not in image.info
    assert row.repaired == sample.repaired


@pytest.mark.parametrize("kind", KINDS)
@fuzz
@given(data=st.data())
def test_a_look_at_the_structure_alone_never_fails_in_another_way(
    kind: str,
    data: st.DataObject,
    images: dict[str, bytes],
    edits: st.SearchStrategy[Any],
    edited: Callable[..., bytes],
    transforms: dict[str, Transform],
    attempt: Attempt,
) -> None:
    mutant = edited(images[kind], data.draw(edits))
    _, refusal = attempt(transforms["structure"], mutant, "image", 0, b"image", 0)
    assert refusal is None or refusal.startswith("image: ")


@fuzz
@given(
    start=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF"]),
    rest=st.binary(max_size=400),
)
def test_any_bytes_are_refused_or_good(
    start: bytes, rest: bytes, transforms: dict[str, Transform], attempt: Attempt
) -> None:
    for transform in transforms.values():
        _, refusal = attempt(transform, start + rest, "image", 0, b"image", 0)
        assert refusal is None or refusal.startswith("image: ")
