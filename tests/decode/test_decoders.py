"""Every decoder of the registry against Pillow on plain JPEGs, and the decoding of all the rest."""

from __future__ import annotations

import base64
import io
import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fastdata.decode import Decode, PixelBuffer, decode_any, reduced
from fastdata.decode.pillow import decode_unusual
from fastdata.header import read_header
from fastdata.registry import DECODERS, DEFAULT_DECODER, load

Pixels = NDArray[np.uint8]

SIZES = [(64, 48), (97, 61), (61, 97), (33, 17), (16, 16), (8, 8), (7, 9), (900, 700)]
TINY = [(1, 1), (2, 2), (1, 40), (17, 1), (3, 5)]

# 24x16 pixels with a 3x1 sampling of luma, by cjpeg -sample 3x1 -optimize -quality 50: baseline and
# legal, but none of the samplings that libjpeg-turbo's simpler interface knows by name.
ODD_SAMPLING = base64.b85decode(
    "|JeWF01!$>Nk#wx0RR9200961|JwjV01yid4h#wq4h;?x5fBp?C>j_R78o%jB^@X_Gd(;xGdMRuNL)@pL{~*OI8bd-"
    "S6^ahXlFi6ad~iLcwA*?WB=O#Lje&I5*QU2FB%#zV?sDWV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1uV`F1u"
    "V`F1uV`F1uV`F1uV`Klo01*fP5C9kh0Wkmq5di}c0sq7R761SP000000000000000000971^>hV7Z3mg0RR9100000"
    "00000000021Y!Tg02KiN0RR910000000000000051pmYU7ZCsh0RR910000000000000031u_5H01N{G00I#M5dc2`"
    "fRSLrMS;>R5UAZNn(QhhSTK=bbc+KjH$o=65C7Q"
)


