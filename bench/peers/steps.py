"""What the peers that take torchvision's transforms share: how they decode, and what comes after.

Pixels are cropped as tensors, the faster of torchvision's two ways, with its antialiasing filter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["CROP", "decode", "transform", "version"]

CROP = "torchvision's RandomResizedCrop(224) of a tensor, antialias on (its default), flip"


def version() -> str:
    import torchvision

    return torchvision.__version__


def transform(size: int, *before: Any) -> Callable[[Any], Any]:
    """The steps behind ``before``: random resized crop (32x32: none), flip."""
    from torchvision.transforms import v2

    crop = [] if size == 32 else [v2.RandomResizedCrop(size)]
    return v2.Compose([*before, *crop, v2.RandomHorizontalFlip()])


def decode(data: bytes) -> Any:
    """An encoded image -> uint8 tensor [3, H, W], by torchvision.io."""
    import numpy as np
    import torch
    from torchvision.io import ImageReadMode, decode_image

    # A copy: torch warns of memory that it may not write to.
    return decode_image(torch.from_numpy(np.frombuffer(data, np.uint8).copy()), ImageReadMode.RGB)
