"""Iterations that are not brought to their end, and engines that are closed before them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata import Recipe, convert, open_dataset
from fastdata.engines import Batch
from fastdata.engines.ahead import Ahead
from fastdata.plan import BatchPlan, plan_samples
from fastdata.registry import ENGINES, load
from tests.engines.settings import settings

GPU_ENGINES = ("direct", "dali")
RECIPE = Recipe(size=200, crop="random_resized", hflip=0.5)


@pytest.fixture
def datasets(make_folder: Callable[..., Path], tmp_path: Path) -> list[Path]:
    source = make_folder(sizes=[(256, 256)])
    convert(source, tmp_path / "memmap", to="memmap", size=256)
    convert(source, tmp_path / "webdataset", to="webdataset")
    return [tmp_path / "memmap", tmp_path / "webdataset"]


def plans(dataset: Any, batch_size: int) -> Iterator[BatchPlan]:
    for step in range(100):
        indices = np.arange(step, step + batch_size) % len(dataset)
        yield plan_samples(RECIPE, step, indices, dataset.sizes)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_may_be_closed_before_its_iteration(engine: str, datasets: list[Path]) -> None:
    tried = 0
    for path in datasets:
        dataset = open_dataset(path)
        # Long batches, and many of them asked for: some have not begun when the engine is closed.
        given = settings(dataset, RECIPE, batch_size=256, prefetch_factor=8)
        kind = load(ENGINES, engine, "engine")
        if kind.refusal(given) is not None:
            continue
        made = kind(given)
        batches = made.batches(plans(dataset, 256))
        assert len(next(batches).indices) == 256
        made.close()
        batches.close()
        again = made.batches(plans(dataset, 256))
        assert len(next(again).indices) == 256
        again.close()
        made.close()
        dataset.close()
        tried += 1
    assert tried or engine in GPU_ENGINES


def test_the_end_of_an_iteration_does_not_wait_for_whoever_keeps_its_frame() -> None:
    ended = []

    def items() -> Any:
        try:
            yield from range(10)
        finally:
            ended.append(True)

    def work(item: int) -> Batch:
        return Batch(torch.zeros(1), torch.tensor([item]), torch.tensor([item]), [])

    batches = Ahead(torch.device("cpu"), 1).run(items(), work)
    assert next(batches).indices.tolist() == [0]
    kept = batches.gi_frame  # as the traceback of any error keeps those of all its callers
    batches.close()
    assert ended == [True]
    assert kept is not None
