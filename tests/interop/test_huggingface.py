"""Hugging Face datasets, offline, prepared and streamed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdata import open_dataset

Pairs = list[tuple[bytes, int]]


def _load(pattern: str, streaming: bool) -> list[dict[str, Any]]:
    import datasets  # here: it reads its settings from the environment when it is imported

    found = datasets.load_dataset(
        "webdataset", data_files=pattern, split="train", streaming=streaming
    )
    encoded = found.cast_column("jpg", datasets.Image(decode=False))
    return [
        {**sample, "bytes": raw["jpg"]["bytes"], "pixels": np.asarray(sample.pop("jpg"))}
        for sample, raw in zip(found, encoded, strict=True)
    ]


@pytest.mark.parametrize("streaming", [False, True])
def test_it_reads_images_labels_and_paths_in_our_order(
    streaming: bool,
    made: Callable[..., Path],
    expected: Callable[[Path], Pairs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = made(to="webdataset")
    pairs, dataset = expected(out), open_dataset(out)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    # A process of its own: these settings are then in force whatever was imported before.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = pool.submit(_load, str(out / "shard-*.tar"), streaming).result()
    assert [(sample["bytes"], sample["cls"]) for sample in found] == pairs
    for i, sample in enumerate(found):
        assert sample["json"]["path"].encode() == dataset.path_of(i)
        np.testing.assert_array_equal(sample["pixels"], dataset.decode(i))
