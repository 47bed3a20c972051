"""Offline augmentation: several seeded variants of each image, made once.

An augmentation is a callable on a PIL image: a preset, which is a list of operations joined by
``+`` in the order in which they are applied, or a function of the user's, ``"module:function"``.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Callable
from typing import Any

from PIL import Image

from fastdata.errors import UsageError
from fastdata.hashing import derive_key
from fastdata.registry import require

__all__ = ["OPERATIONS", "Augmentation", "check_augmentation", "load_augmentation", "variant_key"]

Augmentation = Callable[[Image.Image], Any]

OPERATIONS = ("crop", "flip", "rotate", "color", "blur")
"""Of presets: torchvision's random-resized-crop (8 to 100 % of the area; to ``--size`` where that
is given, else the box keeps its own size), horizontal flip, rotation by up to 15 degrees, jitter of
brightness, contrast, saturation (0.4 each) and hue (0.1), Gaussian blur of half of the images."""
_AUGMENT = 5  # purpose word of the variants' keys, see hashing.derive_key


def variant_key(seed: int, path: bytes, copy: int) -> int:
    """The 64-bit seed of a variant: a pure function of its arguments."""
    digest = hashlib.sha256(path).digest()
    return derive_key(seed, _AUGMENT, int.from_bytes(digest[:8], "little"), copy)


def check_augmentation(name: str) -> str:
    """Look an augmentation up before any work starts.

    Returns:
        A fingerprint of the user's module, so that a resumed conversion uses the same code; empty
        for a preset.

    Raises:
        UsageError: there is no such preset or function.
        MissingExtraError: a preset without torchvision.
    """
    if ":" not in name:
        _operations(name)
        return ""
    _function(name)
    source = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    if source is None:
        return ""
    with open(source, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def load_augmentation(name: str, size: tuple[int, int] | None) -> Augmentation:
    """The callable of a preset or of ``"module:function"``.

    Args:
        size: (height, width) that the preset ``crop`` scales its box to; None: it does not.
    """
    if ":" in name:
        return _function(name)
    transforms = require("torchvision.transforms.v2", "torch", f"--augment {name}")
    steps = [_step(operation, size, transforms) for operation in _operations(name)]
    compose: Augmentation = transforms.Compose(steps)
    return compose


def _operations(name: str) -> list[str]:
    operations = name.split("+")
    unknown = [operation for operation in operations if operation not in OPERATIONS]
    if unknown or len(set(operations)) < len(operations):
        raise UsageError(
            f"--augment: expected operations among {', '.join(OPERATIONS)} joined by +, each at "
            f"most once, or module:function; got {name!r}"
        )
    require("torchvision", "torch", f"--augment {name}")
    return operations


def _step(operation: str, size: tuple[int, int] | None, transforms: Any) -> Any:
    if operation == "crop":
        if size is not None:
            return transforms.RandomResizedCrop(size)
        return _random_box
    if operation == "flip":
        return transforms.RandomHorizontalFlip()
    if operation == "rotate":
        return transforms.RandomRotation(15, transforms.InterpolationMode.BILINEAR)
    if operation == "color":
        return transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
    return transforms.RandomApply([transforms.GaussianBlur(5, (0.1, 2.0))], 0.5)


def _random_box(image: Image.Image) -> Image.Image:
    """Cut out the box that torchvision's RandomResizedCrop draws, without scaling it."""
    from torchvision.transforms import RandomResizedCrop

    drawn = RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3])
    top, left, height, width = drawn
    return image.crop((left, top, left + width, top + height))


def _function(name: str) -> Augmentation:
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:  # the module may raise anything
        raise UsageError(f"--augment: cannot import {name!r}: {error}") from error
    if not callable(found):
        raise UsageError(f"--augment: {name} is not callable, but a {type(found).__name__}")
    function: Augmentation = found
    return function
