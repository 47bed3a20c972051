"""What headers say, for whole files, for damaged ones, and for mutated bytes."""

from __future__ import annotations

import io
import struct
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fastdata.header import Header, HeaderReader, read_header

WIDTH, HEIGHT = 40, 24
SOF0 = b"\xff\xc0"


def image(mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(kind: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int, order: str = "<", before: int = 0) -> bytes:
    """An EXIF block by hand: ``before`` other tags, then the orientation, as SHORT."""
    mark = b"II" if order == "<" else b"MM"
    entries = b"".join(
        struct.pack(order + "HHII", 0x0100 + i, 4, 1, 6) for i in range(before)
    ) + struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    directory = struct.pack(order + "H", before + 1) + entries + bytes(4)
    return b"Exif\0\0" + mark + struct.pack(order + "HI", 42, 8) + directory


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def after_start(data: bytes, inserted: bytes) -> bytes:
    """A JPEG with bytes put between its start marker and its first segment."""
    return data[:2] + inserted + data[2:]


def without(data: bytes, marker: int) -> bytes:
    """A JPEG without its first segment of that marker."""
    start = data.index(bytes([0xFF, marker]))
    length = int.from_bytes(data[start + 2 : start + 4], "big")
    return data[:start] + data[start + 2 + length :]


def patched_frame(data: bytes, offset: int, value: bytes) -> bytes:
    """A JPEG with bytes of its frame header replaced, counted from the marker."""
    start = data.index(SOF0) + offset
    return data[:start] + value + data[start + len(value) :]


# --- whole files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_a_baseline_jpeg_is_plain(subsampling: str) -> None:
    header = read_header(encoded(subsampling=subsampling))
    assert header == Header("JPEG", 40, 24, 1, decodable=True, baseline=True)
    assert header.plain


def test_a_grey_jpeg_is_plain() -> None:
    header = read_header(encoded(mode="L"))
    assert header == Header("JPEG", 40, 24, 1, decodable=True, baseline=True)


def test_a_progressive_jpeg_is_not_plain() -> None:
    data = encoded(progressive=True)
    assert read_header(data) == Header("JPEG", 40, 24, 1, decodable=True)


def test_a_cmyk_jpeg_is_not_plain() -> None:
    assert read_header(encoded(mode="CMYK")) == Header("JPEG", 40, 24, 1)


def test_an_rgb_jpeg_is_not_plain() -> None:
    data = encoded(keep_rgb=True, subsampling=0)
    assert b"Adobe" in data
    assert not read_header(data).plain
    # Without Adobe's marker the components' names R, G, B say it (libjpeg.txt, "Special color
    # spaces"); Pillow, which uses libjpeg, reads its pixels as RGB.
    bare = without(data, 0xEE)
    with Image.open(io.BytesIO(bare)) as opened:
        difference = np.abs(np.asarray(opened).astype(int) - np.asarray(image()))
    assert difference.mean() < 12
    assert not read_header(bare).plain
    assert not read_header(bare).decodable
    # A JFIF marker outweighs the names: such a file is YCbCr by JFIF's definition.
    jfif = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
    assert read_header(after_start(bare, jfif)).plain


@pytest.mark.parametrize(
    ("luma", "plain"),
    [
        *((sampling, True) for sampling in (0x11, 0x21, 0x22, 0x12, 0x41)),
        # Found with cjpeg -sample: libjpeg-turbo 2 refuses all of these in its TurboJPEG interface.
        *((sampling, False) for sampling in (0x14, 0x31, 0x32, 0x42, 0x44)),
    ],
)
def test_only_common_samplings_are_plain(luma: int, plain: bool) -> None:
    assert read_header(patched_frame(encoded(), 11, bytes([luma]))).plain == plain
    for offset in (14, 17):  # of either chroma component
        assert not read_header(patched_frame(encoded(), offset, b"\x21")).plain
    # The sampling of a single component means nothing (T.81, A.2.2).
    assert read_header(patched_frame(encoded(mode="L"), 11, bytes([luma]))).plain


@pytest.mark.parametrize("order", ["<", ">"])
def test_an_orientation_of_type_long_counts_as_it_does_for_pillow(order: str) -> None:
    block = exif(6, order).replace(
        struct.pack(order + "HHIHH", 0x0112, 3, 1, 6, 0),
        struct.pack(order + "HHII", 0x0112, 4, 1, 6),
    )
    data = encoded(exif=block)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.getexif()[0x0112] == 6
    assert read_header(data) == Header("JPEG", 24, 40, 6, decodable=True, baseline=True)


@pytest.mark.parametrize(
    ("marker", "process"),
    [
        (0xC1, "extended sequential"),
        (0xC2, "progressive"),
        (0xC3, "lossless"),
        (0xC5, "hierarchical"),
        (0xC9, "arithmetic-coded"),
        (0xCA, "arithmetic-coded progressive"),
        (0xCB, "arithmetic-coded lossless"),
    ],
)
def test_only_the_baseline_process_is_plain(marker: int, process: str) -> None:
    # The names of ITU-T T.81, table B.1.
    header = read_header(patched_frame(encoded(), 1, bytes([marker])))
    huffman = process in ("extended sequential", "progressive")
    assert header == Header("JPEG", 40, 24, 1, decodable=huffman)
    assert not header.plain
    assert header.structure is not None
    assert header.structure.process == process


def test_twelve_bits_are_not_plain() -> None:
    header = read_header(patched_frame(encoded(), 4, b"\x0c"))
    assert not header.plain
    assert not header.decodable


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("progressive", [False, True])
def test_sizes_are_upright(orientation: int, order: str, progressive: bool) -> None:
    data = encoded(exif=exif(orientation, order, before=3), progressive=progressive)
    header = read_header(data)
    with Image.open(io.BytesIO(data)) as opened:
        assert opened.getexif()[0x0112] == orientation  # Pillow reads this file the same way
    assert header.orientation == orientation
    assert (header.width, header.height) == ((40, 24) if orientation < 5 else (24, 40))
    assert header.plain == (orientation == 1 and not progressive)
    assert header.decodable
    assert header.stored_size == (40, 24)


@pytest.mark.parametrize("value", [0, 9, 255, 65_535])
def test_an_orientation_that_does_not_exist_is_upright(value: int) -> None:
    assert read_header(encoded(exif=exif(value))) == Header(
        "JPEG", 40, 24, 1, decodable=True, baseline=True
    )
    header = read_header(encoded("PNG", exif=exif(value)))
    assert (header.width, header.height, header.orientation) == (40, 24, 1)


@pytest.mark.parametrize(
    "block",
    [
        b"Exif\0\0",
        b"Exif\0\0II",
        b"Exif\0\0XX" + exif(6)[8:],
        exif(6)[:20],
        exif(6)[:12],
        exif(6)[:10] + struct.pack("<I", 1 << 31) + exif(6)[14:],
        exif(6)[:14] + b"\xff\xff",
        b"Exif\0\0MM" + exif(6)[8:],
    ],
)
def test_damaged_exif_of_a_jpeg_is_upright(block: bytes) -> None:
    data = after_start(encoded(), segment(0xE1, block))
    assert read_header(data) == Header("JPEG", 40, 24, 1, decodable=True, baseline=True)


def test_exif_may_end_with_the_orientation() -> None:
    # Without the four bytes that say where the next directory lies.
    data = after_start(encoded(), segment(0xE1, exif(6)[:-4]))
    assert read_header(data) == Header("JPEG", 24, 40, 6, decodable=True, baseline=True)


def test_another_segment_of_exifs_marker_is_passed_over() -> None:
    # XMP shares the marker APP1.
    data = after_start(encoded(exif=exif(6)), segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>"))
    assert read_header(data).orientation == 6


def test_fill_bytes_and_markers_without_length_are_passed_over() -> None:
    # T.81, B.1.1.2: any marker may be preceded by fill bytes; TEM and RSTn have no length.
    data = after_start(encoded(), b"\xff\xff\xff\x01\xff\xd0")
    assert read_header(data) == Header("JPEG", 40, 24, 1, decodable=True, baseline=True)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        ("PNG", "RGB"),
        ("PNG", "RGBA"),
        ("PNG", "P"),
        ("PNG", "1"),
        ("GIF", "P"),
        ("BMP", "RGB"),
        ("TIFF", "RGB"),
        ("TIFF", "F"),
        ("WEBP", "RGB"),
        ("PPM", "RGB"),
    ],
)
def test_other_formats_say_their_size_and_are_not_plain(kind: str, mode: str) -> None:
    assert read_header(encoded(kind, mode)) == Header(kind, 40, 24, 1)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_other_formats_are_turned_upright(kind: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[0x0112] = orientation
    header = read_header(encoded(kind, exif=tags))
    assert header.orientation == orientation
    assert (header.width, header.height) == ((40, 24) if orientation < 5 else (24, 40))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_memoryview_is_read_like_bytes(kind: str) -> None:
    data = encoded(kind)
    view = memoryview(b"##" + data + b"##")[2 : 2 + len(data)]
    assert read_header(view) == read_header(data)


# --- damaged files --------------------------------------------------------------------------------


def test_an_empty_file_and_no_image_are_refused_with_what_was_found() -> None:
    with pytest.raises(ValueError, match=r"empty \(0 bytes\)"):
        read_header(b"")
    with pytest.raises(ValueError, match="not an image: it is an HTML page"):
        read_header(b"<!DOCTYPE html><html>not found</html>")
    with pytest.raises(ValueError, match="not an image"):
        read_header(b"\x00" * 100)


HEADERS = {
    "baseline": encoded(),
    "progressive": encoded(progressive=True),
    "grey": encoded(mode="L"),
    "cmyk": encoded(mode="CMYK"),
    "exif": encoded(exif=exif(6, ">")),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_jpeg_that_ends_within_its_header_is_refused_at_every_byte(name: str) -> None:
    data = HEADERS[name]
    scan = data.index(b"\xff\xda")
    whole = scan + 2 + int.from_bytes(data[scan + 2 : scan + 4], "big")  # with the scan's header
    for length in range(whole):
        with pytest.raises(ValueError, match=r"\w"):
            read_header(data[:length])
    assert read_header(data[:whole]) == read_header(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (patched_frame(encoded(), 5, b"\0\0"), "says 40x0 pixels"),
        (patched_frame(encoded(), 7, b"\0\0"), "says 0x24 pixels"),
        (without(encoded(), 0xC0), "a scan without a frame header"),
        (patched_frame(encoded(), 2, b"\0\x07"), "frame header is too short"),
        (patched_frame(encoded(), 2, b"\0\x08"), "frame header is too short"),
        (patched_frame(encoded(), 2, b"\0\x10"), "frame header is too short"),
        (patched_frame(encoded(), 2, b"\0\x01"), "ends inside its header"),
        (patched_frame(encoded(), 2, b"\xff\xff"), "ends inside its header"),
        (patched_frame(encoded(), 0, b"\0"), "expected a marker at byte"),
        (after_start(encoded(), b"\xff\xd9"), "ends before its first scan"),
        (after_start(encoded(), b"junk"), "not an image"),
    ],
)
def test_a_damaged_jpeg_is_refused_with_what_is_wrong(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_header(data)


def test_more_pixels_than_a_picture_has_are_refused_where_pillow_refuses_them() -> None:
    limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
    for side, accepted in ((13_377, True), (13_378, False)):
        assert (side * side <= limit) == accepted
        data = patched_frame(encoded(), 5, struct.pack(">HH", side, side))
        if accepted:
            assert read_header(data).width == side
        else:
            with pytest.raises(ValueError, match=f"claims {side}x{side} pixels"):
                read_header(data)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP", "WEBP"])
def test_other_formats_cut_short_give_a_header_or_are_refused(kind: str) -> None:
    data, refused = encoded(kind), 0
    for length in range(min(len(data), 120)):
        try:
            assert read_header(data[:length]).width == 40
        except ValueError:
            refused += 1
    assert refused >= 10


SEEDS = [
    *HEADERS.values(),
    *(encoded(kind) for kind in ("PNG", "GIF", "TIFF", "WEBP", "BMP", "PPM")),
    encoded("PNG", exif=exif(6)),
    encoded("TIFF", exif=exif(8)),
]
EDIT = st.tuples(
    st.sampled_from(["set", "delete", "insert"]),
    st.integers(0, 400),
    st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 255, 0xD8, 0xDA, 0xC0])),
)


