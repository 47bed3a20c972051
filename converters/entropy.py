"""Damage inside a JPEG's entropy-coded data, where it takes a decoder to see it."""

from __future__ import annotations

import numpy as np
import simplejpeg

from fastdata.decode.pillow import decode_unusual
from fastdata.jpeg import Jpeg

__all__ = ["check_entropy", "without_padding"]

_EOI = b"\xff\xd9"
_FILLER = b"\xaa" * 64
_PADDING = "extraneous bytes before marker 0xd9"


def check_entropy(data: bytes, jpeg: Jpeg) -> None:
    """Look for damage in a JPEG that Pillow is to decode, which is silent about it.

    Raises:
        ValueError: its entropy-coded data is damaged.
    """
    try:
        simplejpeg.decode_jpeg(data, "CMYK" if len(jpeg.components) == 4 else "RGB", min_factor=8)
    except ValueError as error:
        if str(error).startswith(("Corrupt JPEG", "Premature end")):
            raise
        _check_by_decoding_twice(data, jpeg)  # it does not take this sampling
    else:
        if jpeg.process.startswith("arithmetic"):  # of which libjpeg never says that it ends early
            _check_by_decoding_twice(data, jpeg)


def _check_by_decoding_twice(data: bytes, jpeg: Jpeg) -> None:
    """What a decoder reads beyond the data's end, or leaves unread before it, shows in the pixels
    when other bytes lie there."""
    body = data[: -len(_EOI)]
    body = body[: len(body.rstrip(b"\0")) + 2]  # zero bytes that may be the picture's are kept
    # An arithmetic coder leaves zero bytes at its end unsaid.
    unsaid = bytes(8) if jpeg.process.startswith("arithmetic") else b""
    pixels = decode_unusual(data)
    if not np.array_equal(pixels, decode_unusual(body + unsaid + _FILLER + _EOI)):
        raise ValueError("Corrupt JPEG data: premature end of data segment")
    last = body[: max(len(body) - len(_FILLER), jpeg.first_scan.data)].rstrip(b"\xff")
    one_scan = jpeg.interleaved and not jpeg.process.endswith("progressive")
    if one_scan and np.array_equal(pixels, decode_unusual(last + _FILLER + _EOI)):
        raise ValueError("Corrupt JPEG data: bytes behind the end of the scan")
    if len(body) < len(data) - 10:
        raise ValueError(f"Corrupt JPEG data: {_PADDING}")


def without_padding(data: bytes, error: ValueError) -> bytes | None:
    """The JPEG without the zero bytes before its end marker that a decoder has stumbled over.

    Left-over bytes of any other kind mean that the decoder has lost its way.

    Args:
        data: up to and with its end marker.
        error: what the decoder said.
    """
    if _PADDING not in str(error):
        return None
    picture = data[: -len(_EOI)].rstrip(b"\0")
    # One zero byte is kept: it may belong to the picture, and alone it does no harm.
    return picture + b"\0" + _EOI if len(picture) < len(data) - 2 - len(_EOI) else None
