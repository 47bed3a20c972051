"""Reading ahead: whether the system is asked for samples before they are looked at."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, UsageError, convert, make_loader, open_dataset
from fastdata.formats.memmap import MemmapReader
from fastdata.formats.spans import SpanReader

LITTLE, PLENTY = 1, 1 << 40  # bytes of memory
ENGINES = {"memmap": ("gather", "workers"), "webdataset": ("workers",), "lmdb": ("workers",)}
TRAIN = Recipe(size=16, crop="random_resized", dtype="uint8")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from PIL import Image

    folder, generator = tmp_path_factory.mktemp("source"), np.random.default_rng(0)
    for number in range(8):
        place = folder / "ab"[number % 2]
        place.mkdir(exist_ok=True)
        noise = generator.integers(0, 256, (90, 110, 3), np.uint8)
        Image.fromarray(noise).save(place / f"{number}.jpg", quality=95)
    return folder


@pytest.fixture(scope="module")
def datasets(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each in several files, where the format has files; only read."""
    made, found = tmp_path_factory.mktemp("made"), {}
    for name in ENGINES:
        found[name] = made / name
        size = {"size": 32} if name == "memmap" else {}
        convert(source, found[name], to=name, workers=1, shard_size=40_000, **size)
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The samples that readers of this process were asked for ahead of time."""
    indices: list[int] = []

    def watch(kind: type[Any]) -> None:
        before = kind.will_need

        def will_need(self: Any, wanted: NDArray[np.int64]) -> None:
            indices.extend(wanted.tolist())
            before(self, wanted)

        monkeypatch.setattr(kind, "will_need", will_need)

    watch(MemmapReader)
    watch(SpanReader)
    return indices


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("options", "memory", "words"),
    [
        ({}, PLENTY, ""),
        ({}, LITTLE, "The dataset is more than memory: samples are read ahead from the disk."),
        ({"read_ahead": "auto"}, LITTLE, "The dataset is more than memory: samples are read ahead"),
        ({"read_ahead": False}, LITTLE, ""),
        ({"read_ahead": True}, PLENTY, "As asked: samples are read ahead from the disk."),
    ],
)
@pytest.mark.parametrize(
    ("kind", "engine"), [(kind, engine) for kind in ENGINES for engine in ENGINES[kind]]
)
def test_samples_are_read_ahead_where_memory_is_short_or_as_asked(
    kind: str,
    engine: str,
    options: dict[str, Any],
    memory: int,
    words: str,
    workers: int,
    datasets: dict[str, Path],
    asked: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fastdata.engines.disk.available_memory", lambda: memory)
    settings: dict[str, Any] = {"recipe": TRAIN, "engine": engine, "with_index": True}
    wanted = {"engine_options": options, "num_workers": workers}
    with make_loader(datasets[kind], 3, **settings, **wanted) as loader:
        batches = list(loader)
        assert words in loader.explain()
        assert ("read ahead" in loader.explain()) == bool(words)
    shown = torch.cat([indices for _, _, indices in batches]).tolist()
    # What lies behind them is of the next epochs.
    assert asked[: len(shown)] == (shown if words else [])
    plain = {"engine_options": {"read_ahead": False}, "num_workers": 0}
    with make_loader(datasets[kind], 3, **settings, **plain) as loader:
        for found, expected in zip(batches, loader, strict=True):
            assert torch.equal(found[0], expected[0])


def test_a_plain_folder_is_not_read_ahead(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.engines.disk.available_memory", lambda: LITTLE)
    with make_loader(source, 3, recipe=TRAIN, num_workers=0) as loader:
        assert len(list(loader)) == 2
        assert "read ahead" not in loader.explain()
    with pytest.raises(UsageError, match="read_ahead=True needs a converted dataset"):
        make_loader(source, 3, recipe=TRAIN, engine_options={"read_ahead": True})


@pytest.mark.parametrize("wrong", ["always", 1, None])
@pytest.mark.parametrize("engine", ["gather", "workers"])
def test_a_wrong_value_is_refused(engine: str, wrong: Any, datasets: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=f"read_ahead to be 'auto', True or False, got {wrong!r}"):
        make_loader(datasets["memmap"], 3, engine=engine, engine_options={"read_ahead": wrong})


@pytest.mark.parametrize("kind", ["webdataset", "lmdb"])
def test_the_whole_of_every_image_is_asked_for(
    kind: str, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[tuple[bytes, int]] = []

    class Watched(mmap.mmap):
        def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
            assert option == mmap.MADV_WILLNEED
            assert start % mmap.PAGESIZE == 0
            super().madvise(option, start, length)
            pieces.append((self[start : start + length], length))

    monkeypatch.setattr("fastdata.formats.spans.mmap.mmap", Watched)
    with open_dataset(datasets[kind]) as dataset:
        indices = np.arange(len(dataset))[::-1].copy()
        dataset.reader.will_need(indices)
        for index, (piece, length) in zip(indices.tolist(), pieces, strict=True):
            image = dataset.read(index)
            assert piece.endswith(image)
            assert length < len(image) + mmap.PAGESIZE
