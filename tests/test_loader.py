"""The loader: epochs, state, ranks, workers, errors, transforms; the pixels themselves are held to
a reference in tests/conformance/test_engines.py."""

from __future__ import annotations

import gc
import io
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torchvision.transforms import v2

import fastdata
from fastdata import Loader, Recipe, convert, make_loader, open_dataset
from fastdata.errors import DataError, DatasetError, ImageError, UsageError, WorkerError
from fastdata.registry import READERS, load

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

FORMATS = ["folder", *READERS]
ENCODED = [name for name in FORMATS if name == "folder" or load(READERS, name, "format").encoded]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders of this module
PATIENCE = 60  # seconds until something counts as hanging


@pytest.fixture(autouse=True)
def _hang_guard() -> Iterator[None]:
    """Nothing may hang: a test that does fails instead of standing still."""

    def interrupt(number: int, frame: object) -> None:
        pytest.fail(f"still not done after {PATIENCE} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(PATIENCE)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def encode(number: int, width: int, height: int) -> bytes:
    """A small JPEG that is like no other."""
    generator = np.random.default_rng(number)
    coarse = Image.fromarray(generator.integers(0, 256, (6, 6, 3), np.uint8))
    buffer = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def write_folder(root: Path, sizes: list[tuple[int, int]], count: int = COUNT) -> Path:
    """``count`` JPEGs in three classes; the labels follow from the names alone."""
    for number in range(count):
        path = root / "abc"[number * 3 // count] / f"{number:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(number, *sizes[number % len(sizes)]))
    return root


def label_of(number: int, count: int = COUNT) -> int:
    return number * 3 // count


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of many sizes, from smaller than the recipes' output to eight times as large."""
    sizes = [(80, 60), (61, 97), (64, 128), (300, 270), (30, 20)]
    return write_folder(tmp_path_factory.mktemp("varied") / "source", sizes)


@pytest.fixture(scope="module")
def uniform(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of 48 x 40."""
    return write_folder(tmp_path_factory.mktemp("uniform") / "source", [(48, 40)])


@pytest.fixture(scope="module")
def in_format(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Path], Path]:
    """(format, folder) -> a dataset of the same samples in the same order."""
    made: dict[tuple[str, Path], Path] = {}

    def make(name: str, source: Path) -> Path:
        if name == "folder":
            return source
        if (name, source) not in made:
            path = tmp_path_factory.mktemp(name) / "dataset"
            size = None if name in ENCODED else (40, 48)
            convert(source, path, to=name, shuffle=False, workers=1, size=size)
            made[name, source] = path
        return made[name, source]

    return make


@pytest.fixture(scope="module")
def packed(in_format: Callable[[str, Path], Path], folder: Path) -> Path:
    """The varied images as one dataset, for tests to which the format does not matter."""
    return in_format("webdataset", folder)


def run(path: Any, batch_size: int = 4, epoch: int = 0, **options: Any) -> list[Any]:
    """All batches of one epoch of a loader made for it."""
    options = {"recipe": TRAIN, "num_workers": 0, "with_index": True, **options}
    with make_loader(path, batch_size, **options) as loader:
        loader.set_epoch(epoch)
        return list(loader)


def same(found: Iterable[Any], expected: Iterable[Any]) -> bool:
    """Whether two epochs hold the same batches, bit by bit."""
    pairs = list(itertools.zip_longest(found, expected))
    return bool(pairs) and all(
        one is not None
        and two is not None
        and len(one) == len(two)
        and all(map(torch.equal, one, two))
        for one, two in pairs
    )


def order(batches: Iterable[Any]) -> list[int]:
    """The dataset indices of batches made with ``with_index``."""
    return [index for *_, indices in batches for index in indices.tolist()]


# What a batch is


def test_a_batch_is_images_and_labels(packed: Path) -> None:
    with make_loader(packed, 4, recipe="imagenet-train", num_workers=0, with_index=True) as loader:
        assert isinstance(loader, Loader)
        assert loader.batch_size == 4
        assert loader.engine == "workers"
        assert len(loader.dataset) == COUNT
        batches = list(loader)
    assert len(batches) == len(loader) == 5
    for images, labels, indices in batches:
        assert images.shape == (4, 3, 224, 224)
        assert images.dtype == torch.float32
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert labels.dtype == indices.dtype == torch.int64
        assert labels.tolist() == [label_of(index) for index in indices.tolist()]


def test_the_index_is_handed_out_only_when_asked_for(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        assert {len(batch) for batch in loader} == {2}
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        assert {len(batch) for batch in loader} == {3}


def test_without_a_recipe_the_images_own_pixels_are_handed_out(
    uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    files = sorted(uniform.rglob("*.jpg"))
    for name in FORMATS:
        batches = run(in_format(name, uniform), recipe=None)
        assert order(batches) == list(range(COUNT))
        for images, _, indices in batches:
            assert images.dtype == torch.uint8
            for image, index in zip(images, indices.tolist(), strict=True):
                expected = np.asarray(Image.open(files[index]).convert("RGB"))
                np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), expected)


def test_a_plain_folder_loads_without_conversion(folder: Path) -> None:
    with fastdata.make_loader(folder, 4, recipe=TRAIN, num_workers=1) as loader:
        assert loader.dataset.format == "folder"
        assert len(list(loader)) == 5
        assert "fastdata convert" in loader.explain()


def test_samples_without_class_folders_have_labels_of_no_columns(
    tmp_path: Path, in_format: Callable[[str, Path], Path]
) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(5):
        (tmp_path / "flat" / f"{number}.jpg").write_bytes(encode(number, 48, 40))
    for name in FORMATS:
        for workers in (0, 1):
            path = in_format(name, tmp_path / "flat")
            with make_loader(path, 3, recipe=EVAL, num_workers=workers) as loader:
                labels = [labels for _, labels in loader]
            assert [tuple(each.shape) for each in labels] == [(3, 0), (2, 0)]
            assert all(each.dtype == torch.int64 for each in labels)


# The same whatever the workers and the format


@pytest.fixture(scope="module")
def reference(folder: Path) -> Callable[[Recipe], list[Any]]:
    """An epoch of the plain folder in this process."""
    made: dict[Recipe, list[Any]] = {}

    def make(recipe: Recipe) -> list[Any]:
        if recipe not in made:
            made[recipe] = run(folder, recipe=recipe, epoch=3, seed=5)
        return made[recipe]

    return make


@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", ENCODED)
def test_batches_are_identical_for_any_workers_and_every_format_of_the_same_bytes(
    name: str,
    workers: int,
    recipe: Recipe,
    folder: Path,
    in_format: Callable[[str, Path], Path],
    reference: Callable[[Recipe], list[Any]],
) -> None:
    path = in_format(name, folder)
    found = run(path, recipe=recipe, epoch=3, seed=5, num_workers=workers)
    assert same(found, reference(recipe))


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("name", sorted(set(FORMATS) - set(ENCODED)))
def test_batches_of_pixels_are_identical_for_any_workers(
    name: str, workers: int, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    path = in_format(name, uniform)
    assert same(run(path, epoch=3, num_workers=workers), run(path, epoch=3))


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_batches_are_identical_for_every_start_method(method: str, packed: Path) -> None:
    options = {"start_method": method}
    found = run(packed, 8, num_workers=1, prefetch_factor=1, engine_options=options)
    assert same(found, run(packed, 8))


@pytest.mark.parametrize("name", FORMATS)
def test_batches_are_identical_for_any_prefetch_factor_and_a_dataset_opened_before(
    name: str, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    path = in_format(name, uniform)
    expected = run(path, epoch=1)
    with open_dataset(path) as dataset:
        assert same(run(dataset, epoch=1, num_workers=2, prefetch_factor=5), expected)
        _ = dataset.sizes  # a folder that was asked for its sizes is planned in another way
        assert same(run(dataset, epoch=1, num_workers=2), expected)


def test_epochs_and_seeds_change_order_and_pixels(packed: Path) -> None:
    first = run(packed)
    for other in (run(packed, epoch=1), run(packed, seed=1)):
        assert order(first) != order(other)
        assert not same(first, other)
        # Crops are drawn anew as well: a sample is not the same picture in both.
        images = [
            {i: image for batch in epoch for image, i in zip(batch[0], order([batch]), strict=True)}
            for epoch in (first, other)
        ]
        both = images[0].keys() & images[1].keys()
        assert sum(torch.equal(images[0][i], images[1][i]) for i in both) < len(both) / 2


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_named_twice_is_the_same_twice(packed: Path, workers: int) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers) as loader:
        loader.set_epoch(3)
        first = list(loader)
        loader.set_epoch(3)
        assert same(list(loader), first)


@pytest.mark.parametrize("workers", [0, 2])
def test_iterating_again_goes_on_to_the_next_epoch(packed: Path, workers: int) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers, with_index=True) as loader:
        epochs = [list(loader) for _ in range(3)]
    assert all(same(found, run(packed, epoch=number)) for number, found in enumerate(epochs))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, Recipe(dtype="uint8")], ids=["cropped", "raw"])
def test_a_batch_that_was_handed_out_is_never_overwritten(
    recipe: Recipe, workers: int, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    for name in FORMATS:
        path, options = in_format(name, uniform), {"recipe": recipe, "num_workers": workers}
        with make_loader(path, 2, with_index=True, **options) as loader:
            pairs = [
                (batch, [part.clone() for part in batch]) for _ in range(2) for batch in loader
            ]
        assert len(pairs) == 2 * COUNT // 2
        assert all(torch.equal(*parts) for pair in pairs for parts in zip(*pair, strict=True))


def test_a_batch_may_be_written_to_without_harm(packed: Path) -> None:
    expected = run(packed)
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        for parts, wanted in zip(loader, expected, strict=True):
            assert all(map(torch.equal, parts, wanted))
            for part in parts:
                part.zero_()


@pytest.mark.parametrize("name", FORMATS)
def test_a_training_and_an_evaluation_loader_share_a_dataset(
    name: str, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    path = in_format(name, uniform)
    expected = run(path, recipe=TRAIN), run(path, recipe=EVAL)
    options = {"num_workers": 1, "with_index": True}
    with open_dataset(path) as dataset:
        for sources in ([path, path], [dataset, dataset]):
            with (
                make_loader(sources[0], 4, recipe=TRAIN, **options) as train,
                make_loader(sources[1], 4, recipe=EVAL, **options) as evaluation,
            ):
                found = list(itertools.zip_longest(train, evaluation))
                assert same([pair[0] for pair in found if pair[0]], expected[0])
                assert same([pair[1] for pair in found], expected[1])
                np.testing.assert_array_equal(dataset.decode(0), open_dataset(path).decode(0))


# State


def test_the_state_is_plain_json(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        for _ in loader:
            state = loader.state_dict()
            assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("done", range(7))
def test_a_fresh_loader_goes_on_with_exactly_the_batches_that_were_left(
    done: int, shuffle: bool, packed: Path
) -> None:
    options: dict[str, Any] = {"recipe": TRAIN, "shuffle": shuffle, "drop_last": False}
    options = {**options, "num_workers": 0, "with_index": True}
    whole, following = run(packed, epoch=2, **options), run(packed, epoch=3, **options)
    assert len(whole) == 6
    with make_loader(packed, 4, **options) as loader:
        loader.set_epoch(2)
        if done:
            taken = list(itertools.islice(loader, done))
            assert same(taken, whole[:done])
        state = json.dumps(loader.state_dict())
    with make_loader(packed, 4, **options) as loader:
        loader.load_state_dict(json.loads(state))
        rest = list(loader)
        assert len(rest) == 6 - done
        assert done == 6 or same(rest, whole[done:])
        assert same(list(loader), following)


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_that_workers_prepared_ahead_do_not_count_as_handed_out(
    workers: int, packed: Path
) -> None:
    whole = run(packed)
    options = {"recipe": TRAIN, "with_index": True, "num_workers": workers, "prefetch_factor": 4}
    with make_loader(packed, 4, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        next(iterator)
        state = loader.state_dict()
        assert same(list(iterator), whole[2:])
        loader.load_state_dict(state)  # into a loader whose workers are running
        assert same(list(loader), whole[2:])


def test_the_state_after_a_whole_epoch_is_the_next_ones_beginning(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        list(loader)
        state = loader.state_dict()
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(state)
        assert same(list(loader), run(packed, epoch=1))


def stopped(path: Path, epoch: int, done: int, **options: Any) -> dict[str, Any]:
    """The state of a loader that has handed out ``done`` batches of ``epoch``."""
    with make_loader(path, 4, recipe=TRAIN, num_workers=0, **options) as loader:
        loader.set_epoch(epoch)
        list(itertools.islice(loader, done))
        return loader.state_dict()


def test_naming_the_loaded_epoch_keeps_the_loaded_position(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(stopped(packed, epoch=2, done=3))
        loader.set_epoch(2)
        loader.set_epoch(2)
        assert same(list(loader), run(packed, epoch=2)[3:])
        loader.set_epoch(2)  # from now on it is a name like any other
        assert same(list(loader), run(packed, epoch=2))


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_naming_another_epoch_than_the_loaded_starts_it_at_its_beginning(
    epoch: int, packed: Path
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(stopped(packed, epoch=2, done=3))
        loader.set_epoch(epoch)
        assert same(list(loader), run(packed, epoch=epoch))


def test_a_training_loop_that_names_every_epoch_resumes_where_it_stopped(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        state, seen = stopped(packed, epoch=1, done=2), []
        loader.load_state_dict(state)
        for epoch in range(state["epoch"], 4):
            loader.set_epoch(epoch)
            seen += list(loader)
    assert same(seen, run(packed, epoch=1)[2:] + run(packed, epoch=2) + run(packed, epoch=3))


def test_the_loaded_seed_is_taken_over(packed: Path) -> None:
    state = stopped(packed, epoch=2, done=3, seed=11)
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(state)
        assert same(list(loader), run(packed, epoch=2, seed=11)[3:])
        assert loader.state_dict()["seed"] == 11


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [0, 1, 4, 5])
def test_breaking_anywhere_and_iterating_again_gives_the_whole_next_epoch(
    done: int, workers: int, packed: Path
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers, with_index=True) as loader:
        iterator = iter(loader)
        for _ in range(done):
            next(iterator)
        assert same(list(loader), run(packed, epoch=1))
        for _ in loader:
            break
        assert same(list(loader), run(packed, epoch=3))


MOVES: dict[str, Callable[[Loader], object]] = {
    "iterated again": lambda loader: iter(loader),
    "given an epoch": lambda loader: loader.set_epoch(5),
    "given the same epoch": lambda loader: loader.set_epoch(0),
    "given a state": lambda loader: loader.load_state_dict(loader.state_dict()),
    "closed": lambda loader: loader.close(),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("moved", MOVES)
@pytest.mark.parametrize("begun", [True, False])
def test_an_iterator_that_the_loader_has_left_behind_raises(
    begun: bool, moved: str, workers: int, packed: Path
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers, with_index=True) as loader:
        old = iter(loader)
        if begun:
            next(old)
        MOVES[moved](loader)
        with pytest.raises(UsageError, match="one iterator of a loader at a time"):
            next(old)
        loader.set_epoch(1)
        assert same(list(loader), run(packed, epoch=1))  # unharmed


def test_a_state_of_another_dataset_is_refused(
    packed: Path, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    state = stopped(in_format("webdataset", uniform), epoch=2, done=3)
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        with pytest.raises(DatasetError, match=rf"another dataset.*{packed}.*expected identity"):
            loader.load_state_dict(state)
        assert same(list(loader), run(packed))  # and nothing of it was taken over


def test_a_state_of_another_order_is_refused(packed: Path) -> None:
    state = stopped(packed, epoch=2, done=3, shuffle=False)
    with (
        make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader,
        pytest.raises(UsageError, match="shuffle=False, this loader has shuffle=True"),
    ):
        loader.load_state_dict(state)


@pytest.mark.parametrize("change", ["none", "empty", "list", "version", "epoch missing"])
def test_what_is_no_state_is_refused(change: str, packed: Path) -> None:
    good = stopped(packed, epoch=2, done=3)
    state: Any = {
        "none": None,
        "empty": {},
        "list": [1, 2],
        "version": {**good, "version": 99},
        "epoch missing": {key: value for key, value in good.items() if key != "epoch"},
    }[change]
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        with pytest.raises(UsageError, match="state"):
            loader.load_state_dict(state)
        assert same(list(loader), run(packed))


def of_all_ranks(path: Path, world_size: int, batch_size: int, **options: Any) -> list[list[Any]]:
    """The batches of every rank; ``state`` is loaded first where it is given."""
    state, batches = options.pop("state", None), []
    for rank in range(world_size):
        settings = {"recipe": TRAIN, "num_workers": 0, "with_index": True, **options}
        ranks = {"rank": rank, "world_size": world_size}
        with make_loader(path, batch_size, **settings, **ranks) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches.append(list(loader))
    return batches


def sequence(batches_of_ranks: list[list[Any]]) -> list[int]:
    """The order in which all ranks together took the samples: step by step, rank by rank."""
    steps = itertools.zip_longest(*batches_of_ranks)
    return [index for step in steps for index in order(batch for batch in step if batch)]


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (1, 1), (2, 3), (3, 2), (4, 2)])
@pytest.mark.parametrize("kind", ["training", "training, keeping the rest", "evaluation"])
def test_another_world_size_goes_on_with_exactly_the_samples_that_were_left(
    kind: str, world_size: int, batch_size: int, packed: Path
) -> None:
    options = {"shuffle": kind != "evaluation", "drop_last": kind == "training"}
    whole = order(run(packed, 1, **options))
    assert sorted(whole) == list(range(COUNT))
    states, done = [], 12  # two steps of two ranks with three samples each
    for rank in range(2):
        settings = {"recipe": TRAIN, "num_workers": 0, "rank": rank, "world_size": 2, **options}
        with make_loader(packed, 3, **settings) as loader:
            list(itertools.islice(loader, 2))
            states.append(loader.state_dict())
    assert states[0] == states[1]  # any rank's will do for all
    found = of_all_ranks(packed, world_size, batch_size, state=states[0], **options)
    rest, taken = whole[done:], sequence(found)
    if kind == "evaluation":
        assert taken == rest
    elif kind == "training":
        left = len(rest) % (world_size * batch_size)
        assert taken == rest[: len(rest) - left]
    else:
        # Ranks get equal shares: at most world_size - 1 samples are taken a second time.
        assert taken[: len(rest)] == rest
        assert len(taken) - len(rest) < world_size
        assert len({len(batches) for batches in found}) == 1


# Ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_in_training_all_ranks_take_equal_steps_and_no_sample_twice(
    batch_size: int, world_size: int, packed: Path
) -> None:
    found = of_all_ranks(packed, world_size, batch_size)
    steps = COUNT // (batch_size * world_size)
    sizes = [[len(batch[2]) for batch in batches] for batches in found]
    assert sizes == [[batch_size] * steps] * world_size
    taken = sequence(found)
    assert len(set(taken)) == len(taken) == steps * batch_size * world_size


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_in_training_that_keeps_the_rest_all_ranks_take_equal_steps_and_every_sample(
    batch_size: int, world_size: int, packed: Path
) -> None:
    found = of_all_ranks(packed, world_size, batch_size, drop_last=False)
    sizes = [[len(batch[2]) for batch in batches] for batches in found]
    assert sizes == [sizes[0]] * world_size
    taken = sequence(found)
    assert set(taken) == set(range(COUNT))
    assert len(taken) - COUNT < world_size  # as few repeats as equal shares need


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 30])
@pytest.mark.parametrize("batch_size", [1, 4, 50])
def test_in_evaluation_every_sample_is_seen_exactly_once(
    batch_size: int, world_size: int, packed: Path
) -> None:
    found = of_all_ranks(packed, world_size, batch_size, recipe=EVAL)
    assert sequence(found) == list(range(COUNT))


@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("rank", "world_size"), [(0, 1), (0, 3), (2, 3)])
def test_the_length_is_the_number_of_batches(
    rank: int, world_size: int, drop_last: bool, recipe: Recipe, packed: Path
) -> None:
    ranks = {"rank": rank, "world_size": world_size, "drop_last": drop_last}
    with make_loader(packed, 3, recipe=recipe, num_workers=0, **ranks) as loader:
        batches = len(list(loader))
        assert batches == len(loader)
        loader.load_state_dict(loader.state_dict())
        next(iter(loader))
        assert len(loader) == batches  # a whole epoch's, wherever it stands


def test_ranks_come_from_the_environment(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = of_all_ranks(packed, 3, 2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        assert same(run(packed, 2), expected[rank])
    assert same(run(packed, 2, rank=1, world_size=3), expected[1])  # an argument goes first


def test_ranks_come_from_torch_distributed_before_the_environment(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(packed, 2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert same(run(packed, 2), expected)
    finally:
        torch.distributed.destroy_process_group()


# Defaults


@pytest.mark.parametrize("preset", ["imagenet-train", "cifar-train"])
def test_training_recipes_shuffle_and_drop_the_last_incomplete_batch(
    preset: str, packed: Path
) -> None:
    taken = order(run(packed, 4, recipe=preset))
    assert len(taken) == 20
    assert taken != sorted(taken)
    assert len(order(run(packed, 4, recipe=preset, drop_last=False))) == COUNT
    # drop_last follows shuffle, not the recipe
    assert order(run(packed, 4, recipe=preset, shuffle=False)) == list(range(COUNT))


@pytest.mark.parametrize("preset", ["imagenet-eval", "cifar-eval", "raw", None])
def test_other_recipes_keep_the_order_and_every_sample(
    preset: str | None, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    path = in_format("webdataset", uniform)
    assert order(run(path, 4, recipe=preset)) == list(range(COUNT))
    assert order(run(path, 4, recipe=preset, drop_last=True)) == list(range(20))
    taken = order(run(path, 4, recipe=preset, shuffle=True))
    assert len(taken) == len(set(taken)) == 20
    assert taken != sorted(taken)


# Samples at fault


BAD = 13  # the sample that is damaged: a large one, and not the first of its batch
DAMAGE = ["cut in half", "empty", "deleted", "no image"]


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "no image":
        path.write_text("this is not the picture that you are looking for")
    else:
        os.truncate(path, path.stat().st_size // 2 if how == "cut in half" else 0)


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """(how, indices) -> the plain folder, opened before files of it were damaged."""

    def make(how: str, indices: Iterable[int] = (BAD,), source: Path = folder) -> Any:
        path = Path(shutil.copytree(source, tmp_path / "damaged"))
        files, dataset = sorted(path.rglob("*.jpg")), open_dataset(path)
        for index in indices:
            damage(files[index], how)
        return dataset

    return make


def without(batches: list[Any], bad: set[int], training: bool) -> list[Any]:
    """What skipping must make of the batches of an undamaged dataset."""
    expected = []
    for images, labels, indices in batches:
        keep = [slot for slot, index in enumerate(indices.tolist()) if index not in bad]
        if training:  # the batch's first good sample fills the slot
            keep = [slot if slot in keep else keep[0] for slot in range(len(indices))]
        if keep:
            expected.append((images[keep], labels[keep], indices[keep]))
    return expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_sample_at_fault_raises_and_is_named(
    how: str, recipe: Recipe, workers: int, folder: Path, damaged: Callable[..., Any]
) -> None:
    dataset = damaged(how)
    name = sorted(folder.rglob("*.jpg"))[BAD].relative_to(folder)
    options = {"recipe": recipe, "num_workers": workers, "drop_last": False, "with_index": True}
    expected = run(folder, recipe=recipe, drop_last=False)
    with make_loader(dataset, 4, **options) as loader:
        for _ in range(2):  # it can be iterated again, and is as it was
            loader.set_epoch(0)
            seen: list[Any] = []
            with pytest.raises(ImageError) as caught:
                seen.extend(iter(loader))
            assert caught.value.path == str(dataset.path / name)
            assert caught.value.reason
            # The batches before it arrived whole.
            assert BAD in order(expected[len(seen) :][:1])
            assert not seen or same(seen, expected[: len(seen)])
        assert loader.skipped == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("how", DAMAGE)
def test_skipping_drops_a_sample_in_evaluation_and_fills_its_slot_in_training(
    how: str, recipe: Recipe, workers: int, folder: Path, damaged: Callable[..., Any]
) -> None:
    dataset = damaged(how)
    options = {"recipe": recipe, "drop_last": False, "on_error": "skip", "with_index": True}
    with make_loader(dataset, 4, num_workers=workers, **options) as loader:
        for epoch in range(2):
            whole = run(folder, recipe=recipe, drop_last=False, epoch=epoch)
            assert same(list(loader), without(whole, {BAD}, recipe.random))
        (skipped,) = loader.skipped
        assert skipped.index == BAD
        assert skipped.name == str(dataset.path / "b" / f"{BAD}.jpg")
        assert skipped.reason
        assert skipped.count == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("shuffle", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("bad", [0, 5], ids=["first", "later"])
def test_a_sample_without_a_size_is_no_reason_to_blame_the_sizes_of_the_others(
    bad: int, shuffle: bool, on_error: str, workers: int, uniform: Path, damaged: Callable[..., Any]
) -> None:
    """The raw recipe takes images of one size only; a file without a header has none."""
    dataset = damaged("empty", [bad], uniform)
    options = {"recipe": "raw", "shuffle": shuffle, "drop_last": False}
    if on_error == "raise":
        with pytest.raises(ImageError, match=f"{bad:02d}.jpg"):
            run(dataset, num_workers=workers, **options)
        return
    found = run(dataset, on_error="skip", num_workers=workers, **options)
    assert same(found, without(run(uniform, **options), {bad}, shuffle))


def test_several_samples_at_fault_are_all_skipped_and_listed(
    folder: Path, damaged: Callable[..., Any]
) -> None:
    bad = [0, 1, 4, 13, 14, 15, 21]  # first, neighbours, last
    dataset = damaged("cut in half", bad)
    for recipe in (TRAIN, EVAL):
        options = {"recipe": recipe, "drop_last": False}
        whole = run(folder, **options)
        with make_loader(
            dataset, 4, num_workers=1, on_error="skip", with_index=True, **options
        ) as loader:
            assert same(list(loader), without(whole, set(bad), recipe.random))
            assert sorted(skipped.index for skipped in loader.skipped) == bad


def test_skipping_never_moves_a_position(folder: Path, damaged: Callable[..., Any]) -> None:
    options = {"recipe": EVAL, "with_index": True, "num_workers": 0, "on_error": "skip"}
    dataset = damaged("empty", [4, 5, 6, 7])  # the whole second batch
    with make_loader(dataset, 4, **options) as loader:
        assert len(loader) == 6
        positions = [loader.state_dict()["position"] for _ in loader]
        # A batch of which nothing is left is not handed out.
        assert positions == [4, 12, 16, 20, 22]
        state = {**loader.state_dict(), "epoch": 0, "position": 8}
        loader.load_state_dict(state)
        assert order(loader) == list(range(8, COUNT))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_batch_without_one_good_sample_is_an_error(
    workers: int, damaged: Callable[..., Any]
) -> None:
    dataset = damaged("empty", range(COUNT))
    options = {"recipe": TRAIN, "num_workers": workers, "on_error": "skip"}
    with (
        make_loader(dataset, 4, **options) as loader,
        pytest.raises(DataError, match=rf"not one of the 4 samples.*{dataset.path}.*empty"),
    ):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_evaluation_without_one_good_sample_hands_out_nothing(
    workers: int, damaged: Callable[..., Any]
) -> None:
    dataset = damaged("empty", range(COUNT))
    options = {"recipe": EVAL, "num_workers": workers, "on_error": "skip"}
    with make_loader(dataset, 4, **options) as loader:
        assert list(loader) == []
        assert [skipped.index for skipped in loader.skipped] == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("name", sorted(set(ENCODED) - {"folder"}))
def test_bytes_overwritten_in_a_converted_dataset_raise_or_are_skipped(
    name: str,
    recipe: Recipe,
    workers: int,
    folder: Path,
    in_format: Callable[[str, Path], Path],
    tmp_path: Path,
) -> None:
    path = Path(shutil.copytree(in_format(name, folder), tmp_path / "damaged"))
    data = sorted(folder.rglob("*.jpg"))[BAD].read_bytes()
    (file,) = [each for each in path.iterdir() if data in each.read_bytes()]
    with file.open("r+b") as shard:
        shard.seek(file.read_bytes().index(data) + len(data) // 2)
        shard.write(b"\xff\xd9" * 20)  # ends the picture
    options = {"recipe": recipe, "drop_last": False, "num_workers": workers, "with_index": True}
    with make_loader(path, 4, **options) as loader:
        with pytest.raises(ImageError) as caught:
            list(loader)
        assert caught.value.path == f"sample {BAD} of {path} (from b/{BAD}.jpg)"
    with make_loader(path, 4, on_error="skip", **options) as loader:
        whole = run(folder, recipe=recipe, drop_last=False)
        assert same(list(loader), without(whole, {BAD}, recipe.random))
        assert [(each.index, each.name) for each in loader.skipped] == [(BAD, caught.value.path)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ENCODED)
def test_images_of_different_sizes_need_a_recipe_with_a_size(
    name: str, workers: int, folder: Path, in_format: Callable[[str, Path], Path]
) -> None:
    path = in_format(name, folder)
    # The folder's images are 80 x 60, then 61 x 97: the second does not fit.
    message = r"expected 80x60 pixels, found 61x97 in .*a[/\\]01\.jpg.*use a recipe with a size"
    for on_error in ("raise", "skip"):  # not the sample's fault
        with pytest.raises(UsageError, match=message):
            run(path, recipe="raw", num_workers=workers, on_error=on_error)


# transform=


def identity(image: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(image)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_a_transform_gets_the_whole_image_as_an_array_of_its_own(
    name: str, workers: int, uniform: Path, in_format: Callable[[str, Path], Path]
) -> None:
    files = sorted(uniform.rglob("*.jpg"))

    def transform(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        assert type(image) is np.ndarray
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous
        copy = image.copy()
        image[:] = 0  # its own: nothing else may see this
        return copy

    options = {"recipe": None, "transform": transform, "num_workers": workers}
    with make_loader(in_format(name, uniform), 4, with_index=True, **options) as loader:
        for _ in range(2):
            for images, labels, indices in loader:
                for image, label, index in zip(images, labels, indices.tolist(), strict=True):
                    expected = np.asarray(Image.open(files[index]).convert("RGB"))
                    np.testing.assert_array_equal(image.numpy(), expected)
                    assert label == label_of(index)


def test_a_transform_gets_what_the_recipe_makes(packed: Path) -> None:
    found = run(packed, transform=identity)
    for batch, plain in zip(found, run(packed), strict=True):
        assert torch.equal(batch[0].permute(0, 3, 1, 2), plain[0])
        assert all(map(torch.equal, batch[1:], plain[1:]))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchvisions_transforms_work_on_images_of_any_size(workers: int, folder: Path) -> None:
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.Resize((32, 40), antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    files = sorted(folder.rglob("*.jpg"))
    found = run(folder, recipe=None, transform=transform, num_workers=workers)
    assert order(found) == list(range(COUNT))
    for images, _, indices in found:
        assert images.shape == (len(indices), 3, 32, 40)
        assert images.dtype == torch.float32
        for image, index in zip(images, indices.tolist(), strict=True):
            pixels = np.array(Image.open(files[index]).convert("RGB"))
            torch.testing.assert_close(image, transform(pixels).as_subclass(torch.Tensor))


def drawn(image: NDArray[np.uint8]) -> torch.Tensor:
    """A number of each generator that a transform may use, twice."""
    numbers = [random.random(), np.random.rand(), torch.rand(1).item()]
    return torch.tensor(
        [*numbers, random.gauss(0, 1), np.random.normal(), torch.randn(1).item()],
        dtype=torch.float64,
    )


def drawn_by_index(batches: list[Any]) -> dict[int, tuple[float, ...]]:
    numbers = [tuple(each) for batch in batches for each in batch[0].tolist()]
    return dict(zip(order(batches), numbers, strict=True))


def test_random_numbers_in_a_transform_are_the_samples_own(packed: Path) -> None:
    options = {"transform": drawn, "drop_last": False}
    expected = drawn_by_index(run(packed, **options))
    assert len(expected) == COUNT
    # For any workers, batch size, ranks, and whatever this process has drawn before ...
    for workers in (1, 3):
        assert drawn_by_index(run(packed, num_workers=workers, **options)) == expected
    random.seed(99)
    np.random.seed(99)
    torch.manual_seed(99)
    assert drawn_by_index(run(packed, 7, num_workers=1, **options)) == expected
    assert drawn_by_index(run(packed, 5, shuffle=False, **options)) == expected
    half = drawn_by_index(run(packed, rank=1, world_size=2, **options))
    assert half.items() <= expected.items()
    # ... but for every generator different in each sample, epoch and seed.
    epoch = drawn_by_index(run(packed, epoch=1, **options))
    seed = drawn_by_index(run(packed, seed=1, **options))
    for generator in range(6):
        numbers = [each[index][generator] for each in (expected, epoch, seed) for index in each]
        assert len(set(numbers)) == 3 * COUNT


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_may_return_dictionaries_tuples_and_floats(workers: int, packed: Path) -> None:
    def everything(image: NDArray[np.uint8]) -> Any:
        mean = float(image.mean())
        return {"image": torch.from_numpy(image), "pair": (mean, np.float32(mean)), "name": "x"}

    plain = run(packed)
    found = run(packed, transform=everything, num_workers=workers)
    for (results, labels, indices), batch in zip(found, plain, strict=True):
        assert results["image"].shape == (4, 32, 32, 3)
        assert torch.equal(results["image"].permute(0, 3, 1, 2), batch[0])
        means = batch[0].double().mean((1, 2, 3))
        first, second = results["pair"]
        assert (first.dtype, second.dtype) == (torch.float64, torch.float32)
        torch.testing.assert_close(first, means)
        torch.testing.assert_close(second, means.float())
        assert results["name"] == ["x"] * 4
        assert torch.equal(labels, batch[1])
        assert torch.equal(indices, batch[2])


class Unhappy(Exception):
    """Raised by a transform of a test."""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "on_error"),
    [(Unhappy, "raise"), (KeyError, "raise"), (ValueError, "skip"), (OSError, "skip")],
)
def test_an_exception_in_a_transform_arrives_with_its_type(
    kind: type[Exception],
    on_error: str,
    workers: int,
    packed: Path,
    tmp_path: Path,
    before: set[int],
) -> None:
    """Also with on_error="skip": it is the transform that is at fault, not the sample."""
    lock = tmp_path / "unhappy"
    lock.touch()

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        if lock.exists():
            raise kind("so be it")
        return identity(image)

    options = {"transform": transform, "num_workers": workers, "on_error": on_error}
    with make_loader(packed, 4, recipe=TRAIN, with_index=True, **options) as loader:
        with pytest.raises(kind, match="so be it") as caught:
            list(loader)
        assert type(caught.value) is kind
        assert children() == before  # a pool that has failed is ended, not forgotten
        lock.unlink()
        loader.set_epoch(0)
        assert same(list(loader), run(packed, transform=identity))
        assert loader.skipped == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
def test_samples_at_fault_never_reach_a_transform(
    recipe: Recipe, workers: int, folder: Path, damaged: Callable[..., Any]
) -> None:
    options = {"recipe": recipe, "drop_last": False, "transform": identity}
    whole, dataset = run(folder, **options), damaged("cut in half")
    with pytest.raises(ImageError, match=f"{BAD}.jpg"):
        run(dataset, num_workers=workers, **options)
    found = run(dataset, num_workers=workers, on_error="skip", **options)
    assert same(found, without(whole, {BAD}, recipe.random))


# Random numbers of the process that trains


def global_state() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()  # type: ignore[misc]
    return random.getstate(), (name, keys.tolist(), *rest), torch.get_rng_state().tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [None, drawn], ids=["no transform", "transform"])
def test_loading_leaves_the_random_generators_of_the_process_alone(
    transform: Any, workers: int, packed: Path
) -> None:
    """Else a model's dropout and initial weights would depend on how its images were loaded."""
    with make_loader(packed, 4, recipe=TRAIN, transform=transform, num_workers=workers) as loader:
        before = global_state()
        for _ in range(2):
            for _ in loader:
                pass
    changed = [
        name
        for name, old, new in zip(["random", "numpy", "torch"], before, global_state(), strict=True)
        if old != new
    ]
    assert changed == []


# Processes


def children() -> set[int]:
    """Living child processes of this one, whoever made them."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
                if int(parent) == os.getpid() and state != "Z":
                    found.add(int(entry.name))
    return found


def wait_until_gone(processes: set[int]) -> None:
    """The hang guard ends this where they stay."""
    while processes & children():
        time.sleep(0.01)


@pytest.fixture
def before() -> set[int]:
    """The children before a test."""
    gc.collect()
    return children()


def test_closing_ends_all_processes_also_while_an_iterator_is_alive(
    packed: Path, before: set[int]
) -> None:
    loader = make_loader(packed, 4, recipe=TRAIN, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    workers = children() - before
    assert len(workers) == 2
    loader.close()
    assert not workers & children()
    loader.close()  # once more does nothing
    with pytest.raises(UsageError, match="one iterator of a loader at a time"):
        next(iterator)


def test_a_closed_loader_starts_again_when_it_is_iterated(packed: Path, before: set[int]) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=2, with_index=True) as loader:
        for epoch in range(2):
            assert same(list(loader), run(packed, epoch=epoch))
            assert len(children() - before) == 2
            loader.close()
            wait_until_gone(children() - before)


def test_a_forgotten_loader_leaves_no_processes(packed: Path, before: set[int]) -> None:
    """At once: where it takes the collector of cycles to find the loader, torch's queues are
    collected first, the workers do not hear that they are to end, and 5 s pass for each."""
    loader = make_loader(packed, 4, recipe=TRAIN, num_workers=2)
    for _ in loader:
        break
    workers = children() - before
    assert len(workers) == 2
    gc.disable()
    try:
        del loader
        assert not workers & children()
    finally:
        gc.enable()


def test_an_interrupt_in_the_loop_leaves_no_processes(packed: Path, before: set[int]) -> None:
    workers: set[int] = set()

    def train() -> None:
        with make_loader(packed, 4, recipe=TRAIN, num_workers=2) as loader:
            for _ in loader:
                workers.update(children() - before)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert len(workers) == 2
    wait_until_gone(workers)


def test_an_interrupt_while_waiting_for_a_batch_leaves_no_processes(
    packed: Path, before: set[int], tmp_path: Path
) -> None:
    parent, interrupted = os.getpid(), tmp_path / "interrupted"

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        with suppress(FileExistsError):
            os.close(os.open(interrupted, os.O_CREAT | os.O_EXCL))
            os.kill(parent, signal.SIGINT)
        return identity(image)

    options = {"num_workers": 1, "transform": transform, "with_index": True}
    with make_loader(packed, 4, recipe=TRAIN, **options) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        assert children() == before
        loader.set_epoch(0)
        assert same(list(loader), run(packed, transform=identity))


def test_control_c_ends_a_training_script_and_all_its_processes(packed: Path) -> None:
    script = f"""
import multiprocessing
from fastdata import make_loader
loader = make_loader({str(packed)!r}, 4, recipe="cifar-train", num_workers=2)
for epoch in range(10**6):
    for batch in loader:
        if epoch == 0:
            print(*[child.pid for child in multiprocessing.active_children()], flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = process.communicate()
    assert len(workers) == 2
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT
    while any(Path(f"/proc/{pid}").exists() for pid in workers):  # guarded against hanging
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_is_killed_while_it_works_is_a_worker_error(
    workers: int, packed: Path, before: set[int], tmp_path: Path
) -> None:
    done = tmp_path / "done"

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        with suppress(FileExistsError):
            os.close(os.open(done, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return identity(image)

    options = {"transform": transform, "num_workers": workers, "with_index": True}
    with make_loader(packed, 4, recipe=TRAIN, **options) as loader:
        with pytest.raises(WorkerError, match=r"worker.*fewer workers"):
            list(loader)
        loader.set_epoch(0)
        assert same(list(loader), run(packed, transform=identity))


def test_workers_that_are_killed_between_two_batches_are_a_worker_error(
    packed: Path, before: set[int]
) -> None:
    """Whether the training step, the wait for a batch or the receipt of one meets it first."""
    with make_loader(packed, 1, recipe=TRAIN, num_workers=2, prefetch_factor=2) as loader:

        def train() -> None:
            for step, _ in enumerate(loader):
                if step == 2:
                    workers = children() - before
                    for worker in workers:
                        os.kill(worker, signal.SIGKILL)
                    wait_until_gone(workers)  # the training step

        with pytest.raises(WorkerError):
            train()
        loader.set_epoch(0)
        assert len(list(loader)) == COUNT


def test_workers_that_are_killed_between_two_epochs_are_a_worker_error(
    packed: Path, before: set[int]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=2) as loader:

        def train() -> None:
            for _ in range(2):
                list(loader)
                for worker in children() - before:
                    os.kill(worker, signal.SIGKILL)

        with pytest.raises(WorkerError):
            train()
        assert len(list(loader)) == 5


@pytest.mark.parametrize("name", READERS)
def test_a_dataset_that_is_cut_short_while_workers_read_it_is_a_data_error(
    name: str, uniform: Path, in_format: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    """Reading a map behind the end of its file kills a process; it must not be this one."""
    path = Path(shutil.copytree(in_format(name, uniform), tmp_path / "copy"))
    with make_loader(path, 1, recipe=EVAL, num_workers=1, prefetch_factor=1) as loader:
        iterator = iter(loader)
        next(iterator)
        manifest = loader.dataset.manifest
        assert manifest is not None
        for file in {part.file for part in manifest.parts if part.samples}:
            os.truncate(path / file, 0)
        with pytest.raises((WorkerError, ImageError)):
            list(iterator)


def test_no_processes_are_started_without_workers(packed: Path, before: set[int]) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        for _ in loader:
            assert multiprocessing.active_children() == []
            assert children() == before


# Explanations


@pytest.mark.parametrize(("workers", "words"), [(0, "training process itself"), (3, "3 worker")])
def test_the_explanation_names_the_engine_and_the_workers_that_were_asked_for(
    workers: int, words: str, packed: Path
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=workers) as loader:
        text = loader.explain()
    assert "engine workers" in text
    assert words in text
    assert "as asked" in text or "num_workers=0" in text
    assert str(packed) in text
    assert f"{COUNT} samples" in text
    assert "5 batches of 4" in text


def test_the_explanation_says_why_so_many_workers_were_chosen(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdata.engines.workers.available_cpus", lambda: 6)
    with make_loader(packed, 4, recipe=TRAIN) as loader:
        assert "6 worker processes, one for each of the 6 CPUs" in loader.explain()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    with make_loader(packed, 4, recipe=TRAIN) as loader:
        text = loader.explain()
    assert "2 worker processes" in text
    assert "6 CPUs" in text
    assert "divided by the ranks on this host" in text


def test_the_number_of_workers_that_is_explained_is_started(
    packed: Path, before: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdata.engines.workers.available_cpus", lambda: 3)
    with make_loader(packed, 4, recipe=TRAIN) as loader:
        next(iter(loader))
        assert len(children() - before) == 3


def test_the_explanation_says_that_a_transform_needs_the_engine(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, transform=identity) as loader:
        assert "transform= is a Python callable, which needs this engine" in loader.explain()
    with make_loader(packed, 4, recipe=TRAIN) as loader:
        assert "transform" not in loader.explain()


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size.*at least 1.*0"),
        ({"batch_size": -3}, "batch_size.*at least 1.*-3"),
        ({"batch_size": "4"}, "batch_size.*'4'"),
        ({"batch_size": 2.5}, "batch_size.*2.5"),
        ({"batch_size": COUNT + 1}, f"batch_size {COUNT + 1}.*dataset's {COUNT} samples"),
        ({"recipe": "imagenet"}, "'imagenet'.*imagenet-train"),
        ({"recipe": 3}, "3.*imagenet-train"),
        ({"transform": 3}, "transform.*callable.*3"),
        ({"transform": identity, "dtype": "float32"}, "transform=.*dtype"),
        ({"engine": "warp"}, "engine.*'warp'.*workers"),
        ({"device": "warp"}, "device.*warp"),
        ({"device": "cuda:99"}, "device.*cuda:99"),
        ({"num_workers": -1}, "num_workers.*'auto'.*-1"),
        ({"num_workers": "many"}, "num_workers.*'auto'.*'many'"),
        ({"num_workers": 1.5}, "num_workers.*'auto'.*1.5"),
        ({"prefetch_factor": 0}, "prefetch_factor.*at least 1.*0"),
        ({"order": "local"}, "order.*'global'.*'local'"),
        ({"copies": "half"}, "copies.*'all'.*'half'"),
        ({"seed": "lucky"}, "seed.*'lucky'"),
        ({"seed": 1.5}, "seed.*1.5"),
        ({"rank": 1}, "rank and world_size together"),
        ({"world_size": 2}, "rank and world_size together"),
        ({"rank": 2, "world_size": 2}, "rank.*2 of 2"),
        ({"rank": -1, "world_size": 2}, "rank.*-1 of 2"),
        ({"rank": 0, "world_size": 0}, "rank.*0 of 0"),
        ({"dtype": "int8"}, "dtype.*float16.*'int8'"),
        ({"dtype": torch.int64}, "dtype.*float16.*int64"),
        ({"on_error": "ignore"}, "on_error.*'raise' or 'skip'.*'ignore'"),
        ({"profile": "fast"}, "profile.*'auto'.*'fast'"),
        ({"engine_options": {"threads": 3}}, "option 'threads'.*decoder"),
        ({"engine_options": {"decoder": "warp"}}, "'warp'.*simplejpeg"),
        ({"engine_options": {"start_method": "warp"}}, "start_method.*'warp'"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_was_expected_and_found(
    arguments: dict[str, Any], message: str, packed: Path
) -> None:
    options = {"batch_size": 4, "recipe": TRAIN, "num_workers": 1, **arguments}
    with pytest.raises(UsageError, match=f"(?is){message}"):
        make_loader(packed, **options)


@pytest.mark.parametrize(("rank", "world_size"), [("x", "2"), ("1", "y"), ("2", "2"), ("1", None)])
def test_a_wrong_environment_is_refused(
    rank: str, world_size: str | None, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(UsageError, match=r"(?i)rank|world_size"):
        make_loader(packed, 4, recipe=TRAIN, num_workers=0)


def test_a_place_with_nothing_to_load_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path / "absent")):
        make_loader(tmp_path / "absent", 4)
