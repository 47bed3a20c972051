"""JPEGs with nothing wrong about them: written as they are, cut, or encoded anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from PIL import Image

from tests.corpus.build import (
    EOI,
    ORIENTATION,
    Case,
    Pixels,
    cjpeg,
    encoded,
    exif,
    framed,
    grain,
    grey,
    inserted,
    jpeg,
    markers,
    picture,
    refused,
    segment,
    segments,
    thumbnail,
    without,
)

_BASELINE = "a baseline JPEG of 8 bits, grey or YCbCr in a common sampling, upright"
_SAMPLINGS = {"444": "1x1", "422": "2x1", "420": "2x2", "440": "1x2", "411": "4x1"}
_SIZES = [(1, 1), (1, 37), (37, 1), (17, 9), (16, 32)]
MOST_METADATA = 65_536


def kept(name: str, what: str, data: bytes, pixels: Pixels | None = None) -> Case:
    """A file that is written byte for byte."""
    return Case(name, what, data, picture() if pixels is None else pixels, written=data)


def anew(name: str, what: str, data: bytes, *treated: str, pixels: Pixels | None = None) -> Case:
    """A JPEG that is decoded and encoded anew."""
    return Case(name, what, data, picture() if pixels is None else pixels, treated=treated)


def kept_jpegs() -> Iterator[Case]:
    """Whatever decoders everywhere take."""
    photo, plain = picture(), jpeg(picture())
    for width, height in _SIZES:
        # Of little colour: at these sizes most of it is lost where chroma is coarse.
        small = (0.85 * grey(picture(width, height)) + 0.15 * picture(width, height)).astype("u1")
        for name, sampling in _SAMPLINGS.items():
            data = cjpeg(small, "-sample", sampling)
            yield kept(f"sampling-{name}-{width}x{height}.jpg", _BASELINE, data, small)
        data = jpeg(Image.fromarray(small).convert("L"))
        yield kept(f"grey-{width}x{height}.jpg", _BASELINE, data, grey(small))
    image = Image.fromarray(photo).convert("L")
    for name, interval in {"": 0, "-restarts": 3}.items():
        # A single component is never interleaved: its sampling factors mean nothing.
        data = jpeg(image, restart_marker_blocks=interval)
        at = next(start for marker, start, _ in segments(data) if marker == 0xC0) + 11
        data = data[:at] + b"\x22" + data[at + 1 :]
        yield kept(f"grey-sampling{name}.jpg", _BASELINE, data, grey(photo))
    yield kept("optimised.jpg", _BASELINE, jpeg(photo, optimize=True))
    yield kept("jpeg-under-png.png", _BASELINE + ", under a name that ends in .png", plain)
    yield kept("comment.jpg", "the same with a comment", jpeg(photo, comment=b"a comment"))
    yield kept("icc-small.jpg", "the same with a colour profile", jpeg(photo, icc_profile=_icc(3)))
    grown = inserted(plain, segment(0xED, b"Photoshop 3.0\0" + bytes(40)), segment(0xE5, b"mine"))
    grown = inserted(grown, segment(0xE9, b"late"), segment(0xFE, b""), before=0xC0)
    yield kept("segments.jpg", "the same with further APP segments, before or behind JFIF's", grown)
    yield kept("no-jfif.jpg", "the same without a JFIF segment", _without(plain, 0xE0))
    filled = plain[:2] + b"\xff" * 5 + plain[2:]
    filled = inserted(filled, b"\xff\xff", before=0xC0)[: -len(EOI)] + b"\xff\xff" + EOI
    yield kept("fill-bytes.jpg", "the same with fill bytes before its markers", filled)
    behind = plain[: -len(EOI)] + segment(0xFE, b"behind the scan") + EOI
    yield kept("comment-behind.jpg", "the same with a comment behind its scan", behind)
    for name, interval in {"1": 1, "7": 7, "more": 1000}.items():
        data = jpeg(photo, restart_marker_blocks=interval)
        yield kept(f"restarts-{name}.jpg", "the same with restart markers", data)
    none = inserted(plain, segment(0xDD, bytes(2)), before=0xDA)
    yield kept("restarts-off.jpg", "the same with restart markers", none)
    yield from _adobe(plain)
    yield from _kept_exif(plain)


def _kept_exif(plain: bytes) -> Iterator[Case]:
    what = "the same with EXIF data that say upright, or nothing valid, of its orientation"
    bodies = {
        "upright": exif((ORIENTATION, 3, 1)),
        "nine": exif((ORIENTATION, 3, 9)),
        "zero": exif((ORIENTATION, 3, 0)),
        "empty": exif(),
        "cut": b"Exif\0\0II*\0" + bytes([200, 0, 0, 0]),
        "no-tiff": b"Exif\0\0nonsense",
    }
    for name, body in bodies.items():
        yield kept(f"exif-{name}.jpg", what, inserted(plain, segment(0xE1, body)))
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x:xmpmeta tiff:Orientation="6"/>'
    what = "the same with an orientation in XMP only"
    yield kept("xmp.jpg", what, inserted(plain, segment(0xE1, xmp)))
    body = exif((0x0128, 3, 2), more=thumbnail(6))
    what = "the same with a thumbnail in its EXIF data (a JPEG, or turned otherwise)"
    yield kept("thumbnail.jpg", what, inserted(plain, segment(0xE1, body)))
    body = exif((0x011A, 3, 72), (0x0128, 3, 2)) + jpeg(grain(20, 20))
    yield kept("thumbnail-behind.jpg", what, inserted(plain, segment(0xE1, body)))
    # As many bytes as are kept: a segment has a marker and a length of two bytes each.
    most = segment(0xE4, bytes(MOST_METADATA // 2 - 4))
    what = "the same with metadata of 65,536 bytes"
    yield kept("metadata-most.jpg", what, inserted(plain, most, most))


def cut_jpegs() -> Iterator[Case]:
    """JPEGs of which a part is left out and the picture's own bytes stay."""
    photo, plain = picture(), jpeg(picture())
    what = "the same with more than 65,536 bytes of metadata"
    for name, data in {
        "one": inserted(
            plain, *[segment(0xE4, bytes(MOST_METADATA // 2 - 4))] * 2, b"\xff\xfe\0\2"
        ),
        "icc": jpeg(photo, icc_profile=_icc(100_000), comment=b"gone as well"),
        "jumbo": inserted(plain, *[segment(0xEB, bytes(60_000))] * 20),
    }.items():
        bare = without(data, lambda marker, body: 0xE1 <= marker <= 0xEF or marker == 0xFE)
        assert len(bare) < 6000
        case = kept(f"metadata-{name}.jpg", what, data)
        yield replace(case, written=bare, treated=("metadata removed",))
    first = Image.fromarray(photo)
    options = {"save_all": True, "append_images": [Image.fromarray(grain())], "quality": 95}
    mpo = encoded(first, "MPO", subsampling=0, **options)
    bare = without(mpo, lambda marker, body: body.startswith(b"MPF\0"))
    assert len(bare) < len(mpo)
    assert without(mpo, lambda marker, body: marker == 0xE2) == bare
    end = next(at for kind, at in markers(bare) if kind == 0xD9) + 2
    treated = ("further pictures cut off",)
    what = "the same with a further JPEG behind it (a phone's depth map or gain map, MPO)"
    yield replace(kept("mpo.jpg", what, mpo), written=bare[:end], treated=treated)
    two = plain + jpeg(grain())
    yield replace(kept("two.jpg", what, two), written=plain, treated=treated)


def oriented_jpegs() -> Iterator[Case]:
    """The eight orientations, applied or not."""
    photo, plain = picture(), jpeg(picture())
    views = {
        1: photo,
        2: photo[:, ::-1],
        3: photo[::-1, ::-1],
        4: photo[::-1],
        5: photo.swapaxes(0, 1),
        6: np.rot90(photo, -1),
        7: photo[::-1, ::-1].swapaxes(0, 1),
        8: np.rot90(photo),
    }
    what = "the same with an EXIF orientation of 2 to 8"
    for number in range(2, 9):
        bodies = {
            "": exif((ORIENTATION, 3, number)),
            "-big-endian": exif((0x0128, 3, 2), (ORIENTATION, 3, number), order=">"),
            "-long": exif((ORIENTATION, 4, number)),
            "-thumbnail": exif((ORIENTATION, 3, number), more=thumbnail(1)),
        }
        for name, body in bodies.items() if number in (6, 7) else [("", bodies[""])]:
            data = inserted(plain, segment(0xE1, body))
            turned = np.ascontiguousarray(views[number])
            yield anew(f"exif-{number}{name}.jpg", what, data, "EXIF orientation", pixels=turned)
            case = kept(f"exif-{number}{name}-ignored.jpg", f"{what}, `--exif ignore`", data)
            ignored = ("EXIF orientation ignored",)
            yield replace(case, written=plain, treated=ignored, exif="ignore")
    turned = np.ascontiguousarray(views[6])
    data = inserted(jpeg(photo, progressive=True), segment(0xE1, exif((ORIENTATION, 3, 6))))
    what = "a progressive JPEG with an EXIF orientation"
    treated = "progressive JPEG", "EXIF orientation"
    yield anew("exif-progressive.jpg", what, data, *treated, pixels=turned)
    case = anew("exif-progressive-ignored.jpg", f"{what}, `--exif ignore`", data)
    treated = "progressive JPEG", "EXIF orientation ignored"
    yield replace(case, treated=treated, exif="ignore")
    upright = inserted(plain, segment(0xE1, exif((ORIENTATION, 3, 1))))
    case = kept("exif-1-ignored.jpg", f"{_BASELINE}, `--exif ignore`", upright)
    yield replace(case, exif="ignore")


def unusual_jpegs() -> Iterator[Case]:
    """What only some decoders take."""
    photo, plain = picture(), jpeg(picture())
    for name, data in {
        "444": jpeg(photo, progressive=True),
        "420": jpeg(photo, progressive=True, subsampling=2),
        "restarts": jpeg(photo, progressive=True, restart_marker_blocks=3),
    }.items():
        yield anew(f"progressive-{name}.jpg", "a progressive JPEG", data, "progressive JPEG")
    grey_image = Image.fromarray(photo).convert("L")
    data = jpeg(grey_image, progressive=True)
    what, kind = "a progressive JPEG", "progressive JPEG"
    yield anew("progressive-grey.jpg", what, data, kind, pixels=grey(photo))
    for name in ("arithmetic-coded", "arithmetic-coded progressive"):
        flags = ["-arithmetic", *(["-progressive"] if "prog" in name else [])]
        data = cjpeg(photo, "-sample", "1x1", *flags)
        yield anew(f"{name}.jpg".replace(" ", "-"), f"an {name} JPEG", data, f"{name} JPEG")
    kind = "extended sequential JPEG"
    yield anew("extended.jpg", f"an {kind}", framed(plain, 0xC1), kind)
    kind = "JPEG in several scans"
    for name, script in {"1-1-1": "0;1;2;", "1-2": "0;1,2;", "2-1": "0,2;1;"}.items():
        data = cjpeg(photo, "-sample", "1x1", script=script)
        assert [marker for marker, _ in markers(data)].count(0xDA) == len(script.split(";")) - 2
        yield anew(f"scans-{name}.jpg", f"a {kind}", data, kind)
    kind = "JPEG without Huffman tables"
    what = f"a {kind} (a frame of a Motion JPEG), or without some of them"
    yield anew("no-huffman.jpg", what, _without(plain, 0xC4), kind)
    last = [data for marker, *data in segments(plain) if marker == 0xC4][-1]
    yield anew("one-huffman-less.jpg", what, plain[: last[0]] + plain[last[1] :], kind)
    for sampling in ("3x1", "1x4", "2x4", "4x2", "1x3", "2x2,1x2,1x1", "2x1,1x1,2x1", "1x1,2x1"):
        data = cjpeg(photo, "-sample", sampling)
        what, kind = "a JPEG of unusual sampling (3x1, 1x4, ...)", "JPEG of unusual sampling"
        case = anew(f"sampling-{sampling.replace(',', '-')}.jpg", what, data, kind)
        yield replace(case, mean=4, most=60)
    kind = "JPEG of contradictory colours"
    what = "a JPEG whose JFIF segment says YCbCr and whose Adobe segment says RGB"
    yield anew("jfif-adobe-0.jpg", what, inserted(plain, adobe(0)), kind)
    yield from _colours(photo)
    yield from _not_taken(plain)


def _colours(photo: Pixels) -> Iterator[Case]:
    rgb = cjpeg(photo, "-rgb")
    yield anew("rgb.jpg", "an RGB JPEG", rgb, "RGB JPEG")
    yield anew("rgb-no-adobe.jpg", "an RGB JPEG", _without(rgb, 0xEE), "RGB JPEG")
    # By hand: ink of each colour is what the paper lacks of it, and black takes from all of them.
    black = np.linspace(0, 120, photo.shape[1]).astype(np.uint8)[None, :].repeat(len(photo), 0)
    inks = np.concatenate([255 - photo, black[:, :, None]], 2)
    seen = np.rint(photo.astype(np.float64) * (255 - black[:, :, None]) / 255).astype(np.uint8)
    cmyk = jpeg(Image.frombytes("CMYK", inks.shape[1::-1], inks.tobytes()))
    yield anew("cmyk.jpg", "a CMYK JPEG", cmyk, "CMYK JPEG", pixels=seen)
    bare = _without(cmyk, 0xEE)
    yield anew("cmyk-no-adobe.jpg", "a CMYK JPEG", bare, "CMYK JPEG", pixels=seen)
    # Adobe stores inks inverted, and as YCbCr where its transform code is 2.
    converted = np.asarray(Image.fromarray(255 - photo).convert("YCbCr"))
    stored = np.concatenate([converted, 255 - black[:, :, None]], 2)
    ycck = jpeg(Image.frombytes("CMYK", inks.shape[1::-1], (255 - stored).tobytes()))
    at = ycck.index(b"Adobe") + 11
    ycck = ycck[:at] + b"\2" + ycck[at + 1 :]
    yield anew("ycck.jpg", "a YCCK JPEG", ycck, "YCCK JPEG", pixels=seen)


def _not_taken(plain: bytes) -> Iterator[Case]:
    twelve = framed(plain, 0xC1, precision=12)
    yield refused("12-bit.jpg", "a JPEG of 12 bits a sample", twelve, "of 12 bits a sample")
    for marker, name in {0xC3: "lossless", 0xCB: "arithmetic-coded lossless"}.items():
        file = f"{name.replace(' ', '-')}.jpg"
        yield refused(file, "a lossless JPEG", framed(plain, marker), f"{name} JPEG")
    for marker in (0xC5, 0xC6, 0xC7):
        data = framed(plain, marker)
        yield refused(f"hierarchical-{marker}.jpg", "a hierarchical JPEG", data, "hierarchical")
    leading = inserted(plain, segment(0xDE, bytes([8, 0, 35, 0, 45, 0])))
    leading = framed(leading, 0xC5)
    yield refused("hierarchical-dhp.jpg", "a hierarchical JPEG", leading, "hierarchical")
    frame, end = next(row[1:] for row in segments(plain) if row[0] == 0xC0)
    head = segment(0xC0, plain[frame + 4 : frame + 9] + b"\2" + plain[frame + 10 : frame + 16])
    scan = segment(0xDA, b"\2\1\0\2\x11\0\x3f\0")
    start = segments(plain)[-1]
    data = plain[:frame] + head + plain[end : start[1]] + scan + plain[start[2] :]
    yield refused("two-components.jpg", "a JPEG of two components", data, "2 components")


def _adobe(plain: bytes) -> Iterator[Case]:
    bare = _without(plain, 0xE0)
    what = "the same with an Adobe segment that says YCbCr, or any but RGB beside a JFIF segment"
    yield kept("adobe-1.jpg", what, inserted(bare, adobe(1)))
    for code in (1, 2, 7):
        yield kept(f"jfif-adobe-{code}.jpg", what, inserted(plain, adobe(code)))


def adobe(code: int) -> bytes:
    """An Adobe segment with a colour transform code."""
    return segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([code]))


def _without(data: bytes, marker: int) -> bytes:
    return without(data, lambda found, body: found == marker)


def _icc(size: int) -> bytes:
    """Bytes in the place of a colour profile, which nothing reads."""
    return np.random.default_rng(1).bytes(size * 1000 if size < 100 else size)
