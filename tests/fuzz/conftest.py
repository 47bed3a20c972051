"""What the fuzz tests share."""

from __future__ import annotations

import importlib
import io
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from PIL import Image

import converters
import fastdata
from fastdata import FastdataError

# Hypothesis draws on the constants of all modules that are loaded: what it draws would depend on
# which tests ran before in the same process, or on what a test loads in its middle.
for package in (converters, fastdata):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # of what is not installed here
                importlib.import_module(module.name)

Edit = tuple[str, float, bytes]


@pytest.fixture(scope="session")
def attempt() -> Callable[..., tuple[Any, str | None]]:
    """Call a function: its result and None, or None and the message of the library's own error.
    Every other exception is a defect, and passes through."""

    def run(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
        try:
            return function(*arguments), None
        except FastdataError as error:
            return None, str(error)

    return run


@pytest.fixture(scope="session")
def edits() -> st.SearchStrategy[list[Edit]]:
    """Edits of a file: where (as a fraction of its length), what is done, and with which bytes."""
    kinds = st.sampled_from(["set", "insert", "delete", "cut", "swap", "repeat"])
    place = st.floats(0, 1, exclude_max=True, width=32)
    return st.lists(st.tuples(kinds, place, st.binary(min_size=1, max_size=8)), max_size=4)


@pytest.fixture(scope="session")
def edited() -> Callable[[bytes, list[Edit]], bytes]:
    """Carry out edits."""

    def run(data: bytes, edits: list[Edit]) -> bytes:
        for kind, place, new in edits:
            at, size = int(place * len(data)), len(new)
            if kind == "set":
                data = data[:at] + new + data[at + size :]
            elif kind == "insert":
                data = data[:at] + new + data[at:]
            elif kind == "delete":
                data = data[:at] + data[at + size :]
            elif kind == "cut":
                data = data[:at]
            elif kind == "swap":
                data = (
                    data[:at]
                    + data[at + size : at + 2 * size]
                    + data[at : at + size]
                    + (data[at + 2 * size :])
                )
            else:
                data = data[:at] + data[at : at + 64 * size] + data[at:]
        return data

    return run


@pytest.fixture(scope="session")
def images() -> dict[str, bytes]:
    """Small images of many kinds."""
    noise = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
    picture = Image.fromarray(noise).resize((45, 37), Image.Resampling.BICUBIC)

    def encode(format: str, mode: str = "RGB", **options: object) -> bytes:
        buffer = io.BytesIO()
        picture.convert(mode).save(buffer, format, **options)
        return buffer.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "baseline": encode("JPEG"),
        "grey": encode("JPEG", "L"),
        "restarts": encode("JPEG", restart_marker_blocks=2),
        "progressive": encode("JPEG", progressive=True),
        "turned": encode("JPEG", exif=exif),
        "CMYK": encode("JPEG", "CMYK"),
        "PNG": encode("PNG"),
        "palette": encode("PNG", "P"),
        "GIF": encode("GIF", "P"),
        "BMP": encode("BMP"),
        "TIFF": encode("TIFF", compression="tiff_lzw"),
        "WEBP": encode("WEBP", lossless=True),
    }
