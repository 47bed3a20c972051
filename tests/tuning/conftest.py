"""Data, steps and a made-up subject for the tuner's tests."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import Recipe, convert
from fastdata.tuning.limits import Limits
from fastdata.tuning.model import Cost, Model
from fastdata.tuning.subjects import Candidate, Feed, Probes, Subject
from tests.conftest import jpeg, picture

TUNE = [sys.executable, "-W", "ignore", "-m", "fastdata", "tune"]
RECIPE = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
LIMITS = Limits(
    machine_cpus=8, affinity=8, quota=None, ranks=1, memory=10**10, shm=10**9, open_files=1000
)
PROBES = Probes(
    stages={"decode": Cost(1e-3, 1e-3), "receive": Cost(1e-4, 1e-4)},
    missing={},
    worker=Cost(1e-3, 1e-3),
    main=Cost(1e-4, 1e-4),
    threads=1.0,
    typical=1e-3,
    slowest=1e-3,
    slow_share=0.0,
    one=1000.0,
    start=0.1,
    worker_bytes=10**8,
    worker_files=6,
    batch_bytes=10**6,
)


class FakeSubject(Subject):
    """Nothing that loads; for what only thinks about settings."""

    def __init__(self, name: str = "data", engines: tuple[str, ...] = ("workers",)) -> None:
        self.name, self.batch_size, self.epoch = name, 10, 1000
        self.device = torch.device("cpu")
        self.engines, self.refused = list(engines), {}
        self.convert_seconds = 0.0

    def incumbent(self) -> Candidate:
        return Candidate(self.name, self.engines[0], 2, 2)

    def base(self, engine: str, probes: Probes) -> Candidate:
        return replace(self.incumbent(), engine=engine)

    def probe(self, engine: str, seconds: float) -> Probes:
        return PROBES

    def open(self, candidate: Candidate) -> Feed:
        raise NotImplementedError

    def shares_pool(self, candidate: Candidate) -> bool:
        return True

    def arguments(self, candidate: Candidate) -> dict[str, Any]:
        return {"engine": candidate.engine, "num_workers": candidate.workers}


def model(**changes: Any) -> Model:
    """A worker takes 1 ms of CPU for a sample, the training process 0.1 ms; 8 CPUs."""
    given: dict[str, Any] = {"worker": PROBES.worker, "main": PROBES.main, "cpus": 8.0}
    return Model(**{**given, **changes})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 small photographs in two classes; nobody may change them."""
    root = tmp_path_factory.mktemp("tuning") / "source"
    for number in range(240):
        file = root / ("ant", "bee")[number % 2] / f"{number:03d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(jpeg(picture(80, 60, seed=number)))
    return root


@pytest.fixture(scope="session")
def packed(folder: Path) -> Path:
    """The same as a webdataset."""
    target = folder.parent / "packed"
    convert(folder, target, to="webdataset", workers=1)
    return target


@pytest.fixture
def no_process() -> Iterator[None]:
    """Fails where a test leaves a process behind."""
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


def no_step(batch: Any) -> None:
    """Faster than any loader."""


def slow_step(batch: Any) -> None:
    """Slower than any loader, and so long that waking up late is no matter."""
    time.sleep(0.5)
