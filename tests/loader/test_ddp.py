"""Ranks that are real processes under gloo: what they see together, and a model trained by them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from fastdata import Recipe, make_loader
from fastdata.errors import UsageError

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

PROGRAM = Path(__file__).with_name("ranks_program.py")
TRAIN = Recipe(size=16, crop="random_resized", hflip=0.5, mean=(0.5,) * 3, std=(0.25,) * 3)
EVAL = Recipe(size=16, crop="center", mean=(0.5,) * 3, std=(0.25,) * 3)
COUNT = 22  # images in the folders
WORLDS = [2, 4]


@pytest.fixture(scope="module")
def found(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    """World size -> what each of its ranks has found. The larger one also goes on with an epoch
    that the smaller one has begun."""
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, str(PROGRAM), str(packed), str(out), *map(str, WORLDS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return {
        world: [
            json.loads((out / f"found-{world}-{rank}.json").read_text()) for rank in range(world)
        ]
        for world in WORLDS
    }


def sequence(batches_of_ranks: list[list[list[int]]]) -> list[int]:
    """The order in which all ranks together took the samples: step by step, rank by rank."""
    steps = itertools.zip_longest(*batches_of_ranks, fillvalue=[])
    return [index for step in steps for batch in step for index in batch]


@pytest.fixture(scope="module")
def alone(packed: Path) -> Callable[[int], list[int]]:
    """Epoch -> the order in which a single process takes the samples."""

    def take(epoch: int) -> list[int]:
        options = {"recipe": TRAIN, "drop_last": False, "num_workers": 0, "with_index": True}
        with make_loader(packed, 1, **options) as loader:
            loader.set_epoch(epoch)
            return [int(index) for *_, index in loader]

    return take


@pytest.mark.parametrize("world", WORLDS)
def test_all_ranks_gather_the_same(world: int, found: dict[int, list[Any]]) -> None:
    """Else what is gathered, and looked at below, would not be what each rank has seen."""
    assert all(each == found[world][0] for each in found[world])


@pytest.mark.parametrize("world", WORLDS)
def test_in_training_ranks_take_equal_steps_of_one_sequence(
    world: int, found: dict[int, list[Any]], alone: Callable[[int], list[int]]
) -> None:
    for epoch in range(2):
        ranks = [rank[epoch] for rank in found[world][0]["training"]]
        assert [[len(batch) for batch in batches] for batches in ranks] == [
            [8 // world] * 2
        ] * world
        assert sequence(ranks) == alone(epoch)[:16]
    assert alone(0) != alone(1)


@pytest.mark.parametrize("world", WORLDS)
def test_in_training_that_keeps_the_rest_ranks_take_equal_steps_and_every_sample(
    world: int, found: dict[int, list[Any]], alone: Callable[[int], list[int]]
) -> None:
    for epoch in range(2):
        ranks = [rank[epoch] for rank in found[world][0]["training, keeping the rest"]]
        share = -(-(COUNT - 16) // world)
        sizes = [[len(batch) for batch in batches] for batches in ranks]
        assert sizes == [[8 // world, 8 // world, share]] * world
        assert sequence(ranks)[:COUNT] == alone(epoch)
        assert len(sequence(ranks)) - COUNT < world


@pytest.mark.parametrize("world", WORLDS)
def test_a_batch_larger_than_the_dataset_is_one_step_of_equal_shares(
    world: int, found: dict[int, list[Any]], alone: Callable[[int], list[int]]
) -> None:
    ranks = [rank[0] for rank in found[world][0]["large batches"]]
    assert [[len(batch) for batch in batches] for batches in ranks] == [
        [-(-COUNT // world)]
    ] * world
    assert sequence(ranks)[:COUNT] == alone(0)


@pytest.mark.parametrize("world", WORLDS)
def test_in_evaluation_all_ranks_together_see_each_sample_exactly_once(
    world: int, found: dict[int, list[Any]]
) -> None:
    assert sequence([rank[0] for rank in found[world][0]["evaluation"]]) == list(range(COUNT))


@pytest.mark.parametrize("world", WORLDS)
def test_ranks_train_the_model_that_one_process_trains_on_whole_batches(
    world: int, found: dict[int, list[Any]], packed: Path
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))
    begun = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with make_loader(packed, 8, recipe=TRAIN, num_workers=0) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            for images, labels in loader:
                loss = cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    expected = [parameter.detach() for parameter in model.parameters()]
    assert not any(map(torch.equal, expected, begun))
    for rank in found[world][0]["parameters"]:
        assert rank == found[world][0]["parameters"][0]  # bit by bit the same on every rank
        for parameter, wanted in zip(rank, expected, strict=True):
            torch.testing.assert_close(torch.tensor(parameter), wanted.flatten())


@pytest.mark.parametrize("world", WORLDS)
def test_an_accuracy_that_is_summed_over_ranks_counts_each_sample_once(
    world: int, found: dict[int, list[Any]], packed: Path
) -> None:
    parameters = found[world][0]["parameters"][0]
    weight, bias = torch.tensor(parameters[0]).view(3, -1), torch.tensor(parameters[1])
    with make_loader(packed, COUNT, recipe=EVAL, num_workers=0) as loader:
        ((images, labels),) = loader
    right = ((images.flatten(1) @ weight.T + bias).argmax(dim=1) == labels).sum()
    assert found[world][0]["accuracy"] == [float(right), COUNT]


def test_more_ranks_go_on_with_exactly_the_samples_that_fewer_have_left(
    found: dict[int, list[Any]], alone: Callable[[int], list[int]]
) -> None:
    fewer, more = (found[world][0] for world in WORLDS)
    assert not fewer["states differ"]
    taken = sequence(fewer["begun"]) + sequence(more["gone on"])
    assert len(sequence(fewer["begun"])) == 8
    assert taken[:COUNT] == alone(3)
    assert len(taken) - COUNT < WORLDS[1]
    assert len({len(batches) for batches in more["gone on"]}) == 1


# Without processes: what is rare


@pytest.mark.parametrize("world_size", [23, 40, 64])
def test_in_training_more_ranks_than_samples_still_take_equal_steps(
    world_size: int, packed: Path
) -> None:
    seen = []
    for rank in range(world_size):
        options = {"recipe": TRAIN, "drop_last": False, "num_workers": 0, "with_index": True}
        with make_loader(packed, 4, rank=rank, world_size=world_size, **options) as loader:
            assert len(loader) == 1
            ((_, labels, indices),) = loader
        assert len(labels) == 1
        seen.append(int(indices))
    assert set(seen) == set(range(COUNT))


@pytest.mark.parametrize("world_size", [23, 40])
def test_in_training_that_drops_the_rest_more_ranks_than_samples_are_refused(
    world_size: int, packed: Path
) -> None:
    ranks = {"rank": 0, "world_size": world_size}
    with pytest.raises(UsageError, match=f"world_size {world_size}.*{COUNT} samples.*drop_last"):
        make_loader(packed, 1, recipe=TRAIN, num_workers=0, **ranks)


def test_more_workers_than_batches_and_shards_hand_out_each_sample_once(packed: Path) -> None:
    options = {"recipe": EVAL, "num_workers": 5, "prefetch_factor": 4, "with_index": True}
    for rank in range(2):
        with make_loader(packed, 8, rank=rank, world_size=2, **options) as loader:
            batches = [indices.tolist() for *_, indices in loader]
        expected = [[[*range(8)], [*range(16, 22)]], [[*range(8, 16)]]]
        assert batches == expected[rank]


def test_a_world_size_without_a_rank_is_refused(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Lightning's launcher starts its processes: every one would take rank 0's samples."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="RANK"):
        make_loader(packed, 4, recipe=TRAIN, num_workers=0)
    monkeypatch.setenv("WORLD_SIZE", "1")  # nothing to share
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        assert len(loader) == COUNT // 4
