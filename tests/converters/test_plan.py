"""Plans, by hand calculation: which sample goes into which shard, and what may be resumed."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from converters.options import Options
from converters.plan import Plan
from converters.sources import Source, scan_source
from fastdata import DestinationError
from fastdata.paths import PathTable


def source_of(sizes: list[int] | NDArray[np.int64], classes: int = 2) -> Source:
    """A source that exists on paper only: a plan looks at nothing but names, sizes and labels."""
    count = len(sizes)
    labels = np.arange(count, dtype=np.int64) * classes // count
    paths = PathTable.of(b"c%d/%06d.jpg" % (labels[i], i) for i in range(count))
    names = [f"c{k}" for k in range(classes)]
    times = np.zeros(count, np.int64)
    return Source("folder", b"/nowhere", paths, labels, names, np.asarray(sizes, np.int64), times)


def plan_of(sizes: list[int] | NDArray[np.int64], **options: object) -> Plan:
    return Plan.make(Options("webdataset", **options), source_of(sizes))  # type: ignore[arg-type]


def test_a_shard_holds_the_samples_whose_first_byte_lies_in_its_range() -> None:
    # First bytes 0, 10, 30, 60, 65, 165 in ranges of 40: 0 0 0 1 1 4; no shard is empty.
    plan = plan_of([10, 20, 30, 5, 100, 1], shard_size=40, shuffle=False)
    assert plan.starts.tolist() == [0, 3, 5, 6]
    assert plan.shards == 3


@pytest.mark.parametrize(
    ("sizes", "shard_size", "starts"),
    [
        ([40, 40, 40], 40, [0, 1, 2, 3]),  # a shard that is exactly full ends there
        ([40, 40, 40], 80, [0, 2, 3]),
        ([40, 40, 40], 81, [0, 3]),
        ([1000, 1, 1], 10, [0, 1, 3]),  # larger than a shard: alone, and what follows starts anew
        ([5], 1, [0, 1]),
        ([0, 0, 0], 10, [0, 3]),  # empty files are found faulty later; the plan has room for them
        ([-1, 50, -1, 50], 50, [0, 2, 4]),  # gone files count nothing
        ([1, 1, 1], 1, [0, 1, 2, 3]),
    ],
)
def test_shards_are_cut_by_source_bytes(
    sizes: list[int], shard_size: int, starts: list[int]
) -> None:
    assert plan_of(sizes, shard_size=shard_size, shuffle=False).starts.tolist() == starts


@pytest.mark.parametrize(
    ("count", "size", "per_shard"),
    [
        (1000, 1000, 1000),  # 1 MB: one shard, as a shard has at least 4 MB
        (1000, 16_000, 250),  # 16 MB in shards of 4 MB
        (3200, 400_000, 100),  # 1.28 GB in 32 shards of 40 MB
        (500, 64_000_000, 4),  # 32 GB in shards of 256 MB
    ],
)
def test_default_shards_are_a_32nd_of_the_source_within_4_to_256_megabytes(
    count: int, size: int, per_shard: int
) -> None:
    plan = plan_of(np.full(count, size, np.int64))
    assert np.diff(plan.starts).tolist() == [per_shard] * (count // per_shard)


def test_shards_follow_the_shuffled_order() -> None:
    sizes = np.random.default_rng(0).integers(1, 100, 300)
    plan = plan_of(sizes, shard_size=500)
    first_bytes = np.cumsum(sizes[plan.order]) - sizes[plan.order]
    number = np.searchsorted(plan.starts, np.arange(300), "right")  # shard of each position
    expected = np.unique(first_bytes // 500, return_inverse=True)[1] + 1
    np.testing.assert_array_equal(number, expected)


def test_without_shuffle_the_order_is_the_sources() -> None:
    assert plan_of([1] * 50, shuffle=False).order.tolist() == list(range(50))


def test_a_shuffle_holds_each_sample_once_and_follows_the_seed() -> None:
    order = {seed: plan_of([1] * 1000, seed=seed).order.tolist() for seed in (0, 1, 2)}
    for positions in order.values():
        assert sorted(positions) == list(range(1000))
    assert plan_of([1] * 1000, seed=1).order.tolist() == order[1]
    assert len({tuple(positions) for positions in order.values()}) == 3


def test_a_shuffle_mixes_the_classes() -> None:
    # 10 classes of 200 in runs of 100: each run holds about 10 of each class. A run that lacks a
    # class has a chance of 0.9**100 = 3e-5, and the seed is fixed.
    source = source_of([1] * 2000, classes=10)
    plan = Plan.make(Options("webdataset"), source)
    labels = source.labels[plan.order].reshape(20, 100)
    assert all(len(set(run)) == 10 for run in labels.tolist())


def test_neither_workers_nor_times_reach_the_plan(tmp_path: Path) -> None:
    source = source_of(list(range(1, 100)))
    later = replace(source, stamps=source.stamps + 5)
    one, two = (Plan.make(Options("webdataset"), s) for s in (source, later))
    assert one.order.tolist() == two.order.tolist()
    assert one.starts.tolist() == two.starts.tolist()


def test_a_saved_plan_is_read_back_whole(tmp_path: Path) -> None:
    options = Options("memmap", size=(32, 48), seed=9, shard_size=60)
    plan = Plan.make(options, source_of([10, 20, -1, 0, 30, 5, 100, 1], classes=3))
    plan.save(tmp_path)
    again = Plan.load(tmp_path)
    assert again.options == options
    assert again.source.root == b"/nowhere"
    assert again.source.classes == ["c0", "c1", "c2"]
    assert again.source.paths.tobytes() == plan.source.paths.tobytes()
    for name in ("order", "starts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(plan, name))
    for name in ("bytes", "stamps", "places", "groups"):
        np.testing.assert_array_equal(getattr(again.source, name), getattr(plan.source, name))
    np.testing.assert_array_equal(again.source.labels, plan.source.labels)
    plan.check_resumable(tmp_path)  # itself


def test_a_plan_keeps_names_that_are_no_utf8(tmp_path: Path) -> None:
    paths, one = PathTable.of([b"\xfe/\xfd.jpg"]), np.ones(1, np.int64)
    source = Source("folder", b"/r\xff", paths, np.zeros(1, np.int64), ["\udcfe"], one, one)
    Plan.make(Options("webdataset"), source).save(tmp_path)
    again = Plan.load(tmp_path).source
    assert (again.root, again.paths[0], again.classes) == (b"/r\xff", b"\xfe/\xfd.jpg", ["\udcfe"])


def write_source(root: Path) -> Path:
    for label in ("ant", "bee"):
        (root / label).mkdir(parents=True)
        for number in range(3):
            (root / label / f"{number}.jpg").write_bytes(bytes(10))
    return root


def add(root: Path) -> None:
    (root / "bee" / "1b.jpg").write_bytes(bytes(10))


def add_last(root: Path) -> None:
    (root / "bee" / "9.jpg").write_bytes(bytes(10))


def remove(root: Path) -> None:
    (root / "ant" / "1.jpg").unlink()


def rename(root: Path) -> None:
    (root / "ant" / "2.jpg").rename(root / "ant" / "20.jpg")


def grow(root: Path) -> None:
    path = root / "bee" / "0.jpg"
    time = path.stat().st_mtime_ns
    path.write_bytes(bytes(11))
    os.utime(path, ns=(time, time))  # the size alone differs


def touch(root: Path) -> None:
    path = root / "bee" / "0.jpg"
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # the time alone differs


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "added": (add, "bee/1b.jpg"),
    "added at the end": (add_last, "6 images and has now 7"),
    "removed": (remove, "ant/1.jpg"),
    "renamed": (rename, "ant/20.jpg"),
    "another size": (grow, "bee/0.jpg was changed"),
    "another time": (touch, "bee/0.jpg was changed"),
}


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES.keys())
def test_a_plan_of_a_changed_source_is_not_resumed(
    change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    root, staging = write_source(tmp_path / "source"), tmp_path / "staging"
    staging.mkdir()
    options = Options("webdataset", shard_size=20)
    Plan.make(options, scan_source(root)).save(staging)
    change(root)
    with pytest.raises(DestinationError, match=f"cannot be resumed: .*{message}.*--no-resume"):
        Plan.make(options, scan_source(root)).check_resumable(staging)


def test_a_plan_of_a_source_elsewhere_is_not_resumed(tmp_path: Path) -> None:
    one, two = write_source(tmp_path / "one"), write_source(tmp_path / "two")
    staging = tmp_path / "staging"
    staging.mkdir()
    Plan.make(Options("webdataset"), scan_source(one)).save(staging)
    with pytest.raises(DestinationError, match=f"source was {one} and is now {two}"):
        Plan.make(Options("webdataset"), scan_source(two)).check_resumable(staging)


def test_a_plan_with_another_option_is_not_resumed(tmp_path: Path) -> None:
    root, staging = write_source(tmp_path / "source"), tmp_path / "staging"
    staging.mkdir()
    Plan.make(Options("webdataset", resize=64), scan_source(root)).save(staging)
    with pytest.raises(DestinationError, match="--resize was 64 and is now 48"):
        Plan.make(Options("webdataset", resize=48), scan_source(root)).check_resumable(staging)
