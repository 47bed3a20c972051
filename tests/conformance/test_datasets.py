"""What every dataset promises, whatever its format: its contents, identity and refusals."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fastdata import open_dataset
from fastdata.errors import SourceError, UnfinishedError, UsageError
from fastdata.manifest import STAGING

# What it tells


def test_the_length_is_the_number_of_samples(
    any_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        assert len(dataset) == len(case.folder.samples) == 9


def test_labels_and_classes_are_imagefolders(
    any_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        assert dataset.classes == case.folder.classes
        assert dataset.class_to_idx == case.folder.class_to_idx
        assert dataset.labels.dtype == np.int64
        assert dataset.labels.shape == (9,)
        assert dataset.labels.tolist() == case.folder.targets


def test_samples_stand_in_imagefolders_order(
    any_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(any_format)
    root = os.fsencode(case.source.root)
    expected = [os.path.relpath(os.fsencode(path), root) for path, _ in case.folder.samples]
    with open_dataset(case.path) as dataset:
        assert [dataset.path_of(i) for i in range(len(dataset))] == expected
    # The other tests take the order from the source's list of paths.
    assert expected == case.source.paths


def test_sizes_are_pillows(any_format: str, make_case: Callable[[str], Any]) -> None:
    case = make_case(any_format)
    expected = []
    for path, _ in case.folder.samples:
        with open(os.fsencode(path), "rb") as file, Image.open(file) as image:
            expected.append(image.size)
    with open_dataset(case.path) as dataset:
        assert dataset.sizes.dtype == np.int32
        assert dataset.sizes.tolist() == [list(size) for size in expected]


def test_an_encoded_image_is_the_source_file_byte_for_byte(
    encoded_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(encoded_format)
    with open_dataset(case.path) as dataset:
        assert dataset.encoded
        for index in range(len(dataset)):
            data = dataset.read(index)
            assert type(data) is bytes
            assert data == case.source.data(index)


def test_stored_pixels_are_pillows_decode_of_the_source(
    pixel_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(pixel_format)
    with open_dataset(case.path) as dataset:
        assert not dataset.encoded
        assert dataset.pixels.dtype == np.uint8
        expected = np.stack([case.source.pixels(index) for index in range(len(dataset))])
        np.testing.assert_array_equal(dataset.pixels, expected)


def test_stored_pixels_cannot_be_written(
    pixel_format: str, make_case: Callable[[str], Any]
) -> None:
    with (
        open_dataset(make_case(pixel_format).path) as dataset,
        pytest.raises(ValueError, match="read-only"),
    ):
        dataset.pixels[0] = 0


def test_a_decoded_image_is_pillows(any_format: str, make_case: Callable[[str], Any]) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        for index in range(len(dataset)):
            pixels = dataset.decode(index)
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(pixels, case.source.pixels(index))


def test_many_encoded_images_at_once_are_each_of_them(
    encoded_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(encoded_format)
    with open_dataset(case.path) as dataset:
        count = len(dataset)
        for indices in ([count - 1, 0, 0, count // 2], [1], []):
            found = dataset.reader.read_many(np.array(indices, np.int64))
            expected = [case.source.data(index) for index in indices]
            assert [bytes(data) for data in found] == expected


def test_samples_can_be_taken_in_any_order_and_again(
    any_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(any_format)
    order = [8, 0, 0, 5, 8, *range(8, -1, -1)]
    with open_dataset(case.path) as dataset:
        for index in order:
            # numpy integers are what an order of samples is made of
            np.testing.assert_array_equal(
                dataset.decode(np.int64(index)),  # type: ignore[arg-type]
                case.source.pixels(index),
            )


def test_samples_without_class_folders_have_labels_of_no_columns(
    any_format: str,
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> None:
    source = write_source({b"%d.jpg" % i: jpeg(picture(20, 12, i)) for i in range(3)})
    with open_dataset(in_format(any_format, source)) as dataset:
        assert dataset.labels.shape == (3, 0)
        assert dataset.labels.dtype == np.int64
        assert dataset.classes == []
        assert dataset.class_to_idx == {}
        np.testing.assert_array_equal(dataset.decode(2), source.pixels(2))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_relative_path_is_kept_when_the_process_moves(
    kind: type,
    any_format: str,
    make_case: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    case = make_case(any_format)
    monkeypatch.chdir(case.path.parent)
    dataset = open_dataset(kind(case.path.name))
    monkeypatch.chdir(tmp_path)
    assert dataset.path == case.path
    dataset.close()
    np.testing.assert_array_equal(dataset.decode(1), case.source.pixels(1))
    dataset.close()


# Identity


def test_the_identity_is_the_same_at_every_opening_and_for_equal_datasets(
    any_format: str, uniform: Any, in_format: Callable[..., Path], copied: Callable[..., Path]
) -> None:
    path = in_format(any_format, uniform)
    with open_dataset(path) as one, open_dataset(path) as two:
        assert one.identity == two.identity
        int(one.identity, 16)
    with open_dataset(copied(any_format, uniform)) as other:
        assert other.identity == one.identity


def test_the_identity_of_a_converted_dataset_is_another_when_one_byte_of_a_source_is(
    converted_format: str,
    uniform: Any,
    in_format: Callable[..., Path],
    write_source: Callable[..., Any],
) -> None:
    files = {path: uniform.data(index) for index, path in enumerate(uniform.paths)}
    changed = bytearray(files[b"bee/1.jpg"])
    changed[-40] ^= 1  # inside the picture's data: the same length, other pixels
    other = write_source({**files, b"bee/1.jpg": bytes(changed)})
    assert (other.pixels(5) != uniform.pixels(5)).any()
    with open_dataset(in_format(converted_format, uniform)) as dataset:
        before = dataset.identity
    with open_dataset(in_format(converted_format, other)) as dataset:
        assert dataset.identity != before


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "moved to another class"])
def test_the_identity_of_a_folder_is_another_when_its_list_of_files_is(
    change: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied("folder", uniform)
    before = open_dataset(path).identity
    file = path / "bee" / "1.jpg"
    if change == "added":
        shutil.copy(file, path / "bee" / "2.jpg")
    elif change == "removed":
        file.unlink()
    elif change == "renamed":
        file.rename(path / "bee" / "9.jpg")
    else:
        file.rename(path / "cat" / "9.jpg")
    assert open_dataset(path).identity != before


# Wrong use


@pytest.mark.parametrize("index", [-1, 9, 10**12])
@pytest.mark.parametrize("method", ["read", "decode", "path_of"])
def test_an_index_out_of_range_is_an_index_error(
    any_format: str, method: str, index: int, make_case: Callable[[str], Any]
) -> None:
    with open_dataset(make_case(any_format).path) as dataset:
        expected = f"sample {index} of a dataset of 9"
        with pytest.raises(IndexError, match=expected):
            getattr(dataset, method)(index)


def test_encoded_images_have_no_pixels(
    encoded_format: str, make_case: Callable[[str], Any]
) -> None:
    with (
        open_dataset(make_case(encoded_format).path) as dataset,
        pytest.raises(UsageError, match=r"encoded images; use \.read\(\) or \.decode\(\)"),
    ):
        _ = dataset.pixels


def test_pixels_have_no_encoded_images(pixel_format: str, make_case: Callable[[str], Any]) -> None:
    with (
        open_dataset(make_case(pixel_format).path) as dataset,
        pytest.raises(UsageError, match=r"no encoded images; use \.pixels or \.decode\(\)"),
    ):
        dataset.read(0)


def test_a_place_with_nothing_to_load_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name in ("absent", "file", "empty"):
        with pytest.raises(SourceError, match=str(tmp_path / name)):
            open_dataset(tmp_path / name)


def test_an_unfinished_conversion_is_refused_as_such(
    converted_format: str, uniform: Any, tmp_path: Path
) -> None:
    # The destination as an interruption leaves it: work in the staging folder, no manifest.
    (tmp_path / STAGING).mkdir()
    (tmp_path / STAGING / "plan.json").write_text('{"shards": 7}')
    with pytest.raises(UnfinishedError, match=r"0 of 7 shards; run the same .*again to resume"):
        open_dataset(tmp_path)
