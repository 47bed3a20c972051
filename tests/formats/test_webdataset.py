"""WebDataset on disk, as the standard library's tarfile and the webdataset package read it."""

from __future__ import annotations

import base64
import contextlib
import gc
import io
import json
import multiprocessing
import os
import shutil
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import webdataset
from PIL import Image

from fastdata import DataError, DatasetError, convert, open_dataset

HANG_GUARD = 60


def shards(out: Path, name: str = "shard") -> list[Path]:
    return sorted(out.glob(f"{name}-*.tar"))


def members(out: Path) -> Iterator[tuple[Path, tarfile.TarInfo, bytes]]:
    """Every member of every shard, with its contents, by tarfile."""
    for path in shards(out):
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                file = tar.extractfile(member)
                assert file is not None
                yield path, member, file.read()


def by_package(out: Path, *decode: str, decoded: bool = False) -> list[dict[str, Any]]:
    """All samples, read by the webdataset package."""
    with warnings.catch_warnings():
        # It leaves the closing of shards to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        reader = webdataset.WebDataset([str(path) for path in shards(out)], shardshuffle=False)
        samples = list(reader.decode(*decode) if decoded else reader)
        del reader
        gc.collect()
    return samples


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source with a name that is no UTF-8, and its dataset of several shards; only read."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made") / "out"
    generator = np.random.default_rng(0)
    for number in range(22):
        folder = source / ("ant", "bee", "cat")[number % 3]
        folder.mkdir(exist_ok=True)
        noise = generator.integers(0, 256, (20 + number % 4, 32, 3), np.uint8)
        Image.fromarray(noise).save(folder / f"{number:03d}.jpg")
    odd = os.path.join(os.fsencode(source), b"bee", b"\xffodd \\ \xc3\xa9.jpg")
    os.rename(source / "bee" / "001.jpg", odd)
    convert(source, out, workers=1, shard_size=9000)
    assert len(shards(out)) > 2
    return source, out


@pytest.fixture
def copied(made: tuple[Path, Path], tmp_path: Path) -> Path:
    """The dataset, to be damaged."""
    return Path(shutil.copytree(made[1], tmp_path / "out"))


def test_shards_are_ustar_without_traces_of_time_and_owner(made: tuple[Path, Path]) -> None:
    _, out = made
    for path in shards(out):
        data = path.read_bytes()
        assert len(data) % 512 == 0
        assert data[-1024:] == bytes(1024)  # the end of an archive is two empty blocks
        with tarfile.open(path, "r:") as tar:
            assert tar.pax_headers == {}
            for member in tar:
                header = data[member.offset : member.offset + 512]
                assert header[257:265] == b"ustar\x0000"
                assert member.offset_data == member.offset + 512  # no extended headers
                assert member.isreg()
                assert member.name.isascii()
                assert len(member.name) < 100
                facts = (member.mtime, member.uid, member.gid, member.uname, member.gname)
                assert facts == (0, 0, 0, "", "")
                assert member.mode == 0o644


def test_tarfile_finds_image_label_and_path_of_each_sample(made: tuple[Path, Path]) -> None:
    source, out = made
    dataset = open_dataset(out)
    found = [(member.name, data) for _, member, data in members(out)]
    assert len(found) == 3 * 22
    keys = []
    for i in range(22):
        triple = found[3 * i : 3 * i + 3]  # members of a sample are adjacent, in this order
        key = triple[0][0].partition(".")[0]
        assert [name for name, _ in triple] == [f"{key}.jpg", f"{key}.cls", f"{key}.json"]
        keys.append(key)
        image, label, words = (data for _, data in triple)
        path = json.loads(words)
        raw = base64.b64decode(path["path_base64"]) or path["path"].encode()
        assert raw == dataset.path_of(i)
        with open(os.path.join(os.fsencode(source), raw), "rb") as file:
            assert image == file.read()
        assert int(label) == dataset.labels[i] == ["ant", "bee", "cat"].index(raw[:3].decode())
    assert keys == [f"{i:09d}" for i in range(22)]


def test_a_path_that_is_no_utf8_is_escaped_and_kept(made: tuple[Path, Path]) -> None:
    _, out = made
    words = [json.loads(data) for _, member, data in members(out) if member.name.endswith("json")]
    assert all(set(word) == {"path", "path_base64"} for word in words)
    odd = [word for word in words if word["path_base64"]]
    assert [word["path"] for word in odd] == ["bee/\\xffodd \\ é.jpg"]
    assert base64.b64decode(odd[0]["path_base64"]) == b"bee/\xffodd \\ \xc3\xa9.jpg"


