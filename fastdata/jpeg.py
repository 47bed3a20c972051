"""The structure of a JPEG file: its marker segments and its scans (ITU-T T.81, annex B)."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Component", "Jpeg", "Scan", "exif_orientation", "read_jpeg"]

_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_DHT, _DAC, _DNL, _DRI = 0xC4, 0xCC, 0xDC, 0xDD
_APP0, _APP1, _APP2, _APP14, _COM = 0xE0, 0xE1, 0xE2, 0xEE, 0xFE
_SOF = frozenset(range(0xC0, 0xD0)) - {_DHT, 0xC8, _DAC}  # three others share the range
_RST = range(0xD0, 0xD8)
_STANDALONE = frozenset({0x01, *_RST})  # markers without a length
_EXIF_ORIENTATION = 0x0112
_PROCESSES = {
    0xC0: "baseline",
    0xC1: "extended sequential",
    0xC2: "progressive",
    0xC3: "lossless",
    0xC9: "arithmetic-coded",
    0xCA: "arithmetic-coded progressive",
    0xCB: "arithmetic-coded lossless",
}
_PROGRESSIVE = frozenset({0xC2, 0xCA})


@dataclass(frozen=True)
class Component:
    """A colour component: its identifier and its sampling factors."""

    id: int
    horizontal: int
    vertical: int


@dataclass(frozen=True)
class Scan:
    """One pass over the picture's coefficients.

    Attributes:
        components: indices into the frame's components.
        spectrum: first and last coefficient, 0..63.
        low_bit: the lowest bit that it carries (the "Al" of the standard).
        data: offset of its entropy-coded data.
        restart_interval: MCUs between restart markers; 0: there are none.
    """

    components: tuple[int, ...]
    spectrum: tuple[int, int]
    low_bit: int
    data: int
    restart_interval: int


@dataclass
class Jpeg:
    """What the marker segments of a JPEG say.

    Attributes:
        marker: its start-of-frame marker's second byte.
        precision: bits of a sample.
        width, height: in pixels, as stored.
        components: of the frame.
        jfif: whether a JFIF segment is there.
        adobe_transform: the colour transform that an Adobe segment names; None without one.
        orientation: by EXIF, 1 (upright) to 8.
        exif: (start, end) of the EXIF segments.
        metadata: (start, end) of all segments that no decoder needs: EXIF, ICC profiles,
            thumbnails, comments.
        huffman: whether Huffman tables are there before the first scan.
        first_scan: its header.
    """

    _data: bytes = field(repr=False)
    marker: int = 0
    precision: int = 0
    width: int = 0
    height: int = 0
    components: tuple[Component, ...] = ()
    jfif: bool = False
    adobe_transform: int | None = None
    orientation: int = 1
    exif: list[tuple[int, int]] = field(default_factory=list)
    metadata: list[tuple[int, int]] = field(default_factory=list)
    huffman: bool = False
    first_scan: Scan = field(default_factory=lambda: Scan((), (0, 63), 0, 0, 0))

    @property
    def process(self) -> str:
        """The coding process in words: ``"baseline"``, ``"progressive"``, ..."""
        return _PROCESSES.get(self.marker, "hierarchical")

    @property
    def colours(self) -> str:
        """``"grey"``, ``"YCbCr"``, ``"RGB"``, ``"CMYK"`` or ``"YCCK"``, by libjpeg's conventions;
        empty for another number of components."""
        if len(self.components) == 1:
            return "grey"
        if len(self.components) == 4:
            return "YCCK" if self.adobe_transform == 2 else "CMYK"
        if len(self.components) != 3:
            return ""
        if not self.jfif and self.adobe_transform is None:
            ids = bytes(component.id for component in self.components)
            return "RGB" if ids == b"RGB" else "YCbCr"
        return "RGB" if self.adobe_transform == 0 and not self.jfif else "YCbCr"

    @property
    def interleaved(self) -> bool:
        """Whether the first scan holds all components."""
        return len(self.first_scan.components) == len(self.components)

    @cached_property
    def end(self) -> int | None:
        """Offset behind the picture's end marker; None where that is missing.

        Walks the scans: restart markers are counted, and each coefficient must have been sent to
        its last bit. What lies inside the entropy-coded data takes a decoder to check.

        Raises:
            ValueError: the scans are damaged, or some are missing; the message says what.
        """
        return _Walk(self._data, self).end()

    def without(self, ranges: list[tuple[int, int]]) -> bytes:
        """The file's bytes up to :attr:`end`, but for the given ranges of its header."""
        pieces, start = [], 0
        for first, last in sorted(ranges):
            pieces.append(self._data[start:first])
            start = last
        return b"".join([*pieces, self._data[start : self.end]])


