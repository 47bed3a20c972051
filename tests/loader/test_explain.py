"""What the loader tells of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, make_loader

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
COUNT = 22  # images in the folders


def identity(image: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(image)


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
    packed: Path,
    before: set[int],
    monkeypatch: pytest.MonkeyPatch,
    children: Callable[[], set[int]],
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