@settings(max_examples=600, derandomize=True, deadline=None)
@given(
    seed=st.sampled_from(range(len(SEEDS))),
    edits=st.lists(EDIT, min_size=1, max_size=8),
    keep=st.one_of(st.none(), st.integers(0, 600)),
)
def test_mutated_bytes_give_a_header_or_a_value_error(
    seed: int, edits: list[tuple[str, int, int]], keep: int | None
) -> None:
    data = bytearray(SEEDS[seed])
    for what, position, value in edits:
        position %= len(data) + 1
        if what == "insert":
            data.insert(position, value)
        elif what == "set":
            data[position : position + 1] = bytes([value])
        else:
            del data[position : position + value % 8]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's; tests/decode looks at one of them
        try:
            header = read_header(bytes(data[:keep]))
        except ValueError:
            return
    assert header.width > 0
    assert header.height > 0
    assert header.orientation in range(1, 9)
    assert not header.plain or header.format == "JPEG"
    assert header.decodable or not header.plain


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_behind_a_jpegs_start_give_a_value_error(data: bytes) -> None:
    # 60 bytes cannot hold a frame header and a scan by chance.
    with pytest.raises(ValueError, match=r"\w"):
        read_header(b"\xff\xd8\xff" + data)


# --- one image after the other --------------------------------------------------------------------


