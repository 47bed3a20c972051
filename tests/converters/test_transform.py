"""One file at a time: what passes through, what is made anew, and how near it is to the truth.

The truth is computed here with numpy from the pixels that were encoded, or by Pillow.
"""

from __future__ import annotations

import io
import itertools
import struct
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, JpegImagePlugin, features
from torchvision.transforms import Resize

from converters.options import Options
from converters.transform import Transform
from fastdata import ImageError
from fastdata.formats import Sample
from fastdata.paths import display

Pixels = NDArray[np.uint8]
Make = Callable[..., Pixels]
Encode = Callable[..., bytes]
ORIENTATION = 0x0112


@pytest.fixture
def transform() -> Callable[..., Sample]:
    """Transform an encoded image: ``transform(data, name=..., **options)``."""

    def run(data: bytes, name: bytes = b"image.jpg", **options: Any) -> Sample:
        made = Transform(Options(**{"to": "webdataset", **options}))
        return made(data, f"/source/{display(name)}", 7, name, 3)

    return run


def opened(data: bytes) -> Pixels:
    """Decoded by Pillow, as it lies in the file."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def area_mean(image: Pixels, width: int, height: int) -> NDArray[np.float64]:
    """The mean over the area that each output pixel covers of the input."""

    def weights(old: int, new: int) -> NDArray[np.float64]:
        edges = np.arange(new + 1) * (old / new)
        low, high = edges[:-1, None], edges[1:, None]
        pixel = np.arange(old)[None]
        covered = np.clip(np.minimum(high, pixel + 1) - np.maximum(low, pixel), 0, None)
        return covered * (new / old)

    rows, columns = weights(image.shape[0], height), weights(image.shape[1], width)
    return np.einsum("yi,ijc,xj->yxc", rows, image.astype(np.float64), columns, optimize=True)


def assert_near(found: Pixels, expected: NDArray[Any], mean: float, most: float) -> None:
    """Equal shapes, and nearly equal values."""
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.float64) - expected)
    assert error.mean() <= mean
    assert error.max() <= most


def assert_training_ready(sample: Sample) -> None:
    """A baseline JPEG, upright, in grey or RGB, of the size that the sample names."""
    with Image.open(io.BytesIO(sample.data)) as image:
        assert image.format == "JPEG"
        assert "progressive" not in image.info
        assert image.mode in ("L", "RGB")
        assert image.getexif().get(ORIENTATION, 1) == 1
        assert image.size == (sample.width, sample.height)
        image.load()


# What passes through.


@pytest.mark.parametrize("to", ["webdataset", "lmdb"])
@pytest.mark.parametrize("check", ["decode", "structure"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "L"},
        {"subsampling": 2},
        {"subsampling": "4:1:1"},
        {"quality": 30, "optimize": True},
        {"restart_marker_blocks": 2},
        {"comment": b"a comment"},
    ],
    ids=str,
)
def test_a_baseline_jpeg_keeps_every_byte(
    options: dict[str, Any],
    check: str,
    to: str,
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    data = encode(pixels(97, 61), **options)
    sample = transform(data, to=to, check=check)
    assert sample == Sample(7, b"image.jpg", 3, 97, 61, data)


def test_what_follows_the_end_marker_is_cut_off(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(pixels(97, 61))
    sample = transform(data + b"appended by a camera")
    assert sample.data == data
    assert sample.repaired == ("bytes behind the end of the picture",)


def test_an_exif_block_that_says_upright_is_kept(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = 1
    data = encode(pixels(97, 61), exif=exif)
    assert transform(data).data == data


@pytest.mark.parametrize("resize", [60, 61, 1000])
def test_resize_never_enlarges(
    resize: int, pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    for size in ((80, 60), (60, 80), (60, 60)):
        data = encode(pixels(*size))
        assert transform(data, resize=resize).data == data


def test_size_equal_to_the_images_passes_through(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(pixels(80, 60))
    assert transform(data, size=(60, 80)).data == data


# Sizes.


@pytest.mark.parametrize(
    ("size", "resize", "expected"),
    [
        ((80, 60), 30, (40, 30)),
        ((60, 80), 30, (30, 40)),
        ((97, 61), 32, (50, 32)),  # 50.9: truncated
        ((61, 97), 32, (32, 50)),
        ((64, 64), 63, (63, 63)),
        ((300, 4), 2, (150, 2)),
        ((4, 301), 2, (2, 150)),
        ((900, 700), 1, (1, 1)),
    ],
)
def test_resize_sets_the_short_side(
    size: tuple[int, int],
    resize: int,
    expected: tuple[int, int],
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    sample = transform(encode(pixels(*size)), resize=resize)
    assert (sample.width, sample.height) == expected
    assert_training_ready(sample)


def test_resized_sizes_are_those_of_torchvision(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    generator = np.random.default_rng(0)
    for width, height in generator.integers(20, 200, (25, 2)).tolist():
        short = int(generator.integers(3, min(width, height)))
        sample = transform(encode(pixels(width, height)), resize=short)
        expected = Resize(short, antialias=True)(torch.zeros(1, height, width)).shape
        assert (sample.height, sample.width) == expected[1:]


@pytest.mark.parametrize("to", ["webdataset", "lmdb", "memmap"])
def test_size_is_exact_for_images_of_any_shape(
    to: str, pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    sizes = [(80, 60), (60, 80), (97, 61), (16, 24), (5, 90), (90, 5), (1, 1), (24, 16), (17, 24)]
    for width, height in sizes:
        sample = transform(encode(pixels(width, height)), to=to, size=(16, 24))  # height x width
        assert (sample.width, sample.height) == (24, 16)
        if to == "memmap":
            assert sample.pixels is not None
            assert sample.pixels.shape == (16, 24, 3)
        else:
            assert_training_ready(sample)


# Pixels.


@pytest.mark.parametrize(
    ("size", "target", "covering", "corner"),
    [
        # (width, height); target and covering likewise; the corner is (left, top)
        ((80, 60), (40, 30), (40, 30), (0, 0)),
        ((80, 60), (32, 32), (42, 32), (5, 0)),
        ((60, 80), (32, 32), (32, 42), (0, 5)),
        ((97, 61), (32, 32), (50, 32), (9, 0)),
        ((97, 61), (20, 32), (50, 32), (15, 0)),
        ((97, 61), (60, 20), (60, 37), (0, 8)),
        ((900, 700), (64, 64), (82, 64), (9, 0)),
        ((700, 901), (100, 100), (100, 128), (0, 14)),
        ((64, 64), (32, 32), (32, 32), (0, 0)),
        ((50, 32), (32, 32), (50, 32), (9, 0)),  # nothing is scaled: only cut
    ],
)
def test_pixels_are_the_mean_over_their_area(
    size: tuple[int, int],
    target: tuple[int, int],
    covering: tuple[int, int],
    corner: tuple[int, int],
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    data = encode(pixels(*size))
    sample = transform(data, to="memmap", size=target[::-1])
    left, top = corner
    expected = area_mean(opened(data), *covering)[top : top + target[1], left : left + target[0]]
    assert sample.pixels is not None
    assert_near(sample.pixels, expected, mean=0.5, most=1.5)
    # The encoded formats store the same pixels, with JPEG's error on top.
    encoded = transform(data, size=target[::-1], quality=98)
    assert_near(opened(encoded.data), expected, mean=4, most=60)


@pytest.mark.parametrize(("size", "target"), [((20, 15), (80, 60)), ((30, 20), (45, 30))])
def test_size_enlarges_smoothly(
    size: tuple[int, int],
    target: tuple[int, int],
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    data = encode(pixels(*size))
    sample = transform(data, to="memmap", size=target[::-1])
    expected = Image.fromarray(opened(data)).resize(target, Image.Resampling.BILINEAR)
    assert sample.pixels is not None
    assert_near(sample.pixels, np.asarray(expected), mean=0.6, most=2)


def test_a_memmap_row_of_the_images_own_size_is_its_decoded_pixels(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(pixels(32, 32))
    sample = transform(data, to="memmap", size=(32, 32))
    assert sample.pixels is not None
    assert_near(sample.pixels, opened(data), mean=0, most=0)


def test_resized_jpegs_are_near_pillows(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(pixels(400, 300))
    sample = transform(data, resize=100)
    expected = Image.fromarray(opened(data)).resize((133, 100), Image.Resampling.BOX)
    assert_near(opened(sample.data), np.asarray(expected), mean=2.5, most=40)


@pytest.mark.parametrize("quality", [1, 50, 90, 100])
def test_quality_and_subsampling_are_as_asked(
    quality: int, pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    sample = transform(encode(pixels(97, 61)), resize=40, quality=quality)
    with (
        Image.open(io.BytesIO(sample.data)) as image,
        Image.open(io.BytesIO(encode(pixels(8, 8), quality=quality))) as pillows,
    ):
        assert image.quantization == pillows.quantization  # type: ignore[attr-defined]
        assert JpegImagePlugin.get_sampling(image) == 2  # 4:2:0


def test_one_transform_may_be_used_for_many_images(pixels: Make, encode: Encode) -> None:
    # It keeps one buffer; a large image after a small one, and the other way round.
    transform = Transform(Options("memmap", size=(16, 16)))
    for number, (width, height) in enumerate([(16, 16), (97, 61), (16, 16), (20, 20), (200, 150)]):
        data = encode(pixels(width, height, seed=number))
        sample = transform(data, "image.jpg", number, b"image.jpg", None)
        short = min(width, height)
        covering = (width * 16 // short, height * 16 // short)
        left, top = (covering[0] - 16) // 2, (covering[1] - 16) // 2
        expected = area_mean(opened(data), *covering)[top : top + 16, left : left + 16]
        assert sample.pixels is not None
        assert_near(sample.pixels, expected, mean=0.6, most=1.5)
        assert sample.label is None
        assert sample.position == number


# What is no plain JPEG.


def white_behind(pixels: Pixels, opacity: Pixels) -> NDArray[np.float64]:
    alpha = opacity[..., None] / 255
    return pixels * alpha + 255 * (1 - alpha)


def opacity(pixels: Pixels) -> Pixels:
    return np.broadcast_to(
        np.linspace(0, 255, pixels.shape[1]).astype(np.uint8), pixels.shape[:2]
    ).copy()


def rgba(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    buffer = io.BytesIO()
    Image.fromarray(np.dstack([pixels, opacity(pixels)])).save(buffer, "PNG")
    return buffer.getvalue(), white_behind(pixels, opacity(pixels))


def grey_alpha(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    grey, buffer = pixels[..., 0], io.BytesIO()
    Image.merge("LA", [Image.fromarray(grey), Image.fromarray(opacity(pixels))]).save(buffer, "PNG")
    return buffer.getvalue(), white_behind(np.repeat(grey[..., None], 3, 2), opacity(pixels))


def deep_grey(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    grey, buffer = pixels[..., 0], io.BytesIO()
    Image.fromarray(grey.astype(np.uint16) * 257).save(buffer, "PNG")
    return buffer.getvalue(), np.repeat(grey[..., None], 3, 2)


def bilevel(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    # Large areas: JPEG could not keep single black and white pixels.
    black, buffer = np.zeros(pixels.shape[:2], np.uint8), io.BytesIO()
    black[16:, 32:] = 255
    Image.fromarray(black).convert("1").save(buffer, "PNG")
    return buffer.getvalue(), np.repeat(black[..., None], 3, 2)


def animated(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    first = Image.fromarray(pixels).quantize(256, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    first.save(buffer, "GIF", save_all=True, append_images=[Image.new("P", first.size)])
    return buffer.getvalue(), np.asarray(first.convert("RGB"))


def cmyk(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert("CMYK").save(buffer, "JPEG", quality=98)
    return buffer.getvalue(), pixels


def plain(format: str, **options: Any) -> Callable[[Pixels], tuple[bytes, NDArray[Any]]]:
    def make(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format, **options)
        return buffer.getvalue(), pixels

    return make


def grey_progressive(pixels: Pixels) -> tuple[bytes, NDArray[Any]]:
    grey, buffer = np.ascontiguousarray(pixels[..., 1]), io.BytesIO()
    Image.fromarray(grey).save(buffer, "JPEG", quality=98, progressive=True)
    return buffer.getvalue(), np.repeat(grey[..., None], 3, 2)


UNUSUAL: dict[str, Callable[[Pixels], tuple[bytes, NDArray[Any]]]] = {
    "PNG": plain("PNG"),
    "BMP": plain("BMP"),
    "PPM": plain("PPM"),
    "TIFF": plain("TIFF", compression="tiff_lzw"),
    "WEBP": plain("WEBP", lossless=True),
    "progressive JPEG": plain("JPEG", quality=98, progressive=True),
    "RGB JPEG": plain("JPEG", quality=98, keep_rgb=True),
    "CMYK JPEG": cmyk,
    "grey progressive JPEG": grey_progressive,
    "transparent PNG": rgba,
    "grey transparent PNG": grey_alpha,
    "16-bit PNG": deep_grey,
    "black and white PNG": bilevel,
    "animated GIF": animated,
}


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
@pytest.mark.parametrize("check", ["decode", "structure"])
def test_any_image_under_a_jpgs_name_becomes_a_baseline_jpeg(
    make: Callable[[Pixels], tuple[bytes, NDArray[Any]]],
    check: str,
    pixels: Make,
    transform: Callable[..., Sample],
) -> None:
    data, expected = make(pixels(97, 61))
    sample = transform(data, quality=98, check=check)
    assert sample.data != data
    assert (sample.width, sample.height) == (97, 61)
    assert_training_ready(sample)
    assert_near(opened(sample.data), expected, mean=4, most=50)


@pytest.mark.parametrize("make", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_any_image_can_be_resized(
    make: Callable[[Pixels], tuple[bytes, NDArray[Any]]],
    pixels: Make,
    transform: Callable[..., Sample],
) -> None:
    data, expected = make(pixels(97, 61))
    sample = transform(data, to="memmap", size=(40, 63))
    assert sample.pixels is not None
    assert_near(
        sample.pixels, area_mean(expected.round().astype(np.uint8), 63, 40)[:, :63], 2.5, 40
    )


def test_a_grey_jpeg_that_must_be_scaled_stays_grey_to_look_at(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(pixels(97, 61), mode="L")
    sample = transform(data, resize=32, quality=98)
    assert_training_ready(sample)
    assert_near(opened(sample.data), area_mean(opened(data), 50, 32), mean=1.5, most=12)


@pytest.mark.parametrize("orientation", range(2, 9))
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"mode": "L"}], ids=str)
def test_exif_orientations_are_applied(
    orientation: int,
    options: dict[str, Any],
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    data = encode(pixels(97, 61), exif=exif, **options)
    with Image.open(io.BytesIO(data)) as image:
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert expected.shape == ((61, 97, 3) if orientation < 5 else (97, 61, 3))
    sample = transform(data, quality=98)
    assert_training_ready(sample)
    assert_near(opened(sample.data), expected, mean=3, most=40)


def exif_block(*entries: bytes) -> bytes:
    """A little-endian EXIF block with one directory of 12-byte entries, written by hand."""
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries)) + b"".join(entries) + bytes(4)


UPRIGHT_AT_90 = struct.pack("<HHIHH", ORIENTATION, 3, 1, 6, 0)


def test_other_exif_tags_of_a_wrong_type_do_no_harm(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    # Cameras and editors write such tags: here a resolution as text. The picture is sound.
    resolution = struct.pack("<HHI4s", 0x011A, 2, 3, b"72\0\0")
    data = encode(pixels(97, 61), exif=exif_block(UPRIGHT_AT_90, resolution))
    sample = transform(data, quality=98)
    assert_training_ready(sample)
    turned = np.rot90(pixels(97, 61), -1)  # orientation 6: turn clockwise to see it upright
    assert_near(opened(sample.data), turned, mean=3, most=40)


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
ODD_ORIENTATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "as a long, progressive JPEG": (
        "JPEG",
        {
            "progressive": True,
            "exif": exif_block(struct.pack("<HHII", ORIENTATION, 4, 1, 6)),
        },
    ),
    "in XMP, progressive JPEG": ("JPEG", {"progressive": True, "xmp": XMP}),
    "in XMP, WEBP": ("WEBP", {"lossless": True, "xmp": XMP}),
    "in EXIF, WEBP": ("WEBP", {"lossless": True, "exif": exif_block(UPRIGHT_AT_90)[6:]}),
    "in EXIF, PNG": ("PNG", {"exif": exif_block(UPRIGHT_AT_90)}),
    "TIFF": ("TIFF", {"tiffinfo": {ORIENTATION: 6}}),
}


@pytest.mark.parametrize(
    ("format", "options"), ODD_ORIENTATIONS.values(), ids=ODD_ORIENTATIONS.keys()
)
def test_an_orientation_that_lies_elsewhere_never_distorts(
    format: str,
    options: dict[str, Any],
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    # Whether such an orientation counts is open, but size and pixels must agree about it.
    flat = pixels(97, 61)
    sample = transform(encode(flat, format, **options), quality=98)
    assert_training_ready(sample)
    expected = flat if sample.width == 97 else np.rot90(flat, -1)
    assert_near(opened(sample.data), expected, mean=3, most=40)


# What is at fault.


def refusal(transform: Callable[..., Sample], data: bytes, **options: Any) -> ImageError:
    with pytest.raises(ImageError) as caught:
        transform(data, **options)
    return caught.value


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("check", ["decode", "structure"])
@pytest.mark.parametrize("part", [0.02, 0.2, 0.5, 0.9, 0.999])
def test_a_truncated_jpeg_is_refused(
    part: float,
    check: str,
    progressive: bool,
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    data = encode(pixels(97, 61), progressive=progressive)
    error = refusal(transform, data[: int(len(data) * part)], check=check)
    assert error.path == "/source/image.jpg"
    assert "truncated" in error.reason


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("part", [0.5, 0.8])
def test_a_forged_end_marker_does_not_hide_that_a_jpeg_is_truncated(
    part: float,
    progressive: bool,
    pixels: Make,
    encode: Encode,
    transform: Callable[..., Sample],
) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (61, 97, 3), np.uint8)
    data = encode(noise, progressive=progressive)
    cut = data[: int(len(data) * part)]
    cut = cut[:-1] if cut.endswith(b"\xff") else cut
    for options in ({}, {"resize": 30}, {"to": "memmap", "size": (32, 32)}):
        refusal(transform, cut + b"\xff\xd9", **options)


def test_damage_inside_the_scan_is_found_by_decoding(
    pixels: Make, encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(pixels(97, 61))
    middle = len(data) // 2
    damaged = data[:middle] + data[middle + 200 : -2] + b"\xff\xd9"
    refusal(transform, damaged, check="decode")
    assert transform(damaged, check="structure").data == damaged  # as that option says


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"hello, this is a text", "not an image: it begins with b'hello, this "),
        (b"\xff\xd8\xff", "truncated"),
        (b"\xff\xd8\xff\xd9", "JPEG"),
        (b"\x89PNG\r\n\x1a\n", "truncated PNG"),
        (bytes(1000), "not an image"),
        (b"P6 10 10 255\n" + bytes(299), "damaged"),
    ],
    ids=repr,
)
def test_what_is_no_image_is_refused_by_name_and_reason(
    data: bytes, reason: str, transform: Callable[..., Sample]
) -> None:
    with pytest.raises(ImageError, match=reason) as caught:
        transform(data)
    assert caught.value.path == "/source/image.jpg"


def test_a_name_that_is_no_utf8_is_shown_escaped(transform: Callable[..., Sample]) -> None:
    with pytest.raises(ImageError) as caught:
        transform(b"", name=b"a\xff.jpg")
    assert str(caught.value).startswith("/source/a\\xff.jpg: ")


def test_a_png_wider_than_any_jpeg_is_refused(
    encode: Encode, transform: Callable[..., Sample]
) -> None:
    data = encode(np.zeros((1, 70_000, 3), np.uint8), "PNG")
    refusal(transform, data)
    assert transform(data, to="memmap", size=(4, 4)).pixels is not None


def test_floating_point_pixels_are_refused(transform: Callable[..., Sample]) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.ones((8, 8), np.float32)).save(buffer, "TIFF")
    assert "floating point" in refusal(transform, buffer.getvalue()).reason


def damaged_images(pixels: Make, encode: Encode) -> dict[str, bytes]:
    picture, exif = pixels(40, 30), exif_block(UPRIGHT_AT_90)
    images = {
        "PNG": encode(picture, "PNG", exif=exif),
        "GIF": encode(picture, "GIF", mode="P"),
        "BMP": encode(picture, "BMP"),
        "TIFF": encode(picture, "TIFF", compression="tiff_lzw"),
        "WEBP": encode(picture, "WEBP", exif=exif[6:]),
        "JPEG": encode(picture, exif=exif),
        "progressive": encode(picture, progressive=True),
    }
    if features.check("avif"):
        images["AVIF"] = encode(picture, "AVIF")
    return images


def test_damage_of_any_kind_ends_in_an_image_error_or_an_image(
    pixels: Make, encode: Encode
) -> None:
    # Pillow's plugins raise many types of exception; any that escaped would end the conversion
    # of a million images for the sake of one, even with on_error="skip".
    generator = np.random.default_rng(0)
    transforms = [Transform(Options("webdataset")), Transform(Options("memmap", size=(16, 16)))]
    escaped: set[str] = set()
    refused = 0
    for name, data in damaged_images(pixels, encode).items():
        for number, transform in zip(range(150), itertools.cycle(transforms), strict=False):
            damaged = bytearray(data)
            if number % 3 == 0:
                del damaged[generator.integers(4, len(data)) :]
            for _ in range(number % 3 * 2):
                damaged[generator.integers(4, min(len(data), 400))] = generator.integers(256)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # Pillow warns of much of the damage
                    transform(bytes(damaged), "image", 0, b"image", 0)
            except ImageError:
                refused += 1
            except Exception as error:  # a list of all kinds tells more than the first one
                escaped.add(f"{name}: {type(error).__name__}: {error}")
    assert escaped == set()
    assert refused > 100  # the damage was damage
