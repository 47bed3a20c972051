"""What an encoded image says of itself, without decoding it."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from fastdata.jpeg import EXIF_ORIENTATION, Jpeg, read_jpeg

__all__ = ["FORMATS", "MAX_PIXELS", "Header", "HeaderReader", "quiet_pillow", "read_header"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What counts as an image, by Pillow's names; its many other plugins are left out."""

_WARNINGS_LOCK = threading.Lock()
MAX_PIXELS = 178_956_970  # where Pillow, too, takes a file for a decompression bomb
_FACTORS = 7  # bytes from the frame header's beginning to its first component's sampling factors
_HUFFMAN_DCT = frozenset({0xC0, 0xC1, 0xC2})
_LUMA_SAMPLINGS = frozenset({(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)})
_STRANGERS = {  # what else is found under an image's name, by its first bytes or those from 4 on
    b"ftypavif": "AVIF",
    b"ftypheic": "HEIC",
    b"ftypmif1": "HEIF",
    b"jP  ": "JPEG 2000",
    b"8BPS": "Photoshop",
    b"%PDF": "PDF",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "a gzip file",
    b"<svg": "SVG",
    b"<?xml": "XML",
    b"<!DOCTYPE": "an HTML page",
    b"<!doctype": "an HTML page",
    b"<html": "an HTML page",
    b"version https://git-lfs": "a Git LFS pointer; fetch the files with git lfs pull",
}


@dataclass(frozen=True)
class Header:
    """What the header of an encoded image says.

    Attributes:
        format: Pillow's name of the format: ``"JPEG"``, ``"PNG"``, ...
        width, height: in pixels, upright: after the EXIF orientation is applied.
        orientation: EXIF orientation, 1 (upright) to 8.
        structure: for a JPEG, its marker segments.
        decodable: a JPEG that a decoder of the registry can decode: Huffman-coded, 8 bits, grey
            or YCbCr in a common sampling.
        single: offset of the sampling factors of a grey JPEG's only component where they are not
            1x1, else 0. They mean nothing, as no scan is interleaved (ITU-T T.81, A.2.2).
        baseline: decodable, baseline, in one scan: what every decoder takes, the GPU's included.
        length: bytes up to a JPEG's first scan, which decide all of this; 0 for other formats.
    """

    format: str
    width: int
    height: int
    orientation: int
    structure: Jpeg | None = field(default=None, repr=False, compare=False)
    decodable: bool = False
    single: int = 0
    baseline: bool = False
    length: int = field(default=0, compare=False)

    @property
    def plain(self) -> bool:
        """A baseline JPEG that is upright: every decoder gives the same pixels, turned right."""
        return self.baseline and self.orientation == 1

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height as they are stored, before the orientation is applied."""
        turned = self.orientation >= 5
        return (self.height, self.width) if turned else (self.width, self.height)


def read_header(data: bytes | memoryview) -> Header:
    """Read the header of an encoded image; its content decides the format, never its name.

    Args:
        data: the whole encoded image.

    Raises:
        ValueError: no image, a damaged header, or more pixels than :data:`MAX_PIXELS`; the message
            says what was found.
    """
    data = bytes(data)
    if not data:
        raise ValueError("the file is empty (0 bytes)")
    header = _jpeg(data) if data[:3] == b"\xff\xd8\xff" else _other(data)
    if header.width * header.height > MAX_PIXELS:
        raise ValueError(
            f"its header claims {header.width}x{header.height} pixels, more than the "
            f"{MAX_PIXELS:,} that are taken for a picture"
        )
    return header


class HeaderReader:
    """Reads the headers of one image after the other.

    JPEGs of one program and one size begin with the same bytes, up to their scan; where an image
    begins as the one before, those are not parsed again.
    """

    def __init__(self) -> None:
        self._beginning = b""
        self._header: Header | None = None

    def read(self, data: bytes) -> Header:
        """:func:`read_header`, but without a JPEG's structure."""
        if self._header is not None and data.startswith(self._beginning):
            return self._header
        header = read_header(data)
        if header.structure is not None:
            self._beginning = data[: header.length]
            header = self._header = replace(header, structure=None)
        return header


def _jpeg(data: bytes) -> Header:
    jpeg = read_jpeg(data)
    decodable = jpeg.marker in _HUFFMAN_DCT and jpeg.precision == 8 and _grey_or_ycbcr(jpeg)
    baseline = decodable and jpeg.process == "baseline" and jpeg.huffman and jpeg.interleaved
    width, height = jpeg.width, jpeg.height
    if jpeg.orientation >= 5:
        width, height = height, width
    factors = [(one.horizontal, one.vertical) for one in jpeg.components]
    single = jpeg.frame + _FACTORS if len(factors) == 1 and factors != [(1, 1)] else 0
    start = jpeg.first_scan.data
    return Header("JPEG", width, height, jpeg.orientation, jpeg, decodable, single, baseline, start)


def _grey_or_ycbcr(jpeg: Jpeg) -> bool:
    """Whether the components are what every decoder handles: grey, or YCbCr in a common
    sampling."""
    if jpeg.colours == "grey":
        return True
    if jpeg.colours != "YCbCr" or jpeg.adobe_transform == 0:  # JFIF and Adobe may disagree
        return False
    luma, blue, red = ((c.horizontal, c.vertical) for c in jpeg.components)
    return luma in _LUMA_SAMPLINGS and blue == red == (1, 1)


def _other(data: bytes) -> Header:
    try:
        with quiet_pillow(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            name = image.format or "unknown"
            width, height = image.size
            orientation = _pillow_orientation(image)
            if isinstance(image, TiffImageFile):
                # Pillow turns the pixels itself, but not every version says so in the size.
                width, height = int(image.tag_v2[256]), int(image.tag_v2[257])
    except UnidentifiedImageError:
        raise ValueError(f"not an image: {_found(data)}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises whatever its parsing trips over
        raise ValueError(f"damaged image: {error}") from error
    if orientation >= 5:
        width, height = height, width
    return Header(name, width, height, orientation)


def _found(data: bytes) -> str:
    start = data[:64].lstrip()
    for magic, name in _STRANGERS.items():
        if start.startswith(magic) or data[4:].startswith(magic):
            return f"it is {name}" if name.startswith("a") else f"{name} is not supported"
    return f"it begins with {data[:12]!r}"


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings of damage that it can work around; one thread at a time, because
    what they are silenced with belongs to all threads."""
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow_orientation(image: Image.Image) -> int:
    """EXIF orientation; 1 where it is absent or damaged."""
    try:
        orientation = image.getexif().get(EXIF_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block does not stand in the way of good pixels
        return 1
    return orientation if orientation in range(1, 9) else 1
