"""verify: damage of every kind is found, and the file that is damaged is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fastdata import DatasetError, UnfinishedError, convert
from fastdata.manifest import MANIFEST, STAGING, Manifest
from fastdata.registry import WRITERS
from fastdata.verify import verify


@pytest.fixture(params=list(WRITERS))
def dataset(request: pytest.FixtureRequest, make_folder: Callable[..., Path]) -> Path:
    source = make_folder()
    root = source.parent / "dataset"
    convert(source, root, to=request.param, size=48, shard_size=4000)
    return root


def test_a_whole_dataset_has_no_problems(dataset: Path) -> None:
    result = verify(dataset, decode=True)
    assert result.problems == []
    assert result.samples == result.decoded == 22
    on_disk = [path for path in dataset.iterdir() if path.name != MANIFEST]
    assert result.files == len(on_disk)
    assert result.bytes == sum(path.stat().st_size for path in on_disk)


def test_progress_counts_every_byte_and_then_every_image(dataset: Path) -> None:
    counts: list[int] = []
    result = verify(dataset, decode=True, progress=counts.append)
    assert sum(counts) == result.bytes + result.samples


def test_a_flipped_bit_in_any_file_is_found_and_the_file_named(dataset: Path) -> None:
    for path in sorted(dataset.iterdir()):
        whole = path.read_bytes()
        if path.name == MANIFEST or not whole:
            continue
        for place in {0, len(whole) // 2, len(whole) - 1}:
            damaged = bytearray(whole)
            damaged[place] ^= 1
            path.write_bytes(damaged)
            problems = verify(dataset).problems
            assert any(str(path) in line for line in problems), (path, place)
        path.write_bytes(whole)
    assert verify(dataset).problems == []


def test_a_file_cut_short_lengthened_or_gone_is_named(dataset: Path) -> None:
    for path in sorted(dataset.iterdir()):
        whole = path.read_bytes()
        if path.name == MANIFEST or not whole:
            continue
        for damaged in (whole[:-1], b"", whole + b"\0"):
            path.write_bytes(damaged)
            assert any(str(path) in line for line in verify(dataset).problems), path
        path.unlink()
        assert any(str(path) in line for line in verify(dataset).problems), path
        path.write_bytes(whole)


def test_a_tar_cut_at_a_member_boundary_is_found(make_folder: Callable[..., Path]) -> None:
    source = make_folder()
    root = source.parent / "dataset"
    convert(source, root, to="webdataset")
    shard = root / "shard-000000.tar"
    # The last sample's first member begins one block before its image does.
    last = int(np.load(root / "offsets.npy")[-1, 0]) - 512
    shard.write_bytes(shard.read_bytes()[:last] + bytes(1024))
    assert any(str(shard) in line for line in verify(root).problems)


def test_a_shard_of_another_conversion_is_named(make_folder: Callable[..., Path]) -> None:
    source = make_folder()
    root = source.parent / "dataset"
    convert(source, root, to="webdataset")
    (root / "shard-000099.tar").write_bytes((root / "shard-000000.tar").read_bytes())
    assert [line for line in verify(root).problems if "shard-000099.tar" in line]


def test_an_image_that_does_not_decode_is_found_although_its_checksum_is_right(
    make_folder: Callable[..., Path],
) -> None:
    source = make_folder()
    victim = source / "bee" / "bee_002.jpg"
    data = victim.read_bytes()
    # Whole by its markers, but its picture data ends in the middle: only decoding tells.
    victim.write_bytes(data[: len(data) // 2] + b"\xff\xd9")
    root = source.parent / "dataset"
    convert(source, root, to="lmdb", check="structure")
    assert verify(root).problems == []
    (problem,) = verify(root, decode=True).problems
    assert "bee/bee_002.jpg" in problem


def test_labels_out_of_range_are_found_even_with_a_matching_checksum(
    make_folder: Callable[..., Path],
) -> None:
    import hashlib

    source = make_folder()
    root = source.parent / "dataset"
    convert(source, root, to="webdataset")
    labels = np.load(root / "labels.npy")
    labels[3] = 7
    np.save(root / "labels.npy", labels)
    digest = hashlib.sha256((root / "labels.npy").read_bytes()).hexdigest()
    manifest = Manifest.read(root)
    parts = [replace(p, sha256=digest) if p.file == "labels.npy" else p for p in manifest.parts]
    replace(manifest, parts=parts).write(root)
    (problem,) = verify(root).problems
    assert "labels.npy" in problem
    assert "7" in problem


def test_what_is_no_dataset_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=MANIFEST):
        verify(tmp_path)
    (tmp_path / STAGING).mkdir()
    with pytest.raises(UnfinishedError, match="run the same fastdata convert again"):
        verify(tmp_path)
