"""Clocks, stages and what a cold read is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fastdata import convert, open_dataset
from fastdata.errors import ImageError
from fastdata.tuning import stages as stages_module
from fastdata.tuning.probes import Clock, Lap, probe_device, spread
from fastdata.tuning.stages import StageProbe, probe_cold
from tests.tuning.conftest import RECIPE


def test_sleeping_is_waiting_and_working_is_not() -> None:
    sleeping, working = Clock(), Clock()
    for _ in range(5):
        with sleeping:
            time.sleep(0.01)
        with working:
            sum(range(200_000))
    assert sleeping.cost().blocked > 0.9 * sleeping.cost().wall
    assert working.cost().blocked < 0.1 * working.cost().wall
    assert sleeping.laps == 5
    assert sleeping.cost(10).wall == pytest.approx(sleeping.cost().wall / 10)


def test_threads_are_counted_by_their_cpu_time() -> None:
    clock = Clock()
    with clock:
        sum(range(3_000_000))
    assert clock.threads == pytest.approx(1.0, abs=0.1)


def test_the_spread_of_samples() -> None:
    # 18 of 1 ms, and one of 20 ms, which is 20 of 38 ms; 10 ms is no more than ten times 1 ms.
    found = spread([Lap(0.001, True)] * 18 + [Lap(0.02, True)])
    assert (found.typical, found.slowest) == (0.001, 0.02)
    assert found.slow_share == pytest.approx(20 / 38)
    assert spread([Lap(0.001, True)] * 3 + [Lap(0.01, True)]).slow_share == 0


def test_disturbed_samples_say_nothing_unless_they_are_the_most() -> None:
    quiet, disturbed = Lap(0.001, True), Lap(0.1, False)
    assert spread([quiet, quiet, disturbed]).slowest == 0.001
    assert spread([quiet, disturbed, disturbed]).slowest == 0.1


@pytest.mark.parametrize("to", ["folder", "webdataset", "memmap"])
def test_each_format_has_its_stages(folder: Path, tmp_path: Path, to: str) -> None:
    path = folder
    if to != "folder":
        path = tmp_path / to
        convert(folder, path, to=to, size=48, workers=1)
    with open_dataset(path) as dataset:
        probe = StageProbe(dataset, RECIPE, 8)
        probe.run(0.0)
        stages = probe.stages()
        assert len(probe.samples) >= 1
        expected = {"fetch", "crop and resize"}
        if to != "memmap":
            expected |= {"decode"}
        if to == "folder":
            expected |= {"header"}
        assert set(stages) == expected
        assert ("decode" in probe.missing()) == (to == "memmap")
        assert probe.total().wall == pytest.approx(sum(cost.wall for cost in stages.values()))


def test_damaged_samples_raise_or_are_passed_over(make_folder: Callable[..., Path]) -> None:
    folder = make_folder({"ant": 8})
    for file in sorted(folder.glob("*/*"))[:4]:
        file.write_bytes(b"\xff\xd8 no image")
    with open_dataset(folder) as dataset:
        with pytest.raises(ImageError, match=r"ant_00\d\.jpg"):
            StageProbe(dataset, RECIPE, 8).run(2.0)
        probe = StageProbe(dataset, RECIPE, 8, skip=True)
        probe.run(0.5)
        assert probe.samples


def test_a_read_is_cold_only_if_storage_was_read(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = np.arange(5)
    with open_dataset(packed) as dataset:
        size = sum(len(dataset.read(index)) for index in some.tolist())
        for counts, expected in (
            ((0, size), None),
            ((0, 0), "kept the samples in its page cache"),
            ((None, None), "does not count"),
        ):
            left = iter(counts)
            monkeypatch.setattr(stages_module, "_storage_bytes", lambda left=left: next(left))
            found = probe_cold(dataset.reader, some)
            if expected is None:
                assert not isinstance(found, str)
            else:
                assert expected in str(found)


def test_a_location_holds_the_samples_bytes(folder: Path, tmp_path: Path) -> None:
    paths = {"folder": folder}
    for to in ("webdataset", "lmdb", "memmap"):
        paths[to] = tmp_path / to
        convert(folder, paths[to], to=to, size=48, workers=1)
    for to, path in paths.items():
        with open_dataset(path) as dataset:
            for index in (0, 7, len(dataset) - 1):
                file, offset, length = dataset.reader.location(index)
                with open(file, "rb") as opened:
                    opened.seek(offset)
                    data = opened.read(length)
                if to == "memmap":
                    assert data == dataset.pixels[index].tobytes()
                else:
                    assert data == dataset.read(index)


def test_without_a_gpu_nothing_is_said_of_one() -> None:
    batch = torch.zeros((4, 10), dtype=torch.uint8)
    stages, missing, gain = probe_device(batch, torch.device("cpu"))
    assert stages == {}
    assert set(missing) == {"pin", "host to device"}
    assert gain is None
