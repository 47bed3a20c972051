"""Sources that many tests share: small folders of images made with Pillow, never by fastdata."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

os.environ["XDG_CACHE_HOME"] = "/dev/null/none"  # no test takes a profile of the user's
if not Path("/dev/nvidiactl").exists():  # kernels run in Triton's interpreter, if this is set
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as who runs in the background inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def picture(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """A smooth random picture, uint8 [height, width, 3]: compresses like a photograph."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (max(2, height // 12), max(2, width // 12), 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = generator.normal(0, 4, (height, width, 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)


def jpeg(pixels: NDArray[np.uint8], **options: object) -> bytes:
    """A JPEG made by Pillow; quality 90 and 4:2:0 unless told otherwise."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", **{"quality": 90, "subsampling": 2, **options})
    return buffer.getvalue()


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write a source folder of JPEGs; returns its path.

    Args of the function: classes: class -> number of images; sizes: (width, height) pairs taken
    in turn; name: of the folder.
    """

    def make(
        classes: dict[str, int] | None = None,
        sizes: list[tuple[int, int]] | None = None,
        name: str = "source",
    ) -> Path:
        root, number = tmp_path / name, 0
        shapes = sizes or [(80, 60), (60, 80), (97, 61)]
        for label, count in (classes or {"ant": 7, "bee": 6, "cat": 9}).items():
            (root / label).mkdir(parents=True)
            for i in range(count):
                width, height = shapes[number % len(shapes)]
                data = jpeg(picture(width, height, seed=number))
                (root / label / f"{label}_{i:03d}.jpg").write_bytes(data)
                number += 1
        return root

    return make
