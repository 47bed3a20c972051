"""Every engine on every format against one slow reference, which executes the same plan.

``fastdata.recipe.draw`` decides boxes, flips and reduction factors (its own tests hold it to
torchvision's distributions). Here they are carried out a second time, by Pillow and numpy in
float64, by the rules of resampling:

    decode, for a JPEG at 1/reduction by libjpeg's own scaling; else average whole blocks
    -> cut out the box -> bilinear with half-pixel centres, edges repeated -> mirror
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional

from fastdata import Recipe, make_loader, open_dataset
from fastdata.adjust import draw_adjustments
from fastdata.errors import UsageError
from fastdata.recipe import PRESETS, draw, draw_key
from fastdata.registry import ENGINES, READERS, load

Floats = NDArray[np.float64]

SEED, BATCH, EPOCH = 7, 5, 2
ROUNDING = 1.0
"""How far a uint8 may be from the reference's float: half a level for rounding at the end, a
quarter for OpenCV's weights, which have 11 bits (2 axes x 2 taps x 2**-12 x 255), and some air."""
BLOCKS = 1.5
"""The same where blocks of pixels are averaged first: that mean is rounded to a level as well."""

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]
RECIPES: dict[str, Recipe] = {
    "imagenet-train": PRESETS["imagenet-train"],
    "imagenet-eval": PRESETS["imagenet-eval"],
    "cifar-train": PRESETS["cifar-train"],
    "raw": PRESETS["raw"],
    # Small outputs, so that all reduction factors are drawn.
    "small": Recipe(size=64, crop="random_resized", hflip=0.5),
    "small-center": Recipe(size=64, crop="center"),
    "small-whole": Recipe(size=64, crop="none", hflip=0.5),
    # More padding than output: some boxes hold nothing of the image.
    "wide-pad": Recipe(size=16, crop="random_pad", pad=40, hflip=0.5),
}


# The reference


def bilinear(pixels: Floats, side: int) -> Floats:
    """Scale to side x side: half-pixel centres, no antialiasing, edges repeated."""
    for axis in (0, 1):
        length = pixels.shape[axis]
        at = np.clip((np.arange(side) + 0.5) * length / side - 0.5, 0, length - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, length - 1)
        weight = (at - low).reshape(-1, 1, 1) if axis == 0 else (at - low).reshape(1, -1, 1)
        pixels = np.take(pixels, low, axis) * (1 - weight) + np.take(pixels, high, axis) * weight
    return pixels


def block_means(pixels: Floats, factor: int) -> Floats:
    """Average whole blocks of factor x factor pixels; what is left over at the edges is cut."""
    height, width = pixels.shape[0] // factor, pixels.shape[1] // factor
    whole = pixels[: height * factor, : width * factor]
    return whole.reshape(height, factor, width, factor, 3).mean(axis=(1, 3))


FULL_SIZE = {"dali", "dali-cpu"}
"""Engines whose decoder has no scaling of its own: they average blocks of JPEGs too."""
OTHER_DECODER = {"dali": 4.0}
"""Levels by which a decoder that is not libjpeg may differ from it."""


