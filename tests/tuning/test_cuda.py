"""The tuner on a GPU: every engine that can run there is probed, and what a GPU says is noted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fastdata import tune
from fastdata.recipe import Recipe

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("no_process"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]


def test_formats_and_engines_are_tried_beside_a_step_on_the_gpu(
    make_folder: Callable[..., Path], cache: Path
) -> None:
    folder = make_folder({"a": 600, "b": 680}, [(300, 260), (400, 300)])
    model = torch.nn.Conv2d(3, 64, 7, stride=2).cuda()

    def step(batch: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            model(batch[0].float()).mean().backward()

    recipe = Recipe(size=224, crop="random_resized", hflip=0.5)
    profile = tune(
        folder,
        128,
        recipe=recipe,
        device="cuda",
        step=step,
        budget=10.0,
        formats=["webdataset", "memmap:256"],
    )
    tried = {(space["subject"], space["engine"]) for space in profile.evidence["spaces"]}
    assert {("webdataset", "workers"), ("memmap 256", "direct"), ("memmap 256", "gather")} <= tried
    assert ("memmap 256", "workers") in tried
    assert profile.ceiling is not None
    assert profile.evidence["step"]["beside_workers"] is not None
    for space in profile.evidence["spaces"]:
        assert {"pin", "host to device"} <= set(space["stages"])
    assert not {"pin", "host to device"} & set(profile.not_measured)
