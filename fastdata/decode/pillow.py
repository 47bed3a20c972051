"""The reference decoder, and the one for everything that is no plain JPEG: Pillow."""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from fastdata.decode import check_size, upright
from fastdata.header import FORMATS, quiet_pillow
from fastdata.jpeg import EXIF_ORIENTATION

__all__ = ["decode", "decode_unusual", "to_rgb"]

_STRIP_PIXELS = 1 << 20
_BACKGROUND = (255, 255, 255)  # what shows through transparent pixels


def decode(
    data: bytes | memoryview,
    size: tuple[int, int],
    reduction: int = 1,
    out: NDArray[np.uint8] | None = None,
    rows: int | None = None,
) -> NDArray[np.uint8]:
    """See :class:`fastdata.decode.Decode`; ``out`` is filled by a copy, and always whole."""
    try:
        with quiet_pillow(), Image.open(io.BytesIO(data)) as image:
            if reduction > 1:
                # libjpeg's own scaling: the largest factor that leaves this size, rounded up.
                image.draft("RGB", (max(1, size[0] // reduction), max(1, size[1] // reduction)))
            pixels = np.asarray(image.convert("RGB"))
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises whatever its parsing trips over
        raise ValueError(f"damaged image: {error}") from error
    check_size(pixels, size, reduction)
    if out is None:
        return pixels
    out[:] = pixels
    return out


def decode_unusual(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Decode anything that Pillow reads to 8-bit RGB, as it is stored.

    Transparency is composited on white, 16 bits are scaled to 8, and of several pictures in one
    file the first is taken.

    Returns:
        uint8 [height, width, 3].

    Raises:
        ValueError: no image, a damaged one, or pixels with no defined range (floats).
    """
    try:
        with quiet_pillow(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            turned = 1
            if isinstance(image, TiffImageFile):  # Pillow turns these while it loads them
                turned = image.tag_v2.get(EXIF_ORIENTATION, 1)
            image.load()
            return upright(to_rgb(image), {6: 8, 8: 6}.get(turned, turned))
    except UnidentifiedImageError:
        raise ValueError(f"not an image: it begins with {bytes(data[:12])!r}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises whatever its parsing trips over
        raise ValueError(f"damaged image: {error}") from error


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """The pixels of an image of any mode as 8-bit RGB, uint8 [height, width, 3].

    Raises:
        ValueError: pixels with no defined range.
    """
    if image.mode == "F":
        raise ValueError("pixels of floating point have no known range; convert them to 8 bits")
    width, height = image.size
    pixels = np.empty((height, width, 3), np.uint8)
    rows = max(1, _STRIP_PIXELS // max(1, width))
    for top in range(
        0, height, rows
    ):  # in strips: conversions make several copies of what they get
        bottom = min(top + rows, height)
        strip = image if rows >= height else image.crop((0, top, width, bottom))
        pixels[top:bottom] = _strip_to_rgb(strip)
    return pixels


def _strip_to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode.startswith("I"):  # 16 bits; Pillow's own convert() would clip at 255
        deep = np.asarray(image).astype(np.int64)
        if deep.min() < 0 or deep.max() > 0xFFFF:
            raise ValueError(f"pixels of mode {image.mode} outside of 16 bits have no known range")
        grey = ((deep + 128) // 257).astype(np.uint8)
        if isinstance(image.info.get("transparency"), int):
            grey[deep == image.info["transparency"]] = _BACKGROUND[0]
        return np.repeat(grey[:, :, None], 3, axis=2)
    key = image.info.get("transparency")
    if isinstance(key, tuple) and max(key) > 0xFF:
        # 16 bits a sample, of which Pillow keeps the upper 8 of the pixels, but all of the key.
        image.info["transparency"] = tuple(value >> 8 for value in key)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, (*_BACKGROUND, 255))
        image = Image.alpha_composite(ground, image)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
