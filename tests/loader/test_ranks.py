"""The loader on several ranks: their shares, and where the numbers come from."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import Recipe, make_loader

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders


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
    return [index for step in steps for batch in step if batch for index in batch[-1].tolist()]


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


def test_ranks_come_from_the_environment(
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    expected = of_all_ranks(packed, 3, 2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        assert same(run(packed, 2), expected[rank])
    assert same(run(packed, 2, rank=1, world_size=3), expected[1])  # an argument goes first


def test_ranks_come_from_torch_distributed_before_the_environment(
    packed: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
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


# A state of another number of ranks


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (1, 1), (2, 3), (3, 2), (4, 2)])
@pytest.mark.parametrize("kind", ["training", "training, keeping the rest", "evaluation"])
def test_another_world_size_goes_on_with_exactly_the_samples_that_were_left(
    kind: str,
    world_size: int,
    batch_size: int,
    packed: Path,
    run: Callable[..., list[Any]],
    order: Callable[..., list[int]],
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
