"""The box of a random resized crop, for peers that have no operator of their own for it."""

from __future__ import annotations

import math
from collections.abc import Callable

__all__ = ["random_box"]

_ATTEMPTS = 10
_AREA, _ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


def random_box(width: int, height: int, draw: Callable[[], float]) -> tuple[int, int, int, int]:
    """x, y, width and height by torchvision's rule; ``draw`` gives uniform numbers in [0, 1)."""
    low, high = (math.log(aspect) for aspect in _ASPECT)
    for _ in range(_ATTEMPTS):
        area = width * height * (_AREA[0] + (_AREA[1] - _AREA[0]) * draw())
        aspect = math.exp(low + (high - low) * draw())
        wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            return int((width - wide + 1) * draw()), int((height - tall + 1) * draw()), wide, tall
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side, side