def picture(width: int, height: int, seed: int = 0) -> Pixels:
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (max(2, height // 12), max(2, width // 12), 3), np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(image) + generator.normal(0, 4, (height, width, 3)), 0, 255).astype(
        np.uint8
    )


def encoded(image: Pixels | Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image = image if isinstance(image, Image.Image) else Image.fromarray(image)
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def jpeg(width: int, height: int, sampling: str = "4:2:0") -> bytes:
    pixels = picture(width, height, seed=width)
    if sampling == "grey":
        return encoded(pixels[:, :, 0], quality=90)
    return encoded(pixels, quality=90, subsampling=sampling)


def pillows(data: bytes, reduction: int = 1) -> Pixels:
    with Image.open(io.BytesIO(data)) as image:
        if reduction > 1:  # draft takes the largest reduction that leaves at least this size
            image.draft("RGB", (image.width // reduction, image.height // reduction))
        return np.asarray(image.convert("RGB"))


@pytest.fixture(params=list(DECODERS))
def decode(request: pytest.FixtureRequest) -> Decode:
    found: Decode = load(DECODERS, request.param, "decoder")
    return found


# --- plain JPEGs, by every decoder ----------------------------------------------------------------


@pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2", "4:4:4", "grey"])
def test_pixels_are_pillows_to_the_bit(decode: Decode, sampling: str) -> None:
    # All of them are libjpeg-turbo with the accurate DCT and smooth chroma.
    for size in [*SIZES, *TINY]:
        data = jpeg(*size, sampling)
        pixels = decode(data, size)
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels, pillows(data)), size


@pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2", "4:4:4", "grey"])
@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_reductions_are_pillows_draft_to_the_bit(
    decode: Decode, reduction: int, sampling: str
) -> None:
    for size in SIZES:
        if min(size) < reduction:  # no plan reduces an image to less than a pixel
            continue
        data = jpeg(*size, sampling)
        pixels = decode(data, size, reduction)
        width, height = -(-size[0] // reduction), -(-size[1] // reduction)
        assert pixels.shape == (height, width, 3), size
        assert np.array_equal(pixels, pillows(data, reduction)), size


@pytest.mark.parametrize("reduction", [2, 4, 8])
def test_a_reduction_is_close_to_the_mean_of_each_block(decode: Decode, reduction: int) -> None:
    # Independent of any JPEG library's scaling. The DCT scaling of a smooth picture differs from
    # the mean by less than two levels on average, here with the full picture's own chroma.
    size = (256, 192)
    data = jpeg(*size, "4:4:4")
    blocks = pillows(data).reshape(192 // reduction, reduction, 256 // reduction, reduction, 3)
    found = decode(data, size, reduction)
    assert np.abs(found - blocks.mean(axis=(1, 3))).mean() < 2


@pytest.mark.parametrize("reduction", [1, 2, 8])
@pytest.mark.parametrize("size", [(97, 61), (64, 48)])
def test_pixels_go_into_the_memory_that_is_given(
    decode: Decode, reduction: int, size: tuple[int, int]
) -> None:
    data = jpeg(*size)
    width, height = reduced(size, reduction)
    batch = np.full((3, height, width, 3), 77, np.uint8)
    decode(data, size, reduction, batch[1])
    assert np.array_equal(batch[1], pillows(data, reduction))
    assert (batch[[0, 2]] == 77).all()


@pytest.mark.parametrize("sampling", ["4:2:0", "4:2:2", "4:4:4", "grey"])
@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
def test_the_rows_that_are_needed_are_the_whole_images(
    decode: Decode, reduction: int, sampling: str
) -> None:
    for size in [(97, 61), (61, 97), (64, 48), (900, 700), (8, 8), (17, 1)]:
        if min(size) < reduction:
            continue
        data = jpeg(*size, sampling)
        expected = pillows(data, reduction)
        for rows in {1, 14, 15, 16, 17, 31, 32, size[1] // 2, size[1] - 1, size[1]}:
            needed = min(rows, size[1]) // reduction
            for out in (None, np.zeros_like(expected)):
                pixels = decode(data, size, reduction, out, max(1, rows))
                assert pixels.shape[1:] == expected.shape[1:], (size, rows)
                assert np.array_equal(pixels[:needed], expected[:needed]), (size, rows)


def test_the_default_decoder_stops_below_the_rows_that_are_needed() -> None:
    decode = load(DECODERS, DEFAULT_DECODER, "decoder")
    pixels = decode(jpeg(900, 700), (900, 700), rows=100)
    assert 100 <= len(pixels) <= 116  # to the end of a row of MCUs
    assert 50 <= len(decode(jpeg(900, 700), (900, 700), 2, rows=100)) <= 58


def test_a_file_that_ends_early_is_refused_whatever_rows_are_needed(decode: Decode) -> None:
    data = jpeg(97, 161)
    for length in range(0, len(data), 61):
        for rows in (1, 100):
            with pytest.raises(ValueError, match=r"\w"):
                decode(data[:length], (97, 161), rows=rows)


@pytest.mark.parametrize("marker", [0xFE, 0xE1], ids=["comment", "APP1"])
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "pillow"])
def test_a_segment_behind_the_scan_is_no_damage_and_hides_none(name: str, marker: int) -> None:
    decode = load(DECODERS, name, "decoder")  # Pillow needs no more than the scan
    plain = jpeg(97, 161)
    segment = bytes([0xFF, marker]) + (90).to_bytes(2, "big") + b"behind the scan".ljust(88)
    data = plain[:-2] + segment + plain[-2:]
    expected = pillows(data, 1)
    for rows in (1, 40, 161):
        pixels = decode(data, (97, 161), rows=rows)
        assert np.array_equal(pixels[:rows], expected[:rows])
        for length in range(len(plain) - 40, len(data) - 2, 7):
            with pytest.raises(ValueError, match=r"\w"):
                decode(data[:length], (97, 161), rows=rows)


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "pillow"])
def test_damage_above_the_rows_that_are_needed_is_refused(name: str) -> None:
    decode = load(DECODERS, name, "decoder")  # Pillow is silent about it
    data = bytearray(jpeg(97, 161))
    start = data.index(b"\xff\xda") + 14
    middle = start + (len(data) - start) // 4
    data[middle : middle + 40] = b"\xff\xd3" * 20  # restart markers, of which there are none
    with pytest.raises(ValueError, match=r"\w"):
        decode(bytes(data), (97, 161), rows=120)


def test_another_size_than_promised_is_refused_whatever_rows_are_needed(decode: Decode) -> None:
    data = jpeg(64, 480)
    for size in [(64, 479), (65, 480), (480, 64)]:
        with pytest.raises(ValueError, match=r"64x480|too small|64, 3"):
            decode(data, size, rows=30)


def test_what_is_returned_is_the_memory_itself_where_that_was_used(decode: Decode) -> None:
    out = np.zeros((48, 64, 3), np.uint8)
    pixels = decode(jpeg(64, 48), (64, 48), out=out)
    # Callers ask "is it out?" to spare a copy, so another view of the same memory will not do.
    assert pixels is out or not np.shares_memory(pixels, out)


def test_a_memoryview_is_decoded_like_bytes(decode: Decode) -> None:
    data = jpeg(97, 61)
    padded = memoryview(b"before" + data + b"after")[6 : 6 + len(data)]
    assert np.array_equal(decode(padded, (97, 61)), pillows(data))
    assert np.array_equal(decode(padded, (97, 61), 2), decode(data, (97, 61), 2))


def test_truncated_data_is_refused_at_every_length(decode: Decode) -> None:
    data = jpeg(40, 24)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"\w"):
            decode(data[:length], (40, 24))


@pytest.mark.parametrize("reduction", [2, 8])
def test_truncated_data_is_refused_at_a_reduction_too(decode: Decode, reduction: int) -> None:
    data = jpeg(97, 61)
    for length in range(0, len(data), 97):
        with pytest.raises(ValueError, match=r"\w"):
            decode(data[:length], (97, 61), reduction)


@pytest.mark.parametrize(
    "data",
    [b"garbage" * 99, b"\xff\xd8\xff", b"\xff\xd8\xff\xe0" + bytes(99), b"\x89PNG\r\n\x1a\n"],
)
def test_what_is_no_jpeg_is_refused(decode: Decode, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(data, (64, 48))


@pytest.mark.parametrize("size", [(48, 64), (65, 48), (64, 47), (640, 480), (1, 1)])
def test_another_size_than_promised_is_refused(decode: Decode, size: tuple[int, int]) -> None:
    data = jpeg(64, 48)
    for out in (None, np.zeros((size[1], size[0], 3), np.uint8)):
        with pytest.raises(ValueError, match=r"64x48|too small|64, 3"):
            decode(data, size, 1, out)


def test_progressive_jpegs_are_decoded_as_strictly_as_others(decode: Decode) -> None:
    for size in ((64, 48), (97, 61)):
        data = encoded(picture(*size), quality=90, progressive=True)
        assert np.array_equal(decode_any(data, decode), pillows(data))
    # Cut within a later scan, a picture is there, but not the whole one.
    for length in range(0, len(data), 61):
        with pytest.raises(ValueError, match=r"\w"):
            decode_any(data[:length], decode)


def test_every_plain_jpeg_is_decoded_whatever_its_chroma_sampling(decode: Decode) -> None:
    # decode_any is what the rest of the library calls: it sends to ``decode`` what is plain.
    assert np.array_equal(decode_any(ODD_SAMPLING, decode), pillows(ODD_SAMPLING))


def test_pillow_refuses_an_image_of_more_pixels_than_its_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # of 3072; an error from twice as many on
    with pytest.raises(ValueError, match="3072 pixels"):
        load(DECODERS, "pillow", "decoder")(jpeg(64, 48), (64, 48))
    with pytest.raises(ValueError, match="3072 pixels"):
        decode_unusual(jpeg(64, 48))


def test_reduced_sizes_are_rounded_up() -> None:
    assert [reduced((97, 64), factor) for factor in (1, 2, 4, 8)] == [
        (97, 64),
        (49, 32),
        (25, 16),
        (13, 8),
    ]
    assert reduced((1, 9), 8) == (1, 2)


def test_a_pixel_buffer_grows_and_is_used_again() -> None:
    buffer = PixelBuffer()
    large = buffer.shaped(40, 30)
    small = buffer.shaped(5, 7)
    assert (large.shape, large.dtype) == ((30, 40, 3), np.uint8)
    assert small.shape == (7, 5, 3)
    assert small.flags.c_contiguous
    assert np.shares_memory(large, small)
    assert buffer.shaped(50, 30).shape == (30, 50, 3)


# --- everything else, by Pillow -------------------------------------------------------------------


def refuse(*args: object, **options: object) -> Pixels:
    raise AssertionError("only a JPEG in YCbCr or grey may go to the JPEG decoder")


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_jpeg_goes_to_the_decoder_with_the_size_it_is_stored_in(orientation: int) -> None:
    asked = []
    answer = np.zeros((48, 64, 3), np.uint8)

    def spy(data: object, size: object, *rest: object) -> Pixels:
        asked.append((data, size, *rest))
        return answer

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(64, 48), exif=exif)
    assert decode_any(data, spy).shape == ((64, 48, 3) if orientation == 6 else (48, 64, 3))
    assert asked == [(data, (64, 48))]


def test_transparency_is_composited_on_white() -> None:
    rgba = np.array(
        [[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 128], [0, 0, 0, 51]]], np.uint8
    )
    found = decode_any(encoded(rgba, "PNG"), refuse)
    assert found[0, 0].tolist() == [200, 100, 50]
    assert found[0, 1].tolist() == [255, 255, 255]
    # 128/255 of the colour and 127/255 of white: 227.4, 177.2, 152.1; 51/255 of black: 204.
    assert np.abs(found[0, 2] - np.array([227.4, 177.2, 152.1])).max() <= 1
    assert np.abs(found[0, 3] - 204.0).max() <= 1