def read_jpeg(data: bytes) -> Jpeg:
    """Read the marker segments up to the first scan.

    Raises:
        ValueError: the header is damaged or ends early; the message says where.
    """
    jpeg = Jpeg(data)
    position, restart_interval = 2, 0
    while True:
        marker, start, position = _segment(data, position)
        body = start + 4
        if marker == _EOI:
            raise ValueError("damaged JPEG: it ends before its first scan")
        if marker in _SOF:
            _read_frame(jpeg, marker, data[body:position])
        elif marker == _APP0 and data[body : body + 5] == b"JFIF\0":
            jpeg.jfif = True
        elif marker == _APP14 and data[body : body + 5] == b"Adobe" and position - body >= 12:
            jpeg.adobe_transform = data[body + 11]
        elif marker == _DHT:
            jpeg.huffman = True
        elif marker == _DRI and position - body >= 2:
            restart_interval = data[body] << 8 | data[body + 1]
        elif marker == _SOS:
            break
        elif _APP0 <= marker <= _APP0 + 15 or marker == _COM:
            jpeg.metadata.append((start, position))
            if marker == _APP1 and data[body : body + 6] == b"Exif\0\0":
                jpeg.exif.append((start, position))
                jpeg.orientation = exif_orientation(data[body + 6 : position])
    if not jpeg.marker:
        raise ValueError("damaged JPEG: a scan without a frame header")
    if not jpeg.width or not jpeg.height:
        raise ValueError(f"damaged JPEG: its header says {jpeg.width}x{jpeg.height} pixels")
    jpeg.first_scan = _read_scan(jpeg, data[body:position], position, restart_interval)
    return jpeg


def _segment(data: bytes, position: int) -> tuple[int, int, int]:
    """The next marker, where it starts, and where its segment ends."""
    while True:
        if position + 4 > len(data):
            raise ValueError("truncated JPEG: the file ends inside its header")
        if data[position] != 0xFF:
            raise ValueError(f"damaged JPEG: expected a marker at byte {position}")
        marker = data[position + 1]
        if marker == 0xFF:  # fill byte
            position += 1
        elif marker in _STANDALONE:
            position += 2
        elif marker == _EOI:
            return marker, position, position + 2
        else:
            break
    end = position + 2 + (data[position + 2] << 8 | data[position + 3])
    if end < position + 4 or end > len(data):
        raise ValueError("truncated JPEG: the file ends inside its header")
    return marker, position, end


def _read_frame(jpeg: Jpeg, marker: int, body: bytes) -> None:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise ValueError("damaged JPEG: its frame header is too short")
    if jpeg.marker:
        raise ValueError("damaged JPEG: a second frame header")
    jpeg.marker = marker
    jpeg.precision, jpeg.height, jpeg.width, count = struct.unpack_from(">BHHB", body)
    table = [body[6 + 3 * i : 9 + 3 * i] for i in range(count)]
    jpeg.components = tuple(Component(row[0], row[1] >> 4, row[1] & 15) for row in table)