def test_the_webdataset_package_reads_the_same_samples(made: tuple[Path, Path]) -> None:
    _, out = made
    dataset, samples = open_dataset(out), by_package(out, decoded=True)
    assert len(samples) == 22
    for i, sample in enumerate(samples):
        assert sample["__key__"] == f"{i:09d}"
        assert sample["jpg"] == bytes(dataset.read(i))
        assert type(sample["cls"]) is int
        assert sample["cls"] == dataset.labels[i]
        assert sample["json"]["path"].startswith(dataset.classes[sample["cls"]] + "/")


def test_the_webdataset_package_decodes_the_images(made: tuple[Path, Path]) -> None:
    _, out = made
    dataset, samples = open_dataset(out), by_package(out, "rgb8", decoded=True)
    assert len(samples) == 22
    for i, sample in enumerate(samples):
        np.testing.assert_array_equal(sample["jpg"], dataset.decode(i))
        assert sample["cls"] == dataset.labels[i]


def test_dali_indices_agree_with_tarfile(made: tuple[Path, Path]) -> None:
    _, out = made
    for path in shards(out):
        first, *lines = path.with_suffix(".idx").read_text().splitlines()
        expected: list[list[str]] = []
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                if member.name.endswith(".jpg"):
                    expected.append([])
                extension = member.name.partition(".")[2]
                facts = (extension, member.offset_data, member.size, member.name)
                expected[-1] += map(str, facts)
        assert first == f"v1.2 {len(expected)}"
        assert [line.split(" ") for line in lines] == expected


def test_offsets_point_at_the_images(made: tuple[Path, Path]) -> None:
    _, out = made
    offsets = np.load(out / "offsets.npy")
    assert (offsets.dtype, offsets.shape) == (np.int64, (22, 2))
    expected = [
        (path, member.offset_data, member.size)
        for path, member, _ in members(out)
        if member.name.endswith(".jpg")
    ]
    for (path, offset, size), found in zip(expected, offsets.tolist(), strict=True):
        assert found == [offset, size]
        data = path.read_bytes()[offset : offset + size]
        assert (data[:3], data[-2:]) == (b"\xff\xd8\xff", b"\xff\xd9")


def test_the_indices_for_wids_and_timm_name_shards_and_counts(made: tuple[Path, Path]) -> None:
    _, out = made
    counts = {}
    for path in shards(out):
        with tarfile.open(path, "r:") as tar:
            counts[path.name] = sum(name.endswith(".jpg") for name in tar.getnames())
    wids = json.loads((out / "wids.json").read_bytes())
    assert wids["__kind__"] == "wids-shard-index-v1"
    assert wids["wids_version"] == 1
    assert [(shard["url"], shard["nsamples"]) for shard in wids["shardlist"]] == [*counts.items()]
    for shard in wids["shardlist"]:
        assert shard["filesize"] == (out / shard["url"]).stat().st_size
    info = json.loads((out / "_info.json").read_bytes())
    split = info["splits"]["shard"]
    assert split["filenames"] == list(counts)
    assert split["shard_lengths"] == list(counts.values())
    assert split["num_samples"] == 22


def test_a_name_becomes_the_prefix_and_the_split(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"a": 2}), tmp_path / "out", workers=1, name="train")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"train-000000.tar", "train-000000.idx"} <= names
    assert not [name for name in names if name.startswith("shard")]
    assert list(json.loads((tmp_path / "out" / "_info.json").read_bytes())["splits"]) == ["train"]


