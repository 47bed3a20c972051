"""Folders of images -> datasets: scan, plan, transform, write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from converters.conversion import Conversion, Progress, convert

__all__ = ["Conversion", "Progress", "convert"]


def __getattr__(name: str) -> Any:
    # Imported when asked for: a worker process must be able to report that this fails.
    if name not in __all__:
        raise AttributeError(f"module 'converters' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module("converters.conversion"), name)
