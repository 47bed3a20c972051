"""The structure of a JPEG file: its marker segments and its scans (ITU-T T.81, annex B)."""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

__all__ = ["EXIF_ORIENTATION", "Component", "Jpeg", "Scan", "read_jpeg"]

EXIF_ORIENTATION = 0x0112
"""The tag, of EXIF and of TIFF."""
_SOI, _EOI, _SOS = 0xD8, 0xD9, 0xDA
_DHT, _DAC, _DNL, _DRI = 0xC4, 0xCC, 0xDC, 0xDD
_APP0, _APP1, _APP2, _APP14, _COM = 0xE0, 0xE1, 0xE2, 0xEE, 0xFE
_SOF = frozenset(range(0xC0, 0xD0)) - {_DHT, 0xC8, _DAC}  # three others share the range
_RST = range(0xD0, 0xD8)
_STANDALONE = frozenset({0x01, *_RST})  # markers without a length
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
_JFIF_MAJOR = 1
_ADOBE_TRANSFORMS = {3: 1, 4: 2}  # YCbCr and YCCK, by the number of components
_NOT_SENT = 99
_MARKER = re.compile(rb"\xff[\x01-\xfe]")
_SMALL = 8192  # bytes from which on numpy is faster than a regular expression


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
        frame: offset of its frame header's contents.
        huffman: whether the Huffman tables that a sequential first scan needs are there.
        first_scan: its header.
        mended: whether the header has codes of unknown meaning, of which decoders warn and then
            assume the usual ones; :meth:`without` puts those in their place.
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
    frame: int = 0
    huffman: bool = False
    first_scan: Scan = field(default_factory=lambda: Scan((), (0, 63), 0, 0, 0))
    mended: bool = False

    @property
    def process(self) -> str:
        """The coding process in words: ``"baseline"``, ``"progressive"``, ..."""
        return _PROCESSES.get(self.marker, "hierarchical")

    @cached_property
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

    def mend(self, offset: int, code: int) -> None:
        """Put a usual code in the place of an unknown one."""
        self._data = self._data[:offset] + bytes([code]) + self._data[offset + 1 :]
        self.mended = True

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
    tables: set[int] = set()
    adobe = 0  # offset of the code of an Adobe segment
    while True:
        marker, start, position = _segment(data, position)
        body = start + 4
        if marker == _EOI:
            raise ValueError("damaged JPEG: it ends before its first scan")
        if marker in _SOF:
            _read_frame(jpeg, marker, data[body:position])
            jpeg.frame = body
        elif marker == _APP0 and data[body : body + 5] == b"JFIF\0":
            jpeg.jfif = True
            if position - body >= 14 and data[body + 5] != _JFIF_MAJOR:
                jpeg.mend(body + 5, _JFIF_MAJOR)
        elif marker == _APP14 and data[body : body + 5] == b"Adobe" and position - body >= 12:
            jpeg.adobe_transform, adobe = data[body + 11], body + 11
        elif marker == _DHT:
            tables |= _huffman_tables(data[body:position])
        elif marker == _DRI and position - body >= 2:
            restart_interval = data[body] << 8 | data[body + 1]
        elif marker == _SOS:
            break
        elif _APP0 <= marker <= _APP0 + 15 or marker == _COM:
            jpeg.metadata.append((start, position))
            if marker == _APP1 and data[body : body + 6] == b"Exif\0\0":
                jpeg.exif.append((start, position))
                jpeg.orientation = _exif_orientation(data[body + 6 : position])
    if not jpeg.marker:
        raise ValueError("damaged JPEG: a scan without a frame header")
    if not jpeg.width or not jpeg.height:
        raise ValueError(f"damaged JPEG: its header says {jpeg.width}x{jpeg.height} pixels")
    jpeg.first_scan = _read_scan(jpeg, data[body:position], position, restart_interval)
    usual = _ADOBE_TRANSFORMS.get(len(jpeg.components))
    if adobe and usual and not jpeg.jfif and jpeg.adobe_transform not in (0, usual):
        jpeg.mend(adobe, usual)
        jpeg.adobe_transform = usual
    used = data[body + 2 : body + 2 + 2 * data[body] : 2]  # of each component: DC << 4 | AC
    jpeg.huffman = {pair >> 4 for pair in used} | {16 | pair & 15 for pair in used} <= tables
    return jpeg


def _huffman_tables(body: bytes) -> set[int]:
    """The class (0: DC, 1: AC) << 4 | number of each table in a segment."""
    tables, position = set(), 0
    while position + 17 <= len(body):
        tables.add(body[position])
        position += 17 + sum(body[position + 1 : position + 17])
    return tables


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
        self._markers = _markers(data, jpeg.first_scan.data)
        self._scans: list[Scan] = []

    def end(self) -> int | None:
        scan = self._jpeg.first_scan
        restart_interval = scan.restart_interval
        while True:
            self._scans.append(scan)
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
        first = bisect.bisect_left(self._markers, scan.data)
        count, end = 0, None
        for position in self._markers[first:]:
            kind = self._data[position + 1]
            if kind not in _RST:
                end = position
                break
            if kind != _RST.start + count % 8:
                raise ValueError("damaged JPEG: its restart markers are out of order")
            count += 1
        expected = self._restarts(scan)
        if count > expected or (count < expected and end is not None):
            raise ValueError(
                f"damaged JPEG: expected {expected} restart markers in a scan, found {count}"
            )
        return end

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
        count = len(self._jpeg.components)
        if self._jpeg.marker not in _PROGRESSIVE:
            missing = len({c for scan in self._scans for c in scan.components}) < count
        else:
            low_bit = np.full((count, 64), _NOT_SENT)
            for scan in self._scans:
                first, last = scan.spectrum
                low_bit[list(scan.components), first : last + 1] = scan.low_bit
            missing = bool(low_bit.any())
        if missing:
            raise ValueError("truncated JPEG: some of its scans are missing")


def _markers(data: bytes, start: int) -> list[int]:
    """Where markers stand from ``start`` on. Within a scan every 0xFF is followed by what it means:
    0 stands for the byte itself, 0xFF for nothing."""
    if len(data) - start < _SMALL:
        return [match.start() for match in _MARKER.finditer(data, start)]
    view = np.frombuffer(data, np.uint8, offset=start)
    at = (view[:-1] == 0xFF).nonzero()[0]
    kinds = view[at + 1]
    kinds -= 1  # 0 wraps, so that one comparison tells both
    found: list[int] = (at[kinds < 0xFE] + start).tolist()
    return found


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
        if tag == EXIF_ORIENTATION and kind in (3, 4):  # SHORT, and LONG as some programs have it
            (value,) = struct.unpack_from(order + " HI"[kind - 2], tiff, entry + 8)
            return value if 1 <= value <= 8 else 1
    return 1
