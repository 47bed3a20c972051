"""A plain image folder as a dataset: what it reads is what the files hold."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from torchvision.datasets import ImageFolder

from fastdata import (
    DatasetError,
    ImageError,
    SourceError,
    UsageError,
    convert,
    open_dataset,
)


def test_samples_are_the_files_of_image_folder(make_folder: Callable[..., Path]) -> None:
    root = make_folder()
    dataset, expected = open_dataset(root), ImageFolder(str(root))
    assert len(dataset) == len(expected) == 22
    assert (dataset.format, dataset.encoded, dataset.manifest) == ("folder", True, None)
    assert dataset.classes == expected.classes
    assert dataset.class_to_idx == expected.class_to_idx
    assert dataset.labels.dtype == np.int64
    assert dataset.labels.tolist() == expected.targets
    for i, (path, _) in enumerate(expected.samples):
        assert dataset.path_of(i) == os.fsencode(os.path.relpath(path, root))
        assert dataset.read(i) == Path(path).read_bytes()
        with Image.open(path) as image:
            np.testing.assert_array_equal(dataset.decode(i), np.asarray(image))
            assert dataset.sizes[i].tolist() == list(image.size)
    assert dataset.sizes.dtype == np.int32


def test_sizes_and_pixels_are_upright(make_folder: Callable[..., Path]) -> None:
    root = make_folder({"a": 3})
    exif = Image.Exif()
    exif[0x0112] = 8
    with Image.open(root / "a" / "a_001.jpg") as image:
        image.load()
        image.save(root / "a" / "a_001.jpg", exif=exif, quality=90)
    dataset = open_dataset(root)
    with Image.open(root / "a" / "a_001.jpg") as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert dataset.sizes[1].tolist() == [upright.shape[1], upright.shape[0]]
    np.testing.assert_array_equal(dataset.decode(1), upright)


def test_sizes_are_read_when_they_are_asked_for(make_folder: Callable[..., Path]) -> None:
    root = make_folder({"a": 3})
    dataset = open_dataset(root)
    (root / "a" / "a_001.jpg").write_bytes(b"no image")
    with pytest.raises(ImageError, match=r"a/a_001\.jpg: not an image"):
        _ = dataset.sizes


def test_a_file_that_has_gone_is_named(make_folder: Callable[..., Path]) -> None:
    root = make_folder({"a": 3})
    dataset = open_dataset(root)
    (root / "a" / "a_002.jpg").unlink()
    with pytest.raises(ImageError, match=f"{root}/a/a_002.jpg: No such file"):
        dataset.read(2)


def test_a_damaged_file_is_named(make_folder: Callable[..., Path]) -> None:
    root = make_folder({"a": 2})
    path = root / "a" / "a_000.jpg"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ImageError, match=f"{path}: "):
        open_dataset(root).decode(0)


def test_there_are_no_pixels_and_no_samples_outside(make_folder: Callable[..., Path]) -> None:
    dataset = open_dataset(make_folder({"a": 2}))
    with pytest.raises(UsageError, match=r"\.read\(\) or \.decode\(\)"):
        _ = dataset.pixels
    for index in (-1, 2):
        for method in (dataset.read, dataset.decode, dataset.path_of):
            with pytest.raises(IndexError):
                method(index)


def test_identity_follows_the_names(make_folder: Callable[..., Path]) -> None:
    root = make_folder({"a": 3})
    identity = open_dataset(root).identity
    assert open_dataset(root).identity == identity
    (root / "a" / "a_001.jpg").rename(root / "a" / "a_001b.jpg")
    assert open_dataset(root).identity != identity


def test_a_pickled_copy_reads_the_same_files_without_listing_them_again(
    make_folder: Callable[..., Path],
) -> None:
    root = make_folder({"a": 3, "b": 2})
    dataset = open_dataset(root)
    data = pickle.dumps(dataset)
    (root / "a" / "a_000b.jpg").write_bytes(b"came later")
    copy = pickle.loads(data)
    assert [copy.read(i) for i in range(5)] == [dataset.read(i) for i in range(5)]
    assert copy.identity == dataset.identity


def test_a_pickled_copy_of_a_folder_that_became_a_dataset_is_refused(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    root = make_folder({"a": 3})
    data = pickle.dumps(open_dataset(root))
    convert(root, tmp_path / "out", workers=1)
    root.rename(tmp_path / "away")
    (tmp_path / "out").rename(root)
    with pytest.raises(DatasetError, match="was replaced since it was pickled"):
        pickle.loads(data)


def test_what_is_no_folder_of_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="found nothing"):
        open_dataset(tmp_path / "absent")
    with pytest.raises(SourceError, match="found none"):
        open_dataset(tmp_path)


def test_a_closed_dataset_opens_again(make_folder: Callable[..., Path]) -> None:
    with open_dataset(make_folder({"a": 2})) as dataset:
        data = dataset.read(0)
    dataset.close()
    assert dataset.read(0) == data