def test_grey_with_transparency_is_composited_on_white() -> None:
    found = decode_any(encoded(np.array([[[80, 255], [80, 0]]], np.uint8), "PNG"), refuse)
    assert found.tolist() == [[[80] * 3, [255] * 3]]


def test_a_transparent_colour_is_white_in_palettes_and_in_true_colour() -> None:
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 100, 0])
    palette.putdata([0, 1])
    for kind in ("PNG", "GIF"):
        found = decode_any(encoded(palette, kind, transparency=0), refuse)
        assert found.tolist() == [[[255, 255, 255], [200, 100, 0]]], kind
    colour = Image.fromarray(np.array([[[10, 20, 30], [200, 100, 0]]], np.uint8))
    found = decode_any(encoded(colour, "PNG", transparency=(10, 20, 30)), refuse)
    assert found.tolist() == [[[255, 255, 255], [200, 100, 0]]]


def test_palettes_and_bitmaps_become_rgb() -> None:
    image = Image.fromarray(picture(40, 30)).quantize(16)
    assert np.array_equal(
        decode_any(encoded(image, "PNG"), refuse), np.asarray(image.convert("RGB"))
    )
    bits = Image.fromarray(np.array([[0, 255, 255]], np.uint8)).convert("1")
    assert decode_any(encoded(bits, "PNG"), refuse).tolist() == [[[0] * 3, [255] * 3, [255] * 3]]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_to_eight(kind: str) -> None:
    deep = np.array([[0, 128, 129, 257, 128 * 257, 32_767, 65_280, 65_535]], np.uint16)
    found = decode_any(encoded(Image.fromarray(deep), kind), refuse)
    # 65535 / 257 = 255: to the nearest of 256 levels.
    assert found[0, :, 0].tolist() == [0, 0, 1, 1, 128, 127, 254, 255]
    assert (found == found[:, :, :1]).all()


