"""The built-in sample data: repeatable, balanced, camera-like, and told apart by shape only."""

import io
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from fastdata.demo.images import CLASSES, SIZES, draw, write_folder
from fastdata.errors import UsageError


def files_of(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, whatever its name, as path to content."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_there_are_ten_sorted_lower_case_classes() -> None:
    assert len(set(CLASSES)) == 10
    assert list(CLASSES) == sorted(CLASSES)
    assert all(name.isascii() and name.isalpha() and name.islower() for name in CLASSES)


@pytest.mark.parametrize("class_index", range(10), ids=CLASSES)
@pytest.mark.parametrize(("width", "height"), [(120, 90), (61, 83), (32, 32), (8, 200)])
def test_an_image_has_the_size_asked_for_and_is_not_flat(
    class_index: int, width: int, height: int
) -> None:
    image = draw(class_index, 0, width, height)
    assert image.shape == (height, width, 3)
    assert image.dtype == np.uint8
    assert image.std() > 5


@pytest.mark.parametrize("class_index", range(10), ids=CLASSES)
def test_the_same_arguments_give_the_same_pixels_and_others_do_not(class_index: int) -> None:
    image = draw(class_index, 3, 80, 60)
    np.testing.assert_array_equal(image, draw(class_index, 3, 80, 60))
    assert not np.array_equal(image, draw(class_index, 4, 80, 60))
    assert not np.array_equal(image, draw((class_index + 1) % 10, 3, 80, 60))


def test_any_64_bit_seed_will_do() -> None:
    assert draw(0, 2**64 - 1, 32, 32).shape == (32, 32, 3)


@pytest.mark.parametrize(
    ("class_index", "seed", "width", "height"),
    [
        (-1, 0, 32, 32),
        (10, 0, 32, 32),
        (0, -1, 32, 32),
        (0, 0, 7, 32),
        (0, 0, 32, 7),
        (0, 0, 4097, 32),
        (0, 0, 32, 4097),
    ],
)
def test_draw_refuses_what_is_out_of_range(
    class_index: int, seed: int, width: int, height: int
) -> None:
    with pytest.raises(UsageError, match="sides 8 to 4096"):
        draw(class_index, seed, width, height)


def test_a_folder_holds_the_count_asked_for_with_balanced_classes(tmp_path: Path) -> None:
    write_folder(tmp_path, 23, sizes=[(32, 32)])
    files = files_of(tmp_path)
    assert len(files) == 23
    counts = Counter(name.split("/")[0] for name in files)
    assert counts == {name: 3 if index < 3 else 2 for index, name in enumerate(CLASSES)}
    first = CLASSES[0]
    assert f"{first}/{first}_00000.jpg" in files
    assert f"{first}/{first}_00002.jpg" in files


def test_a_folder_smaller_than_the_classes_has_no_empty_class_folder(tmp_path: Path) -> None:
    write_folder(tmp_path, 3, sizes=[(32, 32)])
    assert sorted(path.name for path in tmp_path.iterdir()) == list(CLASSES[:3])


def test_writing_nothing_is_no_error(tmp_path: Path) -> None:
    write_folder(tmp_path / "none", 0)
    assert files_of(tmp_path) == {}


def test_files_are_complete_420_jpegs_of_a_size_in_the_mix(tmp_path: Path) -> None:
    sizes = [(64, 48), (45, 61)]  # the second has odd sides
    write_folder(tmp_path, 20, sizes=sizes)
    seen = set()
    for data in files_of(tmp_path).values():
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            seen.add(image.size)
        assert simplejpeg.decode_jpeg_header(data)[3] == "420"
    assert seen == set(sizes)


def test_the_default_mix_has_landscapes_portraits_and_images_large_enough_to_shrink() -> None:
    assert {width > height for width, height in SIZES} == {True, False}
    assert (1000, 750) in SIZES
    assert sum(max(size) <= 500 for size in SIZES) > 0.9 * len(SIZES)


def test_a_file_depends_on_seed_and_index_only(tmp_path: Path) -> None:
    sizes = [(48, 32), (32, 48)]
    write_folder(tmp_path / "one", 30, seed=5, sizes=sizes, workers=1)
    write_folder(tmp_path / "two", 12, seed=5, sizes=sizes, workers=2)
    write_folder(tmp_path / "other", 12, seed=6, sizes=sizes)
    one, two, other = (files_of(tmp_path / name) for name in ("one", "two", "other"))
    assert two.items() <= one.items()
    assert two.keys() == other.keys()
    assert all(two[name] != other[name] for name in two)


def test_writing_again_gives_the_same_bytes_and_leaves_other_files_alone(tmp_path: Path) -> None:
    write_folder(tmp_path, 12, sizes=[(32, 32)])
    before = files_of(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"mine")
    victim = next(iter(before))
    (tmp_path / victim).write_bytes(b"damaged")
    write_folder(tmp_path, 12, sizes=[(32, 32)])
    assert files_of(tmp_path) == {**before, "notes.txt": b"mine"}


def test_a_failed_write_leaves_no_part_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write_folder(tmp_path, 10, sizes=[(32, 32)], workers=2)
    assert files_of(tmp_path) == {}


def test_quality_is_the_jpeg_quality(tmp_path: Path) -> None:
    for quality in (50, 95):
        write_folder(tmp_path / str(quality), 5, sizes=[(64, 64)], quality=quality)
    low, high = (sum(map(len, files_of(tmp_path / name).values())) for name in ("50", "95"))
    assert high > 2 * low


def test_progress_counts_up_to_the_total(tmp_path: Path) -> None:
    seen: list[int] = []
    write_folder(tmp_path, 11, sizes=[(32, 32)], progress=seen.append)
    assert seen == list(range(1, 12))


def test_write_folder_refuses_what_is_out_of_range_and_writes_nothing(tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    with pytest.raises(UsageError, match="count=-1"):
        write_folder(dst, -1)
    with pytest.raises(UsageError, match="seed=-1"):
        write_folder(dst, 1, seed=-1)
    with pytest.raises(UsageError, match=r"sizes=\[\]"):
        write_folder(dst, 1, sizes=[])
    with pytest.raises(UsageError, match="workers=0"):
        write_folder(dst, 1, workers=0)
    for quality in (0, 101):
        with pytest.raises(UsageError, match=f"quality={quality}"):
            write_folder(dst, 1, quality=quality)
    assert not dst.exists()


def test_bytes_per_pixel_are_like_a_cameras(tmp_path: Path) -> None:
    # Photographs of these sizes at quality 90 and 4:2:0 mostly take 0.15 to 0.35 bytes a pixel.
    # Flat drawings take a tenth of that and white noise some four times as much, and with either
    # a benchmark would misstate what reading and decoding cost.
    write_folder(tmp_path, 60)
    rates = []
    for data in files_of(tmp_path).values():
        height, width, _, _ = simplejpeg.decode_jpeg_header(data)
        rates.append(len(data) / (width * height))
    assert 0.18 < np.mean(rates) < 0.30
    assert min(rates) > 0.10
    assert max(rates) < 0.45


# Are the classes told apart by shape, and not by colour? A plain classifier answers both.

TRAIN, TEST = 60, 30  # images of each class


@pytest.fixture(scope="module")
def gallery() -> NDArray[np.uint8]:
    """Images of every class, uint8 [class, seed, 96, 96, 3]."""
    seeds = range(TRAIN + TEST)
    return np.stack([[draw(label, seed, 96, 96) for seed in seeds] for label in range(10)])


def accuracy(features: NDArray[np.float64], *, class_means: bool = False) -> float:
    """Classify each test image as its nearest training image, or as its nearest class mean.

    ``features`` is float64 [class, seed, feature]. Chance is 0.1.
    """
    train, test = features[:, :TRAIN], features[:, TRAIN:]
    scale = train.std(axis=(0, 1))
    if class_means:
        train = train.mean(axis=1, keepdims=True)
    labels, truth = (np.repeat(np.arange(10), part.shape[1]) for part in (train, test))
    known, unknown = (part.reshape(-1, part.shape[-1]) / scale for part in (train, test))
    distances = np.square(unknown[:, None] - known).sum(axis=-1)
    return float((labels[distances.argmin(axis=1)] == truth).mean())


def texture(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Describe a square image's power spectrum: float64 [20].

    For each ring of frequencies, its share of the power and how unevenly the power lies along it:
    blind to colour, contrast, place, rotation and reflection.
    """
    side = image.shape[0]
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float64)
    window = np.outer(np.hanning(side), np.hanning(side))
    power = np.abs(np.fft.fft2((grey - grey.mean()) * window)) ** 2
    frequencies = np.fft.fftfreq(side, 1 / side)
    radius = np.hypot(frequencies[:, None], frequencies)
    ring = np.digitize(radius, [1, 3, 5, 7, 9, 12, 16, 22, 30, side / 2]).ravel()
    total = np.bincount(ring, power.ravel())
    unevenness = np.bincount(ring, power.ravel() ** 2) * np.bincount(ring) / total**2
    features = np.log([total / total.sum(), unevenness])[:, 1:]  # ring 0 is the mean alone
    return np.asarray(features.ravel(), np.float64)


@pytest.mark.parametrize("class_means", [False, True])
def test_mean_colour_does_not_give_the_class_away(
    gallery: NDArray[np.uint8], class_means: bool
) -> None:
    assert accuracy(gallery.mean(axis=(2, 3)), class_means=class_means) < 0.25


def test_texture_tells_the_classes_apart(gallery: NDArray[np.uint8]) -> None:
    features = np.array([[texture(image) for image in images] for images in gallery])
    assert accuracy(features) > 0.7
