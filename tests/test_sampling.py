"""Order: the permutations of both algorithms, and which samples each rank's batches hold."""

from __future__ import annotations

import math
from itertools import chain, cycle, islice, permutations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import sampling
from fastdata.errors import UsageError
from fastdata.hashing import derive_key, hash64
from fastdata.sampling import BatchSampler, shuffled

BILLION = 10**9
# No number of samples is within a limit of 0, so all go to the Feistel network.
LIMITS = {"sorted": 1 << 22, "feistel": 0}


@pytest.fixture(params=list(LIMITS))
def algorithm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with each of the two algorithms, whatever the number of samples."""
    monkeypatch.setattr(sampling, "SORT_LIMIT", LIMITS[request.param])
    return str(request.param)


def whole(n: int, key: int) -> NDArray[np.int64]:
    return shuffled(n, key, np.arange(n))


def word(key: int, counter: int) -> int:
    return int(hash64(key, np.array([counter], np.uint64))[0])


def sorted_by_hash(n: int, key: int) -> list[int]:
    """The sorting algorithm as its docstring has it: by the hash's upper bits, then by index."""
    bits = max(1, (n - 1).bit_length())
    return sorted(range(n), key=lambda i: (word(key, i) >> bits, i))


def feistel(n: int, key: int, position: int) -> int:
    """Black and Rogaway's generalised Feistel cipher with cycle walking, one integer at a time."""
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    while True:
        left, right = position % a, position // a
        for number in range(0, 8, 2):
            left = (left + ((word(derive_key(key, number), right) >> 32) * a >> 32)) % a
            right = (right + ((word(derive_key(key, number + 1), left) >> 32) * b >> 32)) % b
        position = left + right * a
        if position < n:
            return position


@pytest.mark.usefixtures("algorithm")
def test_every_sample_stands_at_exactly_one_position() -> None:
    for n in [*range(1, 301), 1023, 1024, 1025, 4096, 65_537, 100_003]:
        order = whole(n, derive_key(n))
        assert order.dtype == np.int64
        assert np.array_equal(np.sort(order), np.arange(n)), n


def test_both_sides_of_the_limit_are_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SORT_LIMIT", 64)
    for n in (63, 64, 65, 66):
        assert sorted(whole(n, 5).tolist()) == list(range(n))
    assert whole(64, 5).tolist() == sorted_by_hash(64, 5)
    assert whole(65, 5).tolist() == [feistel(65, 5, i) for i in range(65)]


@pytest.mark.parametrize("n", [1, 2, 3, 17, 100])
def test_the_order_never_changes_between_releases(n: int, algorithm: str) -> None:
    # Resuming an epoch with a newer release must go on with the same samples.
    key = derive_key(7, 1, 3)
    expected = (
        sorted_by_hash(n, key) if algorithm == "sorted" else [feistel(n, key, i) for i in range(n)]
    )
    assert whole(n, key).tolist() == expected


@pytest.mark.usefixtures("algorithm")
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_few_samples_are_equally_frequent(n: int) -> None:
    names = {order: number for number, order in enumerate(permutations(range(n)))}
    draws = max(480, 10 * len(names))
    counts = np.zeros(len(names))
    for key in range(draws):
        counts[names[tuple(whole(n, derive_key(key)).tolist())]] += 1
    expected, degrees = draws / len(names), len(names) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    # Five standard deviations above the mean of the chi-square distribution.
    assert chi_square < degrees + 5 * (2 * degrees) ** 0.5


@pytest.mark.usefixtures("algorithm")
def test_any_positions_give_what_the_whole_order_has_there() -> None:
    n, key = 1000, 12
    order = whole(n, key)
    generator = np.random.default_rng(0)
    for positions in (
        np.arange(400, 450),
        np.array([999, 0, 5, 5]),
        generator.integers(0, n, (4, 9)),
        np.empty(0, np.int64),
    ):
        result = shuffled(n, key, positions)
        assert result.dtype == np.int64
        assert result.shape == positions.shape
        assert np.array_equal(result, order[positions])


