"""The webdataset package's own pipeline, in one process and through a DataLoader."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader

Pairs = list[tuple[bytes, int]]

# webdataset leaves the closing of shards to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def urls(out: Path) -> list[str]:
    found = sorted(map(str, out.glob("shard-*.tar")))
    assert len(found) > 4
    return found


@pytest.mark.parametrize("kind", ["pil", "rgb8"])
def test_the_pipeline_reads_images_and_labels_in_our_order(
    kind: str, made: Callable[..., Path], expected: Callable[[Path], Pairs]
) -> None:
    out = made(to="webdataset")
    pipeline = wds.WebDataset(urls(out), shardshuffle=False).decode(kind).to_tuple("jpg", "cls")
    for (image, label), (data, number) in zip(pipeline, expected(out), strict=True):
        np.testing.assert_array_equal(np.asarray(image), np.asarray(Image.open(io.BytesIO(data))))
        assert type(label) is int
        assert label == number


def test_a_loader_of_two_workers_gives_each_sample_once(
    made: Callable[..., Path], expected: Callable[[Path], Pairs]
) -> None:
    out = made(to="webdataset")
    pipeline = wds.WebDataset(urls(out), shardshuffle=False, workersplitter=wds.split_by_worker)
    bytes_and_label = pipeline.decode(only=["cls"]).to_tuple("jpg", "cls", "__key__")
    loader = DataLoader(bytes_and_label, batch_size=None, num_workers=2)
    # Workers take turns, so the order is not ours; the key is a sample's place in it.
    found = sorted(loader, key=lambda sample: sample[2])
    assert [(data, label) for data, label, _ in found] == expected(out)
