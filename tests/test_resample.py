"""Crop, reduce, resize, flip: against slow numpy, torch's interpolate, and torchvision on PIL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as tv

from fastdata.recipe import Recipe, draw
from fastdata.resample import resample

Box = tuple[float, float, float, float]

# Whole levels against the exact value: half a level of rounding and, measured, up to 0.3 of what
# cv2's fixed-point arithmetic drops. One level is the tolerance that the design names.
TOLERANCE = 1.0


def noise(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """White noise: the picture for which every wrong weight and every shifted pixel shows."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def resampled(
    pixels: NDArray[np.uint8],
    box: Box,
    size: tuple[int, int],
    flip: bool = False,
    **options: object,
) -> NDArray[np.uint8]:
    """Resample to ``size`` (width, height) into the middle of a batch, and check its neighbours."""
    batch = np.full((3, size[1], size[0], 3), 77, np.uint8)
    before = pixels.copy()
    resample(pixels, box, flip, batch[1], **options)  # type: ignore[arg-type]
    assert (batch[[0, 2]] == 77).all()
    assert np.array_equal(pixels, before)
    return batch[1]


def bilinear(pixels: NDArray[np.floating], width: int, height: int) -> NDArray[np.float64]:
    """Output pixel i lies at (i + 1/2) * scale - 1/2 of the input, whose edge pixels go on."""

    def weights(source: int, target: int) -> NDArray[np.float64]:
        matrix = np.zeros((target, source))
        for i in range(target):
            at = (i + 0.5) * source / target - 0.5
            low = int(np.floor(at))
            for neighbour, weight in ((low, 1 - (at - low)), (low + 1, at - low)):
                matrix[i, min(max(neighbour, 0), source - 1)] += weight
        return matrix

    rows, columns = weights(pixels.shape[0], height), weights(pixels.shape[1], width)
    narrowed = np.einsum("hwc,xw->hxc", pixels.astype(np.float64), columns, optimize=True)
    return np.einsum("yh,hxc->yxc", rows, narrowed, optimize=True)


def block_means(pixels: NDArray[np.uint8], factor: int) -> NDArray[np.float64]:
    """Means of blocks of factor x factor pixels, rounded to levels (ties either way)."""
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    blocks = pixels[: height * factor, : width * factor].astype(np.float64)
    return blocks.reshape(height, factor, width, factor, 3).mean(axis=(1, 3))


BOXES = [  # image's width and height, box, output's width and height
    ((97, 61), (0, 0, 97, 61), (32, 32)),
    ((97, 61), (11, 7, 50, 40), (24, 24)),
    ((97, 61), (96, 60, 1, 1), (7, 7)),
    ((97, 61), (13, 0, 3, 61), (16, 16)),
    ((20, 30), (3, 4, 9, 7), (32, 24)),
    ((64, 64), (0, 0, 64, 64), (32, 32)),
    ((900, 700), (101, 53, 431, 389), (224, 224)),
]


@pytest.mark.parametrize(("shape", "box", "size"), BOXES)
def test_a_box_is_scaled_bilinearly_with_half_pixel_centres(
    shape: tuple[int, int], box: tuple[int, int, int, int], size: tuple[int, int]
) -> None:
    pixels, (left, top, w, h) = noise(*shape), box
    found = resampled(pixels, box, size)
    crop = pixels[top : top + h, left : left + w]
    assert np.abs(found - bilinear(crop, *size)).max() <= TOLERANCE
    tensor = torch.from_numpy(crop.astype(np.float32)).permute(2, 0, 1)[None]
    reference = torch.nn.functional.interpolate(
        tensor, size[::-1], mode="bilinear", align_corners=False, antialias=False
    )
    assert np.abs(found - reference[0].permute(1, 2, 0).numpy()).max() <= TOLERANCE


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_reduction_averages_blocks_before_it_scales(factor: int) -> None:
    pixels = noise(900, 700)
    left, top, w, h = 5 * factor, 3 * factor, 75 * factor, 64 * factor
    found = resampled(pixels, (left, top, w, h), (60, 50), reduction=factor)
    means = block_means(pixels[top : top + h, left : left + w], factor)
    # The means were rounded to whole levels on the way, which adds up to half a level.
    assert np.abs(found - bilinear(means, 60, 50)).max() <= TOLERANCE + 0.5


@pytest.mark.parametrize("factor", [2, 4, 8])
def test_a_reduction_to_the_output_size_is_the_mean_of_each_block(factor: int) -> None:
    pixels = noise(900, 700)
    left, top, side = 8 * factor, 2 * factor, 64 * factor
    found = resampled(pixels, (left, top, side, side), (64, 64), reduction=factor)
    means = block_means(pixels[top : top + side, left : left + side], factor)
    assert np.abs(found - means).max() <= 0.5 + 1e-6


def test_a_box_of_the_outputs_size_is_copied() -> None:
    pixels = noise(40, 30)
    assert np.array_equal(resampled(pixels, (5, 6, 20, 10), (20, 10)), pixels[6:16, 5:25])


@pytest.mark.parametrize(("shape", "box", "size"), BOXES)
def test_antialias_is_torchvisions_crop_and_resize(
    shape: tuple[int, int], box: tuple[int, int, int, int], size: tuple[int, int]
) -> None:
    pixels, (left, top, w, h) = noise(*shape), box
    picture, shape = Image.fromarray(pixels), list(size[::-1])
    on_tensors = tv.resized_crop(tv.pil_to_tensor(picture), top, left, h, w, shape, antialias=True)
    by_pillow = np.asarray(tv.resized_crop(picture, top, left, h, w, shape, antialias=True))
    found = resampled(pixels, box, size, antialias=True).astype(int)
    # torchvision calls the same function, but on processors without AVX2 first goes to floats.
    assert np.abs(found - on_tensors.permute(1, 2, 0).numpy()).max() <= 1
    assert np.abs(found - by_pillow).max() <= 1


