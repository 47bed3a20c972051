"""The loader's state: going on where an epoch was left, and iterating anew."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastdata import Loader, Recipe, make_loader
from fastdata.errors import DatasetError, UsageError

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")


def test_the_state_is_plain_json(packed: Path) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        for _ in loader:
            state = loader.state_dict()
            assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("done", range(7))
def test_a_fresh_loader_goes_on_with_exactly_the_batches_that_were_left(
    done: int, shuffle: bool, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
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
    workers: int, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
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


def test_the_state_after_a_whole_epoch_is_the_next_ones_beginning(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
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


def test_naming_the_loaded_epoch_keeps_the_loaded_position(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(stopped(packed, epoch=2, done=3))
        loader.set_epoch(2)
        loader.set_epoch(2)
        assert same(list(loader), run(packed, epoch=2)[3:])
        loader.set_epoch(2)  # from now on it is a name like any other
        assert same(list(loader), run(packed, epoch=2))


@pytest.mark.parametrize("epoch", [0, 1, 3])
def test_naming_another_epoch_than_the_loaded_starts_it_at_its_beginning(
    epoch: int, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(stopped(packed, epoch=2, done=3))
        loader.set_epoch(epoch)
        assert same(list(loader), run(packed, epoch=epoch))


def test_a_training_loop_that_names_every_epoch_resumes_where_it_stopped(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        state, seen = stopped(packed, epoch=1, done=2), []
        loader.load_state_dict(state)
        for epoch in range(state["epoch"], 4):
            loader.set_epoch(epoch)
            seen += list(loader)
    assert same(seen, run(packed, epoch=1)[2:] + run(packed, epoch=2) + run(packed, epoch=3))


def test_the_loaded_seed_is_taken_over(
    packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
    state = stopped(packed, epoch=2, done=3, seed=11)
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0, with_index=True) as loader:
        loader.load_state_dict(state)
        assert same(list(loader), run(packed, epoch=2, seed=11)[3:])
        assert loader.state_dict()["seed"] == 11


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("done", [1, 4, 5])
def test_breaking_anywhere_and_iterating_again_gives_the_whole_next_epoch(
    done: int, workers: int, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
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
    "given a state": lambda loader: loader.load_state_dict(loader.state_dict()),
    "closed": lambda loader: loader.close(),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("moved", MOVES)
@pytest.mark.parametrize("begun", [True, False])
def test_an_iterator_that_the_loader_has_left_behind_raises(
    begun: bool,
    moved: str,
    workers: int,
    packed: Path,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
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
    packed: Path,
    uniform: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
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
def test_what_is_no_state_is_refused(
    change: str, packed: Path, run: Callable[..., list[Any]], same: Callable[..., bool]
) -> None:
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
