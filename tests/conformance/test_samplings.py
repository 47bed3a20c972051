"""Every engine on JPEGs of every sampling and size that decoders take, against Pillow's pixels.

Among them are grey ones whose sampling factors are not 1x1: those mean nothing, and decoders trip
over them.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata.header import read_header
from fastdata.recipe import Recipe
from fastdata.registry import ENGINES
from tests.conformance.test_engines import DEVICES, Data, batches, check
from tests.corpus.jpeg_cases import kept_jpegs

RECIPE = Recipe(size=16, crop="random_resized", scale=(0.3, 1.0), hflip=0.5)
MOST = 2000  # pixels of a side; a larger one is no case of its own here

# torch warns of more workers than CPUs, which is what these tests want on any machine; Pillow of an
# EXIF block that is damaged on purpose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning"),
]


@pytest.fixture(scope="module")
def sampled(
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    jpeg: Callable[..., bytes],
    picture: Callable[..., Any],
) -> Callable[[str], Data]:
    cases = {case.name: case.data for case in kept_jpegs()}
    grey = Image.fromarray(picture(900, 703, 1)).convert("L")
    for subsampling in range(3):
        cases[f"grey-large-{subsampling}.jpg"] = jpeg(np.asarray(grey), subsampling=subsampling)
    headers = {name: read_header(data) for name, data in cases.items()}
    plain = sorted(
        name for name, one in headers.items() if one.plain and max(one.width, one.height) < MOST
    )
    source = write_source({b"x/" + name.encode(): cases[name] for name in plain})
    samples = [cases[name] for name in plain]
    sizes = [Image.open(io.BytesIO(data)).size for data in samples]

    def make(name: str) -> Data:
        path = in_format(name, source)
        return Data(path, "sampled", samples, np.array(sizes, np.int32), [0] * len(samples))

    return make


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", ENGINES)
def test_jpegs_of_every_sampling_are_pillows(
    engine: str, device: str, encoded_format: str, sampled: Callable[[str], Data]
) -> None:
    data = sampled(encoded_format)
    for epoch in range(2):  # the second time, what is known of a file may be remembered
        options = {"dtype": "uint8", "num_workers": 1, "device": device}
        found = batches(engine, data, RECIPE, epoch, **options)
        assert found is not None or engine not in ("workers", "dali" if device == "cuda" else "")
        if found is not None:
            check(data, RECIPE, epoch, found, engine)