@pytest.mark.parametrize("value", [-1, 65_536, 2**31 - 1])
def test_thirty_two_bits_beyond_sixteen_are_refused(value: int) -> None:
    data = encoded(Image.fromarray(np.array([[0, value]], np.int32)), "TIFF")
    with pytest.raises(ValueError, match="16 bits"):
        decode_unusual(data)


def test_floats_are_refused() -> None:
    data = encoded(Image.fromarray(np.array([[0.5, 1.0]], np.float32)), "TIFF")
    with pytest.raises(ValueError, match=r"floating point.*convert"):
        decode_unusual(data)


def test_cmyk_becomes_rgb() -> None:
    pixels = picture(64, 48)
    data = encoded(Image.fromarray(pixels).convert("CMYK"), quality=95)
    found = decode_any(data, refuse)
    assert np.array_equal(found, pillows(data))
    assert np.abs(found - pixels.astype(float)).mean() < 6  # not its negative


def test_rgb_jpegs_are_decoded_by_pillow() -> None:
    pixels = picture(64, 48)
    data = encoded(pixels, quality=95, keep_rgb=True, subsampling=0)
    found = decode_any(data, refuse)
    assert np.array_equal(found, pillows(data))
    assert np.abs(found - pixels.astype(float)).mean() < 6


