"""The settings of an engine, as the tests of its parts need them."""

from __future__ import annotations

from typing import Any

import torch

from fastdata import Recipe
from fastdata.engines import Settings

__all__ = ["RECIPE", "settings"]

RECIPE = Recipe(size=24, crop="random_resized", hflip=0.5)


def settings(dataset: Any, recipe: Recipe = RECIPE, **changes: Any) -> Settings:
    """On the CPU, in uint8."""
    values: dict[str, Any] = {
        "dataset": dataset,
        "batch_size": 10,
        "recipe": recipe,
        "transform": None,
        "device": torch.device("cpu"),
        "dtype": torch.uint8,
        "training": True,
        "skip_errors": False,
        "num_workers": 1,
        "prefetch_factor": 1,
    }
    return Settings(**{**values, **changes})
