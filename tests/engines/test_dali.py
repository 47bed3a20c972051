"""The engines dali and dali-cpu, beside what conformance asks of every engine: faults, ends and
resets."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import ImageError, Recipe, UsageError, convert, make_loader, open_dataset
from fastdata.engines import Settings, Unavailable
from fastdata.engines.dali.cpu import DaliCpuEngine
from fastdata.engines.dali.gpu import DaliEngine
from fastdata.engines.dali.options import decoder_options, wheel_refusal
from fastdata.errors import WorkerError
from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import draw_key
from tests.engines.settings import settings

RECIPE = Recipe(size=24, crop="random_resized", hflip=0.5, dtype="uint8")
COUNT = 70
_FRAME = b"\xff\xc0" + bytes([0, 17, 8])  # what stands before the height


@pytest.fixture
def damaged(make_folder: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """(how, samples) -> a dataset of 70 images, some of which were damaged after the conversion."""

    def make(how: str, samples: tuple[int, ...]) -> Path:
        path = tmp_path / "out"
        convert(make_folder({"a": 40, "b": 30}, [(300, 200)]), path, workers=1, shuffle=False)
        offsets = np.load(path / "offsets.npy")
        with open(next(path.glob("*.tar")), "r+b") as file:
            for sample in samples:
                offset, size = offsets[sample].tolist()
                file.seek(offset)
                data = file.read(size)
                changed = {
                    "text": b"This is no image. " * (size // 18 + 1),
                    "no header": data[:2] + bytes(size - 2),
                    "other size": data.replace(_FRAME, _FRAME + b"\xff"),
                }[how]
                file.seek(offset)
                file.write(changed[:size])
        return path

    return make


PROGRAM = """
import sys
from fastdata import ImageError, Recipe, make_loader
recipe = Recipe(size=24, crop="random_resized", hflip=0.5, dtype="uint8")
path, batch = sys.argv[1], int(sys.argv[2])
options = {"engine": "dali-cpu", "num_workers": 2, "shuffle": False, "with_index": True}
with make_loader(path, batch, recipe=recipe, on_error="skip", **options) as loader:
    for _ in range(2):
        found = [index for *_, indices in loader for index in indices.tolist()]
        print(*found)
    print(*sorted(skip.index for skip in loader.skipped))
with make_loader(path, batch, recipe=recipe, **options) as loader:
    try:
        list(loader)
    except ImageError as error:
        print(error)
"""


# A crash of DALI's threads is one of the process, which must not be this one.
@pytest.mark.parametrize("how", ["text", "no header", "other size"])
@pytest.mark.parametrize("batch", [64, 10])
def test_headers_that_dali_cannot_parse_are_samples_at_fault(
    how: str, batch: int, damaged: Callable[..., Path]
) -> None:
    path = damaged(how, (0, 33, 69))
    command = [sys.executable, "-c", PROGRAM, str(path), str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    first, second, skipped, message = done.stdout.splitlines()
    expected = [index for index in range(COUNT) if index not in (0, 33, 69)]
    assert first.split() == second.split() == [str(index) for index in expected]
    assert skipped == "0 33 69"
    assert "a_000.jpg" in message


CHANGING = """
import os, shutil, sys
import torch
from fastdata import Recipe, make_loader
recipe = Recipe(size=24, crop="center", dtype="uint8")
path, other, text = sys.argv[1:]
options = {"shuffle": False, "with_index": True, "on_error": "skip", "num_workers": 2}
with make_loader(path, 4, recipe=recipe, engine="dali-cpu", **options) as loader:
    print(*(index for *_, indices in loader for index in indices.tolist()))
    shutil.copy(other, path + "/a/a_002.jpg")
    shutil.copy(text, path + "/a/a_005.jpg")
    with make_loader(path, 4, recipe=recipe, engine="workers", **options) as reference:
        for found, expected in zip(loader, reference, strict=True):
            print(*found[2].tolist())
            assert torch.equal(found[2], expected[2])
            assert (found[0].int() - expected[0].int()).abs().max() <= 12