EVALUATED = [
    (256, 256),
    (300, 200),
    (200, 300),
    (333, 257),
    (257, 333),
    (640, 480),
    (480, 641),
    (100, 75),
    (75, 400),
    (900, 700),
    (701, 1201),
    # Boxes of whole pixels: the filter must look beyond the box here as well.
    (512, 512),
    (224, 224),
    (768, 512),
]


def test_a_banner_is_scaled_within_its_box_alone() -> None:
    pixels, size = noise(6000, 8), (224, 224)
    draws = draw(
        Recipe(size=224, crop="center", antialias=True),
        0,
        np.array([0]),
        np.array([[6000, 8]], np.int32),
    )
    left, top, w, h = draws.boxes[0].tolist()
    found = resampled(pixels, (left, top, w, h), size, antialias=True, scale_first=True)
    # A part that is enlarged 32 times depends on no pixel beyond the next one.
    near = tv.pil_to_tensor(Image.fromarray(pixels[:, int(left) - 8 : int(left + w) + 9]))
    whole = tv.resize(near, [8 * 32, near.shape[2] * 32], antialias=True)
    x, y = round((left - int(left) + 8) * 32), round(top * 32)
    expected = whole[:, y : y + 224, x : x + 224].permute(1, 2, 0).numpy()
    assert np.abs(found.astype(int) - expected).max() <= 2


@pytest.mark.parametrize("shape", EVALUATED)
def test_a_center_crop_with_antialias_is_torchvisions_resize_and_center_crop(
    shape: tuple[int, int],
) -> None:
    pixels = noise(*shape)
    transform = v2.Compose([v2.Resize(256, antialias=True), v2.CenterCrop(224)])
    picture = tv.pil_to_tensor(Image.fromarray(pixels))
    reference = transform(picture).permute(1, 2, 0).numpy().astype(int)
    recipe = Recipe(size=224, crop="center", antialias=True)
    draws = draw(recipe, 0, np.array([0]), np.array([shape], np.int32))
    found = resampled(
        pixels, tuple(draws.boxes[0].tolist()), (224, 224), antialias=True, scale_first=True
    )
    assert np.abs(found - reference).max() <= 1


@pytest.mark.parametrize("options", [{}, {"reduction": 2}, {"antialias": True}])
@pytest.mark.parametrize("size", [(32, 24), (80, 60), (33, 1)])
def test_a_flip_mirrors_the_finished_output(
    options: dict[str, object], size: tuple[int, int]
) -> None:
    pixels, box = noise(97, 80), (4, 6, 80, 60)
    straight = resampled(pixels, box, size, **options)
    assert np.array_equal(resampled(pixels, box, size, flip=True, **options), straight[:, ::-1])


def test_a_flip_mirrors_boxes_that_are_not_of_whole_pixels() -> None:
    pixels, box = noise(97, 80), (4.25, 6.5, 40.5, 40.5)
    straight = resampled(pixels, box, (20, 20), antialias=True)
    flipped = resampled(pixels, box, (20, 20), flip=True, antialias=True)
    assert np.array_equal(flipped, straight[:, ::-1])
    assert not np.array_equal(flipped, straight)


OUTSIDE = [
    (-4, -4, 32, 32),
    (4, 3, 32, 32),
    (-4, 4, 32, 32),
    (-6, -5, 44, 42),
    (0, -1, 32, 32),
    # Nothing of the image, which happens where the padding is as wide as the crop or wider.
    (-32, 0, 32, 32),
    (-33, 0, 32, 32),
    (0, -45, 32, 32),
    (-40, -40, 32, 32),
    (32, 0, 32, 32),
    (40, 50, 32, 32),
]


@pytest.mark.parametrize("box", OUTSIDE)
def test_outside_of_the_image_is_black(box: tuple[int, int, int, int]) -> None:
    left, top, w, h = box
    for shape in ((32, 32), (40, 38), (20, 25)):
        pixels = noise(*shape)
        padded = np.pad(pixels, ((64, 64), (64, 64), (0, 0)))
        expected = padded[top + 64 : top + 64 + h, left + 64 : left + 64 + w]
        assert np.array_equal(resampled(pixels, box, (w, h)), expected)
        assert np.array_equal(resampled(pixels, box, (w, h), flip=True), expected[:, ::-1])


@pytest.mark.parametrize("antialias", [False, True])
def test_a_part_of_a_larger_array_is_taken_as_it_is(antialias: bool) -> None:
    # Rows of a memmap's view lie further apart than their own length.
    whole = noise(120, 90)
    view = whole[10:70, 20:100]
    found = resampled(view, (5, 6, 50, 40), (24, 24), antialias=antialias)
    expected = resampled(view.copy(), (5, 6, 50, 40), (24, 24), antialias=antialias)
    assert np.array_equal(found, expected)


def test_a_read_only_image_can_be_resampled() -> None:
    pixels = noise(64, 48)
    expected = resampled(pixels, (0, 0, 64, 48), (16, 16))
    pixels.flags.writeable = False
    assert np.array_equal(resampled(pixels, (0, 0, 64, 48), (16, 16)), expected)
