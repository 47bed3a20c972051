"""The engine dali-cpu, beside what conformance asks of every engine: faults, ends and resets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastdata import ImageError, Recipe, UsageError, convert, make_loader, open_dataset
from fastdata.errors import WorkerError

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
        (source, RECIPE, "plain folder"),
        (tmp_path / "pixels", RECIPE, "pixels"),
        (tmp_path / "out", Recipe(), "without a size"),
        (tmp_path / "out", Recipe(size=8, crop="random_pad"), "padding"),
        (tmp_path / "out", Recipe(size=8, antialias=True), "antialias"),
    ]:
        with pytest.raises(UsageError, match=rf"engine='dali-cpu'.*{message}"):
            make_loader(path, 4, recipe=recipe, engine="dali-cpu")
    with pytest.raises(UsageError, match="transform"):
        make_loader(tmp_path / "out", 4, transform=np.array, engine="dali-cpu")
    with open_dataset(tmp_path / "out") as dataset:
        assert make_loader(dataset, 4, recipe=RECIPE).engine == "workers"  # by default
