"""timm finds shards, splits and counts in _info.json."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from timm.data import create_dataset
from torch.utils.data import DataLoader

Pairs = list[tuple[bytes, int]]
Decoded = tuple[tuple[int, int], bytes, int]

# timm reads through webdataset, which leaves the closing of shards to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def plain(image: Image.Image, label: int) -> Decoded:
    """What can be compared and sorted."""
    return image.size, image.tobytes(), label


@pytest.fixture
def decoded(expected: Callable[[Path], Pairs]) -> Callable[[Path], list[Decoded]]:
    """What :func:`expected` gives, decoded by Pillow as timm does it."""
    return lambda out: [plain(Image.open(io.BytesIO(data)), label) for data, label in expected(out)]


@pytest.mark.parametrize("name", ["shard", "train"])
def test_a_split_has_the_shards_name(
    name: str, made: Callable[..., Path], decoded: Callable[[Path], list[Decoded]]
) -> None:
    out = made(to="webdataset", name=name)
    dataset = create_dataset("wds/ours", root=str(out), split=name)
    assert [plain(*sample) for sample in dataset] == decoded(out)
    assert len(dataset) == len(decoded(out))


@pytest.mark.parametrize(("training", "workers"), [(False, 2), (True, 0)])
def test_each_sample_is_seen_once_in_an_epoch(
    training: bool,
    workers: int,
    made: Callable[..., Path],
    decoded: Callable[[Path], list[Decoded]],
) -> None:
    out = made(to="webdataset")
    dataset = create_dataset("wds/ours", root=str(out), split="shard", is_training=training)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    found = [plain(*sample) for sample in loader]
    assert found != decoded(out)  # workers take turns, and training shuffles
    assert sorted(found) == sorted(decoded(out))
