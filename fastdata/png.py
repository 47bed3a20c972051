"""The chunks of a PNG file and their checksums (PNG specification, section 5)."""

from __future__ import annotations

import zlib

__all__ = ["PNG_SIGNATURE", "repair_png"]

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_TURNS_OR_SHOWS = (b"tRNS", b"eXIf")  # ancillary, but the pixels depend on them


def repair_png(data: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Check every chunk of a PNG, which Pillow does not do for its picture data.

    Returns:
        The file without what is harmlessly wrong with it, and what that was, in words; the data
        itself and ``()`` where nothing is.

    Raises:
        ValueError: a chunk that the pixels depend on is damaged or cut short.
    """
    position, pieces, pixels = len(PNG_SIGNATURE), [PNG_SIGNATURE], False
    flaws: dict[str, None] = {}  # an ordered set
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        kind, end = data[position + 4 : position + 8], position + 12 + length
        needed = not kind[:1].islower() or kind in _TURNS_OR_SHOWS
        if end > len(data):
            if needed and not (pixels and kind != b"IDAT"):
                raise ValueError("truncated PNG: the file ends inside a chunk")
            break
        stored = data[end - 4 : end]
        if zlib.crc32(memoryview(data)[position + 4 : end - 4]).to_bytes(4, "big") == stored:
            pieces.append(data[position:end])
        elif needed:
            raise ValueError(
                f"damaged PNG: chunk {kind.decode('latin-1')} at byte {position} does not match "
                "its checksum"
            )
        else:
            flaws["damaged metadata"] = None
        pixels |= kind == b"IDAT"
        position = end
        if kind == b"IEND":
            if end < len(data):
                flaws["bytes behind the end of the picture"] = None
            return (b"".join(pieces) if flaws else data), tuple(flaws)
    if not pixels:
        raise ValueError("truncated PNG: it has no picture data")
    return b"".join([*pieces, _chunk(b"IEND")]), (*flaws, "the end marker is missing")


def _chunk(kind: bytes) -> bytes:
    return bytes(4) + kind + zlib.crc32(kind).to_bytes(4, "big")
