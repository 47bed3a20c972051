"""Wrong arguments of the loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, make_loader
from fastdata.errors import DataError, UsageError

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
COUNT = 22  # images in the folders


def identity(image: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(image)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size.*at least 1.*0"),
        ({"batch_size": -3}, "batch_size.*at least 1.*-3"),
        ({"batch_size": "4"}, "batch_size.*'4'"),
        ({"batch_size": 2.5}, "batch_size.*2.5"),
        ({"batch_size": COUNT + 1}, f"batch_size {COUNT + 1}.*dataset's {COUNT} samples"),
        ({"recipe": "imagenet"}, "'imagenet'.*imagenet-train"),
        ({"recipe": 3}, "3.*imagenet-train"),
        ({"transform": 3}, "transform.*callable.*3"),
        ({"transform": identity, "dtype": "float32"}, "transform=.*dtype"),
        ({"engine": "warp"}, "engine.*'warp'.*workers"),
        ({"device": "warp"}, "device.*warp"),
        ({"device": "cuda:99"}, "device.*cuda:99"),
        ({"num_workers": -1}, "num_workers.*'auto'.*-1"),
        ({"num_workers": "many"}, "num_workers.*'auto'.*'many'"),
        ({"num_workers": 1.5}, "num_workers.*'auto'.*1.5"),
        ({"prefetch_factor": 0}, "prefetch_factor.*at least 1.*0"),
        ({"order": "local"}, "order.*'global'.*'local'"),
        ({"copies": "half"}, "copies.*'all'.*'half'"),
        ({"seed": "lucky"}, "seed.*'lucky'"),
        ({"seed": 1.5}, "seed.*1.5"),
        ({"rank": 1}, "rank and world_size together"),
        ({"world_size": 2}, "rank and world_size together"),
        ({"rank": 2, "world_size": 2}, "rank.*2 of 2"),
        ({"rank": -1, "world_size": 2}, "rank.*-1 of 2"),
        ({"rank": 0, "world_size": 0}, "rank.*0 of 0"),
        ({"dtype": "int8"}, "dtype.*float16.*'int8'"),
        ({"dtype": torch.int64}, "dtype.*float16.*int64"),
        ({"on_error": "ignore"}, "on_error.*'raise' or 'skip'.*'ignore'"),
        ({"profile": "fast"}, "profile.*'auto'.*'fast'"),
        ({"engine_options": {"threads": 3}}, "option 'threads'.*decoder"),
        ({"engine_options": {"decoder": "warp"}}, "'warp'.*simplejpeg"),
        ({"engine_options": {"start_method": "warp"}}, "start_method.*'warp'"),
        ({"engine_options": {"timeout": -1}}, "timeout.*seconds.*-1"),
        ({"engine_options": {"timeout": True}}, "timeout.*seconds.*True"),
        ({"engine_options": {"timeout": float("nan")}}, "timeout.*seconds.*nan"),
        ({"engine_options": {"timeout": float("inf")}}, "timeout.*seconds.*inf"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_was_expected_and_found(
    arguments: dict[str, Any], message: str, packed: Path
) -> None:
    options = {"batch_size": 4, "recipe": TRAIN, "num_workers": 1, **arguments}
    with pytest.raises(UsageError, match=f"(?is){message}"):
        make_loader(packed, **options)


@pytest.mark.parametrize(("rank", "world_size"), [("x", "2"), ("1", "y"), ("2", "2"), ("1", None)])
def test_a_wrong_environment_is_refused(
    rank: str, world_size: str | None, packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    if world_size is not None:
        monkeypatch.setenv("WORLD_SIZE", world_size)
    with pytest.raises(UsageError, match=r"(?i)rank|world_size"):
        make_loader(packed, 4, recipe=TRAIN, num_workers=0)


def test_a_place_with_nothing_to_load_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=str(tmp_path / "absent")):
        make_loader(tmp_path / "absent", 4)