def test_samples_without_labels_have_no_label_member(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder({"a": 3}) / "a", tmp_path / "out"
    convert(source, out, workers=1)
    names = [member.name for _, member, _ in members(out)]
    assert names == [f"{i:09d}.{kind}" for i in range(3) for kind in ("jpg", "json")]
    lines = (out / "shard-000000.idx").read_text().splitlines()
    assert all(len(line.split()) == 8 for line in lines[1:])  # two members of four words
    kinds = [sorted(key for key in sample if key[0] != "_") for sample in by_package(out)]
    assert kinds == [["jpg", "json"]] * 3


def test_a_shard_of_which_nothing_is_left_is_left_out(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source, out = make_folder({"a": 4, "b": 4}), tmp_path / "out"
    for number in (1, 2):
        (source / "a" / f"a_00{number}.jpg").write_bytes(b"no image" * 500)
    # Each sample of 4000 bytes or so fills a shard of its own.
    convert(source, out, workers=1, shuffle=False, shard_size=1000, on_error="skip")
    assert [path.name for path in shards(out)] == [
        f"shard-{number:06d}.tar" for number in (0, 3, 4, 5, 6, 7)
    ]
    assert len(list(out.glob("*.idx"))) == 6
    for index, key in (("wids.json", "shardlist"), ("_info.json", "splits")):
        text = json.dumps(json.loads((out / index).read_bytes())[key])
        assert "000001" not in text
        assert "000002" not in text
    keys = [sample["__key__"] for sample in by_package(out)]
    assert keys == [f"{i:09d}" for i in (0, 3, 4, 5, 6, 7)]
    dataset = open_dataset(out)
    assert dataset.labels.tolist() == [0, 0, 1, 1, 1, 1]
    for i, name in enumerate(["a/a_000", "a/a_003", "b/b_000", "b/b_001", "b/b_002", "b/b_003"]):
        assert bytes(dataset.read(i)) == (source / f"{name}.jpg").read_bytes()


def test_members_of_any_length_are_padded(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    (source / "a").mkdir(parents=True)
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), (200, 0, 0)).save(buffer, "JPEG")
    start, rest = buffer.getvalue()[:2], buffer.getvalue()[2:]
    for number in range(512):  # every remainder of the block size, by a comment of any length
        comment = b"\xff\xfe" + (number + 2).to_bytes(2, "big") + b"x" * number
        (source / "a" / f"{number:03d}.jpg").write_bytes(start + comment + rest)
    convert(source, out, workers=1, shuffle=False)
    found = [data for _, member, data in members(out) if member.name.endswith("jpg")]
    assert found == [path.read_bytes() for path in sorted((source / "a").iterdir())]


# Reading.


def test_any_sample_can_be_read_at_once_and_in_any_order(made: tuple[Path, Path]) -> None:
    source, out = made
    dataset = open_dataset(out)
    for i in np.random.default_rng(0).permutation(22).tolist() * 2:
        with open(os.path.join(os.fsencode(source), dataset.path_of(i)), "rb") as file:
            assert bytes(dataset.read(i)) == file.read()


def _read_all(path: Path, queue: Any) -> None:
    dataset = open_dataset(path)
    queue.put([bytes(dataset.read(i)) for i in range(len(dataset))])


def test_a_spawned_process_reads_the_same(made: tuple[Path, Path]) -> None:
    _, out = made
    dataset = open_dataset(out)
    expected = [bytes(dataset.read(i)) for i in range(len(dataset))]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_read_all, args=(out, queue))
    process.start()
    assert queue.get(timeout=HANG_GUARD) == expected
    process.join(HANG_GUARD)
    assert process.exitcode == 0


@pytest.mark.parametrize("change", ["cut", "grown", "gone"])
def test_a_shard_that_is_not_as_it_was_written_is_refused(change: str, copied: Path) -> None:
    path = shards(copied)[1]
    if change == "gone":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size + (512 if change == "grown" else -512))
    with pytest.raises(
        DatasetError, match=rf"{path}: (expected \d+ bytes, found \d+|No such file)"
    ):
        open_dataset(copied)


@pytest.mark.parametrize("data", [None, b"", b"no array", "short"], ids=str)
def test_offsets_that_cannot_be_used_are_refused(data: bytes | str | None, copied: Path) -> None:
    path = copied / "offsets.npy"
    if data is None:
        path.unlink()
    elif isinstance(data, str):
        np.save(path, np.load(path)[:-1])
    else:
        path.write_bytes(data)
    with pytest.raises(DatasetError, match=r"offsets\.npy"):
        open_dataset(copied)


def test_a_replaced_dataset_is_not_read_through_the_old_ones_index(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    # The old one was opened, but has not looked at its shards yet. Then other images, of the same
    # number and in a shard of the same name, take its place.
    out = tmp_path / "out"
    convert(make_folder({"a": 9}), out, workers=1)
    old = open_dataset(out)
    expected = [bytes(open_dataset(out).read(i)) for i in range(9)]
    convert(make_folder({"a": 9, "b": 5}, name="other"), out, workers=1, overwrite=True)
    for i in range(9):
        with contextlib.suppress(DataError):  # to refuse is as good
            assert bytes(old.read(i)) == expected[i]


def test_decoding_a_sample_gives_its_pixels(made: tuple[Path, Path]) -> None:
    _, out = made
    dataset = open_dataset(out)
    with Image.open(io.BytesIO(dataset.read(4))) as image:
        np.testing.assert_array_equal(dataset.decode(4), np.asarray(image))
