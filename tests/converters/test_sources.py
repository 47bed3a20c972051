"""Datasets and other people's WebDataset shards as sources."""

from __future__ import annotations

import functools
import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import ImageFolder
from webdataset.tariterators import base_plus_ext

import converters.conversion
import fastdata
from converters.plan import Plan
from converters.write import ShardWriter
from fastdata import (
    Dataset,
    ImageError,
    SourceError,
    UnfinishedError,
    UsageError,
    open_dataset,
)

convert = functools.partial(fastdata.convert, workers=1)
FORMATS = ("webdataset", "lmdb", "memmap")
ENCODED = ("webdataset", "lmdb")
Tar = Callable[..., Path]


@pytest.fixture
def image(
    pixels: Callable[..., NDArray[np.uint8]], encode: Callable[..., bytes]
) -> Callable[..., bytes]:
    """An encoded image of 32x24: ``image(seed, **encode's options)``."""
    return lambda seed=0, **options: encode(pixels(32, 24, seed=seed), **options)


@pytest.fixture
def folder(tmp_path: Path, image: Callable[..., bytes]) -> Path:
    """Three classes with images of every kind that is converted, each 32x24."""
    kinds: list[dict[str, Any]] = [{}, {"format": "PNG"}, {"progressive": True}, {"mode": "L"}]
    for number, name in enumerate(["Z/0", "Z/1", "a/2", "a/3", "a/sub/4", "é/5", "é/6"]):
        path = tmp_path / "folder" / f"{name}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(number, **kinds[number % 4]))
    return tmp_path / "folder"


@pytest.fixture
def tar(tmp_path: Path) -> Tar:
    """Write an archive with Python's tarfile: ``tar("name.tar", ("member", data), ...)``."""

    def write(name: str, *members: tuple[str, bytes], format: int = tarfile.PAX_FORMAT) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w", format=format) as archive:
            for member, data in members:
                info = tarfile.TarInfo(member)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return path

    return write


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards are written in this process, for tests of many conversions."""

    def run(
        staging: Path,
        shards: list[int],
        workers: int,
        on_error: str,
        progress: Callable[[int, int], None],
    ) -> None:
        writer = ShardWriter(Plan.load(staging), staging, on_error)
        for shard in shards:
            writer.write(shard, progress)

    monkeypatch.setattr(converters.conversion, "run_shards", run)


def by_path(root: Path) -> dict[bytes, tuple[Any, ...]]:
    """Path -> label, class, size and stored image of every sample."""
    with open_dataset(root) as dataset:
        return {
            dataset.path_of(i): (
                dataset.labels[i].tolist(),
                dataset.classes[int(dataset.labels[i])] if dataset.classes else None,
                dataset.sizes[i].tolist(),
                dataset.read(i) if dataset.encoded else dataset.pixels[i].tobytes(),
            )
            for i in range(len(dataset))
        }


def stored(root: Path) -> dict[bytes, tuple[bytes, Any]]:
    return {path: (sample[3], sample[0]) for path, sample in by_path(root).items()}


class Hook:
    """A progress that calls a function when the source is scanned and before work begins."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def scanned(self, images: int) -> None: ...

    def planned(self, images: int, done: int) -> None:
        self._function()

    def converted(self, images: int) -> None: ...

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...


# Datasets.


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("first", ENCODED)
def test_by_way_of_an_encoded_format_all_is_as_if_converted_directly(
    first: str, folder: Path, tmp_path: Path
) -> None:
    convert(folder, tmp_path / "first", to=first, size=(24, 32))
    expected = dict(ImageFolder(str(folder)).samples)
    for to in FORMATS:
        result = convert(tmp_path / "first", tmp_path / to, to=to, size=(24, 32))
        convert(folder, tmp_path / "direct" / to, to=to, size=(24, 32))
        found, direct = by_path(tmp_path / to), by_path(tmp_path / "direct" / to)
        if to == "memmap":  # PNGs and progressive JPEGs became JPEGs on the way
            for path in (b"Z/1.jpg", b"a/2.jpg", "é/5.jpg".encode(), "é/6.jpg".encode()):
                pair = [np.frombuffer(rows.pop(path)[3], np.uint8) for rows in (found, direct)]
                assert np.abs(pair[0].astype(np.float64) - pair[1]).mean() < 8
        assert found == direct
        labels = {path: sample[0] for path, sample in by_path(tmp_path / to).items()}
        assert labels == {
            os.fsencode(os.path.relpath(path, folder)): label for path, label in expected.items()
        }
        assert open_dataset(tmp_path / to).classes == ["Z", "a", "é"]
        assert (result.treated, result.repaired, result.ignored) == ({}, {}, {})


