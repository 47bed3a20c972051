"""The order for disks: blocks of neighbours, mixed within windows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import UsageError, convert, make_loader
from fastdata.sampling import Blocks


@pytest.mark.parametrize("n", [1, 2, 7, 63, 64, 65, 128, 1000])
@pytest.mark.parametrize(("size", "window"), [(1, 1), (4, 3), (64, 2), (10, 100), (2000, 5)])
def test_every_sample_comes_once_wherever_the_order_is_asked(
    n: int, size: int, window: int
) -> None:
    blocks = Blocks(size, window)
    whole = blocks.indices(n, 11, np.arange(n))
    assert sorted(whole.tolist()) == list(range(n))
    backwards = blocks.indices(n, 11, np.arange(n)[::-1])
    np.testing.assert_array_equal(backwards[::-1], whole)
    for position in {0, n // 2, n - 1}:
        assert blocks.indices(n, 11, np.array([position]))[0] == whole[position]


def test_a_window_holds_the_samples_of_its_blocks_alone() -> None:
    # 101 samples in blocks of 10: the short block stands somewhere among the eleven.
    whole = Blocks(10, 4).indices(101, 5, np.arange(101))
    seen: list[int] = []
    place, windows = 0, []
    while place < 101:  # a window ends where its samples make up four whole blocks
        size = 1
        while True:
            part = set((whole[place : place + size] // 10).tolist())
            full = sum(1 if block == 10 else 10 for block in part)
            if full == size and (len(part) == 4 or place + size == 101):
                break
            size += 1
        windows.append(part)
        seen += sorted(part)
        place += size
    assert sorted(seen) == list(range(11))
    assert [len(part) for part in windows] == [4, 4, 3]


def test_every_sample_is_as_likely_in_every_place() -> None:
    # 12 samples, 6 windows' worth of keys: a chi-squared statistic of 121 degrees of freedom.
    counts = np.zeros((12, 12))
    rounds = 6000
    for key in range(rounds):
        order = Blocks(2, 2).indices(12, key, np.arange(12))
        counts[np.arange(12), order] += 1
    expected = rounds / 12
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < 200  # 121 expected, deviation 16: five deviations


def test_a_window_mixes_its_blocks_evenly() -> None:
    # What a batch of 256 shows of 64 blocks of 64: 4 of each on average, as a draw would have it.
    order = Blocks(64, 64).indices(64 * 64, 3, np.arange(64 * 64))
    for batch in (order // 64).reshape(16, 256):
        _, counts = np.unique(batch, return_counts=True)
        assert len(counts) > 56
        assert counts.max() <= 13


def test_loaders_take_it(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    convert(make_folder({"a": 9, "b": 8}), tmp_path / "out", workers=1)
    options: dict[str, Any] = {"recipe": "cifar-train", "num_workers": 0, "with_index": True}
    options |= {"drop_last": False, "seed": 4}
    with make_loader(tmp_path / "out", 4, order="blocks", **options) as loader:
        epochs = [[i for *_, batch in loader for i in batch.tolist()] for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(17))
        assert epochs[0] != epochs[1]
        loader.set_epoch(0)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with make_loader(tmp_path / "out", 4, order="blocks", **options) as loader:
        loader.load_state_dict(state)
        assert [i for *_, batch in loader for i in batch.tolist()] == epochs[0][4:]
    with (
        make_loader(tmp_path / "out", 4, **options) as loader,
        pytest.raises(UsageError, match="order='blocks', this loader has order='global'"),
    ):
        loader.load_state_dict(state)


def test_a_plain_folder_and_an_evaluation_take_it_too(make_folder: Callable[..., Path]) -> None:
    folder = make_folder({"a": 5})
    for shuffle in (False, True):
        options: dict[str, Any] = {"shuffle": shuffle, "num_workers": 0, "with_index": True}
        options |= {"recipe": "cifar-eval", "drop_last": False, "order": "blocks"}
        with make_loader(folder, 2, **options) as loader:
            found = [i for *_, batch in loader for i in batch.tolist()]
        assert sorted(found) == list(range(5))
        assert shuffle or found == list(range(5))
