"""What an encoded image says of itself, without decoding it."""

from __future__ import annotations

import io
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

__all__ = ["FORMATS", "MAX_PIXELS", "Header", "quiet_pillow", "read_header"]

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""What counts as an image, by Pillow's names; its many other plugins are left out."""

_WARNINGS_LOCK = threading.Lock()
MAX_PIXELS = 178_956_970  # where Pillow, too, takes a file for a decompression bomb
_EXIF_ORIENTATION = 0x0112
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # DHT, JPG and DAC share the range
_HUFFMAN_SOF = frozenset({0xC0, 0xC1, 0xC2})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # markers without a length
_LUMA_SAMPLINGS = frozenset({0x11, 0x21, 0x22, 0x12, 0x41})  # 4:4:4 4:2:2 4:2:0 4:4:0 4:1:1
_SOF_NAMES = {
    0xC1: "extended sequential",
    0xC2: "progressive",
    0xC3: "lossless",
    0xC9: "arithmetic-coded",
    0xCA: "arithmetic-coded progressive",
    0xCB: "arithmetic-coded lossless",
}


@dataclass(frozen=True)
class Header:
    """What the header of an encoded image says.

    Attributes:
        format: Pillow's name of the format: ``"JPEG"``, ``"PNG"``, ...
        width, height: in pixels, upright: after the EXIF orientation is applied.
        orientation: EXIF orientation, 1 (upright) to 8.
        plain: a baseline JPEG of 8 bits, grey or YCbCr, upright: what every JPEG decoder, the
            GPU's included, decodes to the same pixels.
        process: for a JPEG, its coding process in words (``"baseline"``, ``"progressive"``, ...).
        jpeg: what a JPEG decoder of the registry can decode: plain, or plain but for being
            progressive or not upright.
    """

    format: str
    width: int
    height: int
    orientation: int
    plain: bool
    process: str = ""
    jpeg: bool = False

    @property
    def stored_size(self) -> tuple[int, int]:
        """Width and height as they are stored, before the orientation is applied."""
        turned = self.orientation >= 5
        return (self.height, self.width) if turned else (self.width, self.height)


def read_header(data: bytes | memoryview, *, to_end: bool = False) -> Header:
    """Read the header of an encoded image; its content decides the format, never its name.

    Args:
        data: the whole encoded image.
        to_end: for a JPEG, also demand the end marker behind the picture's data, which a
            truncated file lacks.

    Raises:
        ValueError: no image, or a damaged header; the message says what was found.
    """
    data = bytes(data)
    if not data:
        raise ValueError("the file is empty (0 bytes)")
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg(data, to_end)
    return _other(data)


