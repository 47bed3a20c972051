"""What becomes of an encoded image: its own bytes, the same without a flaw, or its pixels.

docs/formats.md has the whole policy as a table. What is decided here depends on the file's content
alone, never on its name, and is the same for every format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastdata.header import Header, read_header
from fastdata.jpeg import Jpeg
from fastdata.png import PNG_SIGNATURE, repair_png

__all__ = ["NO_END", "Verdict", "judge"]

MOST_METADATA = 65_536
"""Bytes of metadata that are kept: one segment's worth, as most EXIF blocks are."""
_EOI = b"\xff\xd9"
_REFUSED = frozenset({"lossless", "arithmetic-coded lossless", "hierarchical"})
NO_END = "the end marker is missing"


@dataclass(frozen=True)
class Verdict:
    """What becomes of a file.

    Attributes:
        header: of the picture, as it is to be decoded.
        data: the picture: the file's bytes without what is cut off.
        keep: whether these bytes may be written as they are, where nothing is to be scaled.
        treated: what was done, or will be, to a file with nothing wrong about it.
        repaired: what was wrong and is mended, the pixels being whole; empty if nothing was.
    """

    header: Header
    data: bytes
    keep: bool = False
    treated: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()


def judge(data: bytes, *, exif: bool = True) -> Verdict:
    """Decide what becomes of a file.

    Args:
        data: the whole file.
        exif: apply the EXIF orientation; else the pixels stay as they are stored.

    Raises:
        ValueError: it is refused: no image, of a kind that is not taken, or visibly damaged.
            Damage inside a JPEG's entropy-coded data takes a decoder to see.
    """
    repaired: tuple[str, ...] = ()
    if data.startswith(PNG_SIGNATURE):  # first, as Pillow does not open one with a wrong checksum
        data, repaired = repair_png(data)
    header = read_header(data)
    if header.structure is not None:
        return _judge_jpeg(data, header, header.structure, exif)
    treated = [header.format]
    if header.orientation != 1:
        treated.append("EXIF orientation" if exif else "EXIF orientation ignored")
        header = header if exif else _as_stored(header)
    return Verdict(header, data, False, tuple(treated), repaired)


def _judge_jpeg(data: bytes, header: Header, jpeg: Jpeg, exif: bool) -> Verdict:
    if jpeg.process in _REFUSED:
        raise ValueError(f"{jpeg.process} JPEG is not supported: save it as baseline JPEG or PNG")
    if jpeg.precision != 8:
        raise ValueError(
            f"JPEG of {jpeg.precision} bits a sample is not supported: save it with 8 bits"
        )
    if not jpeg.colours:
        raise ValueError(
            f"JPEG of {len(jpeg.components)} components is not supported: save it as grey or RGB"
        )
    treated = [] if header.baseline else [_kind(jpeg)]
    repaired, cut = [], []
    rest = b"" if jpeg.end is None else data[jpeg.end :]
    if jpeg.end is None:
        repaired.append(NO_END)
    elif rest.startswith(b"\xff\xd8\xff"):
        treated.append("further pictures cut off")
        cut += [span for span in jpeg.metadata if data[span[0] + 4 :].startswith(b"MPF\0")]
    elif rest:
        repaired.append("bytes behind the end of the picture")
    if header.orientation != 1:
        treated.append("EXIF orientation" if exif else "EXIF orientation ignored")
        cut += [] if exif else jpeg.exif
        header = header if exif else _as_stored(header)
    if sum(end - start for start, end in jpeg.metadata) > MOST_METADATA:
        treated.append("metadata removed")
        cut = list(jpeg.metadata)
    if jpeg.mended:
        repaired.append("unknown codes in the header")
    if cut or rest or jpeg.mended:
        data = jpeg.without(cut)
    if jpeg.end is None:
        data += _EOI
    return Verdict(header, data, header.plain, tuple(treated), tuple(repaired))


def _kind(jpeg: Jpeg) -> str:
    """What makes a JPEG another one than decoders everywhere take."""
    if jpeg.process != "baseline":
        return f"{jpeg.process} JPEG"
    if jpeg.colours not in ("grey", "YCbCr"):
        return f"{jpeg.colours} JPEG"
    if not jpeg.interleaved:
        return "JPEG in several scans"
    if not jpeg.huffman:
        return "JPEG without Huffman tables"
    if jpeg.adobe_transform == 0 and jpeg.colours == "YCbCr":
        return "JPEG of contradictory colours"
    return "JPEG of unusual sampling"


def _as_stored(header: Header) -> Header:
    """The header as if the image had no orientation."""
    width, height = header.stored_size
    return replace(header, width=width, height=height, orientation=1)
