"""Datasets of augmented copies: all of them, or one of each source in an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import UsageError, convert, make_loader, open_dataset
from fastdata.sampling import CopyChoice

COPIES = 3


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images in three copies; one more image is damaged and left out in all its copies."""
    from PIL import Image

    root = tmp_path_factory.mktemp("copies")
    for number in range(10):
        path = root / "source" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 16), (number * 20, 0, 0)).save(path)
    (root / "source" / "a" / "damaged.png").write_bytes(b"no image")
    options: dict[str, Any] = {"augment": "flip", "copies": COPIES, "on_error": "skip"}
    convert(root / "source", root / "out", workers=1, size=16, **options)
    return root / "out"


def epochs(path: Path, count: int, **options: Any) -> list[list[int]]:
    """The dataset indices of each epoch, in order."""
    with make_loader(path, 4, num_workers=0, with_index=True, **options) as loader:
        return [[i for *_, batch in loader for i in batch.tolist()] for _ in range(count)]


def test_all_copies_are_samples_like_any_other(dataset: Path) -> None:
    (epoch,) = epochs(dataset, 1)
    assert sorted(epoch) == list(range(30))


@pytest.mark.parametrize("shuffle", [False, True])
def test_each_epoch_shows_one_copy_of_each_source(dataset: Path, shuffle: bool) -> None:
    with open_dataset(dataset) as opened:
        copies = opened.copies
    options = {"copies": "one-per-epoch", "shuffle": shuffle, "drop_last": False}
    seen = epochs(dataset, 2 * COPIES, **options)
    for epoch in seen:
        assert len(epoch) == 10
        assert len({int(copies[i, 0]) for i in epoch}) == 10
    # As many epochs as there are copies show every sample once, from any epoch on.
    for first in range(COPIES):
        shown = Counter(i for epoch in seen[first : first + COPIES] for i in epoch)
        assert shown == Counter(range(30))
    # The turns of different sources begin with different copies.
    assert len({int(copies[i, 1]) for i in seen[0]}) > 1


def test_a_loader_of_copies_counts_sources(dataset: Path) -> None:
    with make_loader(dataset, 4, copies="one-per-epoch", num_workers=0) as loader:
        assert len(loader) == 3
        assert sum(len(labels) for _, labels in loader) == 10


def test_a_resumed_epoch_goes_on_with_the_same_copies(dataset: Path) -> None:
    options: dict[str, Any] = {"copies": "one-per-epoch", "shuffle": True, "drop_last": False}
    options |= {"num_workers": 0, "with_index": True}
    with make_loader(dataset, 4, **options) as loader:
        loader.set_epoch(5)
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch[2].tolist() for batch in batches]
    with make_loader(dataset, 4, **options) as loader:
        loader.load_state_dict(state)
        assert [batch[2].tolist() for batch in loader] == rest
    with (
        make_loader(dataset, 4, num_workers=0, shuffle=True) as loader,
        pytest.raises(UsageError, match="copies='one-per-epoch', this loader has copies='all'"),
    ):
        loader.load_state_dict(state)


def test_a_dataset_without_copies_has_none_to_choose(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"a": 2}), tmp_path / "out", workers=1)
    with pytest.raises(UsageError, match="has no copies; make some with"):
        make_loader(tmp_path / "out", 1, copies="one-per-epoch")


def test_sources_may_have_different_numbers_of_copies_in_any_order() -> None:
    copies = np.array([[7, 1], [2, 0], [7, 0], [2, 1], [9, 4], [2, 2]])
    choice = CopyChoice(copies)
    assert choice.n == 3
    for source, samples in enumerate([{1, 3, 5}, {0, 2}, {4}]):
        shown = [int(choice.indices(0, epoch, np.array([source]))[0]) for epoch in range(6)]
        assert set(shown) == samples
        assert shown[: len(samples)] * (6 // len(samples)) == shown
