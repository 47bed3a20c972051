"""Lightning trains on our loaders: each rank its own samples, and a checkpoint goes on exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastdata import Recipe, convert, make_loader

PROGRAM = Path(__file__).with_name("lightning_program.py")
TRAIN = Recipe(size=16, crop="random_resized", mean=(0.5,) * 3, std=(0.25,) * 3)
COUNT = 22
STEPS = 5  # of two ranks with two samples each
LEFT_AT = 3  # the step of the checkpoint

Found = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("lightning")
    for number in range(COUNT):
        path = root / "source" / "abc"[number % 3] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 18), (number * 10, 0, 0)).save(path)
    convert(root / "source", root / "made", to="memmap", size=16, workers=1)
    return root / "made"


@pytest.fixture(scope="module")
def found(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Of a whole training and of one that goes on from a checkpoint: what each rank saw."""
    out = tmp_path_factory.mktemp("out")
    command = [sys.executable, str(PROGRAM), str(dataset), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return {
        name: [json.loads((out / name / f"{rank}.json").read_text()) for rank in range(2)]
        for name in ("whole", "resumed")
    }


@pytest.fixture(scope="module")
def expected(dataset: Path) -> Callable[[int, int], list[list[int]]]:
    """(rank, epoch) -> the indices of the batches that the loader alone hands out."""

    def take(rank: int, epoch: int) -> list[list[int]]:
        options = {"recipe": TRAIN, "num_workers": 0, "with_index": True}
        with make_loader(dataset, 2, rank=rank, world_size=2, **options) as loader:
            loader.set_epoch(epoch)
            return [indices.tolist() for *_, indices in loader]

    return take


def seen(found: dict[str, Any], what: str, epoch: int) -> list[list[int]]:
    return [indices for kind, number, indices in found["seen"] if (kind, number) == (what, epoch)]


def test_each_rank_trains_on_its_own_batches_of_each_epoch(
    found: Found, expected: Callable[[int, int], list[list[int]]]
) -> None:
    for rank in range(2):
        assert found["whole"][rank]["world"] == 2
        for epoch in range(2):
            batches = seen(found["whole"][rank], "training", epoch)
            assert batches == expected(rank, epoch)
            assert len(batches) == STEPS


def test_an_evaluation_sees_each_sample_once_over_all_ranks(found: Found) -> None:
    for epoch in range(2):
        ranks = [seen(each, "evaluation", epoch) for each in found["whole"]]
        assert len(ranks[0]) == len(ranks[1]) + 1  # and Lightning does not wait for ever
        taken = [index for rank in ranks for batch in rank for index in batch]
        assert sorted(taken) == list(range(COUNT))
        assert {each["tested"] for each in found["whole"]} == {COUNT}


def test_a_checkpoint_in_the_middle_of_an_epoch_goes_on_with_exactly_the_batches_that_were_left(
    found: Found, expected: Callable[[int, int], list[list[int]]]
) -> None:
    for rank in range(2):
        assert seen(found["resumed"][rank], "training", 0) == expected(rank, 0)[LEFT_AT:]
        assert seen(found["resumed"][rank], "training", 1) == expected(rank, 1)
