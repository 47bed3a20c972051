"""PNG in all its kinds of pixels, sound, mended and refused."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from PIL import Image

from tests.corpus.build import (
    HEIGHT,
    ORIENTATION,
    WIDTH,
    Case,
    Pixels,
    adam7,
    altered,
    as_eight_bits,
    chunk,
    chunks,
    deep_samples,
    encoded,
    exact,
    exif,
    grain,
    grey,
    on_white,
    opacities,
    picture,
    png,
    refused,
    unfiltered,
)

_BEHIND = "bytes behind the end of the picture"
_NO_END = "the end marker is missing"
_METADATA = "damaged metadata"
_MANY = "178,?956,?970"
_TURN = "EXIF orientation"
_TIFF6 = exif((ORIENTATION, 3, 6))[6:]  # without JPEG's prefix


def png_cases() -> Iterator[Case]:
    """PNG in all its kinds of pixels."""
    photo, image = picture(), Image.fromarray(picture())
    what = "PNG of 8 bits a sample or fewer, under any name, interlaced or animated"
    yield exact("png.png", what, encoded(image, "PNG"), "PNG", photo)
    yield exact("png-under-jpg.jpg", what, encoded(image, "PNG"), "PNG", photo)
    yield exact("png-grey.png", what, encoded(image.convert("L"), "PNG"), "PNG", grey(photo))
    few = image.quantize(40)
    yield exact("png-palette.png", what, encoded(few, "PNG"), "PNG", np.array(few.convert("RGB")))
    bits = np.asarray(image.convert("L")) > 120
    shown = np.repeat(bits[:, :, None], 3, 2).astype(np.uint8) * 255
    yield exact("png-1-bit.png", what, encoded(Image.fromarray(bits), "PNG"), "PNG", shown)
    woven = png(WIDTH, HEIGHT, 8, 2, adam7(photo), interlaced=True)
    yield exact("png-interlaced.png", what, woven, "PNG", photo)
    frames = {"save_all": True, "append_images": [Image.fromarray(grain())]}
    yield exact("apng.png", what, encoded(image, "PNG", **frames), "PNG", photo)
    data = encoded(image, "PNG", exif=exif((ORIENTATION, 3, 1))[6:])
    yield exact("png-exif-upright.png", what, data, "PNG", photo)
    for width, height in ((1, 1), (1, 37), (37, 1)):
        small = picture(width, height)
        yield exact(f"png-{width}x{height}.png", what, encoded(small, "PNG"), "PNG", small)
    what = "PNG of 16 bits a sample"
    deep = deep_samples(1)
    plain = png(WIDTH, HEIGHT, 16, 0, unfiltered(deep))
    yield exact("png-16-grey.png", what, plain, "PNG", as_eight_bits(deep))
    deep = deep_samples(3)
    rows = unfiltered(deep.reshape(HEIGHT, -1))
    data = png(WIDTH, HEIGHT, 16, 2, rows)
    yield exact("png-16-rgb.png", what, data, "PNG", as_eight_bits(deep), most=1)
    what = "PNG, WebP or TIFF with an EXIF orientation of 2 to 8"
    turned = np.ascontiguousarray(np.rot90(photo, -1))
    yield exact("png-exif.png", what, encoded(image, "PNG", exif=_TIFF6), "PNG", turned, _TURN)
    yield from _transparent_pngs(photo, image)


def _transparent_pngs(photo: Pixels, image: Image.Image) -> Iterator[Case]:
    what, alpha = "PNG with transparent pixels, shown on white", opacities()
    luma = np.asarray(image.convert("L"))
    for name, base, seen in (("rgba", photo, photo), ("la", luma, grey(photo))):
        stacked = np.concatenate([base.reshape(HEIGHT, WIDTH, -1), alpha[:, :, None]], 2)
        data = encoded(Image.fromarray(stacked), "PNG")
        yield exact(f"png-{name}.png", what, data, "PNG", on_white(seen, alpha), most=1)
    few = image.quantize(40)
    index = np.asarray(few)
    opacity = np.arange(0, 240, 6).astype(np.uint8)
    shown = on_white(np.array(few.convert("RGB")), opacity[index])
    data = encoded(few, "PNG", transparency=opacity.tobytes())
    yield exact("png-palette-trns.png", what, data, "PNG", shown, most=1)
    key = int(luma[7, 9])
    shown = np.where((luma == key)[:, :, None], 255, grey(photo)).astype(np.uint8)
    data = encoded(image.convert("L"), "PNG", transparency=key)
    yield exact("png-grey-trns.png", what, data, "PNG", shown)
    colour = photo[7, 9]
    hidden = (photo == colour).all(2)
    shown = np.where(hidden[:, :, None], 255, photo).astype(np.uint8)
    data = encoded(image, "PNG", transparency=tuple(map(int, colour)))
    yield exact("png-rgb-trns.png", what, data, "PNG", shown)
    bits = luma > 120
    white = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    data = encoded(Image.fromarray(bits), "PNG", transparency=0)
    yield exact("png-1-bit-trns.png", what, data, "PNG", white)
    what = "PNG of 16 bits a sample with transparent pixels"
    deep = deep_samples(1)
    shown = np.where((deep == deep[7, 9])[:, :, None], 255, as_eight_bits(deep)).astype(np.uint8)
    key16 = chunk(b"tRNS", struct.pack(">H", deep[7, 9]))
    data = png(WIDTH, HEIGHT, 16, 0, unfiltered(deep), key16)
    yield exact("png-16-grey-trns.png", what, data, "PNG", shown)
    deep = deep_samples(3)
    hidden = (deep == deep[7, 9]).all(2)
    shown = np.where(hidden[:, :, None], 255, as_eight_bits(deep)).astype(np.uint8)
    key16 = chunk(b"tRNS", deep[7, 9].astype(">u2").tobytes())
    data = png(WIDTH, HEIGHT, 16, 2, unfiltered(deep.reshape(HEIGHT, -1)), key16)
    yield exact("png-16-rgb-trns.png", what, data, "PNG", shown, most=1)
    for channels, kind in ((2, 4), (4, 6)):
        deep = deep_samples(channels)
        seen, clear = as_eight_bits(deep[:, :, :-1]), deep[:, :, -1] / 257
        seen = np.repeat(seen, 3, 2) if channels == 2 else seen
        data = png(WIDTH, HEIGHT, 16, kind, unfiltered(deep.reshape(HEIGHT, -1)))
        name = f"png-16-{channels}.png"
        yield exact(name, what, data, "PNG", on_white(seen, clear), most=2)


def damaged_pngs() -> Iterator[Case]:
    """Wrong checksums, and files cut short."""
    photo, image = picture(), Image.fromarray(picture())
    plain = encoded(image, "PNG")
    body = plain[:-12]  # without IEND
    text = chunk(b"tEXt", b"Comment\0made by hand")

    def mended(name: str, what: str, data: bytes, *repaired: str) -> Case:
        return Case(name, what, data, photo, "", None, ("PNG",), repaired, mean=0, most=0)

    what = "PNG with a wrong checksum in metadata (text, time, a later frame, ...)"
    for name, kind, whole in (
        ("text", b"tEXt", plain[:33] + text + plain[33:]),
        ("gamma", b"gAMA", plain[:33] + chunk(b"gAMA", struct.pack(">I", 45455)) + plain[33:]),
        ("frame", b"fdAT", encoded(image, "PNG", save_all=True, append_images=[image.rotate(90)])),
    ):
        yield mended(f"png-crc-{name}.png", what, altered(whole, kind), _METADATA)
    what = "PNG without its end marker, all picture data being there"
    for name, data in {"": body, "-part": plain[:-5], "-text": body + text}.items():
        yield mended(f"png-no-end{name}.png", what, data, _NO_END)
    yield mended("png-no-end-cut-text.png", what, body + text[:15], _NO_END)
    what = "PNG with bytes behind its end marker"
    for name, tail in {"zeros": bytes(100), "png": plain, "zip": b"PK\3\4tail"}.items():
        yield mended(f"png-behind-{name}.png", what, plain + tail, _BEHIND)
    what = "PNG with several of these flaws"
    both = altered(plain[:33] + text + plain[33:], b"tEXt")
    yield mended("png-crc-behind.png", what, both + b"tail", _METADATA, _BEHIND)
    yield mended("png-crc-no-end.png", what, both[:-12], _METADATA, _NO_END)
    few = encoded(image.quantize(40), "PNG", transparency=bytes(range(40)))
    what = "PNG with a wrong checksum in what its pixels depend on"
    for kind, data in {b"IDAT": plain, b"IHDR": plain, b"PLTE": few, b"tRNS": few}.items():
        name = kind.decode()
        yield refused(
            f"png-crc-{name}.png", what, altered(data, kind), "does not match its checksum"
        )
    yield refused("png-bits-idat.png", what, altered(plain, b"IDAT", checksum=False), "chunk IDAT")
    what = "PNG that ends inside its picture, also with an end marker put back on"
    end = chunk(b"IEND", b"")
    for name, data in {
        "header": plain[:20],
        "no-data": plain[:33],
        "no-data-forged": plain[:33] + end,
        "half": plain[: len(plain) // 2],
        "last-byte": body[:-1],
        "half-forged": plain[: len(plain) // 2] + end,
    }.items():
        yield refused(f"png-cut-{name}.png", what, data, "truncated PNG|cannot load this image")
    packed = next(piece for kind, piece in chunks(plain) if kind == b"IDAT")
    parts = [chunk(b"IDAT", packed[:600]), chunk(b"IDAT", packed[600:])]
    whole = plain[:33] + b"".join(parts) + end
    yield exact(
        "png-two-parts.png",
        "PNG of 8 bits a sample or fewer, under any name, interlaced or animated",
        whole,
        "PNG",
        photo,
    )
    yield refused("png-lost-part.png", what, plain[:33] + parts[0], "truncated")
    yield refused("png-lost-part-forged.png", what, plain[:33] + parts[0] + end, "truncated")
    what = "PNG, GIF or BMP whose header claims more than 178,956,970 pixels"
    huge = png(60_000, 60_000, 8, 2, bytes(1000))
    yield refused("huge.png", what, huge, _MANY)
    flat = encoded(image, "BMP")
    yield refused(
        "huge.bmp", what, flat[:18] + struct.pack("<ii", 60_000, 60_000) + flat[26:], _MANY
    )
    gif = encoded(image.quantize(16), "GIF")
    yield refused("huge.gif", what, gif[:6] + struct.pack("<HH", 60_000, 60_000) + gif[10:], _MANY)
