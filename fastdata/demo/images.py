"""The built-in sample data: procedural images of ten classes of pattern.

Each image is one pattern, its class, painted as a relief map and then "photographed": mottled with
multi-scale noise, coloured through a random palette, lit unevenly and given sensor grain, so that
its JPEG takes about as many bytes a pixel as a camera's. Rotation, scale, colour and contrast are
random in every class and no class depends on left or right: only the shapes tell, and crops and
flips leave the label true.

Everything follows from ``(seed, index)``. The random numbers come from ``numpy.random.Generator``,
whose streams NumPy may change from version to version, and the pixels depend on OpenCV's
arithmetic too: good enough for sample data, which need only be the same on one installation.
"""

import colorsys
import os
from collections.abc import Callable, Sequence
from functools import partial
from math import ceil, cos, hypot, log2, pi, sin
from pathlib import Path

import cv2
import numpy as np
import simplejpeg
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from fastdata.errors import UsageError
from fastdata.threads import Threads

__all__ = ["CLASSES", "SIZES", "draw", "write_folder"]

Size = tuple[int, int]  # width, height
Field = NDArray[np.float32]  # [height, width]
Pixels = NDArray[np.uint8]  # [height, width] of tones, or [height, width, 3] of RGB
Outline = NDArray[np.complex128]  # [vertices]: x + iy

#: The default mix: 60 % are 400x300 or 300x400, 36 % near 500x375 (odd sides: these do
#: not fill their last JPEG blocks) and 4 % 1000x750.
SIZES: tuple[Size, ...] = (
    *[(400, 300), (400, 300), (300, 400)] * 5,
    *[(500, 375), (375, 500)] * 4,
    (500, 333),
    (1000, 750),
)


def _resize(field: Field, size: Size) -> Field:
    return np.asarray(cv2.resize(field, size, interpolation=cv2.INTER_CUBIC), np.float32)


def _noise(rng: Generator, size: Size, cell: float, octaves: int, gain: float = 0.6) -> Field:
    """Return value noise of mean 0 and standard deviation 1.

    The first octave has a random value every ``cell`` pixels; each next one is twice as fine, with
    ``gain`` times the amplitude. The sum is enlarged twofold at a time even where no octave is
    left to add, because OpenCV is slow at large factors.
    """
    total: Field = np.zeros((1, 1), np.float32)
    for octave in range(max(1, int(log2(cell)))):
        cols, rows = (ceil(side * 2**octave / cell) + 1 for side in size)
        total = _resize(total, (cols, rows))
        if octave < octaves:
            total += (rng.random((rows, cols), np.float32) - 0.5) * gain**octave
    total = _resize(total, size)
    mean, std = (moment.item() for moment in cv2.meanStdDev(total))
    return (total - mean) / max(std, 1e-6)


def _tones(field: Field, gain: float, offset: float) -> Pixels:
    """Return ``gain * field + offset``, rounded, and clipped to 0-255."""
    return np.asarray(cv2.addWeighted(field, gain, field, 0, offset, dtype=cv2.CV_8U), np.uint8)


def _edge(rng: Generator, distance: Field) -> Pixels:
    """Return 0 where ``distance``, in pixels from an edge, is negative and 255 where positive."""
    return _tones(distance, 255 / rng.uniform(1, 3), 127.5)  # as soft as a lens would leave it


# The patterns. Each takes the generator, the image's size and a period in pixels, and returns a
# relief map: uint8 [height, width], 0 for the ground and up to 255 for the figure.


def _blobs(rng: Generator, size: Size, period: float) -> Pixels:
    return _edge(rng, (_noise(rng, size, period / 2, 1) - rng.uniform(-0.2, 0.5)) * (period / 4))


def _clouds(rng: Generator, size: Size, period: float) -> Pixels:
    return _tones(_noise(rng, size, 2 * period, 6), 64, 128)


