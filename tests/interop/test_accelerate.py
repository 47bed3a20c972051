"""Accelerate trains on our loaders: each process its own samples, and the same model in all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastdata import Recipe, convert, make_loader

PROGRAM = Path(__file__).with_name("accelerate_program.py")
TRAIN = Recipe(size=16, crop="random_resized", mean=(0.5,) * 3, std=(0.25,) * 3)
COUNT = 22


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    root = tmp_path_factory.mktemp("accelerate")
    for number in range(COUNT):
        path = root / "source" / "abc"[number % 3] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 18), (number * 10, 0, 0)).save(path)
    convert(root / "source", root / "made", to="memmap", size=16, workers=1)
    return root / "made"


@pytest.fixture(scope="module")
def found(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw."""
    out = tmp_path_factory.mktemp("out")
    command = [sys.executable, str(PROGRAM), str(dataset), str(out)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]


def test_each_process_trains_on_its_own_batches_of_each_epoch(
    found: list[dict[str, Any]], dataset: Path
) -> None:
    for rank in range(2):
        assert found[rank]["world"] == 2
        options = {"recipe": TRAIN, "num_workers": 0, "with_index": True}
        with make_loader(dataset, 4, rank=rank, world_size=2, **options) as loader:
            expected = [[indices.tolist() for *_, indices in loader] for _ in range(2)]
        assert found[rank]["training"] == expected


def test_the_processes_have_trained_one_model(found: list[dict[str, Any]]) -> None:
    assert found[0]["parameters"] == found[1]["parameters"]


def test_prepare_leaves_a_loader_as_it_is(found: list[dict[str, Any]]) -> None:
    """It would otherwise hand each process a share of what is its share already."""
    assert all(each["left as it is"] for each in found)


def test_an_evaluation_sees_each_sample_once_over_all_processes(
    found: list[dict[str, Any]],
) -> None:
    batches = [each["evaluation"] for each in found]
    assert len(batches[0]) == len(batches[1]) + 1
    taken = [index for rank in batches for batch in rank for index in batch]
    assert sorted(taken) == list(range(COUNT))
    assert {each["tested"] for each in found} == {COUNT}
