"""One fault at a time, injected for real: the right first finding; and silence without one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastdata import tune, tune_dataloader
from fastdata.formats.spans import SpanReader
from fastdata.profile import Profile
from tests.tuning.conftest import RECIPE, TUNE, no_step, slow_step

ROOT = Path(__file__).parents[2]
BUDGET = 0.8
pytestmark = pytest.mark.usefixtures("cache", "no_process")


def codes(profile: Profile) -> list[str]:
    return [one["code"] for one in profile.findings]


def test_a_healthy_loader_is_silent(packed: Path) -> None:
    profile = tune(packed, 8, recipe=RECIPE, engine="workers", target_rate=20.0, budget=BUDGET)
    assert profile.findings == []
    assert profile.share == 1.0
    assert profile.verdict.startswith("on target")
    assert profile.verdict.endswith("keep the current setting")


def test_a_step_that_is_slower_than_all_is_the_limit(packed: Path) -> None:
    profile = tune(packed, 8, recipe=RECIPE, engine="workers", step=slow_step, budget=BUDGET)
    assert profile.limit == "step"
    assert profile.verdict.startswith("step-bound")
    assert "keep the current setting" in profile.verdict
    assert profile.findings == []


def test_a_step_that_is_faster_than_any_loader_is_data_bound(packed: Path) -> None:
    profile = tune(packed, 8, recipe=RECIPE, engine="workers", step=no_step, budget=BUDGET)
    assert profile.share is not None
    assert profile.share < 0.5
    assert profile.verdict.startswith("data-bound")
    assert codes(profile)[-1] == "data-bound"
    assert profile.limit != "step"


def test_fewer_cpus_than_the_machine_has(packed: Path) -> None:
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs a machine with two CPUs")
    command = [*TUNE, packed, "--batch-size", "8"]
    command += ["--recipe", "imagenet-train", "--target-rate", "1e9", "--budget", "1s", "--json"]
    command += ["--engine", "workers"]
    pinned = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]
    done = subprocess.run([*pinned, *command], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)  # and nothing else
    assert found["findings"][0]["code"] == "cpu-quota"
    assert "1 affinity-limited CPU" in found["findings"][0]["words"]
    assert found["evidence"]["limits"]["cpus"] == 1


def test_slow_storage(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = SpanReader._slice

    def throttled(self: SpanReader, file: int, offset: int, size: int) -> memoryview:
        time.sleep(0.01)  # one stall beside it must not look like a slow sample
        return quick(self, file, offset, size)

    monkeypatch.setattr(SpanReader, "_slice", throttled)
    profile = tune(packed, 8, recipe=RECIPE, engine="workers", target_rate=1e9, budget=4 * BUDGET)
    assert codes(profile)[0] == "storage"
    assert profile.limit == "fetch"
    fetch = profile.evidence["spaces"][0]["stages"]["fetch"]
    assert fetch["blocked"] > 0.01 > fetch["cpu"]


class Images(torch.utils.data.Dataset[Any]):
    """400 samples of 48 kB."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((3, 64, 64), float(index)), index


class SomeSlow(Images):
    """One of 20 takes 40 ms."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index % 20 == 0:
            time.sleep(0.04)
        return super().__getitem__(index)


def test_a_tiny_dev_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs
    tiny = SimpleNamespace(f_bavail=64, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: tiny if path == "/dev/shm" else real(path))
    profile = tune_dataloader(Images(), 32, target_rate=1e9, budget=BUDGET, num_workers=2)
    assert codes(profile)[0] == "shm"
    assert profile.setting["num_workers"] == 0
    assert "does not fit" in profile.verdict
    dropped = profile.evidence["dropped"][0]
    # 2 workers x 2 batches and 2 more, of 32 x 48 kB and their labels, are more than 256 kB.
    assert "/dev/shm, which has 0.262 MB free" in dropped["reason"]


def test_a_few_very_slow_samples() -> None:
    options = {"sampler": range(400), "num_workers": 1}  # begins with a slow one
    profile = tune_dataloader(SomeSlow(), 16, target_rate=1e9, budget=BUDGET, **options)
    assert codes(profile)[0] == "slow-samples"


BUSY = """
import numpy, torch

class Busy(torch.utils.data.Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        matrix = numpy.ones((400, 400))  # small ones get one thread
        return torch.zeros(8), float((matrix @ matrix)[0, 0])
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_workers_with_too_many_threads(tmp_path: Path) -> None:
    # torch gives its own operations one thread in a worker; numpy's do as the variable says.
    (tmp_path / "busy.py").write_text(BUSY)
    command = [*TUNE, "--dataset", "busy:Busy"]
    command += ["--batch-size", "2", "--num-workers", "1", "--target-rate", "1e9"]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "4"}
    done = subprocess.run(
        [*command, "--budget", "4s", "--json"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=True,
    )
    first = json.loads(done.stdout)["findings"][0]
    assert first["code"] == "threads"
    assert "OMP_NUM_THREADS=1" in first["words"]