@pytest.mark.usefixtures("algorithm")
def test_a_caller_may_change_what_it_was_given() -> None:
    before = whole(50, 3)
    kept = before.copy()
    before[:] = 0
    assert np.array_equal(whole(50, 3), kept)


@pytest.mark.usefixtures("algorithm")
def test_other_keys_give_unrelated_orders() -> None:
    orders = [whole(2000, derive_key(seed, 1, epoch)) for seed in (0, 1) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            # Two random permutations agree at one position on average; ten is 1e-7 likely.
            assert (one == other).sum() < 10
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / 2000**0.5


def test_a_billion_samples_are_permuted_without_repeats() -> None:
    key = derive_key(1, 1, 0)
    windows = [np.arange(s, s + 50_000) for s in (0, 499_999_977, BILLION - 50_000)]
    scattered = np.unique(np.random.default_rng(1).integers(0, BILLION, 100_000))
    positions = np.unique(np.concatenate([*windows, scattered]))
    samples = shuffled(BILLION, key, positions)
    assert samples.dtype == np.int64
    assert samples.min() >= 0
    assert samples.max() < BILLION
    # A random function would repeat about 30 of 250,000 (birthdays); a permutation none.
    assert np.unique(samples).size == positions.size > 240_000


def test_a_billion_samples_are_spread_evenly_in_any_stretch_of_the_order() -> None:
    for start in (0, 123_456_789, BILLION - 64_000):
        samples = shuffled(BILLION, derive_key(2, 1, 0), np.arange(start, start + 64_000))
        counts = np.bincount(samples * 64 // BILLION, minlength=64)
        assert ((counts - 1000) ** 2 / 1000).sum() < 63 + 5 * (2 * 63) ** 0.5
        # Neighbours in the order are no neighbours in the dataset.
        steps = np.diff(samples)
        assert abs(np.corrcoef(samples[:-1], samples[1:])[0, 1]) < 5 / 64_000**0.5
        assert np.unique(steps).size > 63_900


def test_a_billion_samples_follow_the_scalar_reference() -> None:
    key, positions = derive_key(3, 1, 0), [0, 1, 31_622, 31_623, 777_777_777, BILLION - 1]
    expected = [feistel(BILLION, key, position) for position in positions]
    assert shuffled(BILLION, key, np.array(positions)).tolist() == expected


def test_the_largest_number_of_samples_does_not_overflow() -> None:
    n, key = 2**62 - 1, derive_key(4, 1, 0)
    positions = [0, 1, 2**40, n - 1]
    expected = [feistel(n, key, position) for position in positions]
    assert shuffled(n, key, np.array(positions)).tolist() == expected


# --- BatchSampler ---------------------------------------------------------------------------------

GRID = [
    (n, batch, world, shuffle, drop)
    for n in (1, 2, 3, 5, 8, 13, 24)
    for batch in (1, 2, 3, 5)
    for world in (1, 2, 3, 4)
    for shuffle in (False, True)
    for drop in (False, True)
    if not (drop and batch * world > n)
]


def reference(
    n: int, batch: int, world: int, shuffle: bool, drop: bool, start: int = 0
) -> list[list[list[int]]]:
    """Positions of each batch of each rank from ``start`` on, by cutting a list in pieces."""
    ranks: list[list[list[int]]] = [[] for _ in range(world)]
    for low in range(start, n, batch * world):
        together = list(range(low, min(low + batch * world, n)))
        share = batch
        if len(together) < batch * world:
            if drop:
                break
            if shuffle:  # equal shares; the epoch's beginning fills up the last
                share = math.ceil(len(together) / world)
                together = list(islice(chain(together, cycle(range(n))), share * world))
        for rank in range(world):
            part = together[rank * share : (rank + 1) * share]
            if part:
                ranks[rank].append(part)
    return ranks


def batches(sampler: BatchSampler, position: int = 0) -> list[list[int]]:
    return [b.tolist() for b in sampler.positions(position, 0, 10**6)]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop", [False, True])
def test_batches_are_those_of_the_reference_on_a_grid(shuffle: bool, drop: bool) -> None:
    for n, batch, world, *flags in GRID:
        if flags != [shuffle, drop]:
            continue
        expected = reference(n, batch, world, shuffle, drop)
        for rank in range(world):
            sampler = BatchSampler(n, batch, shuffle, drop, rank, world)
            assert batches(sampler) == expected[rank], sampler
            assert sampler.steps() == len(expected[rank]), sampler
            for found in sampler.positions(0, 0, 10**6):
                assert found.dtype == np.int64


@pytest.mark.parametrize("n", [1, 7, 12])
@pytest.mark.parametrize("batch", [1, 3, 4, 20])
def test_one_rank_in_order_takes_the_batches_of_torchs_dataloader(n: int, batch: int) -> None:
    for drop in (False, True):
        loader = torch.utils.data.DataLoader(range(n), batch_size=batch, drop_last=drop)
        if drop and batch > n:  # torch gives an empty epoch, we refuse (tested below)
            assert len(loader) == 0
            continue
        sampler = BatchSampler(n, batch, shuffle=False, drop_last=drop)
        found = [sampler.indices(0, 0, b).tolist() for b in sampler.positions(0, 0, len(loader))]
        assert found == [b.tolist() for b in loader]
        assert sampler.steps() == len(loader)


def test_evaluation_sees_each_sample_exactly_once_over_all_ranks() -> None:
    for n, batch, world, shuffle, drop in GRID:
        if shuffle or drop:
            continue
        ranks = [batches(BatchSampler(n, batch, False, False, r, world)) for r in range(world)]
        seen = sorted(position for rank in ranks for b in rank for position in b)
        assert seen == list(range(n))
        assert all(0 < len(b) <= batch for rank in ranks for b in rank)


def test_training_gives_every_rank_the_same_steps_of_the_same_sizes() -> None:
    for n, batch, world, shuffle, drop in GRID:
        if not shuffle:
            continue
        ranks = [batches(BatchSampler(n, batch, True, drop, r, world)) for r in range(world)]
        sizes = {tuple(len(b) for b in rank) for rank in ranks}
        assert len(sizes) == 1
        seen = [position for rank in ranks for b in rank for position in b]
        if drop:
            assert {len(b) for rank in ranks for b in rank} == {batch}
            assert len(seen) == len(set(seen)) == n // (batch * world) * batch * world
        else:
            # Padding repeats fewer positions than there are ranks, and leaves none out.
            assert set(seen) == set(range(n))
            assert n <= len(seen) < n + world


def test_any_stretch_of_steps_is_a_slice_of_all() -> None:
    for n, batch, world, shuffle, drop in GRID[::3]:
        for rank in range(world):
            sampler = BatchSampler(n, batch, shuffle, drop, rank, world)
            all_steps = batches(sampler)
            for first in range(len(all_steps) + 2):
                for count in (0, 1, 2, 5):
                    part = [b.tolist() for b in sampler.positions(0, first, count)]
                    assert part == all_steps[first : first + count]


def test_going_on_from_a_saved_position_gives_the_rest_of_the_epoch() -> None:
    for n, batch, world, shuffle, drop in GRID:
        for rank in range(world):
            sampler = BatchSampler(n, batch, shuffle, drop, rank, world)
            all_steps, position = batches(sampler), 0
            for done in range(len(all_steps)):
                assert position == done * batch * world
                assert batches(sampler, position) == all_steps[done:]
                assert sampler.steps(position) == len(all_steps) - done
                position = sampler.next_position(position)
            if rank == 0 and not drop:  # another rank may have no share of the last step
                assert position == n
                assert batches(sampler, position) == []


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (1, 4), (4, 2)])
def test_another_number_of_ranks_goes_on_with_the_same_sequence(
    shuffle: bool, before: int, after: int
) -> None:
    n, batch, position, sequence = 50, 3, 0, []
    for world, stop in ((before, 2), (after, 10**6)):
        samplers = [BatchSampler(n, batch, shuffle, False, r, world) for r in range(world)]
        start = position
        for step in range(min(stop, samplers[0].steps(start))):
            for sampler in samplers:
                for b in sampler.positions(start, step, 1):
                    sequence += sampler.indices(9, 4, b).tolist()
            position = samplers[0].next_position(position)
    single = BatchSampler(n, n, shuffle, False)
    expected = single.indices(9, 4, np.arange(n)).tolist()
    assert position == n
    assert sequence[:n] == expected
    # In training the last step's shares are made equal with the epoch's first samples.
    assert sequence[n:] == expected[: len(sequence) - n]


