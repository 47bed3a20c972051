"""The counter-based random numbers: published vectors, a scalar re-implementation, uniformity."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fastdata.hashing import derive_key, hash64, uniform

MASK = (1 << 64) - 1
WORDS = st.integers(0, MASK)


def splitmix64(state: int) -> Iterator[int]:
    """Vigna's C reference (prng.di.unimi.it/splitmix64.c), in Python's unbounded integers."""
    while True:
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        yield z ^ (z >> 31)


def splitmix64_at(seed: int, counter: int) -> int:
    """Output ``counter`` by jumping: the state grows by the same constant at every step."""
    return next(splitmix64((seed + counter * 0x9E3779B97F4A7C15) & MASK))


def folded(words: tuple[int, ...]) -> int:
    """What derive_key promises: each word goes into the seed whose first output is the next key."""
    key = 0
    for word in words:
        key = next(splitmix64(key ^ (word % (1 << 64))))
    return key


def chi_square(counts: NDArray[np.int64]) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def assert_uniform(counts: NDArray[np.int64]) -> None:
    """Chi-square within five standard deviations of its mean, on either side: counts that are
    too even are as suspicious as counts that are too uneven."""
    degrees = counts.size - 1
    assert abs(chi_square(counts) - degrees) < 5 * (2 * degrees) ** 0.5


def test_outputs_are_the_published_splitmix64_vectors() -> None:
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert list(islice(splitmix64(1234567), 5)) == expected  # the re-implementation above
    assert hash64(1234567, np.arange(5, dtype=np.uint64)).tolist() == expected


def test_outputs_do_not_depend_on_the_order_in_which_they_are_asked_for() -> None:
    whole = list(islice(splitmix64(42), 8))
    counters = np.array([7, 0, 3, 3], np.uint64)
    assert hash64(42, counters).tolist() == [whole[7], whole[0], whole[3], whole[3]]


@settings(max_examples=200, derandomize=True, deadline=None)
@given(key=WORDS, counter=WORDS)
def test_any_key_and_counter_give_the_scalar_reference(key: int, counter: int) -> None:
    assert hash64(key, np.array([counter], np.uint64)).tolist() == [splitmix64_at(key, counter)]


@pytest.mark.parametrize("key", [0, 1, 1 << 63, MASK])
@pytest.mark.parametrize("counter", [0, 1, (1 << 63) - 1, 1 << 63, MASK - 1, MASK])
def test_the_ends_of_the_range_wrap_as_64_bit_arithmetic_does(key: int, counter: int) -> None:
    assert hash64(key, np.array([counter], np.uint64)).tolist() == [splitmix64_at(key, counter)]


def test_keys_and_counters_broadcast() -> None:
    keys = np.array([[3], [MASK], [1 << 40]], np.uint64)
    counters = np.array([0, 9, 2, 5], np.uint64)
    expected = [[splitmix64_at(int(k), int(c)) for c in counters] for k in keys[:, 0]]
    result = hash64(keys, counters)
    assert result.dtype == np.uint64
    assert result.tolist() == expected


def test_an_array_of_keys_takes_a_plain_integer_as_counter() -> None:
    keys = np.array([5, 6, 7], np.uint64)
    assert hash64(keys, 11).tolist() == [splitmix64_at(key, 11) for key in (5, 6, 7)]


def test_arguments_are_left_as_they_were() -> None:
    keys, counters = np.array([5, 6], np.uint64), np.array([1, 2], np.uint64)
    hash64(keys, counters)
    uniform(keys, counters)
    assert keys.tolist() == [5, 6]
    assert counters.tolist() == [1, 2]


def test_uniform_is_the_upper_53_bits_as_a_fraction() -> None:
    result = uniform(99, np.arange(1000, dtype=np.uint64))
    expected = [(word >> 11) / 2**53 for word in islice(splitmix64(99), 1000)]
    assert result.dtype == np.float64
    assert result.tolist() == expected
    assert min(expected) >= 0.0
    assert max(expected) < 1.0


@pytest.mark.parametrize("key", [0, 1, 20_240_229])
def test_numbers_of_one_key_are_uniform(key: int) -> None:
    values = uniform(key, np.arange(100_000, dtype=np.uint64))
    assert_uniform(np.bincount((values * 256).astype(np.int64), minlength=256))


@pytest.mark.parametrize("lane", [0, 1, 40])
def test_numbers_of_neighbouring_keys_are_uniform(lane: int) -> None:
    # What draws do: one key for each sample, and the same lane of every key.
    keys = hash64(derive_key(0, 2, 0), np.arange(100_000, dtype=np.uint64))
    assert_uniform(np.bincount((uniform(keys, lane) * 256).astype(np.int64), minlength=256))


def test_neighbouring_lanes_are_independent() -> None:
    keys = hash64(derive_key(0, 2, 0), np.arange(100_000, dtype=np.uint64))
    first, second = (uniform(keys, 0) * 16).astype(np.int64), (uniform(keys, 1) * 16).astype(int)
    assert_uniform(np.bincount(first * 16 + second, minlength=256))


def test_neighbouring_epochs_are_independent() -> None:
    counters = np.arange(100_000, dtype=np.uint64)
    first = (uniform(derive_key(0, 1, 0), counters) * 16).astype(np.int64)
    second = (uniform(derive_key(0, 1, 1), counters) * 16).astype(np.int64)
    assert_uniform(np.bincount(first * 16 + second, minlength=256))


def test_every_bit_is_set_half_of_the_time() -> None:
    words = hash64(7, np.arange(20_000, dtype=np.uint64))
    bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1).sum(axis=0, dtype=np.int64)
    assert np.abs(bits - 10_000).max() < 5 * (20_000 / 4) ** 0.5


# Frozen: a change of any of these changes every epoch's order and every crop of every user.
# The figures were computed by folded() above.
VECTORS = [
    ((), 0),
    ((0,), 16294208416658607535),
    ((1,), 10451216379200822465),
    ((0, 1, 0), 4964578127960768432),
    ((42, 2, 7), 17248265454860647535),
    ((-1,), 16490336266968443936),
    ((1 << 64, 1 << 200), 12035550249420947055),
]


@pytest.mark.parametrize(("words", "key"), VECTORS)
def test_derived_keys_never_change(words: tuple[int, ...], key: int) -> None:
    assert folded(words) == key
    assert derive_key(*words) == key


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(st.integers(-(1 << 70), 1 << 70), max_size=5))
def test_derived_keys_fold_any_integers(words: list[int]) -> None:
    key = derive_key(*words)
    assert key == folded(tuple(words))
    assert 0 <= key <= MASK


def test_words_count_modulo_two_to_the_64() -> None:
    assert derive_key(-1, 5) == derive_key(MASK, 5)
    assert derive_key(3, -(1 << 64)) == derive_key(3, 0)
    assert derive_key((1 << 64) + 9) == derive_key(9)


def test_keys_of_seeds_purposes_and_epochs_are_all_different() -> None:
    keys = {derive_key(s, p, e) for s in range(-20, 20) for p in range(4) for e in range(100)}
    assert len(keys) == 40 * 4 * 100
    assert derive_key(1, 2) != derive_key(2, 1)
