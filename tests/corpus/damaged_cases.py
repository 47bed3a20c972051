"""JPEGs that something is wrong with: mended where the pixels are whole, refused where not."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from PIL import Image

from tests.corpus.build import (
    EOI,
    SOI,
    Case,
    Pixels,
    cjpeg,
    exif,
    framed,
    grain,
    inserted,
    jpeg,
    markers,
    picture,
    refused,
    segment,
    segments,
    without,
)

_BEHIND = "bytes behind the end of the picture"
_NO_END = "the end marker is missing"
_ZEROS = "zero bytes before the end marker"
_MP4 = struct.pack(">I", 24) + b"ftypmp42\0\0\0\0mp42isom" + struct.pack(">I", 4000) + b"mdat"
_MP4 += bytes(range(256)) * 15 + bytes(152)


def mended(name: str, what: str, data: bytes, written: bytes | None, *repaired: str) -> Case:
    """A file of :func:`picture` that is written with a flaw mended."""
    return Case(name, what, data, picture(), written=written, repaired=repaired)


def _kinds(photo: Pixels) -> dict[str, tuple[bytes, str]]:
    """JPEGs that are encoded anew, and what that is recorded as: flaws show in them as well."""
    return {
        "progressive": (jpeg(photo, progressive=True), "progressive JPEG"),
        "arithmetic": (cjpeg(photo, "-arithmetic"), "arithmetic-coded JPEG"),
        "scans": (cjpeg(photo, script="0;1;2;"), "JPEG in several scans"),
        "rgb": (cjpeg(photo, "-rgb"), "RGB JPEG"),
        "cmyk": (jpeg(Image.fromarray(photo).convert("CMYK")), "CMYK JPEG"),
        "sampling": (cjpeg(photo, "-sample", "3x1"), "JPEG of unusual sampling"),
    }


def mended_jpegs() -> Iterator[Case]:
    """Flaws that leave the pixels whole."""
    plain = jpeg(picture())
    body = plain[: -len(EOI)]
    tails = {
        "zero": b"\0",
        "zeros": bytes(5000),
        "newline": b"\r\n",
        "marker": EOI,
        "text": b"appended by a camera",
        "garbage": grain(9, 9).tobytes(),
        "zip": b"PK\3\4" + bytes(200),
        "zeros-jpeg": bytes(7) + plain,
    }
    for name, tail in tails.items():
        what = "a baseline JPEG with anything but a JPEG behind its end marker: zeros, text, a film"
        yield mended(f"behind-{name}.jpg", what, plain + tail, plain, _BEHIND)
    yield mended("motion-photo.jpg", what, plain + _MP4, plain, _BEHIND)
    what = "a baseline JPEG without its end marker, all picture data being there"
    yield mended("no-end.jpg", what, body, plain, _NO_END)
    # A first byte of the marker that is left is a fill byte before the one that is added.
    yield mended("half-an-end.jpg", what, body + b"\xff", body + b"\xff" + EOI, _NO_END)
    restarts = jpeg(picture(), restart_marker_blocks=4)
    yield mended("no-end-restarts.jpg", what, restarts[:-2], restarts, _NO_END)
    what = "a baseline JPEG with many zero bytes before its end marker"
    for count in (40, 4096):
        data = body + bytes(count) + EOI
        yield mended(f"zeros-{count}.jpg", what, data, body + b"\0" + EOI, _ZEROS)
    what = "a baseline JPEG with zero bytes before its end marker, so few that no decoder minds"
    yield mended("zeros-1.jpg", what, body + b"\0" + EOI, body + b"\0" + EOI)
    what = "a baseline JPEG with zero bytes before its end marker and anything behind that"
    data = body + bytes(60) + EOI + b"tail"
    yield mended("zeros-behind.jpg", what, data, body + b"\0" + EOI, _BEHIND, _ZEROS)
    for name, (data, kind) in _kinds(picture()).items():
        what = "a JPEG of another kind with one of these flaws"
        flaws = {
            "behind": (data + b"tail", _BEHIND),
            "no-end": (data[: -len(EOI)], _NO_END),
            "zeros": (data[: -len(EOI)] + bytes(60) + EOI, _ZEROS),
        }
        for flaw, (bad, reason) in flaws.items():
            case = mended(f"{flaw}-{name}.jpg", what, bad, None, reason)
            yield replace(case, treated=(kind,), mean=4, most=60)


def truncated_jpegs() -> Iterator[Case]:
    """Cut short, with and without an end marker put back on."""
    plain = jpeg(grain())
    scan = segments(plain)[-1][2]
    what = "a JPEG that ends inside its header"
    for at in (3, 40, scan - 1):
        yield refused(f"cut-header-{at}.jpg", what, plain[:at], "truncated JPEG: the file ends")
    yield refused("cut-header-forged.jpg", what, plain[:20] + EOI, "truncated JPEG")
    data = plain[: scan - 14] + EOI + bytes(99)
    yield refused("cut-header-end.jpg", what, data, "it ends before its first scan")
    data = SOI + segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0") + EOI
    yield refused("cut-no-scan.jpg", what, data, "inside its header|before its first scan")
    what = "a JPEG that ends inside its picture, also with an end marker put back on"
    parts = {"0": 0, "20": 0.2, "50": 0.5, "90": 0.9}
    length = len(plain) - len(EOI) - scan
    places = {name: scan + int(length * part) for name, part in parts.items()}
    places["one-byte"] = len(plain) - len(EOI) - 1
    sources = {"": plain, "grey-": jpeg(Image.fromarray(grain()).convert("L"))}
    for kind, (data, _) in _kinds(grain()).items():
        sources[f"{kind}-"] = data
    for kind, data in sources.items():
        for name, at in places.items() if not kind else {"50": len(data) * 2 // 3}.items():
            cut = data[:at].rstrip(b"\xff")
            yield refused(f"cut-{kind}{name}.jpg", what, cut, "truncated|premature end")
            reason = "premature end|some of its scans are missing"
            yield refused(f"cut-{kind}{name}-forged.jpg", what, cut + EOI, reason)
    data = plain[: scan + 800] + EOI + plain[scan + 800 :]
    yield refused("end-inside.jpg", what, data, "premature end")
    data = plain[: -len(EOI)] + bytes(60)
    what = "a JPEG with zero bytes in the place of its end marker"
    yield refused("zeros-no-end.jpg", what, data, "truncated JPEG")
    yield from _lost_scans()


def _lost_scans() -> Iterator[Case]:
    what = "a progressive JPEG, or one in several scans, of which some are missing"
    for name, data in {
        "progressive": jpeg(picture(), progressive=True),
        "scans": cjpeg(picture(), script="0;1;2;"),
        "arithmetic": cjpeg(picture(), "-arithmetic", "-progressive"),
    }.items():
        # Where a scan's own tables begin, up to which the file is whole.
        starts = [
            at for kind, at in markers(data) if kind in (0xC4, 0xCC, 0xDA)
        ]  # of Huffman or arithmetic coding
        for number, at in {"first": starts[0], "last": starts[-1]}.items():
            for end, tail in {"": b"", "-forged": EOI}.items():
                file = f"lost-{name}-{number}{end}.jpg"
                yield refused(file, what, data[:at] + tail, "some of its scans are missing")


def damaged_jpegs() -> Iterator[Case]:
    """Whole at first sight."""
    plain, restarts = jpeg(grain()), jpeg(grain(), restart_marker_blocks=2)
    found = [at for kind, at in markers(restarts) if 0xD0 <= kind <= 0xD7]
    assert len(found) == 14
    a, b, c = found[3:6]
    what = "a JPEG with restart markers missing, repeated, in another order or at other intervals"
    interval = next(start for marker, start, _ in segments(restarts) if marker == 0xDD)
    for name, data in {
        "missing": restarts[:a] + restarts[a + 2 :],
        "lost": restarts[:a] + restarts[b:],
        "repeated": restarts[:a] + restarts[a : a + 2] + restarts[a:],
        "twice": restarts[:b] + restarts[a:b] + restarts[b:],
        "swapped": restarts[: a + 1]
        + restarts[b + 1 : b + 2]
        + restarts[a + 2 : b + 1]
        + restarts[a + 1 : a + 2]
        + restarts[b + 2 :],
        "exchanged": restarts[:a] + restarts[b:c] + restarts[a:b] + restarts[c:],
        "no-interval": without(restarts, lambda marker, body: marker == 0xDD),
        "other-interval": restarts[: interval + 5] + b"\1" + restarts[interval + 6 :],
        "none": inserted(plain, segment(0xDD, b"\0\2"), before=0xDA),
        "wrong": restarts[: a + 1] + bytes([restarts[a + 1] ^ 4]) + restarts[a + 2 :],
    }.items():
        yield refused(f"restarts-{name}.jpg", what, data, "restart markers")
    scan = segments(plain)[-1][2]
    middle = scan + (len(plain) - scan) // 2
    what = "a JPEG with damage in its picture data that the decoder notices"
    noise = bytes(byte % 255 for byte in grain(20, 20).tobytes())
    for name, data in {
        "removed": plain[:middle] + plain[middle + 300 :],
        "zeroed": plain[:middle] + bytes(300) + plain[middle + 300 :],
        "overwritten": plain[:middle] + noise[:500] + plain[middle + 500 :],
        "garbage": plain[: -len(EOI)] + noise[:200] + EOI,
        "taller": framed(plain, height=70),
        "wider": framed(plain, width=61),
        "flatter": framed(plain, height=16),
    }.items():
        yield refused(f"damage-{name}.jpg", what, data, "Corrupt JPEG")
    bare = without(plain, lambda marker, body: marker == 0xDB)
    yield refused("damage-no-tables.jpg", what, bare, "Quantization table 0x00 was not defined")
    odd = cjpeg(grain(), "-sample", "3x1")
    data = odd[:1500] + odd[1800:]
    yield refused("damage-sampling.jpg", what, data, "Corrupt JPEG")
    what = "a JPEG with markers inside its picture"
    table = next(plain[start:end] for marker, start, end in segments(plain) if marker == 0xC4)
    frame = next(plain[start:end] for marker, start, end in segments(plain) if marker == 0xC0)
    for name, (piece, reason) in {
        "tables": (table, "expected a marker"),
        "frame": (frame, "inside the picture"),
        "start": (SOI, "the file ends inside its header"),
        "reserved": (b"\xff\x02\0\2", "expected a marker"),
        "restart": (b"\xff\xd0", "restart markers"),
        "exif": (segment(0xE1, exif()), "expected a marker"),
    }.items():
        data = plain[:middle].rstrip(b"\xff") + piece + plain[middle:]
        yield refused(f"marker-{name}.jpg", what, data, reason)
    yield from _wrong_headers(jpeg(picture()))


def _wrong_headers(plain: bytes) -> Iterator[Case]:
    what = "a JPEG whose header claims no pixels, or more than 178,956,970"
    reason = "178,?956,?970"
    yield refused("huge.jpg", what, framed(plain, width=60_000, height=60_000), reason)
    data = framed(jpeg(picture(), progressive=True), width=60_000, height=60_000)
    yield refused("huge-progressive.jpg", what, data, reason)
    yield refused("huge-by-one-row.jpg", what, framed(plain, width=65_500, height=2733), reason)
    yield refused("no-height.jpg", what, framed(plain, height=0), "45x0 pixels")
    yield refused("no-width.jpg", what, framed(plain, width=0), "0x35 pixels")
    what = "a JPEG with bytes before its first marker"
    yield refused("leading.jpg", what, b"\n" + plain, "not an image")
    # Decoders warn of these, and then assume what is put there.
    what = "a JPEG with JFIF revision 2.01, or an Adobe segment of an unknown transform code"
    newer = plain.replace(b"JFIF\0\1\1", b"JFIF\0\2\1")
    assert newer != plain
    repaired = ("unknown codes in the header",)
    yield Case("jfif-2.jpg", what, newer, picture(), written=plain, repaired=repaired)
    bare = without(plain, lambda marker, body: marker == 0xE0)
    for code in (2, 7):
        adobe, usual = (
            inserted(bare, segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([number])))
            for number in (code, 1)
        )
        yield Case(f"adobe-{code}.jpg", what, adobe, picture(), written=usual, repaired=repaired)
