"""Formats other than JPEG and PNG under any name, and files that are no image."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator

import numpy as np
from PIL import Image

from tests.corpus.build import (
    HEIGHT,
    ORIENTATION,
    WIDTH,
    Case,
    Pixels,
    as_eight_bits,
    deep_samples,
    encoded,
    exact,
    exif,
    grain,
    grey,
    on_white,
    opacities,
    picture,
    refused,
)

_TURN = "EXIF orientation"
_TIFF6 = exif((ORIENTATION, 3, 6))[6:]  # without JPEG's prefix


def other_formats() -> Iterator[Case]:
    """GIF, BMP, WebP, TIFF, PPM."""
    photo, image = picture(), Image.fromarray(picture())
    second = Image.fromarray(grain())
    few = image.quantize(40)
    seen = np.array(few.convert("RGB"))
    several = {"save_all": True, "append_images": [second.quantize(40)], "duration": 100}
    what = "GIF, of an animation the first picture; transparent pixels on white"
    yield exact("gif.gif", what, encoded(few, "GIF"), "GIF", seen)
    yield exact("gif-under-png.png", what, encoded(few, "GIF"), "GIF", seen)
    yield exact("gif-animated.gif", what, encoded(few, "GIF", **several), "GIF", seen)
    clear = int(np.asarray(few)[5, 5])
    shown = np.where((np.asarray(few) == clear)[:, :, None], 255, seen).astype(np.uint8)
    data = encoded(few, "GIF", transparency=clear)
    yield exact("gif-transparent.gif", what, data, "GIF", shown)
    what = "BMP, also of 32 bits (the fourth byte counts for nothing), or a palette"
    plain = encoded(image, "BMP")
    yield exact("bmp.bmp", what, plain, "BMP", photo)
    yield exact("bmp-under-jpeg.jpeg", what, plain, "BMP", photo)
    yield exact("bmp-grey.bmp", what, encoded(image.convert("L"), "BMP"), "BMP", grey(photo))
    yield exact("bmp-palette.bmp", what, encoded(few, "BMP"), "BMP", seen)
    body = np.zeros((HEIGHT, WIDTH, 4), np.uint8)
    body[:, :, :3] = photo[:, :, ::-1]
    head = struct.pack("<IiiHHIIiiII", 40, WIDTH, -HEIGHT, 1, 32, 0, body.size, 0, 0, 0, 0)
    data = b"BM" + struct.pack("<IHHI", 54 + body.size, 0, 0, 54) + head + body.tobytes()
    yield exact("bmp-32-from-the-top.bmp", what, data, "BMP", photo)
    yield from _webp(photo, image, second)
    yield from _ppm(photo, image)
    yield from _tiff(photo, image, second)
    what = "GIF, BMP, WebP, TIFF or PPM that is cut short"
    reasons = dict.fromkeys(("gif", "bmp", "ppm"), "truncated")
    reasons |= {"webp": "damaged image", "tif": "image"}
    for name, data in {
        "gif": encoded(second.quantize(40), "GIF"),
        "bmp": plain,
        "webp": encoded(image, "WEBP", lossless=True),
        "tif": encoded(image, "TIFF", compression="tiff_lzw"),
        "ppm": encoded(image, "PPM"),
    }.items():
        for part in (3, 8):
            yield refused(f"cut-{part}.{name}", what, data[: len(data) * part // 10], reasons[name])


def _webp(photo: Pixels, image: Image.Image, second: Image.Image) -> Iterator[Case]:
    what = "WebP, of an animation the first picture; transparent pixels on white"
    yield exact("webp.webp", what, encoded(image, "WEBP", lossless=True), "WEBP", photo)
    data = encoded(image, "WEBP", quality=90)
    seen = np.array(Image.open(io.BytesIO(data)).convert("RGB"))
    yield exact("webp-under-jpg.jpg", what, data, "WEBP", seen)
    frames = {"save_all": True, "append_images": [second], "lossless": True}
    yield exact("webp-animated.webp", what, encoded(image, "WEBP", **frames), "WEBP", photo)
    layered = Image.fromarray(np.concatenate([photo, opacities()[:, :, None]], 2))
    data = encoded(layered, "WEBP", lossless=True, exact=True)
    yield exact("webp-rgba.webp", what, data, "WEBP", on_white(photo, opacities()), most=1)
    data = encoded(image, "WEBP", lossless=True, exif=_TIFF6)
    turned = np.ascontiguousarray(np.rot90(photo, -1))
    what = "PNG, WebP or TIFF with an EXIF orientation of 2 to 8"
    yield exact("webp-exif.webp", what, data, "WEBP", turned, _TURN)


def _ppm(photo: Pixels, image: Image.Image) -> Iterator[Case]:
    what = "PPM, PGM or PBM, binary or as text, of any depth"
    luma = np.asarray(image.convert("L"))
    yield exact("ppm.ppm", what, encoded(image, "PPM"), "PPM", photo)
    yield exact("pgm.pgm", what, encoded(image.convert("L"), "PPM"), "PPM", grey(photo))
    bits = luma > 120
    shown = np.repeat(bits[:, :, None], 3, 2).astype(np.uint8) * 255
    yield exact("pbm.pgm", what, encoded(Image.fromarray(bits), "PPM"), "PPM", shown)
    size = b"%d %d" % (WIDTH, HEIGHT)
    text = b"P3\n# by hand\n" + size + b"\n255\n" + b" ".join(b"%d" % v for v in photo.ravel())
    yield exact("ppm-text.ppm", what, text, "PPM", photo)
    deep = deep_samples(1)
    data = b"P5 " + size + b" 65535\n" + deep.astype(">u2").tobytes()
    yield exact("pgm-16.pgm", what, data, "PPM", as_eight_bits(deep))
    ten = deep // 64
    data = b"P5 " + size + b" 1023\n" + ten.astype(">u2").tobytes()
    seen = np.rint(ten * (255 / 1023)).astype(np.uint8)
    yield exact("pgm-10.pgm", what, data, "PPM", np.repeat(seen[:, :, None], 3, 2), most=1)
    deep = deep_samples(3)
    data = b"P6 " + size + b" 65535\n" + deep.astype(">u2").tobytes()
    yield exact("ppm-16.ppm", what, data, "PPM", as_eight_bits(deep), most=1)


def _tiff(photo: Pixels, image: Image.Image, second: Image.Image) -> Iterator[Case]:
    what = "TIFF, also packed, of 1 or 16 bits, or CMYK; the first page"
    luma = image.convert("L")
    yield exact("tiff.tif", what, encoded(image, "TIFF"), "TIFF", photo)
    data = encoded(image, "TIFF", compression="tiff_lzw")
    yield exact("tiff-under-bmp.bmp", what, data, "TIFF", photo)
    pages = {"save_all": True, "append_images": [second]}
    yield exact("tiff-pages.tiff", what, encoded(image, "TIFF", **pages), "TIFF", photo)
    yield exact("tiff-grey.tif", what, encoded(luma, "TIFF"), "TIFF", grey(photo))
    bits = np.asarray(luma) > 120
    shown = np.repeat(bits[:, :, None], 3, 2).astype(np.uint8) * 255
    yield exact("tiff-1-bit.tif", what, encoded(Image.fromarray(bits), "TIFF"), "TIFF", shown)
    deep = deep_samples(1)
    yield exact("tiff-16.tif", what, encoded(deep, "TIFF"), "TIFF", as_eight_bits(deep))
    wide = deep.astype(np.int32)
    yield exact("tiff-32.tif", what, encoded(wide, "TIFF"), "TIFF", as_eight_bits(deep))
    inks = np.concatenate([255 - photo, opacities()[:, :, None]], 2)
    cmyk = Image.frombytes("CMYK", (WIDTH, HEIGHT), inks.tobytes())
    seen = np.rint(photo * ((255.0 - opacities()) / 255)[:, :, None]).astype(np.uint8)
    yield exact("tiff-cmyk.tif", what, encoded(cmyk, "TIFF"), "TIFF", seen, most=1)
    layered = Image.fromarray(np.concatenate([photo, opacities()[:, :, None]], 2))
    data = encoded(layered, "TIFF")
    yield exact("tiff-rgba.tif", what, data, "TIFF", on_white(photo, opacities()), most=1)
    turned = np.ascontiguousarray(np.rot90(photo, -1))
    data = encoded(image, "TIFF", tiffinfo={ORIENTATION: 6})
    yield exact(
        "tiff-exif.tif",
        "PNG, WebP or TIFF with an EXIF orientation of 2 to 8",
        data,
        "TIFF",
        turned,
        _TURN,
    )
    what = "TIFF of floating point, or of integers beyond 16 bits"
    floats = np.asarray(luma, np.float32)
    yield refused("tiff-float.tif", what, encoded(floats, "TIFF"), "floating point")
    for name, value in {"large": 65_536, "negative": -1}.items():
        far = wide.copy()
        far[3, 4] = value
        yield refused(f"tiff-{name}.tif", what, encoded(far, "TIFF"), "outside of 16 bits")


def ignored_orientations() -> Iterator[Case]:
    """The same three formats where the tag is not to count."""
    photo, image = picture(), Image.fromarray(picture())
    for format, name, options in (
        ("PNG", "png-exif-ignored.png", {"exif": _TIFF6}),
        ("WEBP", "webp-exif-ignored.webp", {"exif": _TIFF6, "lossless": True}),
        ("TIFF", "tiff-exif-ignored.tif", {"tiffinfo": {ORIENTATION: 6}}),
    ):
        data = encoded(image, format, **options)
        treated = format, f"{_TURN} ignored"
        what = "PNG, WebP or TIFF with an EXIF orientation of 2 to 8, `--exif ignore`"
        yield Case(name, what, data, photo, "", None, treated, (), "ignore", 0, 0)


def no_images() -> Iterator[Case]:
    """What else is found under an image's name."""
    photo = Image.fromarray(picture())

    def box(brand: bytes) -> bytes:
        return struct.pack(">I", 24) + b"ftyp" + brand + bytes(4) + brand + b"mif1" + bytes(400)

    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
    for name, data, reason in (
        ("avif.jpg", box(b"avif"), "AVIF is not supported"),
        ("heic.jpg", box(b"heic"), "HEIC is not supported"),
        ("jpeg-2000.jpg", b"\0\0\0\x0cjP  \r\n\x87\n" + bytes(200), "JPEG 2000 is not supported"),
        ("psd.tif", b"8BPS\0\1" + bytes(200), "Photoshop is not supported"),
        ("pdf.tif", b"%PDF-1.7\n" + bytes(200), "PDF is not supported"),
        ("svg.png", b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG is not supported"),
        ("svg-xml.png", b'<?xml version="1.0"?><svg/>', "XML is not supported"),
        ("html.jpg", b"\r\n<!DOCTYPE html><title>404</title>", "it is an HTML page"),
        ("html-bare.jpg", b"<html><body>Forbidden</body></html>", "it is an HTML page"),
        ("zip.png", b"PK\3\4\x14\0" + bytes(200), "it is a ZIP archive"),
        ("gzip.png", b"\x1f\x8b\x08\0" + zlib.compress(bytes(99)), "it is a gzip file"),
        ("lfs.jpg", lfs, "it is a Git LFS pointer"),
        ("text.jpg", b"see the other folder", "not an image"),
        ("zeros.jpg", bytes(3000), "not an image"),
        ("ico.png", encoded(photo, "ICO"), "not an image"),
        ("tga.bmp", encoded(photo, "TGA"), "not an image"),
    ):
        what = "AVIF, HEIC, JPEG 2000, PSD, PDF, SVG, HTML, an archive, a Git LFS pointer, a text"
        yield refused(name, what, data, reason)
    yield refused("empty.jpg", "an empty file", b"", "the file is empty")
