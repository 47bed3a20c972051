"""Keyed counter-based random numbers.

Every random decision in fastdata is ``hash(key, counter)``, so it can be computed anywhere, in any
order, and never depends on what was drawn before. The hash is SplitMix64 (Steele, Lea, Flood:
"Fast splittable pseudorandom number generators", OOPSLA 2014): output ``i`` of the generator seeded
with ``key``. numpy.random is not used because its streams may change between releases.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["derive_key", "hash64", "uniform"]

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB


def _mix_int(word: int) -> int:
    word = ((word ^ (word >> 30)) * _MIX_1) & _MASK
    word = ((word ^ (word >> 27)) * _MIX_2) & _MASK
    return word ^ (word >> 31)


def derive_key(*words: int) -> int:
    """Fold integers, such as (seed, purpose, epoch), into one 64-bit key.

    Negative and large integers are allowed; they count modulo 2**64.
    """
    key = 0
    for word in words:
        key = _mix_int((key ^ (word & _MASK)) + _GAMMA & _MASK)
    return key


def hash64(
    key: int | NDArray[np.uint64], counter: NDArray[np.uint64] | NDArray[np.int64] | int
) -> NDArray[np.uint64]:
    """Output number ``counter`` (from 0) of the SplitMix64 generator seeded with ``key``.

    Both arguments broadcast; the result is uint64 of the broadcast shape (at least 1-d arrays are
    expected for one of the two, so that arithmetic wraps instead of warning).
    """
    steps = np.atleast_1d(np.asarray(counter, dtype=np.uint64) + np.uint64(1))
    word: NDArray[np.uint64] = steps * np.uint64(_GAMMA) + np.asarray(key, dtype=np.uint64)
    word ^= word >> np.uint64(30)
    word *= np.uint64(_MIX_1)
    word ^= word >> np.uint64(27)
    word *= np.uint64(_MIX_2)
    word ^= word >> np.uint64(31)
    return word


def uniform(
    key: int | NDArray[np.uint64], counter: NDArray[np.uint64] | NDArray[np.int64] | int
) -> NDArray[np.float64]:
    """Uniform float64 in [0, 1) with 53 random bits, from :func:`hash64`."""
    word = hash64(key, counter)
    word >>= np.uint64(11)
    numbers = word.view(np.int64).astype(np.float64)  # faster than from unsigned numbers
    numbers *= 2.0**-53
    return numbers