def test_padding_repeats_the_beginning_of_the_epoch() -> None:
    # 10 samples, 2 x 4 at a time: 2 are left, one for each rank; 11: the 12th is the first.
    assert batches(BatchSampler(10, 4, True, False, 1, 2)) == [[4, 5, 6, 7], [9]]
    assert batches(BatchSampler(11, 4, True, False, 0, 2)) == [[0, 1, 2, 3], [8, 9]]
    assert batches(BatchSampler(11, 4, True, False, 1, 2)) == [[4, 5, 6, 7], [10, 0]]
    # One sample for three ranks: it wraps round more than once.
    assert [batches(BatchSampler(1, 4, True, False, r, 3)) for r in range(3)] == [[[0]]] * 3


def test_training_shuffles_all_ranks_alike_and_every_epoch_anew() -> None:
    n = 1000
    one, other = BatchSampler(n, 4, True, True), BatchSampler(n, 8, True, True, 1, 2)
    everything = np.arange(n)
    order = one.indices(5, 2, everything)
    assert sorted(order.tolist()) == list(range(n))
    assert np.array_equal(order, other.indices(5, 2, everything))
    for seed, epoch in ((5, 3), (6, 2), (2, 5)):
        assert (one.indices(seed, epoch, everything) == order).sum() < 10