def _read_scan(jpeg: Jpeg, body: bytes, data: int, restart_interval: int) -> Scan:
    if not body or len(body) < 4 + 2 * body[0]:
        raise ValueError("damaged JPEG: its scan header is too short")
    ids = [component.id for component in jpeg.components]
    selected = [body[1 + 2 * i] for i in range(body[0])]
    if not selected or not set(selected) <= set(ids) or len(set(selected)) < len(selected):
        raise ValueError("damaged JPEG: a scan of components that its frame does not have")
    first, last, bits = body[1 + 2 * body[0] : 4 + 2 * body[0]]
    components = tuple(ids.index(id) for id in selected)
    return Scan(components, (first, min(last, 63)), bits & 15, data, restart_interval)


class _Walk:
    """From scan to scan to the end of the picture."""

    def __init__(self, data: bytes, jpeg: Jpeg) -> None:
        self._data, self._jpeg = data, jpeg
        start = jpeg.first_scan.data
        view = np.frombuffer(data, np.uint8)[start:]
        # Within a scan every 0xFF is followed by what it means: 0 stands for the byte itself.
        at = np.flatnonzero(view[:-1] == 0xFF)
        kinds = view[at + 1]
        marks = (kinds != 0) & (kinds != 0xFF)
        self._at: NDArray[np.int64] = at[marks] + start
        self._kinds: NDArray[np.uint8] = kinds[marks]
        # Lowest bit received of each component's coefficients; 99: none yet.
        self._bits = np.full((len(jpeg.components), 64), 99, np.int8)

    def end(self) -> int | None:
        scan = self._jpeg.first_scan
        restart_interval = scan.restart_interval
        while True:
            self._bits[list(scan.components), scan.spectrum[0] : scan.spectrum[1] + 1] = (
                scan.low_bit
            )
            position = self._scan_end(scan)
            while True:  # the segments between two scans
                if position is None or position + 2 > len(self._data):
                    self._check_complete()
                    return None
                if self._data[position + 1] == _EOI:
                    self._check_complete()
                    return position + 2
                marker, start, position = _segment(self._data, position)
                body = self._data[start + 4 : position]
                if marker == _EOI:
                    continue
                if marker == _SOS:
                    scan = _read_scan(self._jpeg, body, position, restart_interval)
                    break
                if marker == _DRI and len(body) >= 2:
                    restart_interval = body[0] << 8 | body[1]
                elif marker in _SOF or marker in (_SOI, _DNL):
                    raise ValueError(
                        f"damaged JPEG: marker 0xFF{marker:02X} at byte {start}, inside the picture"
                    )

    def _scan_end(self, scan: Scan) -> int | None:
        """Offset of the first marker behind a scan's data, after counting its restart markers."""
        first = int(np.searchsorted(self._at, scan.data))
        kinds = self._kinds[first:]
        others = np.flatnonzero((kinds < _RST.start) | (kinds >= _RST.stop))
        count = int(others[0]) if others.size else len(kinds)
        expected = self._restarts(scan)
        if count != expected and (others.size or count > expected):
            raise ValueError(
                f"damaged JPEG: expected {expected} restart markers in a scan, found {count}"
            )
        if not np.array_equal(kinds[:count], _RST.start + np.arange(count) % 8):
            raise ValueError("damaged JPEG: its restart markers are out of order")
        return int(self._at[first + count]) if others.size else None

    def _restarts(self, scan: Scan) -> int:
        if not scan.restart_interval:
            return 0
        jpeg = self._jpeg
        widest = max(component.horizontal for component in jpeg.components)
        highest = max(component.vertical for component in jpeg.components)
        h = v = 1
        if len(scan.components) == 1:  # not interleaved: an MCU is one block of the component
            component = jpeg.components[scan.components[0]]
            h, v = component.horizontal, component.vertical
        across = -(-jpeg.width * h // (8 * widest))
        mcus = across * -(-jpeg.height * v // (8 * highest))
        return -(-mcus // scan.restart_interval) - 1

    def _check_complete(self) -> None:
        """Refuse a picture that lacks scans: cut between two, it still decodes, to a blur."""
        needed = self._bits if self._jpeg.marker in _PROGRESSIVE else self._bits[:, :1]
        if needed.any():
            raise ValueError("truncated JPEG: some of its scans are missing")


def exif_orientation(tiff: bytes) -> int:
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
