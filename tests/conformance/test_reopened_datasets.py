"""Datasets of every format in copies, in other processes, and closed and used again."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import open_dataset
from fastdata.dataset import Dataset

PATIENCE = 60  # seconds until something counts as hanging

# Copies and processes


def test_a_pickle_of_a_converted_dataset_is_small(
    converted_format: str,
    make_case: Callable[[str], Any],
    contents: Callable[[Dataset], dict[str, Any]],
) -> None:
    with open_dataset(make_case(converted_format).path) as dataset:
        contents(dataset)  # nothing that was read may travel
        assert len(pickle.dumps(dataset)) < 1000


def test_a_pickled_copy_equals_the_original(
    any_format: str, make_case: Callable[[str], Any], contents: Callable[[Dataset], dict[str, Any]]
) -> None:
    with open_dataset(make_case(any_format).path) as dataset:
        expected = contents(dataset)
        with pickle.loads(pickle.dumps(dataset)) as copy:
            assert copy.identity == dataset.identity
            assert copy.path == dataset.path
            assert copy.format == dataset.format == any_format
            assert contents(copy) == expected
        assert contents(dataset) == expected


def test_forked_processes_read_at_the_same_time_as_their_parent(
    any_format: str,
    make_case: Callable[[str], Any],
    fork: Callable[[Callable[[], Any]], Any],
    digest: Callable[..., str],
) -> None:
    case = make_case(any_format)
    expected = [digest(case.source.pixels(i)) for i in range(9)]
    with open_dataset(case.path) as dataset:
        dataset.decode(0)  # files and maps are open when the children are made

        def decode_all() -> list[str]:
            for _ in range(5):
                order = np.random.default_rng(os.getpid()).permutation(9)
                decoded = {int(i): digest(dataset.decode(int(i))) for i in order}
            return [decoded[i] for i in range(9)]

        children = [fork(decode_all) for _ in range(3)]
        for _ in range(10):
            assert [digest(dataset.decode(i)) for i in range(9)] == expected
        assert [child.answer() for child in children] == [("value", expected)] * 3
        # The children have closed what they inherited; that must not concern the parent.
        assert [digest(dataset.decode(i)) for i in range(9)] == expected


def test_a_fork_opens_its_own_files(
    any_format: str, make_case: Callable[[str], Any], fork: Callable[[Callable[[], Any]], Any]
) -> None:
    with open_dataset(make_case(any_format).path) as dataset:
        parents = dataset.reader

        def same_reader() -> tuple[bool, bool]:
            return dataset.reader is parents, dataset.reader is dataset.reader

        assert fork(same_reader).answer() == ("value", (False, True))
        assert dataset.reader is parents


def test_a_fork_of_a_fork_reads_too(
    any_format: str,
    make_case: Callable[[str], Any],
    fork: Callable[[Callable[[], Any]], Any],
    digest: Callable[..., str],
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        dataset.decode(0)

        def child() -> Any:
            dataset.decode(1)
            return fork(lambda: digest(dataset.decode(2))).answer()

        assert fork(child).answer() == ("value", ("value", digest(case.source.pixels(2))))


def test_a_fork_may_close_without_harm_to_its_parent(
    any_format: str, make_case: Callable[[str], Any], fork: Callable[[Callable[[], Any]], Any]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        dataset.decode(0)
        assert fork(dataset.close).answer() == ("value", None)
        np.testing.assert_array_equal(dataset.decode(3), case.source.pixels(3))


def test_spawned_processes_read_at_the_same_time_as_their_parent(
    any_format: str, make_case: Callable[[str], Any]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset, multiprocessing.get_context("spawn").Pool(2) as pool:
        waiting = pool.map_async(dataset.decode, range(9), chunksize=1)
        for _ in range(10):
            for index in range(9):
                np.testing.assert_array_equal(dataset.decode(index), case.source.pixels(index))
        for index, pixels in enumerate(waiting.get(PATIENCE)):
            np.testing.assert_array_equal(pixels, case.source.pixels(index))
        pool.close()
        pool.join()


def test_more_processes_than_samples_can_read_one_shard(
    any_format: str,
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
    fork: Callable[[Callable[[], Any]], Any],
    digest: Callable[..., str],
) -> None:
    source = write_source(
        {b"a/0.jpg": jpeg(picture(30, 20, 1)), b"b/0.jpg": jpeg(picture(30, 20, 2))}
    )
    expected = [digest(source.pixels(i)) for i in range(2)]
    with open_dataset(in_format(any_format, source)) as dataset:
        children = [fork(lambda: [digest(dataset.decode(i)) for i in range(2)]) for _ in range(5)]
        assert [child.answer() for child in children] == [("value", expected)] * 5


def test_a_dataset_may_have_more_shards_than_a_process_may_open_files(
    any_format: str,
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> None:
    source = write_source({b"a/%03d.jpg" % i: jpeg(picture(8, 8, i)) for i in range(75)})
    options = {} if any_format == "folder" else {"shard_size": 1}
    path = in_format(any_format, source, **options)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 70, hard))
    try:
        with open_dataset(path) as dataset:
            order = np.random.default_rng(0).permutation(np.repeat(np.arange(75), 2))
            for index in order.tolist():
                np.testing.assert_array_equal(dataset.decode(index), source.pixels(index))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Closing


def open_files(root: Path) -> set[str]:
    """Files below ``root`` that this process has open or mapped, but for the small arrays that a
    dataset keeps in memory whether it is open or closed."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(descriptor))
        except FileNotFoundError:  # the one of this listing itself
            continue
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        found.add(line.split(maxsplit=5)[-1])
    kept = {"labels.npy", "sizes.npy", "paths.bin"}
    return {
        os.path.relpath(path, root)
        for path in found
        if path.startswith(f"{root}/") and os.path.basename(path) not in kept
    }


def test_closing_releases_the_data_and_using_it_opens_it_again(
    any_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(any_format, uniform)
    dataset = open_dataset(path)
    for _ in range(2):
        np.testing.assert_array_equal(dataset.decode(4), uniform.pixels(4))
        if any_format != "folder":  # a folder opens a file for as long as it reads it
            assert open_files(path)
        dataset.close()
        assert open_files(path) == set()
        dataset.close()  # once more does nothing


def test_a_context_manager_closes(
    any_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(any_format, uniform)
    with open_dataset(path) as dataset:
        dataset.decode(0)
    assert open_files(path) == set()
    with pytest.raises(IndexError), dataset:
        dataset.decode(99)
    assert open_files(path) == set()
    np.testing.assert_array_equal(dataset.decode(2), uniform.pixels(2))
    dataset.close()


def test_two_open_at_once_are_closed_independently(
    any_format: str, uniform: Any, in_format: Callable[..., Path]
) -> None:
    path = in_format(any_format, uniform)
    one, two = open_dataset(path), open_dataset(path)
    one.decode(0), two.decode(0)
    one.close()
    np.testing.assert_array_equal(two.decode(1), uniform.pixels(1))
    two.close()
    np.testing.assert_array_equal(one.decode(2), uniform.pixels(2))
    one.close()


def test_pixels_outlive_the_dataset_that_they_were_taken_from(
    pixel_format: str, uniform: Any, in_format: Callable[..., Path]
) -> None:
    dataset = open_dataset(in_format(pixel_format, uniform))
    pixels = dataset.pixels
    dataset.close()
    del dataset
    np.testing.assert_array_equal(pixels[10], uniform.pixels(10))