def test_the_order_of_an_epoch_never_changes_between_releases() -> None:
    # 1 is the purpose word of orders; a resumed epoch must go on where an older release stopped.
    sampler = BatchSampler(40, 4, True, True)
    expected = sorted_by_hash(40, derive_key(5, 1, 2))
    assert sampler.indices(5, 2, np.arange(40)).tolist() == expected


def test_evaluation_keeps_the_datasets_order() -> None:
    sampler = BatchSampler(10, 4, False, False)
    assert sampler.indices(5, 2, np.array([3, 9, 0])).tolist() == [3, 9, 0]


def test_an_empty_dataset_has_no_steps() -> None:
    for shuffle in (False, True):
        sampler = BatchSampler(0, 4, shuffle, False)
        assert sampler.steps() == 0
        assert sampler.positions(0, 0, 5) == []


@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_size_below_one_is_refused(batch: int) -> None:
    with pytest.raises(UsageError, match=f"batch_size must be at least 1, got {batch}"):
        BatchSampler(10, batch, True, False)


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (5, 2), (0, 0)])
def test_a_rank_outside_the_world_is_refused(rank: int, world: int) -> None:
    with pytest.raises(UsageError, match=f"got rank {rank} of {world}"):
        BatchSampler(10, 2, True, False, rank, world)


def test_an_epoch_without_a_single_whole_batch_is_refused() -> None:
    with pytest.raises(UsageError, match=r"4 x world_size 3 .* 11 samples .*drop_last=False"):
        BatchSampler(11, 4, True, True, 0, 3)
    assert BatchSampler(12, 4, True, True, 0, 3).steps() == 1