def test_headers_in_a_row_are_those_of_each_image() -> None:
    several = [
        encoded(),
        encoded(quality=75),  # other tables, after the same first bytes
        encoded(quality=75),
        encoded(optimize=True),
        encoded("PNG"),
        encoded(),
        patched_frame(encoded(), 5, struct.pack(">HH", HEIGHT + 1, WIDTH)),
        after_start(encoded(), segment(0xE1, exif(6))),
        after_start(encoded(), segment(0xE1, exif(3))),
        encoded(mode="L"),
        encoded(progressive=True),
        encoded(),
    ]
    reader = HeaderReader()
    for data in several * 2:
        found, expected = reader.read(data), read_header(data)
        assert found == expected  # the structure is no part of the comparison
        assert found.plain == expected.plain
        assert (found.decodable, found.stored_size) == (expected.decodable, expected.stored_size)


def test_a_header_that_is_cut_is_refused_after_a_whole_one() -> None:
    reader, data = HeaderReader(), encoded()
    scan = read_header(data).structure.first_scan.data  # type: ignore[union-attr]
    reader.read(data)
    assert reader.read(data[:scan]).width == WIDTH  # what lies behind is for the decoder to refuse
    for length in (0, 2, 100, scan - 1):
        with pytest.raises(ValueError, match=r"\w"):
            reader.read(data[:length])
    with pytest.raises(ValueError, match=r"\w"):
        reader.read(b"no image")
    assert reader.read(data).width == WIDTH