def _jpeg(data: bytes, to_end: bool) -> Header:
    """Walk the marker segments up to the first scan (ITU-T T.81, annex B)."""
    position, end = 2, len(data)
    orientation, jfif, adobe_transform, frame = 1, False, None, None
    while True:
        if position + 4 > end:
            raise ValueError("truncated JPEG: the file ends inside its header")
        if data[position] != 0xFF:
            raise ValueError(f"damaged JPEG: expected a marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker in _STANDALONE:
            position += 2
            continue
        if marker == 0xD9:
            raise ValueError("damaged JPEG: it ends before its first scan")
        length = data[position + 2] << 8 | data[position + 3]
        body, position = position + 4, position + 2 + length
        if length < 2 or position > end:
            raise ValueError("truncated JPEG: the file ends inside its header")
        if marker in _SOF:
            if length < 8:
                raise ValueError("damaged JPEG: its frame header is too short")
            precision, height, width, components = struct.unpack_from(">BHHB", data, body)
            if length < 8 + 3 * components:
                raise ValueError("damaged JPEG: its frame header is too short")
            table = data[body + 6 : body + 6 + 3 * components]
            frame = (marker, precision, width, height, table)
        elif marker == 0xE0 and data[body : body + 5] == b"JFIF\0":
            jfif = True
        elif marker == 0xE1 and data[body : body + 6] == b"Exif\0\0":
            orientation = _exif_orientation(data[body + 6 : position])
        elif marker == 0xEE and data[body : body + 5] == b"Adobe" and length >= 14:
            adobe_transform = data[body + 11]
        elif marker == 0xDA:
            break
    if frame is None:
        raise ValueError("damaged JPEG: a scan without a frame header")
    if to_end and data.rfind(b"\xff\xd9", position) < 0:
        raise ValueError("truncated JPEG: the end marker is missing")
    kind, precision, width, height, table = frame
    if not width or not height:
        raise ValueError(f"damaged JPEG: its header says {width}x{height} pixels")
    if width * height > MAX_PIXELS:
        raise ValueError(
            f"its header claims {width}x{height} pixels, more than the {MAX_PIXELS:,} that are "
            "taken for a picture"
        )
    jpeg = kind in _HUFFMAN_SOF and precision == 8 and _grey_or_ycbcr(table, jfif, adobe_transform)
    plain = jpeg and kind == 0xC0 and orientation == 1
    if orientation >= 5:
        width, height = height, width
    process = "baseline" if kind == 0xC0 else _SOF_NAMES.get(kind, "hierarchical")
    return Header("JPEG", width, height, orientation, plain, process, jpeg)


def _grey_or_ycbcr(table: bytes, jfif: bool, adobe_transform: int | None) -> bool:
    """Whether the components (identifier, sampling, quantisation table each) are what every
    decoder handles: grey, or YCbCr in a common sampling."""
    if len(table) == 3:
        return True
    if len(table) != 9 or adobe_transform == 0:
        return False
    if table[0::3] == b"RGB" and not jfif and adobe_transform is None:
        return False  # libjpeg's convention for RGB without a marker that says so
    return table[1] in _LUMA_SAMPLINGS and table[4] == table[7] == 0x11


def _exif_orientation(tiff: bytes) -> int:
    """The orientation tag of an EXIF block's first directory; 1 where it is absent or damaged."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (offset,) = struct.unpack_from(order + "I", tiff, 4)
    if offset + 2 > len(tiff):
        return 1
    (count,) = struct.unpack_from(order + "H", tiff, offset)
    for entry in range(offset + 2, min(offset + 2 + 12 * count, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, entry)
        if tag == _EXIF_ORIENTATION and kind in (3, 4):  # SHORT, and LONG as some programs have it
            (value,) = struct.unpack_from(order + " HI"[kind - 2], tiff, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1


def _other(data: bytes) -> Header:
    try:
        with quiet_pillow(), Image.open(io.BytesIO(data), formats=FORMATS) as image:
            name = image.format or "unknown"
            width, height = image.size
            orientation = _pillow_orientation(image)
            if isinstance(image, TiffImageFile):
                # Pillow turns the pixels itself, but not every version says so in the size.
                width, height = int(image.tag_v2[256]), int(image.tag_v2[257])
                if image.tag_v2.get(_EXIF_ORIENTATION, 1) in range(5, 9):
                    width, height = height, width
    except UnidentifiedImageError:
        raise ValueError(f"not an image: it begins with {data[:12]!r}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises whatever its parsing trips over
        raise ValueError(f"damaged image: {error}") from error
    if orientation >= 5:
        width, height = height, width
    return Header(name, width, height, orientation, plain=False)


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """Silence Pillow's warnings of damage that it can work around; one thread at a time, because
    what they are silenced with belongs to all threads."""
    with _WARNINGS_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _pillow_orientation(image: Image.Image) -> int:
    """EXIF orientation; 1 where it is absent or damaged, and for TIFF: Pillow turns that itself."""
    if image.format == "TIFF":
        return 1
    try:
        orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    except Exception:  # a damaged EXIF block does not stand in the way of good pixels
        return 1
    return orientation if orientation in range(1, 9) else 1