def decoded(data: bytes, reduction: int) -> Floats:
    """Pillow's pixels of a JPEG at 1/reduction of its size."""
    with Image.open(io.BytesIO(data)) as image:
        width, height = image.size
        if reduction > 1:
            # libjpeg rounds up; asking for the size rounded down gets exactly this factor.
            image.draft("RGB", (width // reduction, height // reduction))
            assert image.size == (-(-width // reduction), -(-height // reduction))
        return np.asarray(image.convert("RGB")).astype(np.float64)


def execute(
    recipe: Recipe,
    sample: bytes | NDArray[np.uint8],
    box: list[float],
    flip: bool,
    reduction: int,
    full_size: bool = False,
) -> Floats:
    """What a sample must become, float64 [h, w, 3] in levels of uint8, not rounded."""
    left, top, width, height = (int(side) for side in box)
    assert [left, top, width, height] == box  # whole numbers, as antialias is off
    if isinstance(sample, bytes) and full_size:
        pixels = block_means(decoded(sample, 1), reduction)
    elif isinstance(sample, bytes):
        pixels = decoded(sample, reduction)
    else:
        pixels = block_means(sample.astype(np.float64), reduction)
    if recipe.crop == "random_pad":
        # Zeros all around, more than any box of these recipes reaches into.
        margin = 64
        pixels = np.pad(pixels, [(margin, margin), (margin, margin), (0, 0)])
        left, top = left + margin, top + margin
    for side in (left, top, width, height):
        assert side % reduction == 0
    left, top, width, height = (side // reduction for side in (left, top, width, height))
    crop = pixels[top : top + height, left : left + width]
    assert crop.shape[:2] == (height, width)
    if recipe.size is not None and crop.shape[:2] != (recipe.size, recipe.size):
        crop = bilinear(crop, recipe.size)
    return crop[:, ::-1] if flip else crop


@dataclass(frozen=True)
class Data:
    """A dataset, and its samples read by something else than fastdata."""

    path: Path
    kind: str  # equal for datasets of the same samples
    samples: list[Any]  # bytes of JPEGs, or pixels
    sizes: NDArray[np.int32]
    labels: list[int]

    def draws(self, recipe: Recipe, epoch: int, indices: list[int]) -> Iterator[tuple[Any, ...]]:
        """(sample, box, flip, reduction) of each index."""
        chosen = np.array(indices, np.int64)
        draws = draw(recipe, draw_key(SEED, epoch), chosen, self.sizes[chosen])
        columns = draws.boxes.tolist(), draws.flips.tolist(), draws.reductions.tolist()
        for index, box, flip, reduction in zip(indices, *columns, strict=True):
            yield self.samples[index], box, flip, reduction


@pytest.fixture(scope="session")
def make_data(
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> Callable[..., Data]:
    """(format, mixed=True) -> images up to 1601 x 1205 of many sizes, or all 900 x 700; or with
    tiny=True all 40 x 36.

    Formats of pixels cannot hold the mixed ones and get the others.
    """
    mixed_sizes = [(900, 700), (700, 903), (1601, 1205), (64, 64), (37, 53), (24, 20), (1000, 751)]
    mixed_sizes += [(1300, 300), (97, 240), (901, 701), (224, 224), (449, 450)]
    sizes_of = {"mixed": mixed_sizes, "uniform": [(900, 700)] * 8, "tiny": [(40, 36)] * 13}
    kinds: dict[str, Any] = {}

    def source(kind: str) -> Any:
        if kind not in kinds:
            files = {}
            for number, size in enumerate(sizes_of[kind]):
                pixels = picture(*size, number)
                options: dict[str, object] = {"subsampling": number % 3, "quality": 95}
                if number == 1:  # grey, and decoded to RGB all the same
                    pixels = np.asarray(Image.fromarray(pixels).convert("L"))
                    options = {}
                files[b"%d/%02d.jpg" % (number // 3, number)] = jpeg(pixels, **options)
            kinds[kind] = write_source(files)
        return kinds[kind]

    def make(name: str, mixed: bool = True, tiny: bool = False) -> Data:
        encoded = name == "folder" or load(READERS, name, "format").encoded
        kind = "tiny" if tiny else "mixed" if mixed and encoded else "uniform"
        files = source(kind)
        path = in_format(name, files)
        read = files.data if encoded else files.pixels
        samples = [read(index) for index in range(len(files.paths))]
        sizes = [files.pixels(index).shape[1::-1] for index in range(len(files.paths))]
        labels = [int(path.split(b"/")[0]) for path in files.paths]
        kind = kind if encoded else f"{kind} pixels"
        return Data(path, kind, samples, np.array(sizes, np.int32), labels)

    return make


def batches(
    engine: str, data: Data, recipe: Recipe, epoch: int = 0, **options: Any
) -> list[tuple[torch.Tensor, torch.Tensor, list[int]]] | None:
    """All batches of an epoch, or None where the engine says that it cannot do this.

    An engine may be for some formats or devices only, but has to say so by its name; the one
    that does everything may not.
    """
    settings = {"shuffle": True, "drop_last": False, "seed": SEED, "with_index": True, **options}
    try:
        loader = make_loader(data.path, BATCH, recipe=recipe, engine=engine, **settings)
    except UsageError as refusal:
        if engine != "workers" and engine in str(refusal):
            return None
        raise
    with loader:
        assert loader.engine == engine
        loader.set_epoch(epoch)
        return [(images, labels, indices.tolist()) for images, labels, indices in loader]


_known: dict[tuple[str, Recipe, int, int, bool], Floats] = {}  # the reference is slow


def check(data: Data, recipe: Recipe, epoch: int, found: Any, engine: str = "") -> None:
    """Hold uint8 batches to the reference."""
    full_size = engine in FULL_SIZE
    seen: list[int] = []
    for images, labels, indices in found:
        assert images.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == torch.int64
        assert labels.tolist() == [data.labels[index] for index in indices]
        pixels = images.permute(0, 2, 3, 1).cpu().numpy()
        rows = zip(indices, pixels, data.draws(recipe, epoch, indices), strict=True)
        for index, row, (sample, box, flip, reduction) in rows:
            key = (data.kind, recipe, epoch, index, full_size)
            if key not in _known:
                _known[key] = execute(recipe, sample, box, flip, reduction, full_size)
            assert row.shape == _known[key].shape
            averaged = reduction > 1 and (full_size or not isinstance(sample, bytes))
            tolerance = BLOCKS if averaged else ROUNDING
            tolerance += OTHER_DECODER.get(engine, 0.0)
            assert np.abs(row - _known[key]).max() <= tolerance, (index, box, flip, reduction)
        seen += indices
    assert sorted(seen) == list(range(len(data.labels)))


def some_batches(
    engine: str, make_data: Callable[..., Data], recipe: Recipe, **options: Any
) -> list[Any]:
    """Batches of the first format that the engine can load; none where it needs another device."""
    for name in ["folder", *READERS]:
        found = batches(engine, make_data(name), recipe, **options)
        if found:
            return found
    return []


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_can_load_something(
    engine: str, device: str, make_data: Callable[..., Data]
) -> None:
    """So that an engine which refuses everything does not pass the tests below; one that needs a
    GPU may refuse the CPU altogether."""
    found = some_batches(engine, make_data, RECIPES["small"], device=device, num_workers=0)
    assert found or (engine != "workers" and device == "cpu")


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_are_the_references(
    engine: str, any_format: str, recipe: str, workers: int, make_data: Callable[..., Data]
) -> None:
    data = make_data(any_format, mixed=recipe != "raw")  # raw has no size of its own
    steps = RECIPES[recipe]
    found = batches(engine, data, steps, epoch=EPOCH, dtype="uint8", num_workers=workers)
    if found is not None:
        check(data, steps, EPOCH, found, engine)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("recipe", ["cifar-train", "raw", "small-whole", "wide-pad", "tiny"])
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_of_small_images_are_the_references(
    engine: str, any_format: str, recipe: str, workers: int, make_data: Callable[..., Data]
) -> None:
    """Engines may have other ways for what costs more to call than to do."""
    data = make_data(any_format, tiny=True)
    tiny = Recipe(size=36, crop="random_resized", scale=(0.9, 1.0), ratio=(1, 1), hflip=0.5)
    steps = tiny if recipe == "tiny" else RECIPES[recipe]
    found = batches(engine, data, steps, epoch=EPOCH, dtype="uint8", num_workers=workers)
    if found is not None:
        check(data, steps, EPOCH, found, engine)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("tiny", [False, True])
@pytest.mark.parametrize("engine", ENGINES)
def test_colours_and_erasing_are_torchvisions(
    engine: str,
    any_format: str,
    tiny: bool,
    workers: int,
    dtype: str,
    device: str,
    make_data: Callable[..., Data],
) -> None:
    """They are the last step: what the recipe makes without them is held to the reference above."""
    data = make_data(any_format, tiny=tiny)
    plain = replace(RECIPES["cifar-train" if tiny else "small"], mean=None, std=None)
    steps = replace(plain, brightness=0.3, contrast=0.4, saturation=0.5, erase=0.5)
    options = {"dtype": dtype, "num_workers": workers, "device": device}
    before = batches(engine, data, plain, epoch=EPOCH, **options)
    after = batches(engine, data, steps, epoch=EPOCH, **options)
    if before is None or after is None:
        assert before is after
        return
    side, changed, boxes = steps.size or 0, 0, 0
    scale = 1 if dtype == "uint8" else 255
    for (images, _, indices), (found, _, others) in zip(before, after, strict=True):
        assert indices == others
        assert found.is_contiguous(memory_format=torch.channels_last)
        adjustments = draw_adjustments(steps, draw_key(SEED, EPOCH), np.array(indices))
        assert adjustments is not None
        rows = zip(images.cpu(), found.cpu(), *map(np.ndarray.tolist, adjustments), strict=True)
        for image, row, (brightness, contrast, saturation), (left, top, w, h) in rows:
            expected = image.float() * scale / 255
            expected = functional.adjust_brightness(expected, brightness)
            expected = functional.adjust_contrast(expected, contrast)
            expected = functional.adjust_saturation(expected, saturation) * 255
            expected[:, top : top + h, left : left + w] = 0
            # Each step is rounded to a level, which the next ones multiply by at most 1.5.
            assert (row.float() * scale - expected).abs().max() <= 3.5
            changed += bool((row != image).any())
            boxes += w > 0
            assert w < side
    assert changed > len(data.labels) / 2
    assert 0 < boxes < len(data.labels)


def test_the_reference_was_asked_for_every_reduction_factor(
    make_data: Callable[..., Data],
) -> None:
    """Else the test above would say nothing of how large images are reduced."""
    expected = {
        ("mixed", "small"): {1, 2, 4, 8},
        ("mixed", "imagenet-train"): {1, 2},
        ("memmap", "small"): {2, 4, 8},
        ("memmap", "imagenet-train"): {1, 2},
    }
    for (kind, recipe), factors in expected.items():
        data = make_data("folder" if kind == "mixed" else kind)
        draws = data.draws(RECIPES[recipe], EPOCH, list(range(len(data.labels))))
        assert {reduction for *_, reduction in draws} >= factors


@pytest.mark.parametrize("engine", ENGINES)
def test_large_images_are_reduced_in_every_format(
    engine: str, any_format: str, make_data: Callable[..., Data]
) -> None:
    data = make_data(any_format)
    # Whole images, or a half of them at least: all of 900 x 700 at 64 are reduced by 8.
    steps = Recipe(size=64, crop="random_resized", scale=(0.5, 1.0), hflip=0.5)
    found = batches(engine, data, steps, epoch=1, dtype="uint8", num_workers=0)
    if found is not None:
        check(data, steps, 1, found, engine)
        everything = list(range(len(data.labels)))
        assert any(reduction == 8 for *_, reduction in data.draws(steps, 1, everything))


@pytest.mark.parametrize("decoder", ["simplejpeg", "pillow"])
def test_either_decoder_gives_the_references_pixels_at_odd_sizes(
    decoder: str, make_data: Callable[..., Data]
) -> None:
    data, steps = make_data("folder"), RECIPES["small-whole"]
    options = {"decoder": decoder}
    found = batches("workers", data, steps, dtype="uint8", num_workers=0, engine_options=options)
    check(data, steps, 0, found)


# Antialias: torchvision's result on a PIL image

ANTIALIASED = {
    "random_resized": Recipe(size=64, crop="random_resized", hflip=0.5, antialias=True),
    "center": Recipe(size=64, crop="center", antialias=True),
    "center 224": Recipe(size=224, crop="center", antialias=True),
    "none": Recipe(size=64, crop="none", antialias=True),
    "random_pad": Recipe(size=32, crop="random_pad", hflip=0.5, antialias=True),
}


def torchvisions(recipe: Recipe, picture: Image.Image, box: list[float], flip: bool) -> Any:
    """The same crop by torchvision, on tensors, uint8 [h, w, 3]."""
    image = functional.pil_to_tensor(picture)
    size, bilinear = [recipe.size, recipe.size], InterpolationMode.BILINEAR
    left, top, width, height = box
    if recipe.crop == "center":
        assert recipe.size is not None
        short = int(recipe.size / recipe.crop_fraction)
        image = functional.resize(image, [short], bilinear, antialias=True)
        image = functional.center_crop(image, size)
    elif recipe.crop == "random_pad":
        image = functional.pad(image, [64])
        image = functional.crop(image, int(top) + 64, int(left) + 64, int(height), int(width))
    else:
        assert [int(side) for side in box] == box
        corner_and_size = [int(side) for side in (top, left, height, width)]
        image = functional.resized_crop(image, *corner_and_size, size, bilinear, antialias=True)
    return (functional.hflip(image) if flip else image).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("crop", ANTIALIASED)
@pytest.mark.parametrize("engine", ENGINES)
def test_with_antialias_batches_are_torchvisions(
    engine: str, any_format: str, crop: str, make_data: Callable[..., Data]
) -> None:
    data, recipe = make_data(any_format), ANTIALIASED[crop]
    found = batches(engine, data, recipe, dtype="uint8", num_workers=0)
    if found is None:
        return
    for images, _, indices in found:
        pixels = images.permute(0, 2, 3, 1).cpu().numpy()
        for row, draws in zip(pixels, data.draws(recipe, 0, indices), strict=True):
            sample, box, flip, reduction = draws
            assert reduction == 1
            image = picture_of(sample)
            compare_antialiased(row, torchvisions(recipe, image, box, flip))


def picture_of(sample: bytes | NDArray[np.uint8]) -> Image.Image:
    if isinstance(sample, bytes):
        return Image.open(io.BytesIO(sample)).convert("RGB")
    return Image.fromarray(sample)


def compare_antialiased(row: NDArray[np.uint8], expected: NDArray[np.uint8]) -> None:
    # torchvision calls the same function, but on processors without AVX2 first goes to floats.
    assert np.abs(row.astype(int) - expected.astype(int)).max() <= 1


@pytest.mark.parametrize(("width", "height"), [(64, 64), (224, 224), (512, 512), (500, 375)])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_antialiased_centre_crop_sees_pixels_beyond_its_edge_as_torchvisions_does(
    engine: str, width: int, height: int, write_source: Callable[..., Any]
) -> None:
    # Noise shows at once where the filter reaches; some of these boxes are whole numbers.
    pixels = np.random.default_rng(3).integers(0, 256, (height, width, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    source, recipe = write_source({b"a/0.png": buffer.getvalue()}), ANTIALIASED["center 224"]
    data = Data(source.root, "noise", [pixels], np.array([[width, height]], np.int32), [0])
    for images, _, _ in batches(engine, data, recipe, dtype="uint8", num_workers=0) or []:
        (row,) = images.permute(0, 2, 3, 1).cpu().numpy()
        expected = torchvisions(recipe, picture_of(pixels), [0, 0, 0, 0], flip=False)
        compare_antialiased(row, expected)


# Normalisation and layout


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("recipe", ["imagenet-train", "cifar-train", "small"])
@pytest.mark.parametrize("engine", ENGINES)
def test_floats_are_the_normalised_uint8_output(
    engine: str, recipe: str, dtype: str, device: str, make_data: Callable[..., Data]
) -> None:
    steps, settings = RECIPES[recipe], {"device": device, "num_workers": 0}
    levels = some_batches(engine, make_data, steps, dtype="uint8", **settings)
    floats = some_batches(engine, make_data, steps, dtype=dtype, **settings)
    # Half a unit in the last place for rounding once; float32 is computed in two operations.
    kind = getattr(torch, dtype)
    relative = torch.finfo(kind).eps * (2 if dtype == "float32" else 0.501)
    mean, std = steps.mean or (0, 0, 0), steps.std or (1, 1, 1)
    for (raw, _, indices), (images, _, same) in zip(levels, floats, strict=True):
        assert indices == same
        assert images.dtype == kind
        assert images.device.type == device
        assert images.shape == raw.shape == (len(indices), 3, steps.size, steps.size)
        assert images.is_contiguous(memory_format=torch.channels_last)
        channels = [torch.tensor(each, dtype=torch.float64)[:, None, None] for each in (mean, std)]
        expected = (raw.cpu().double() / 255 - channels[0]) / channels[1]
        # Near zero the two operations cancel: there float32's error is that of the larger term.
        torch.testing.assert_close(images.cpu().double(), expected, rtol=relative, atol=2e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_dtype_is_the_recipes_then_float32_on_the_cpu(
    engine: str, make_data: Callable[..., Data]
) -> None:
    for dtype in (None, "bfloat16", "uint8"):
        recipe = replace(RECIPES["small"], dtype=dtype)
        for images, _, _ in some_batches(engine, make_data, recipe, num_workers=0):
            assert images.dtype == getattr(torch, dtype or "float32")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_on_a_gpu_are_the_references(
    engine: str, any_format: str, make_data: Callable[..., Data]
) -> None:
    data, steps = make_data(any_format), RECIPES["small"]
    settings = {"device": "cuda", "num_workers": 1}
    found = batches(engine, data, steps, epoch=2, dtype="uint8", **settings)
    if found is not None:
        assert all(images.is_cuda and labels.is_cuda for images, labels, _ in found)
        on_cpu = [(images.cpu(), labels.cpu(), at) for images, labels, at in found]
        check(data, steps, 2, on_cpu, engine)
    floats = batches(engine, data, steps, epoch=2, **settings)
    assert floats is None or all(images.dtype == torch.float16 for images, _, _ in floats)


# Images that are no plain JPEGs, which only a plain folder holds


@pytest.fixture(scope="session")
def unusual(
    write_source: Callable[..., Any], picture: Callable[..., Any], jpeg: Callable[..., bytes]
) -> Data:
    """PNG, WebP (lossless), a progressive JPEG and one that EXIF turns by 90 degrees."""
    files, samples = {}, []
    for number, (kind, name) in enumerate({"PNG": "a.png", "WebP": "b.webp"}.items()):
        pixels, buffer = picture(900, 700, number), io.BytesIO()
        options = {"lossless": True} if kind == "WebP" else {}
        Image.fromarray(pixels).save(buffer, kind, **options)
        files[b"x/" + name.encode()] = buffer.getvalue()
        samples.append(pixels)
    for name, options, turn in (
        ("c.jpg", {"progressive": True}, None),
        ("d.jpg", {"exif": exif_orientation(6)}, Image.Transpose.ROTATE_270),
    ):
        files[b"x/" + name.encode()] = data = jpeg(picture(901, 703, len(files)), **options)
        image = Image.open(io.BytesIO(data)).convert("RGB")
        samples.append(np.asarray(image if turn is None else image.transpose(turn)))
    files[b"x/e.jpg"] = jpeg(picture(900, 700, 9))
    source = write_source(files)
    sizes = [(900, 700), (900, 700), (901, 703), (703, 901), (900, 700)]
    everything = [*samples, files[b"x/e.jpg"]]
    return Data(source.root, "unusual", everything, np.array(sizes, np.int32), [0] * 5)


def exif_orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


@pytest.mark.parametrize("asked", ["sizes not asked for", "sizes asked for before"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_may_hold_images_that_are_no_plain_jpegs(
    engine: str, asked: str, unusual: Data
) -> None:
    dataset = open_dataset(unusual.path)
    if asked == "sizes asked for before":
        np.testing.assert_array_equal(dataset.sizes, unusual.sizes)
    for name in ("small", "small-center"):
        data = replace(unusual, path=dataset)  # type: ignore[arg-type]
        found = batches(engine, data, RECIPES[name], dtype="uint8", num_workers=0)
        if found is not None:
            check(data, RECIPES[name], 0, found, engine)
