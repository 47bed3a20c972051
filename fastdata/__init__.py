"""fastdata: convert image folders once, load them at the hardware's limit, know why.

Importing this package imports neither torch nor OpenCV; each is imported by what needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastdata import errors
from fastdata._version import __version__
from fastdata.errors import *  # noqa: F403
from fastdata.nvjpeg import load_dalis
from fastdata.recipe import Recipe

if TYPE_CHECKING:
    from converters import convert
    from fastdata.dataset import Dataset, open_dataset
    from fastdata.loader import Loader, make_loader
    from fastdata.profile import Profile
    from fastdata.tuning.dataloader import tune_dataloader
    from fastdata.tuning.tune import tune

__all__ = [
    "Dataset",
    "Loader",
    "Profile",
    "Recipe",
    "__version__",
    "convert",
    "make_loader",
    "open_dataset",
    "tune",
    "tune_dataloader",
    *errors.__all__,
]

_LAZY = {
    "Dataset": "fastdata.dataset",
    "Loader": "fastdata.loader",
    "Profile": "fastdata.profile",
    "convert": "converters",
    "make_loader": "fastdata.loader",
    "open_dataset": "fastdata.dataset",
    "tune": "fastdata.tuning.tune",
    "tune_dataloader": "fastdata.tuning.dataloader",
}


load_dalis()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'fastdata' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
