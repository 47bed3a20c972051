"""Which engine is taken, and what is said of the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fastdata import MissingExtraError, UsageError, convert, make_loader
from fastdata.engines import Unavailable
from fastdata.engines.gather import GatherEngine
from fastdata.registry import ENGINES, Entry


@pytest.fixture
def datasets(make_folder: Callable[..., Path], tmp_path: Path) -> dict[str, Path]:
    source = make_folder({"a": 4, "b": 4})
    convert(source, tmp_path / "pixels", to="memmap", size=32, workers=1)
    convert(source, tmp_path / "jpegs", workers=1)
    return {"folder": source, "memmap": tmp_path / "pixels", "webdataset": tmp_path / "jpegs"}


@pytest.mark.parametrize(
    ("kind", "engine"), [("folder", "workers"), ("webdataset", "workers"), ("memmap", "gather")]
)
def test_auto_takes_the_first_that_can(kind: str, engine: str, datasets: dict[str, Path]) -> None:
    with make_loader(datasets[kind], 2, recipe="cifar-train", num_workers=0) as loader:
        assert loader.engine == engine
        assert f"engine {engine}: " in loader.explain()
        assert "engine direct was passed over: it needs a CUDA device." in loader.explain()
        assert sum(len(labels) for _, labels in loader) == 8


def test_a_transform_takes_the_workers(datasets: dict[str, Path]) -> None:
    options: dict[str, Any] = {"transform": lambda image: image, "num_workers": 0}
    with make_loader(datasets["memmap"], 2, **options) as loader:
        assert loader.engine == "workers"
        assert "transform= is a Python callable" in loader.explain()


def test_an_option_of_one_engine_takes_that_engine(datasets: dict[str, Path]) -> None:
    options = {"decoder": "pillow"}
    with make_loader(datasets["memmap"], 2, engine_options=options, num_workers=0) as loader:
        assert loader.engine == "workers"
        assert "gather was passed over: it has no option 'decoder'" in loader.explain()


def test_an_engine_that_was_asked_for_says_why_it_cannot(datasets: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"engine='gather': it reads pixels \(memmap\)"):
        make_loader(datasets["webdataset"], 2, engine="gather")
    with pytest.raises(UsageError, match="engine='direct': it needs a CUDA device"):
        make_loader(datasets["memmap"], 2, engine="direct")
    with pytest.raises(
        UsageError, match="the gather engine has no option 'tier'; it has read_ahead"
    ):
        make_loader(datasets["memmap"], 2, engine="gather", engine_options={"tier": "hbm"})
    with pytest.raises(UsageError, match="the workers engine has no option 'tier'; it has decoder"):
        make_loader(datasets["memmap"], 2, engine_options={"tier": "hbm"})


@pytest.mark.parametrize("asked", ["auto", "gather"])
def test_an_engine_that_cannot_work_here_gives_way_and_says_why(
    asked: str, datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: GatherEngine, settings: Any) -> None:
        raise Unavailable("the threads are on strike")

    monkeypatch.setattr(GatherEngine, "__init__", refuse)
    with make_loader(datasets["memmap"], 2, engine=asked, num_workers=0) as loader:
        assert loader.engine == "workers"
        assert "engine gather was passed over: the threads are on strike." in loader.explain()


def test_auto_passes_over_what_is_not_installed_or_needs_another_device(
    datasets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = {
        # If this were imported, the loader could not be made.
        "elsewhere": Entry("no_such_module:Engine", "json", "torch", "cuda"),
        "missing": Entry("no_such_module:Engine", "no_such_package", "dali"),
        **ENGINES,
    }
    monkeypatch.setattr("fastdata.engines.choice.ENGINES", engines)
    with make_loader(datasets["webdataset"], 2, num_workers=0, recipe="cifar-train") as loader:
        assert loader.engine == "workers"
        text = loader.explain()
    assert "engine elsewhere was passed over: it needs a CUDA device." in text
    assert "engine missing was passed over: " in text
    assert 'pip install "fastdata-vision[dali]"' in text
    with pytest.raises(MissingExtraError, match="no_such_package"):
        make_loader(datasets["webdataset"], 2, engine="missing")
