"""What is looked at before DALI's decoder gets an image.

A header that DALI cannot parse, or a box outside of the image, does not raise in the threads of its
decoder: it ends the process.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from nvidia import nvimgcodec

from fastdata.header import Header, HeaderReader

__all__ = ["JPEG", "as_single", "channels_of", "is_whole", "plain_header", "sound_header"]

JPEG, _END = b"\xff\xd8", b"\xff\xd9"


def plain_header(reader: HeaderReader, data: bytes) -> Header | None:
    """Of a JPEG that DALI may have as it is; None of others."""
    header = sound_header(reader, data) if data[:2] == JPEG else None
    if header is None or not header.plain or header.single:
        return None
    size = header.width, header.height
    return header if channels_of(np.frombuffer(data, np.uint8), size) else None


def is_whole(header: Header, last: bytes, length: int) -> bool:
    """Whether a JPEG of so many bytes, of which these are the last, has an end behind its header:
    nvJPEG paints the missing rows of one that was cut, and says nothing."""
    end = last.rfind(_END)
    return end >= 0 and length - len(last) + end >= header.length


def sound_header(reader: HeaderReader, data: bytes) -> Header | None:
    """Its header; None where it has none that is sound."""
    try:
        return reader.read(data)
    except (OSError, ValueError):
        return None


def channels_of(encoded: NDArray[np.uint8], size: tuple[int, int]) -> int:
    """How many components a JPEG has by its header; 0 where DALI's own parser refuses it, or finds
    another size (width, height) in it."""
    try:
        stream = nvimgcodec.CodeStream(encoded)
        sound = stream.codec_name == "jpeg" and (stream.width, stream.height) == size
        return int(stream.num_channels) if sound else 0
    except RuntimeError:
        return 0


def as_single(encoded: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """A grey JPEG whose sampling factors, at ``offset``, are 1x1: the GPU's hardware decoder takes
    others at their word, and makes a heap of tiles of the image."""
    changed = encoded.copy()
    changed[offset] = 0x11
    return changed