def _pave(rng: Generator, size: Size, tile: Pixels) -> Pixels:
    """Cover the image with copies of a tile, turned at random and slightly bent."""
    # cv2.remap could wrap around a single tile, but outside its source it is ten times slower.
    reach = 0.55 * hypot(*size)  # from the image's centre to its corners, and the bend
    plane = np.tile(tile, [ceil(2 * reach / side) + 1 for side in tile.shape])
    scale = sum(tile.shape)
    bend = _resize(_noise(rng, (size[0] // 8 + 1, size[1] // 8 + 1), 0.2 * scale, 1), size)
    bend *= rng.uniform(0.01, 0.05) * scale
    angle = rng.uniform(0, 2 * pi)
    centre_y, centre_x = (reach + rng.random(2) * tile.shape).tolist()
    x, y = (np.arange(side, dtype=np.float32) - side / 2 for side in size)
    plane_x = np.add.outer(y * sin(angle) + centre_x, x * cos(angle)) + bend
    plane_y = np.add.outer(y * cos(angle) + centre_y, x * -sin(angle)) + bend
    paved = cv2.remap(plane, plane_x, plane_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
    return np.asarray(paved, np.uint8)


def _sine(pixels: float, phase: Field | float = 0) -> Field:
    """Return one turn of a sine, in a whole number of pixels, ``phase`` radians ahead."""
    count = round(pixels)
    angles = np.arange(count, dtype=np.float32) * (2 * pi / count) + phase
    return np.asarray(np.sin(angles), np.float32)


def _bricks(rng: Generator, size: Size, period: float) -> Pixels:
    high = round(0.7 * period)
    wide = 2 * round(high * rng.uniform(0.9, 1.3))
    to_side = wide / 2 - np.abs(np.arange(wide, dtype=np.float32) - wide / 2)
    to_bed = high / 2 - np.abs(np.arange(high, dtype=np.float32) - high / 2)
    mortar = high * rng.uniform(0.06, 0.1)
    brick = _edge(rng, np.minimum(to_side, to_bed[:, None]) - mortar)
    shades = rng.uniform(0.6, 1, (4, 4))
    courses = np.kron(shades, brick).astype(np.uint8).reshape(4, high, 4 * wide)
    courses[1::2] = np.roll(courses[1::2], wide // 2, axis=2)
    return _pave(rng, size, courses.reshape(4 * high, 4 * wide))


def _checks(rng: Generator, size: Size, period: float) -> Pixels:
    wave = _sine(1.2 * period)
    return _pave(rng, size, _edge(rng, wave * wave[:, None] * (period / 5)))


def _stripes(rng: Generator, size: Size, period: float) -> Pixels:
    wave = _sine(period) - rng.uniform(-0.4, 0.4)
    return _pave(rng, size, _edge(rng, np.tile(wave * (period / 6), (len(wave), 1))))


def _waves(rng: Generator, size: Size, period: float) -> Pixels:
    swing = _sine(period * rng.uniform(1.6, 2.4)) * rng.uniform(2.2, 3.6)
    wave = _sine(period, swing[:, None]) - rng.uniform(-0.4, 0.4)
    return _pave(rng, size, _edge(rng, wave * (period / 8)))


def _strew(outlines: list[Outline], rng: Generator, size: Size, period: float) -> Pixels:
    """Strew copies of a shape in the unit disc, each with its own size, turn and shade."""
    # One shape a cell of a jittered grid, some cells left empty: random without many overlaps.
    cells = np.add.outer(1j * np.arange(size[1] / period + 1), np.arange(size[0] / period + 1))
    cells = cells[rng.random(cells.shape) < 0.85][:, None]
    jitter = rng.uniform(-0.2, 0.2, (*cells.shape, 2)) @ [1, 1j]
    turn = rng.uniform(0.34, 0.5, cells.shape) * np.exp(2j * pi * rng.random(cells.shape))
    # cv2 takes fixed-point vertices: here 4 bits are after the point.
    placed = [16 * period * (cells + jitter + turn * outline) for outline in outlines]
    polygons = [np.stack([shape.real, shape.imag], -1).astype(np.int32) for shape in placed]
    canvas = np.zeros(size[::-1], np.uint8)
    for contours in zip(*polygons, strict=True):
        cv2.fillPoly(canvas, contours, rng.uniform(150, 255), cv2.LINE_AA, shift=4)
    return canvas


def _circle(radius: float, vertices: int = 32) -> Outline:
    return np.asarray(radius * np.exp(2j * pi / vertices * np.arange(vertices)), np.complex128)


def _crosses(rng: Generator, size: Size, period: float) -> Pixels:
    half = rng.uniform(0.2, 0.32)  # of the width of an arm
    arm = np.array([half - half * 1j, 1 - half * 1j, 1 + half * 1j])
    return _strew([np.concatenate([arm, arm * 1j, -arm, arm * -1j])], rng, size, period)


def _rings(rng: Generator, size: Size, period: float) -> Pixels:
    # cv2.fillPoly fills by the even-odd rule, so that the inner circle is a hole.
    return _strew([_circle(1), _circle(rng.uniform(0.5, 0.65))], rng, size, period)


_PATTERNS: dict[str, Callable[[Generator, Size, float], Pixels]] = {
    "blobs": _blobs,
    "bricks": _bricks,
    "checks": _checks,
    "clouds": _clouds,
    "crosses": _crosses,
    "discs": partial(_strew, [_circle(0.9)]),
    "rings": _rings,
    "stripes": _stripes,
    "triangles": partial(_strew, [_circle(1.1, vertices=3)]),
    "waves": _waves,
}
#: The class names, sorted, as a reader of image folders numbers them.
CLASSES: tuple[str, ...] = tuple(_PATTERNS)


def _palette(rng: Generator) -> Pixels:
    """Return a colour for each of 256 tones, uint8 [256, 1, 3]: dark to light or light to dark."""
    hue = rng.random()
    low = [(hue, 0.3, 0.1), (hue - 0.1, 0.25, 0.4), (hue, 0.05, 0.7)]
    high = [(hue, 0.8, 0.35), (hue + 0.1, 0.7, 0.6), (hue + 0.6, 0.5, 1.0)]
    stops = np.array([colorsys.hsv_to_rgb(h % 1, s, v) for h, s, v in rng.uniform(low, high)])
    if rng.random() < 0.5:
        stops = stops[::-1]
    channels = [np.interp(np.arange(256), [0, 127.5, 255], channel) for channel in stops.T]
    return (255 * np.stack(channels, -1)[:, None]).round().astype(np.uint8)


def _photograph(rng: Generator, relief: Pixels) -> Pixels:
    """Return the relief as an RGB photograph, uint8 [height, width, 3]."""
    size = width, height = relief.shape[1], relief.shape[0]
    # Mottled at half the resolution: the grain below takes care of the finest scale.
    noise = _noise(rng, (ceil(width / 2), ceil(height / 2)), min(size) / 8, 6, gain=0.7)
    mottle = cv2.resize(_tones(noise, rng.uniform(10, 22), 128), size)
    contrast = rng.uniform(0.5, 0.75)
    tones = cv2.addWeighted(relief, contrast, mottle, 1, -127.5 * contrast)
    photo = cv2.applyColorMap(tones, _palette(rng))
    # Uneven and faintly tinted light, 128 being neutral.
    lamps = rng.uniform(80, 150, (3, 3, 1)) + rng.uniform(-8, 8, (3, 3, 3))
    light = cv2.resize(lamps.astype(np.uint8), size, interpolation=cv2.INTER_CUBIC)
    cv2.multiply(photo, light, photo, scale=1 / 128)
    # Raw bits are far cheaper than normal deviates; the blur makes the grain bell-shaped and as
    # correlated between neighbours as a demosaiced sensor's.
    bits = rng.integers(0, 2**64, ceil(photo.size / 8), np.uint64).view(np.uint8)
    grain = cv2.GaussianBlur(bits[: photo.size].reshape(photo.shape), (3, 3), 0)
    strength = rng.uniform(0.08, 0.2)
    return np.asarray(cv2.addWeighted(photo, 1, grain, strength, -128 * strength), np.uint8)


def draw(class_index: int, seed: int, width: int, height: int) -> NDArray[np.uint8]:
    """Draw one image: uint8 ``[height, width, 3]``, RGB, the same for the same arguments.

    Patterns scale with the image and can be told apart from 32x32 up.

    Raises:
        UsageError: ``class_index`` or ``seed`` is out of range, or a side is not 8 to 4096 pixels.
    """
    size = width, height
    if not 0 <= class_index < len(CLASSES) or seed < 0 or min(size) < 8 or max(size) > 4096:
        raise UsageError(
            f"class_index must be 0 to {len(CLASSES) - 1}, seed 0 or more and sides 8 to 4096 "
            f"pixels: {class_index=}, {seed=}, {width=}, {height=}"
        )
    rng = Generator(PCG64([seed, class_index]))
    # Four to seven periods across the short side, but none too fine to see.
    period = max(min(size) * rng.uniform(0.14, 0.26), 9.0)
    return _photograph(rng, _PATTERNS[CLASSES[class_index]](rng, size, period))


def write_folder(
    dst: Path,
    count: int,
    *,
    seed: int = 0,
    sizes: Sequence[Size] = SIZES,
    quality: int = 90,
    progress: Callable[[int], None] | None = None,
    workers: int | None = None,
) -> None:
    """Write ``count`` JPEGs (4:2:0) as ``dst/<class>/<class>_<number>.jpg``.

    Image ``i`` is of class ``i % 10`` and depends on ``(seed, i)``, ``sizes`` and ``quality`` only:
    classes are balanced, writing again gives the same bytes, and a larger ``count`` adds files to
    those of a smaller one. Each file appears complete or not at all; others are left alone.

    Args:
        dst: The folder, made where there is none.
        count: Images in total, 0 or more.
        seed: 0 or more.
        sizes: ``(width, height)`` pairs, of which each image takes one at random; repeat a pair to
            give it weight. ``[(32, 32)]`` makes every image 32x32.
        quality: JPEG quality, 1 to 100.
        progress: Called in this thread with the number of images written so far.
        workers: Threads, 1 or more; by default one a processor, at most 8.

    Raises:
        UsageError: An argument is out of its range.
        OSError: A file cannot be written.
    """
    workers = min(os.cpu_count() or 1, 8) if workers is None else workers
    if count < 0 or seed < 0 or workers < 1 or not 1 <= quality <= 100 or not sizes:
        raise UsageError(
            "count and seed must be 0 or more, workers 1 or more, quality 1 to 100 and sizes not "
            f"empty: {count=}, {seed=}, {workers=}, {quality=}, {sizes=}"
        )

    def write(index: int) -> None:
        number, class_index = divmod(index, len(CLASSES))
        image_seed, choice = SeedSequence([seed, index]).generate_state(2, np.uint64).tolist()
        image = draw(class_index, image_seed, *sizes[choice % len(sizes)])
        name = CLASSES[class_index]
        path = dst / name / f"{name}_{number:05d}.jpg"
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            part.write_bytes(simplejpeg.encode_jpeg(image, quality, "RGB", "420"))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)

    for name in CLASSES[:count]:  # no empty class folders: some readers refuse them
        (dst / name).mkdir(parents=True, exist_ok=True)
    with Threads(workers, "fastdata-demo") as threads:
        for done, _ in enumerate(threads.map(write, range(count)), start=1):
            if progress is not None:
                progress(done)
