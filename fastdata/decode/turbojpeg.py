"""libjpeg-turbo through PyTurboJPEG, which uses the copy that the system has installed."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdata.decode import check_size
from fastdata.errors import MissingExtraError

__all__ = ["decode"]


@functools.cache
def _library() -> tuple[Any, int]:
    import turbojpeg

    try:
        return turbojpeg.TurboJPEG(), turbojpeg.TJPF_RGB
    except (RuntimeError, OSError) as error:
        raise MissingExtraError(
            f"PyTurboJPEG finds no libjpeg-turbo that it can use ({error}); PyTurboJPEG 1.x needs "
            "libjpeg-turbo 2 (Debian: apt install libturbojpeg0), 2.x needs libjpeg-turbo 3"
        ) from error


def decode(
    data: bytes | memoryview,
    size: tuple[int, int],
    reduction: int = 1,
    out: NDArray[np.uint8] | None = None,
    rows: int | None = None,
) -> NDArray[np.uint8]:
    """See :class:`fastdata.decode.Decode`; warnings of the library count as damage, and all rows
    are decoded."""
    library, rgb = _library()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            pixels: NDArray[np.uint8] = library.decode(
                data, pixel_format=rgb, scaling_factor=(1, reduction), dst=out
            )
    except (OSError, UserWarning) as error:
        raise ValueError(str(error)) from error
    check_size(pixels, size, reduction)
    return pixels