def test_from_memmap_to_memmap_every_pixel_stays(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first", to="memmap", size=(24, 32))
    convert(tmp_path / "first", tmp_path / "second", to="memmap", size=(24, 32), seed=7)
    assert by_path(tmp_path / "second") == by_path(tmp_path / "first")
    for root in ("first", "second"):
        assert np.load(tmp_path / root / "images.npy").shape == (7, 24, 32, 3)


@pytest.mark.parametrize("to", ENCODED)
def test_from_memmap_to_an_encoded_format_the_pixels_are_encoded(
    to: str, folder: Path, tmp_path: Path
) -> None:
    convert(folder, tmp_path / "first", to="memmap", size=(24, 32))
    convert(tmp_path / "first", tmp_path / "second", to=to, quality=80)
    before, after = by_path(tmp_path / "first"), by_path(tmp_path / "second")
    assert before.keys() == after.keys()
    buffer = io.BytesIO()
    Image.new("RGB", (32, 24)).save(buffer, "JPEG", quality=80)
    tables = Image.open(buffer).quantization  # type: ignore[attr-defined]
    for path, (label, name, size, data) in after.items():
        assert (label, name, size) == before[path][:3]
        rows = np.frombuffer(before[path][3], np.uint8).reshape(24, 32, 3)
        with Image.open(io.BytesIO(data)) as file:
            assert file.format == "JPEG"
            assert file.quantization == tables  # type: ignore[attr-defined]
            error = np.abs(np.asarray(file.convert("RGB"), np.float64) - rows)
        assert error.mean() < 8


def test_a_dataset_can_be_scaled_on_the_way(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first")
    result = convert(tmp_path / "first", tmp_path / "second", to="lmdb", resize=12)
    assert open_dataset(tmp_path / "second").sizes.tolist() == [[16, 12]] * 7
    assert result.treated == {"scaled": 7}


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("header", "values"),
    [
        ("x", ["0.5", "-1", "2"]),
        ("x,y", ["1,2", "3,4", "5,6"]),
        ("x,y", ["1,2.5", "3,4", "5,6"]),
        ("", []),
    ],
    ids=["targets", "whole columns", "columns", "none"],
)
def test_labels_of_every_kind_go_through_every_format(
    header: str, values: list[str], image: Callable[..., bytes], tmp_path: Path
) -> None:
    source, options = tmp_path / "source", {}
    source.mkdir()
    for i in range(3):
        (source / f"{i}.jpg").write_bytes(image(i))
    if header:
        rows = "".join(f"{i}.jpg,{value}\n" for i, value in enumerate(values))
        (tmp_path / "l.csv").write_text(f"path,{header}\n{rows}")
        options = {"labels": tmp_path / "l.csv", "label_column": header.split(",")}
    convert(source, tmp_path / "0", to="webdataset", shuffle=False, **options)
    expected = np.zeros((3, 0), np.int64)
    if header:
        decimal = any("." in value for value in values)
        table = [[float(number) for number in value.split(",")] for value in values]
        expected = np.array(table, np.float32 if decimal else np.int64)
        expected = expected[:, 0] if header == "x" else expected
    for i, to in enumerate(("lmdb", "memmap", "webdataset")):
        convert(tmp_path / f"{i}", tmp_path / f"{i + 1}", to=to, size=(24, 32), shuffle=False)
    for i in range(4):
        dataset = open_dataset(tmp_path / f"{i}")
        assert dataset.labels.dtype == expected.dtype
        assert np.array_equal(dataset.labels, expected)
        assert dataset.classes == []
        assert dataset.manifest is not None
        assert dataset.manifest.columns == (
            None if header == "x" else header.split(",") if header else []
        )


def test_a_dataset_can_be_counted_by_other_classes(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first")
    (tmp_path / "classes.txt").write_text("é\nunused\na\nZ\n")
    convert(tmp_path / "first", tmp_path / "second", classes=tmp_path / "classes.txt")
    names = {path: sample[1] for path, sample in by_path(tmp_path / "second").items()}
    assert names == {path: sample[1] for path, sample in by_path(tmp_path / "first").items()}
    assert open_dataset(tmp_path / "second").classes == ["é", "unused", "a", "Z"]
    (tmp_path / "fewer.txt").write_text("a\nZ\n")
    with pytest.raises(SourceError, match="class 'é' is none of the 2 classes"):
        convert(tmp_path / "first", tmp_path / "third", classes=tmp_path / "fewer.txt")


def test_an_unfinished_conversion_is_no_source(
    folder: Path, tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    interrupt(folder, tmp_path / "first", shard_size=1500)
    with pytest.raises(UnfinishedError, match=r"first unfinished: \d+ of \d+ shards"):
        convert(tmp_path / "first", tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_damaged_dataset_is_no_source(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first")
    (tmp_path / "first" / "labels.npy").unlink()
    with pytest.raises(fastdata.DatasetError, match=r"labels\.npy"):
        convert(tmp_path / "first", tmp_path / "second")


def test_a_dataset_that_is_replaced_meanwhile_is_noticed(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first")

    def replace() -> None:
        convert(folder, tmp_path / "first", seed=1, overwrite=True)

    with pytest.raises(SourceError, match=r"first was replaced while it was converted"):
        convert(tmp_path / "first", tmp_path / "second", progress=Hook(replace))


def test_a_damaged_sample_of_a_dataset_is_named_by_place_and_origin(
    folder: Path, tmp_path: Path
) -> None:
    convert(folder, tmp_path / "first", shuffle=False)
    with Dataset(tmp_path / "first") as dataset:
        offset, length = np.load(tmp_path / "first" / "offsets.npy")[4].tolist()
        assert dataset.read(4)[:2] == b"\xff\xd8"
    with (tmp_path / "first" / "shard-000000.tar").open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))
    with pytest.raises(ImageError, match=r"sample 4 of .*first \(from a/sub/4\.jpg\)"):
        convert(tmp_path / "first", tmp_path / "second")


# Shards.


def test_shards_that_tarfile_wrote(tar: Tar, image: Callable[..., bytes], tmp_path: Path) -> None:
    jpgs = [image(i) for i in range(4)]
    png = image(9, format="PNG")
    tar("in/b.tar", ("2.jpg", jpgs[2]), ("2.cls", b"bee\n"), ("3.cls", b"ant"), ("3.JPG", jpgs[3]))
    tar("in/a.tar", ("0.jpeg", jpgs[0]), ("0.cls", b"cat"), ("1.cls", b"bee"), ("1.png", png))
    result = convert(tmp_path / "in", tmp_path / "out", shuffle=False)
    dataset = open_dataset(tmp_path / "out")
    paths = [b"a.tar/0.jpeg", b"a.tar/1.png", b"b.tar/2.jpg", b"b.tar/3.JPG"]
    assert [dataset.path_of(i) for i in range(4)] == paths
    assert dataset.classes == ["ant", "bee", "cat"]
    assert dataset.labels.tolist() == [2, 1, 1, 0]
    assert [dataset.read(i) for i in (0, 2, 3)] == [jpgs[0], jpgs[2], jpgs[3]]
    with Image.open(io.BytesIO(png)) as file:
        error = np.abs(np.asarray(file, np.float64) - dataset.decode(1))
    assert error.mean() < 8
    assert result.treated == {"PNG": 1}


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("kind", ["text", "int", "none"])
def test_shards_that_the_webdataset_package_wrote(
    kind: str, to: str, image: Callable[..., bytes], tmp_path: Path
) -> None:
    labels: list[Any] = {"text": ["b", "a", "b"], "int": [5, 0, 2], "none": [None] * 3}[kind]
    expected = {"text": [1, 0, 1], "int": [5, 0, 2], "none": [[], [], []]}[kind]
    classes = {"text": ["a", "b"], "int": list("012345"), "none": []}[kind]
    with webdataset.TarWriter(str(tmp_path / "x.tar")) as writer:
        for i, label in enumerate(labels):
            sample = {"__key__": f"folder/{i:03d}", "jpg": image(i), "json": {"any": "thing"}}
            if label is not None:
                sample["cls"] = label.encode() if kind == "text" else label
            writer.write(sample)
    convert(tmp_path / "x.tar", tmp_path / "out", to=to, size=(24, 32), shuffle=False)
    dataset = open_dataset(tmp_path / "out")
    assert dataset.labels.dtype == np.int64
    assert dataset.labels.tolist() == expected
    assert dataset.classes == classes
    for i in range(3):
        assert dataset.path_of(i) == b"x.tar/folder/%03d.jpg" % i
        if dataset.encoded:
            assert dataset.read(i) == image(i)
        else:
            with Image.open(io.BytesIO(image(i))) as file:
                error = np.abs(np.asarray(file, np.float64) - dataset.pixels[i])
            assert error.max() <= 4  # of decoders among each other


def test_our_own_shards_elsewhere_are_other_peoples(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "first", shuffle=False, shard_size=2000)
    (tmp_path / "moved").mkdir()
    for shard in (tmp_path / "first").glob("*.tar"):
        shard.rename(tmp_path / "moved" / shard.name)
    convert(tmp_path / "moved", tmp_path / "second", shuffle=False)
    dataset = open_dataset(tmp_path / "second")
    assert dataset.classes == ["0", "1", "2"]
    assert dataset.labels.tolist() == ImageFolder(str(folder)).targets


def test_one_shard_is_the_same_as_a_folder_with_it(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    shard = tar("in/x.tar", *((f"{i}.jpg", image(i)) for i in range(3)))
    convert(shard, tmp_path / "1")
    assert convert(tmp_path / "in", tmp_path / "1").already_done


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_keys_are_split_as_the_webdataset_package_splits_them(
    format: int, tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    names = ["a/1", "b/1", "v1.2/3", "é/4", "./5", f"{'long' * 22}/{'name' * 20}"]
    members = []
    for i, name in enumerate(names):
        members += [(f"{name}.jpg", image(i)), (f"{name}.cls", b"%d" % i)]
        members += [(f"{name}.seg.png", b"a mask")]  # by its key's extension no image
    path = tar("x.tar", *members, format=format)
    assert [base_plus_ext(name)[0] for name, _ in members[::3]] == names
    convert(path, tmp_path / "out")
    assert stored(tmp_path / "out") == {
        f"x.tar/{name}.jpg".encode(): (image(i), i) for i, name in enumerate(names)
    }


def test_what_is_no_sample_is_counted(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    path = tar("x.tar", ("about.txt", b"text"), ("1.jpg", image()), ("2.cls", b"3"))
    with tarfile.open(path, "a") as archive:
        archive.addfile(directory("sub"))
    result = convert(path, tmp_path / "out")
    assert (result.samples, result.classes) == (1, 0)
    assert result.ignored == {"a sample without an image": 2}


def directory(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = tarfile.DIRTYPE
    return info


def test_what_a_mac_puts_beside_each_file_does_no_harm(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    # Its tar adds a member ._NAME for each NAME; its Finder, such files on foreign disks.
    members = []
    for i in range(3):
        for name, data in ((f"x/{i}.jpg", image(i)), (f"x/{i}.cls", b"%d" % i)):
            members += [(f"x/._{os.path.basename(name)}", b"\0\5\x16\7"), (name, data)]
    tar("in/a.tar", *members)
    (tmp_path / "in" / "._a.tar").write_bytes(b"\0\5\x16\7")
    convert(tmp_path / "in", tmp_path / "out")
    expected = {b"a.tar/x/%d.jpg" % i: (image(i), i) for i in range(3)}
    assert stored(tmp_path / "out") == expected


def test_targets_in_shards(tar: Tar, image: Callable[..., bytes], tmp_path: Path) -> None:
    members = [("0.jpg", image(0)), ("0.cls", b"0.5"), ("1.jpg", image(1)), ("1.cls", b"-2")]
    convert(tar("x.tar", *members), tmp_path / "out", shuffle=False)
    labels = np.load(tmp_path / "out" / "labels.npy")
    assert (labels.dtype, labels.tolist()) == (np.float32, [0.5, -2])


def test_shards_counted_by_given_classes(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "classes.txt").write_text("cat\nbee\nant\n")
    members = [("0.jpg", image(0)), ("0.cls", b"ant"), ("1.jpg", image(1)), ("1.cls", b"cat")]
    path = tar("x.tar", *members)
    convert(path, tmp_path / "out", shuffle=False, classes=tmp_path / "classes.txt")
    assert np.load(tmp_path / "out" / "labels.npy").tolist() == [2, 0]
    (tmp_path / "classes.txt").write_text("cat\nbee\n")
    with pytest.raises(SourceError, match="'ant' is none of the 2 classes"):
        convert(path, tmp_path / "2", classes=tmp_path / "classes.txt")
    with pytest.raises(UsageError, match=r"no labels \(\.cls\) that --classes could count"):
        convert(tar("y.tar", *members[::2]), tmp_path / "3", classes=tmp_path / "classes.txt")


def test_a_label_table_is_not_for_shards(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    (tmp_path / "l.csv").write_text("path,label\n0.jpg,ant\n")
    with pytest.raises(UsageError, match="has its own labels"):
        convert(tar("x.tar", ("0.jpg", image())), tmp_path / "out", labels=tmp_path / "l.csv")


def test_shards_that_cannot_be_understood_are_named(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    jpg, cls = image(), b"1"
    refused: list[tuple[str, list[tuple[str, bytes]]]] = [
        (r"2\.jpg.*expected a label.*1 samples", [("1.jpg", jpg), ("1.cls", cls), ("2.jpg", jpg)]),
        (r"sample '1' are not adjacent", [("1.jpg", jpg), ("2.jpg", jpg), ("1.cls", cls)]),
        (r"'a/1' are not adjacent", [("a/1.jpg", jpg), ("b/1.jpg", jpg), ("a/1.cls", cls)]),
        (r"'1' has several images: jpg, png", [("1.jpg", jpg), ("1.png", jpg)]),
        (r"'1' has two members \.jpg", [("1.jpg", jpg), ("1.JPG", jpg)]),
        (r"expected samples with an image", [("1.txt", b"text")]),
        (r"label", [("1.jpg", jpg), ("1.cls", b" \n"), ("2.jpg", jpg), ("2.cls", b"ant")]),
        (r"class index from 0", [("1.jpg", jpg), ("1.cls", b"-1")]),
    ]  # fmt: skip
    for message, members in refused:
        path = tar("y.tar", *members)
        with pytest.raises(SourceError, match=message) as caught:
            convert(path, tmp_path / "out")
        assert "y.tar" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_shard_that_was_cut_is_named_wherever_it_was_cut(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    tar("in/a.tar", *((f"{i}.jpg", image(i)) for i in range(3)))
    path = tar("in/b.tar", *((f"{i}.jpg", image(i)) for i in range(3)))
    whole = path.read_bytes()
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-1]
    end = last.offset_data + -(-last.size // 512) * 512
    cuts = {
        "no end blocks": end,
        "one end block": end + 512,
        "a whole member less": last.offset,
        "in a member": last.offset_data + last.size // 2,
        "in a header": last.offset + 100,
        "nothing": 0,
    }
    for what, size in cuts.items():
        path.write_bytes(whole[:size])
        with pytest.raises(SourceError, match=r"in/b\.tar: .*restore it"):
            convert(tmp_path / "in", tmp_path / "out")
        assert not (tmp_path / "out").exists(), what
    path.write_bytes(whole[: end + 1024])  # without the padding to records that tarfile adds
    assert convert(tmp_path / "in", tmp_path / "out").samples == 6


def test_a_shard_with_a_damaged_header_is_named(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    path = tar("x.tar", *((f"{i}.jpg", image(i)) for i in range(3)))
    data = bytearray(path.read_bytes())
    with tarfile.open(path) as archive:
        data[archive.getmembers()[1].offset + 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.tar: damaged tar archive"):
        convert(path, tmp_path / "out")


def test_compressed_shards_are_refused_by_name(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    path = tar("in/x.tar", ("1.jpg", image()))
    data = gzip.compress(path.read_bytes())
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"in/x\.tar: "):
        convert(tmp_path / "in", tmp_path / "out")
    path.rename(tmp_path / "in" / "x.tar.gz")
    for source in (tmp_path / "in", tmp_path / "in" / "x.tar.gz"):
        with pytest.raises(SourceError, match=str(source)):
            convert(source, tmp_path / "out")


def test_a_damaged_image_in_a_shard_is_named_or_listed(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    path = tar("x.tar", ("1.jpg", image()), ("2.jpg", b"no image"), ("3.jpg", image(3)))
    with pytest.raises(ImageError, match=r"x\.tar/2\.jpg: not an image"):
        convert(path, tmp_path / "out")
    assert convert(path, tmp_path / "out", on_error="skip").samples == 2
    (line,) = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == "x.tar/2.jpg"


@pytest.mark.parametrize("when", ["meanwhile", "between two runs"])
def test_a_shard_that_changes_is_noticed(
    when: str,
    tar: Tar,
    image: Callable[..., bytes],
    tmp_path: Path,
    interrupt: Callable[..., None],
) -> None:
    path = tar("x.tar", *((f"{i}.jpg", image(i)) for i in range(6)))
    options = {"shard_size": 2 * len(image()), "shuffle": False}

    def touch() -> None:
        status = path.stat()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000_000))

    if when == "meanwhile":
        with pytest.raises(SourceError, match=r"x\.tar was changed while the source"):
            convert(path, tmp_path / "out", progress=Hook(touch), **options)
        return
    interrupt(path, tmp_path / "out", images=3, **options)
    touch()
    with pytest.raises(fastdata.DestinationError, match=r"x\.tar/0\.jpg was changed"):
        convert(path, tmp_path / "out", **options)


def test_an_interrupted_conversion_of_shards_resumes(
    tar: Tar,
    image: Callable[..., bytes],
    tmp_path: Path,
    interrupt: Callable[..., None],
    digests: Callable[[Path], dict[str, str]],
) -> None:
    for shard in range(3):
        tar(f"in/{shard}.tar", *((f"{i}.jpg", image(4 * shard + i)) for i in range(4)))
    options = {"shard_size": 2 * len(image())}
    interrupt(tmp_path / "in", tmp_path / "out", images=6, **options)
    assert convert(tmp_path / "in", tmp_path / "out", **options).resumed > 0
    convert(tmp_path / "in", tmp_path / "fresh", **options)
    assert digests(tmp_path / "out") == digests(tmp_path / "fresh")


# What is a source of which kind.


def test_sidecars_beside_shards_do_not_matter(
    tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    tar("in/a.tar", ("1.jpg", image()))
    for name in ("a.idx", "wids.json", "_info.json", "README.md", ".hidden.jpg"):
        (tmp_path / "in" / name).write_text("{}")
    convert(tmp_path / "in", tmp_path / "out")
    assert list(stored(tmp_path / "out")) == [b"a.tar/1.jpg"]


@pytest.mark.parametrize("name", ["class/1.jpg", "1.jpg"])
def test_images_and_class_folders_win_over_a_stray_archive(
    name: str, tar: Tar, image: Callable[..., bytes], tmp_path: Path
) -> None:
    tar("in/stray.tar", ("2.jpg", image(2)))
    (tmp_path / "in" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "in" / name).write_bytes(image())
    result = convert(tmp_path / "in", tmp_path / "out")
    assert list(stored(tmp_path / "out")) == [name.encode()]
    assert sum(result.ignored.values()) == 1