UPRIGHT = {  # EXIF 2.3, table of Orientation: where row 0 and column 0 of the data are to go
    1: lambda a: a,
    2: np.fliplr,
    3: lambda a: np.rot90(a, 2),
    4: np.flipud,
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: np.rot90(a, 2).transpose(1, 0, 2),
    8: np.rot90,
}


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("TIFF", {})],
    ids=["baseline", "progressive", "png", "tiff"],
)
def test_pictures_are_turned_upright(orientation: int, kind: str, options: dict[str, Any]) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(picture(40, 24), kind, exif=exif, **options)
    as_stored = pillows(encoded(picture(40, 24), kind, **options))
    found = decode_any(data, load(DECODERS, "pillow", "decoder"))
    assert np.array_equal(found, UPRIGHT[orientation](as_stored))
    with Image.open(io.BytesIO(data)) as image:
        transposed = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert np.array_equal(found, transposed)
    header = read_header(data)
    assert (header.height, header.width) == found.shape[:2]


def exif_block(kind: int, value: int) -> bytes:
    """An EXIF segment with nothing but the orientation, as SHORT (3) or as LONG (4)."""
    field = struct.pack("<HHIHH", 0x0112, 3, 1, value, 0)
    if kind == 4:
        field = struct.pack("<HHII", 0x0112, 4, 1, value)
    return b"Exif\0\0II" + struct.pack("<HIH", 42, 8, 1) + field + bytes(4)


ODD_ORIENTATIONS = {
    # Pillow obeys both, though EXIF knows no orientation of type LONG, and XMP is not EXIF.
    "long": {"exif": exif_block(4, 6)},
    "xmp": {"xmp": b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'},
}


@pytest.mark.parametrize("name", ODD_ORIENTATIONS)
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_have_the_size_that_the_header_says(name: str, progressive: bool) -> None:
    # Whether such a picture is turned or not: its boxes were planned from the header.
    data = encoded(picture(40, 24), progressive=progressive, **ODD_ORIENTATIONS[name])
    header = read_header(data)
    found = decode_any(data, load(DECODERS, "pillow", "decoder"))
    assert found.shape == (header.height, header.width, 3)


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG", "MPO"])
def test_of_several_pictures_the_first_is_taken(kind: str) -> None:
    first, second = (Image.new("RGB", (12, 8), colour) for colour in ("#c80000", "#0000c8"))
    data = encoded(first, kind, save_all=True, append_images=[second])
    with Image.open(io.BytesIO(data)) as image:
        assert getattr(image, "n_frames", 1) == 2  # the source has what the test is about
    # WebP and MPO, which is two JPEGs, are lossy.
    assert np.abs(decode_unusual(data) - np.array([200.0, 0, 0])).max() <= 4


@pytest.mark.parametrize("data", [b"", b"no picture at all", b"\x00" * 100])
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"not an image|empty"):
        decode_any(data, refuse)
    with pytest.raises(ValueError, match=r"not an image|empty"):
        decode_unusual(data)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "TIFF", "BMP", "WEBP"])