"""


def test_files_of_a_plain_folder_may_change_between_epochs(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_folder({"a": 8}, [(300, 200)])
    other = make_folder({"a": 1}, [(60, 50)], name="other") / "a" / "a_000.jpg"
    (tmp_path / "text.jpg").write_bytes(b"This is no image. " * 100)
    command = [sys.executable, "-c", CHANGING, str(path), str(other), str(tmp_path / "text.jpg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == ["0 1 2 3 4 5 6 7", "0 1 2 3", "4 6 7"]


@pytest.mark.parametrize("training", [False, True])
def test_samples_that_the_decoder_refuses_are_skipped_as_in_every_engine(
    training: bool, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"a": 40}, [(300, 200)]), tmp_path / "out", workers=1, shuffle=False)
    loaded: dict[str, Any] = {}
    with open_dataset(tmp_path / "out") as dataset:
        reader: Any = dataset.reader
        reader._spans = reader._spans.copy()
        reader._spans[[2, 25], 1] //= 5  # they end within the first rows
        for engine in ("dali-cpu", "workers"):
            options = {"engine": engine, "num_workers": 0, "shuffle": training}
            with make_loader(dataset, 8, recipe=RECIPE, on_error="skip", **options) as loader:
                loaded[engine] = list(loader), [skip.index for skip in loader.skipped]
        with make_loader(dataset, 8, recipe=RECIPE, engine="dali-cpu", shuffle=False) as loader:
            for _ in range(2):
                with pytest.raises(ImageError, match=r"a_002\.jpg"):
                    list(loader)
                loader.set_epoch(0)
    assert sorted(loaded["dali-cpu"][1]) == [2, 25]
    assert loaded["dali-cpu"][1] == loaded["workers"][1]
    pairs = zip(loaded["dali-cpu"][0], loaded["workers"][0], strict=True)
    for (images, labels), (expected, wanted) in pairs:
        assert images.shape == expected.shape
        assert torch.equal(labels, wanted)
        assert (images.int() - expected.int()).abs().max() <= 12  # of reductions, see its class


def test_what_dali_refuses_again_and_again_without_a_fault_is_an_error(
    make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(make_folder({"a": 40}), tmp_path / "out", workers=1)
    with make_loader(tmp_path / "out", 2, recipe=RECIPE, engine="dali-cpu") as loader:
        engine: Any = loader._engine
        geometry = engine._feed._geometry

        def outside(plan: Any) -> Any:
            corner, *rest = geometry(plan)
            return [corner + 10_000, *rest]

        monkeypatch.setattr(engine._feed, "_geometry", outside)
        with pytest.raises(WorkerError, match=r"refused 11 batches.*workers"):
            list(loader)


def test_an_epoch_can_be_left_at_any_batch(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"a": 23}), tmp_path / "out", workers=1)
    options = {"recipe": RECIPE, "engine": "dali-cpu", "with_index": True, "drop_last": False}
    with make_loader(tmp_path / "out", 4, **options) as loader:
        expected = []
        for epoch in range(8):
            loader.set_epoch(epoch)
            expected.append(list(loader))
        assert [len(batch[0]) for batch in expected[0]] == [4, 4, 4, 4, 4, 3]
        assert loader.pipeline.max_batch_size == 4  # DALI's own
        for epoch in range(8):
            loader.set_epoch(epoch)
            for number, found in enumerate(loader):
                assert all(map(torch.equal, found, expected[epoch][number]))
                if number == epoch:
                    break
        loader.close()
        loader.set_epoch(5)
        for found, wanted in zip(loader, expected[5], strict=True):
            assert all(map(torch.equal, found, wanted))


def test_a_batch_that_was_handed_out_is_never_overwritten(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    convert(make_folder({"a": 40}), tmp_path / "out", workers=1)
    with make_loader(tmp_path / "out", 2, recipe=RECIPE, engine="dali-cpu") as loader:
        pairs = [(images, images.clone()) for _ in range(2) for images, _ in loader]
    assert len(pairs) == 40
    assert all(torch.equal(*pair) for pair in pairs)


def test_what_it_cannot_do_is_refused_by_name(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder()
    convert(source, tmp_path / "out", workers=1)
    convert(source, tmp_path / "pixels", to="memmap", size=32, workers=1)
    for path, recipe, message in [
        (tmp_path / "pixels", RECIPE, "pixels"),
        (tmp_path / "out", Recipe(), "without a size"),
        (tmp_path / "out", Recipe(size=8, crop="random_pad"), "padding"),
        (tmp_path / "out", Recipe(size=8, antialias=True), "antialias"),
    ]:
        with pytest.raises(UsageError, match=rf"engine='dali-cpu'.*{message}"):
            make_loader(path, 4, recipe=recipe, engine="dali-cpu")
    with pytest.raises(UsageError, match=r"engine='dali'.*CUDA device; dali-cpu does not"):
        make_loader(source, 4, recipe=RECIPE, engine="dali", device="cpu")
    with pytest.raises(UsageError, match="transform"):
        make_loader(tmp_path / "out", 4, transform=np.array, engine="dali-cpu")
    with open_dataset(tmp_path / "out") as dataset:
        assert make_loader(dataset, 4, recipe=RECIPE).engine == "workers"  # by default


ON_A_GPU = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = [
    pytest.param("dali-cpu", "cpu"),
    pytest.param("dali", "cuda", marks=ON_A_GPU),
]


@pytest.mark.parametrize(("engine", "device"), DEVICES)
def test_one_truncated_file_of_500_in_a_plain_folder_ends_no_epoch(
    engine: str, device: str, make_folder: Callable[..., Path]
) -> None:
    path = make_folder({"a": 200, "b": 300}, [(46, 36), (36, 46)])  # no crop of which is reduced
    bad = path / "b" / "b_017.jpg"
    bad.write_bytes(bad.read_bytes()[:900])
    options: dict[str, Any] = {"recipe": RECIPE, "engine": engine, "device": device}
    options |= {"with_index": True, "num_workers": 2}
    wanted = {"engine": "workers", "device": "cpu", "num_workers": 0}
    for shuffle, samples in ((False, 499), (True, 496)):
        both: dict[str, Any] = {"on_error": "skip", "shuffle": shuffle}
        with (
            make_loader(path, 16, **options, **both) as loader,
            make_loader(path, 16, **{**options, **wanted}, **both) as reference,
        ):
            seen = []
            for found, expected in zip(loader, reference, strict=True):
                images, labels, indices = found
                assert torch.equal(indices, expected[2])
                assert torch.equal(labels.cpu(), expected[1])
                # The tolerance is that of docs/architecture.md.
                assert (images.cpu().int() - expected[0].int()).abs().max() <= 4
                assert torch.equal(labels.cpu(), (indices >= 200).long())
                seen += indices.tolist()
            assert [skip.name for skip in loader.skipped] in ([str(bad)], ["b/b_017.jpg"])
        assert len(seen) == samples
        assert 217 not in seen
    assert seen
    with (
        make_loader(path, 16, **options, shuffle=False) as loader,
        pytest.raises(ImageError, match=r"b_017\.jpg"),
    ):
        list(loader)


class OnCpu(DaliEngine):
    """The graph of the GPU, decoded on the CPU, and the kernel's twin."""

    _backend = "cpu"

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        return None


