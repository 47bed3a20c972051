"""What the odd files are built with, and an independent look at a JPEG's segments.

Nothing here uses fastdata: the cases are to judge it.
"""

from __future__ import annotations

import io
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[np.uint8]
SOI, EOI = b"\xff\xd8", b"\xff\xd9"
WIDTH, HEIGHT = 45, 35  # no multiple of any block, so that edges are odd everywhere
ORIENTATION = 0x0112


@dataclass(frozen=True)
class Case:
    """A file, and what the policy wants of it.

    Attributes:
        name: of the file; its ending is wrong on purpose at times.
        what: what the file is; cases of one description share a row of the table.
        data: the file.
        pixels: what is to be seen, from a source other than fastdata; None: the file is refused.
        refused: pattern that the reason holds.
        written: the exact bytes that an encoded format takes; None: it is encoded anew.
        treated, repaired: what is to be recorded.
        exif: the option of that name.
        mean, most: error of the pixels that is allowed before anything is encoded anew.
        group: heading in the table.
    """

    name: str
    what: str
    data: bytes
    pixels: Pixels | None = None
    refused: str = ""
    written: bytes | None = None
    treated: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()
    exif: str = "apply"
    mean: float = 2.5
    most: float = 24
    group: str = ""

    @property
    def default(self) -> bool:
        """Whether a conversion with default options shows it."""
        return self.exif == "apply"


def refused(name: str, what: str, data: bytes, reason: str) -> Case:
    """A file that is refused for ``reason``."""
    return Case(name, what, data, refused=reason)


def picture(width: int = WIDTH, height: int = HEIGHT) -> Pixels:
    """Smooth, colourful and without symmetry: JPEG keeps it to a few levels in any sampling, and
    turning, mirroring or swapping channels shows."""
    coarse = np.array(
        [[[220, 60, 50], [60, 190, 80], [40, 70, 210]], [[60, 50, 120], [230, 220, 90], [90] * 3]],
        np.uint8,
    )
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
    return np.array(image)


def grain(width: int = WIDTH, height: int = HEIGHT) -> Pixels:
    """Noise: every byte of its encoding matters, so damage cannot hide in flat blocks."""
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), np.uint8)


def grey(pixels: Pixels) -> Pixels:
    """The same in grey, as three equal channels."""
    luma = np.asarray(Image.fromarray(pixels).convert("L"))
    return np.repeat(luma[:, :, None], 3, axis=2)


def on_white(pixels: Pixels, alpha: NDArray[Any]) -> Pixels:
    """Composite on white, alpha 0..255."""
    part = alpha.astype(np.float64)[:, :, None] / 255
    return np.asarray(np.rint(pixels * part + 255 * (1 - part)), np.uint8)


def encoded(image: Image.Image | NDArray[Any], format: str, **options: Any) -> bytes:
    """Encode by Pillow."""
    buffer = io.BytesIO()
    opened = image if isinstance(image, Image.Image) else Image.fromarray(image)
    opened.save(buffer, format, **options)
    return buffer.getvalue()


def jpeg(pixels: Pixels | Image.Image, **options: Any) -> bytes:
    """A JPEG by Pillow, of quality 95 and in 4:4:4 unless told otherwise."""
    return encoded(pixels, "JPEG", **{"quality": 95, "subsampling": 0, **options})


def cjpeg(pixels: Pixels, *arguments: str, script: str = "") -> bytes:
    """A JPEG by libjpeg-turbo's own program, which can do what Pillow cannot; ``script``: scans."""
    height, width = pixels.shape[:2]
    ppm = b"P6 %d %d 255\n" % (width, height) + pixels.tobytes()
    with tempfile.NamedTemporaryFile("w", suffix=".scans") as scans:
        scans.write(script)
        scans.flush()
        order = ["-scans", scans.name] if script else []
        command = ["cjpeg", "-quality", "95", *order, *arguments]
        return subprocess.run(command, input=ppm, capture_output=True, check=True).stdout


def segment(marker: int, body: bytes) -> bytes:
    """A marker segment."""
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def segments(data: bytes) -> list[tuple[int, int, int]]:
    """(marker, start, end) of the header's segments, the first scan's header being the last."""
    found: list[tuple[int, int, int]] = []
    position = 2
    while not found or found[-1][0] != 0xDA:
        while data[position + 1] == 0xFF:
            position += 1
        assert data[position] == 0xFF
        end = position + 2 + int.from_bytes(data[position + 2 : position + 4], "big")
        found.append((data[position + 1], position, end))
        position = end
    return found


def without(data: bytes, unwanted: Callable[[int, bytes], bool]) -> bytes:
    """A JPEG without the header segments of which ``unwanted(marker, body)`` is true."""
    kept, start = b"", 0
    for marker, first, last in segments(data):
        if unwanted(marker, data[first + 4 : last]):
            kept, start = kept + data[start:first], last
    return kept + data[start:]


def inserted(data: bytes, *pieces: bytes, before: int | None = None) -> bytes:
    """A JPEG with segments put in behind its first marker, or before the first ``before``."""
    position = 2
    if before is not None:
        position = next(start for marker, start, _ in segments(data) if marker == before)
    return data[:position] + b"".join(pieces) + data[position:]