def test_truncated_pictures_are_refused(kind: str) -> None:
    data = encoded(picture(64, 48), kind)
    for length in (len(data) // 2, len(data) * 9 // 10):
        with pytest.raises(ValueError, match=r"not an image|damaged image"):
            decode_unusual(data[:length])


# Pillow as a decoder is silent about the forged end; it is never chosen for that.
@pytest.mark.parametrize("name", sorted(set(DECODERS) - {"pillow"}))
@pytest.mark.parametrize("ending", [b"", b"\xff\xd9"])
def test_a_truncated_progressive_jpeg_is_refused_also_with_a_forged_end(
    name: str, ending: bytes
) -> None:
    decoder = load(DECODERS, name, "decoder")
    data = encoded(picture(64, 48), progressive=True)
    assert decode_any(data, decoder).shape == (48, 64, 3)
    with pytest.raises(ValueError, match=r"[Pp]remature|truncated"):
        decode_any(data[: len(data) // 2] + ending, decoder)


@pytest.mark.parametrize("kind", ["DDS", "TGA", "ICO"])
def test_formats_that_are_no_pictures_of_data_sets_are_refused(kind: str) -> None:
    data = encoded(picture(32, 32), kind)
    with pytest.raises(ValueError, match="not an image"):
        decode_unusual(data)


@pytest.mark.parametrize("error", [RuntimeError("odd"), KeyError("odd"), struct.error("odd")])
def test_whatever_pillow_trips_over_is_a_damaged_image(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its plugins raise more than the OSError that they document, for a handful of mutated files.
    jpeg_data, png_data = jpeg(64, 48), encoded(picture(64, 48), "PNG")

    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fail)
    for attempt in (
        lambda: decode_unusual(jpeg_data),
        lambda: load(DECODERS, "pillow", "decoder")(jpeg_data, (64, 48)),
        lambda: read_header(png_data),
    ):
        with pytest.raises(ValueError, match=r"damaged image: .*odd"):
            attempt()


def test_a_lack_of_memory_is_not_the_images_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    jpeg_data = jpeg(64, 48)

    def fail(*args: object, **options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Image, "open", fail)
    for attempt in (
        lambda: decode_unusual(jpeg_data),
        lambda: load(DECODERS, "pillow", "decoder")(jpeg_data, (64, 48)),
        lambda: read_header(b"\x89PNG\r\n\x1a\n"),
    ):
        with pytest.raises(MemoryError):
            attempt()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {"progressive": True}), ("WEBP", {"lossless": True}), ("PNG", {})],
)
def test_damaged_exif_does_not_stand_in_the_way_of_good_pixels(
    kind: str, options: dict[str, Any]
) -> None:
    # Nine letters of a description, said to be at byte 4000, where there is nothing. Pillow warns
    # of it, and a warning is an error in this suite.
    exif = b"Exif\0\0II" + struct.pack("<HIH", 42, 8, 1)
    exif += struct.pack("<HHII", 0x010E, 2, 9, 4000) + bytes(4)
    data = encoded(picture(40, 24), kind, exif=exif, **options)
    assert np.array_equal(decode_unusual(data), pillows(encoded(picture(40, 24), kind, **options)))
    header = read_header(data)
    assert (header.width, header.height, header.orientation) == (40, 24, 1)


def test_restart_markers_do_not_hide_damage_or_an_early_end(decode: Decode) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (161, 97, 3), np.uint8)).save(
        buffer, "JPEG", restart_marker_rows=1
    )
    data = buffer.getvalue()
    with pytest.raises(ValueError, match=r"\w"):
        decode(data[: len(data) * 3 // 4], (97, 161), rows=40)