def batches_of(engine: Any, plans: list[BatchPlan]) -> list[Any]:
    return list(engine.batches(iter(plans)))


@pytest.mark.parametrize("kind", ["folder", "webdataset", "unusual"])
def test_the_gpus_graph_makes_the_batches_of_the_cpus(
    kind: str, make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Triton's interpreter would take minutes.
    monkeypatch.setattr("fastdata.engines.pixels.importlib.util.find_spec", lambda _: None)
    # Smaller than the output, larger, and so large that crops are reduced.
    path = make_folder({"a": 7, "b": 6}, [(20, 16), (30, 28), (60, 47), (200, 150), (400, 310)])
    if kind == "webdataset":
        convert(path, tmp_path / "out", workers=1)
        path = tmp_path / "out"
    elif kind == "unusual":
        for name in ("a/a_001.jpg", "a/a_002.jpg", "b/b_004.jpg"):
            Image.open(path / name).save(path / name, "PNG")
    recipe = replace(RECIPE, brightness=0.4, contrast=0.4, erase=0.5)
    with open_dataset(path) as dataset:
        options = settings(dataset, recipe, batch_size=5)
        sizes = dataset.sizes if dataset.plain else None
        # In the last batch of the unusual all are PNGs.
        groups = [[0, 5, 6, 7, 3], [1, 2, 8, 12, 4], [9, 10, 11], [1, 11, 2]]
        arrays = [np.array(group) for group in groups]
        plans = plan_batches(recipe, draw_key(0, 0), arrays, sizes)
        gpus, cpus = OnCpu(options), DaliCpuEngine(options)
        for _ in range(2):
            found, expected = batches_of(gpus, plans), batches_of(cpus, plans)
            assert len(found) == len(expected) == 4
            for one, other, plan in zip(found, expected, plans, strict=True):
                assert one.images.shape == other.images.shape == (len(plan), 3, 24, 24)
                assert one.images.is_contiguous(memory_format=torch.channels_last)
                # Rounding may go to the other side, and contrast widens that.
                assert (one.images.int() - other.images.int()).abs().max() <= 3
                assert torch.equal(one.labels, other.labels)
                assert torch.equal(one.indices, torch.from_numpy(plan.indices))
        gpus.close()
        cpus.close()


def test_what_dali_lacks_here_makes_way_for_another_engine(
    make_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(engine: DaliEngine) -> None:
        raise RuntimeError("[/opt/dali] CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(OnCpu, "_build", refuse)
    convert(make_folder({"a": 4}, [(60, 50)]), tmp_path / "out", workers=1)
    with open_dataset(tmp_path / "out") as dataset:
        with pytest.raises(Unavailable, match="OUT_OF_MEMORY"):
            OnCpu(settings(dataset, RECIPE, batch_size=2))
        # But nothing is taken in the place of what somebody has set up by hand.
        asked = settings(dataset, RECIPE, batch_size=2, options={"hw_decoder_load": 7})
        with pytest.raises(UsageError, match=r"hw_decoder_load.*OUT_OF_MEMORY"):
            OnCpu(asked)


def test_the_decoder_is_told_of_the_datasets_sizes(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder({"a": 4}, [(2000, 1500), (1000, 700)])
    convert(source, tmp_path / "out", workers=1)
    with open_dataset(tmp_path / "out") as dataset:
        options = decoder_options(settings(dataset, options={"hw_decoder_load": 0.3}))
        assert options["hw_decoder_load"] == 0.3
        # 3 MP x 5.5 and 3.7 bytes; the percentile lies a little below the largest.
        assert 0.99 < options["device_memory_padding"] / (3e6 * 5.5) <= 1
        assert 0.99 < options["host_memory_padding"] / (3e6 * 3.7) <= 1
        assert options["preallocate_width_hint"] == 2000
        assert options["preallocate_height_hint"] == 1500
    with open_dataset(source) as dataset:  # sizes are not known: DALI's own defaults
        assert "device_memory_padding" not in decoder_options(settings(dataset))


@pytest.mark.parametrize(
    ("driver", "message"),
    [(11080, r"CUDA 12.*driver knows CUDA 11.*pip install nvidia-dali-cuda110"), (12040, None)],
)
def test_a_driver_that_is_older_than_the_wheel_is_named(
    driver: int, message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(pointer: Any) -> int:
        pointer._obj.value = driver
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(cuDriverGetVersion=version))
    monkeypatch.setattr("nvidia.dali.__cuda_version__", 12090)
    if message is None:
        wheel_refusal()
    else:
        with pytest.raises(Unavailable, match=message):
            wheel_refusal()


def test_engines_live_beside_each_other(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    # Two pipelines, and workers that are forked while DALI's threads run.
    convert(make_folder({"a": 30, "b": 10}), tmp_path / "out", workers=1)
    options = {"recipe": RECIPE, "batch_size": 4, "engine": "dali-cpu", "with_index": True}
    forked = {**options, "engine": "workers", "num_workers": 1}
    forked["engine_options"] = {"start_method": "fork"}
    with (
        make_loader(tmp_path / "out", **options) as training,
        make_loader(tmp_path / "out", **options, shuffle=False) as evaluation,
        make_loader(tmp_path / "out", **forked) as workers,
    ):
        for epoch in range(2):
            for one, two, three in zip(training, evaluation, workers, strict=True):
                assert torch.equal(one[2], three[2])
                assert torch.equal(one[1], three[1])
                assert not torch.equal(one[2], two[2])
            assert epoch == training.state_dict()["epoch"] - 1


def test_twenty_epochs_of_differing_images_keep_nothing(
    make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    source = make_folder({"a": 30}, [(40, 30), (900, 700), (300, 200), (64, 640)])
    convert(source, tmp_path / "out", workers=1)

    def resident() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("RssAnon:")[1].split()[0]) >> 10

    def threads() -> int:
        """But for those that plan ahead: between two epochs there are one or two."""
        planning = [one for one in threading.enumerate() if one.name.startswith("fastdata-plan")]
        return len(os.listdir("/proc/self/task")) - min(len(planning), 2)

    with make_loader(tmp_path / "out", 4, recipe=RECIPE, engine="dali-cpu") as loader:
        for _ in range(5):
            list(loader)
        first, before = resident(), min(threads() for _ in range(100) if not time.sleep(0.001))
        for _ in range(20):
            list(loader)
        assert resident() - first < 30  # MB; the images have 45 an epoch when they are decoded
        ends = time.monotonic() + 20  # a thread ends a moment after who waits for it goes on
        while threads() > before and time.monotonic() < ends:
            time.sleep(0.01)
        assert threads() <= before