def framed(data: bytes, marker: int | None = None, **fields: int) -> bytes:
    """A JPEG with its frame header changed: its marker, ``precision``, ``height``, ``width``."""
    kind, start, _ = next(row for row in segments(data) if row[0] in (0xC0, 0xC1, 0xC2))
    old = struct.unpack_from(">BHH", data, start + 4)
    new = {**dict(zip(("precision", "height", "width"), old, strict=True)), **fields}
    head = struct.pack(">BHH", new["precision"], new["height"], new["width"])
    marked = bytes([0xFF, kind if marker is None else marker])
    return data[:start] + marked + data[start + 2 : start + 4] + head + data[start + 9 :]


def markers(data: bytes) -> list[tuple[int, int]]:
    """(second byte, offset) of the markers behind the first scan's header, restarts included."""
    start = segments(data)[-1][2]
    return [
        (data[i + 1], i)
        for i in range(start, len(data) - 1)
        if data[i] == 0xFF and data[i + 1] not in (0, 0xFF)
    ]


def exif(*entries: tuple[int, int, int], order: str = "<", more: bytes = b"") -> bytes:
    """An EXIF segment's body: a directory of (tag, kind 3 or 4, value), and what follows it."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    rows = b"".join(
        struct.pack(order + "HHI", tag, kind, 1)
        + struct.pack(order + "I" if kind == 4 else order + "HH", *([value, 0][: 5 - kind]))
        for tag, kind, value in entries
    )
    head = struct.pack(order + "IH", 8, len(entries))
    behind = 8 + 2 + len(rows) + 4 if more else 0
    return b"Exif\0\0" + mark + head + rows + struct.pack(order + "I", behind) + more


def thumbnail(orientation: int) -> bytes:
    """A second EXIF directory, with an embedded JPEG; for :func:`exif` with one entry."""
    small = jpeg(grain(16, 16), comment=b"a thumbnail")
    at = 8 + 2 + 12 + 4 + 2 + 3 * 12 + 4
    rows = [(ORIENTATION, 3, orientation), (0x0201, 4, at), (0x0202, 4, len(small))]
    body = b"".join(
        struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in rows
    )  # a little-endian short in the low half of the field is the same number
    return struct.pack("<H", 3) + body + bytes(4) + small


def chunk(kind: bytes, body: bytes) -> bytes:
    """A PNG chunk."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    """(kind, body) of a PNG's chunks."""
    found, position = [], 8
    while position < len(data):
        (length,) = struct.unpack_from(">I", data, position)
        found.append(
            (data[position + 4 : position + 8], data[position + 8 : position + 8 + length])
        )
        position += 12 + length
    return found


def png(
    width: int,
    height: int,
    depth: int,
    colour: int,
    rows: bytes,
    *more: bytes,
    interlaced: bool = False,
) -> bytes:
    """A PNG by hand; ``rows`` with their filter bytes; ``more``: chunks before its data."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    body = chunk(b"IHDR", head) + b"".join(more) + chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + body + chunk(b"IEND", b"")


def unfiltered(samples: NDArray[Any]) -> bytes:
    """A PNG's rows without a filter, 8 or (big-endian) 16 bits a sample."""
    wide = samples.astype(">u2") if samples.dtype.itemsize == 2 else samples
    return b"".join(b"\0" + row.tobytes() for row in wide)


def adam7(pixels: Pixels) -> bytes:
    """The seven passes of an interlaced PNG."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2)]
    passes += [(0, 1, 2, 2), (1, 0, 2, 1)]
    return b"".join(unfiltered(pixels[y::down, x::right]) for y, x, down, right in passes)


def altered(data: bytes, kind: bytes, checksum: bool = True) -> bytes:
    """A PNG with a wrong checksum, or else a damaged body, in its first chunk of a kind."""
    at = data.index(kind)
    (length,) = struct.unpack_from(">I", data, at - 4)
    spot = at + 4 + (length if checksum else length // 2)
    return data[:spot] + bytes([data[spot] ^ 0x55]) + data[spot + 1 :]


def exact(
    name: str, what: str, data: bytes, format: str, pixels: Pixels, *more: str, most: float = 0
) -> Case:
    """A file of a lossless format, all of whose pixels are known to ``most``."""
    treated = (format, *more)
    return Case(name, what, data, pixels, treated=treated, mean=most, most=most)


def opacities() -> NDArray[np.uint8]:
    """Every opacity, none of them alike along both axes."""
    down, right = np.mgrid[:HEIGHT, :WIDTH]
    alpha: NDArray[np.uint8] = ((down * 11 + right * 7) % 256).astype(np.uint8)
    return alpha


def deep_samples(channels: int) -> NDArray[np.uint16]:
    """16-bit samples over the whole range, [H, W] or [H, W, channels]."""
    shape = (HEIGHT, WIDTH, channels)[: 2 if channels == 1 else 3]
    deep = np.random.default_rng(3).integers(0, 65_536, shape, np.uint16)
    deep[0, :6] = np.array([0, 128, 129, 255, 256, 65_535]).reshape((6,) + (1,) * (channels > 1))
    return deep


def as_eight_bits(deep: NDArray[Any]) -> Pixels:
    """round(v / 257), grey as three channels."""
    small: Pixels = np.rint(deep.astype(np.float64) / 257).astype(np.uint8)
    return small if small.ndim == 3 else np.stack([small] * 3, 2).astype(np.uint8)
