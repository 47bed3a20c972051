"""Order: which sample stands at which position of an epoch, and which positions a rank takes.

    (n, seed, epoch) -> a permutation of 0..n-1, evaluated at any positions
    (batch_size, rank, world_size) -> the positions of each batch
    (seed, epoch) -> one of the copies that each source has

A position counts samples over all ranks, so "stopped at position p" means the same whatever the
number of ranks that goes on from there.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastdata.errors import UsageError
from fastdata.hashing import derive_key, hash64

__all__ = ["BatchSampler", "Blocks", "CopyChoice", "shuffled"]

_BLOCK_BYTES, _UNKNOWN_BLOCK, _WINDOW = 4 << 20, 64, 64
_LOOK = 100_000  # samples whose length is looked at to choose a block's
_ORDER, _COPIES = 1, 6  # purpose words of the keys of this module, see hashing.derive_key
SORT_LIMIT = 1 << 22
"""Up to this many samples an epoch's permutation is sorted at once; above it a Feistel network
computes just the positions asked for, so that starting costs nothing at any size."""
_ROUNDS = 8


def shuffled(n: int, key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The samples at ``positions`` of the pseudorandom permutation of 0..n-1 named by ``key``.

    Args:
        n: number of samples, at least 1 and below 2**62.
        key: 64-bit key, see :func:`fastdata.hashing.derive_key`.
        positions: int64 array of any shape, each in [0, n).

    Returns:
        int64 array of the shape of ``positions``, each in [0, n).
    """
    if n <= SORT_LIMIT:
        return _sorted_permutation(n, key)[positions]
    return _feistel(n, key, positions)


@functools.lru_cache(maxsize=4)  # asked for batch by batch; train and eval, this epoch and the next
def _sorted_permutation(n: int, key: int) -> NDArray[np.int64]:
    """Sort (hash of i, i) packed in one word: unique keys, so the result is the same on every
    machine with any sort, and sorting values is several times faster than argsort."""
    bits = np.uint64(max(1, (n - 1).bit_length()))
    index = np.arange(n, dtype=np.uint64)
    words = hash64(key, index)
    words >>= bits
    words <<= bits
    words |= index
    words.sort()
    words &= (np.uint64(1) << bits) - np.uint64(1)
    order = words.astype(np.int64)
    order.flags.writeable = False
    return order


def _feistel(n: int, key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Generalised Feistel network on a x b >= n with cycle walking.

    Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002. With a close to
    sqrt(n) and b = ceil(n / a), fewer than a of the a * b points lie outside, so hardly any
    position walks a second time.
    """
    a = math.isqrt(n - 1) + 1
    b = -(-n // a)
    result = _feistel_once(a, b, key, positions.astype(np.uint64))
    while True:
        outside = result >= np.uint64(n)
        if not outside.any():
            return result.astype(np.int64)
        result[outside] = _feistel_once(a, b, key, result[outside])


def _feistel_once(a: int, b: int, key: int, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    size_a, size_b = np.uint64(a), np.uint64(b)
    left, right = x % size_a, x // size_a
    for number in range(0, _ROUNDS, 2):
        left = _add_modulo(left, hash64(derive_key(key, number), right), size_a)
        right = _add_modulo(right, hash64(derive_key(key, number + 1), left), size_b)
    return left + right * size_a


def _add_modulo(
    x: NDArray[np.uint64], noise: NDArray[np.uint64], modulus: np.uint64
) -> NDArray[np.uint64]:
    # The high half of (32-bit noise x modulus) is uniform in [0, modulus) and spares a division;
    # a and b stay below 2**32 for every n below 2**62.
    x = x + ((noise >> np.uint64(32)) * modulus >> np.uint64(32))
    return np.where(x >= modulus, x - modulus, x)


@dataclass(frozen=True)
class Blocks:
    """An order that reads a disk in long pieces: blocks of neighbours are shuffled, then the
    samples within each window of so many shuffled blocks.

    Attributes:
        size: samples of a block, neighbours in the dataset.
        window: blocks whose samples are mixed.
    """

    size: int
    window: int

    @classmethod
    def for_disk(cls, lengths: NDArray[np.int64] | None) -> Blocks:
        """Blocks of the size that disks like.

        Args:
            lengths: int64 [N], stored bytes of each image; None: not known.
        """
        if lengths is None:
            return cls(_UNKNOWN_BLOCK, _WINDOW)
        mean = max(1, int(lengths[:_LOOK].mean()))
        return cls(max(1, _BLOCK_BYTES // mean), _WINDOW)

    def indices(self, n: int, key: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The samples at ``positions`` of this order of 0..n-1 named by ``key``."""
        count = -(-n // self.size)
        order = shuffled(count, derive_key(key, 0), np.arange(count))
        # All blocks are full but the dataset's last one, which stands anywhere in the order.
        short_at = int(np.flatnonzero(order == count - 1)[0])
        missing = count * self.size - n

        def begin(rank: NDArray[np.int64]) -> NDArray[np.int64]:
            return rank * self.size - np.where(rank > short_at, missing, 0)

        def rank_of(place: NDArray[np.int64]) -> NDArray[np.int64]:
            late = place >= short_at * self.size + self.size - missing
            return (place + np.where(late, missing, 0)) // self.size

        windows = rank_of(positions) // self.window
        places = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            edges = np.array([window, window + 1]) * self.window
            first, last = begin(np.minimum(edges, count)).tolist()
            inside = windows == window
            mixed = shuffled(last - first, derive_key(key, 1, window), positions[inside] - first)
            places[inside] = first + mixed
        rank = rank_of(places)
        return order[rank] * self.size + places - begin(rank)


class CopyChoice:
    """One copy of each source for each epoch.

    A source's copies take turns from epoch to epoch, so that as many epochs as there are copies
    show each of them once; where the turn begins differs from source to source.

    Attributes:
        n: number of sources.
    """

    def __init__(self, copies: NDArray[np.int64]) -> None:
        """
        Args:
            copies: int64 [N, 2], source number and copy number of each sample of a dataset.
        """
        self._samples = np.lexsort((copies[:, 1], copies[:, 0]))
        _, self._first, self._count = np.unique(
            copies[self._samples, 0], return_index=True, return_counts=True
        )
        self.n = len(self._first)

    def indices(self, seed: int, epoch: int, sources: NDArray[np.int64]) -> NDArray[np.int64]:
        """Dataset indices of the copies of ``sources`` (0..n-1) in epoch ``epoch``."""
        begin = hash64(derive_key(seed, _COPIES), sources.astype(np.uint64)) >> np.uint64(1)
        turn = (begin.astype(np.int64) + epoch) % self._count[sources]
        return self._samples[self._first[sources] + turn]


@dataclass(frozen=True)
class BatchSampler:
    """Which samples each batch of one rank holds.

    A global batch is ``batch_size * world_size`` consecutive positions, ``batch_size`` for each
    rank in rank order. In training (``shuffle``) every rank takes the same number of steps: the
    incomplete last global batch is dropped (``drop_last``) or split evenly, where positions past
    the end wrap to the epoch's beginning so that the shares are equal. In evaluation each sample
    is seen exactly once over all ranks, so ranks may differ in steps and in the last batch's size.

    Attributes:
        n: samples of an epoch.
        batch_size: samples of one rank's batch.
        shuffle, drop_last: as in torch's DataLoader.
        rank, world_size: this process and the number of processes.
        blocks: how to shuffle for a disk; None: all samples with all.
        choice: where an epoch shows one copy of each source, which one; ``n`` counts sources.
    """

    n: int
    batch_size: int
    shuffle: bool
    drop_last: bool
    rank: int = 0
    world_size: int = 1
    blocks: Blocks | None = None
    choice: CopyChoice | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank must be in [0, world_size), got rank {self.rank} of {self.world_size}"
            )
        if self.drop_last and self.global_batch > self.n:
            raise UsageError(
                f"no batch is left: batch_size {self.batch_size} x world_size {self.world_size} "
                f"is more than the dataset's {self.n} samples and drop_last is on; "
                "use a smaller batch_size or drop_last=False"
            )

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.world_size

    def steps(self, position: int = 0) -> int:
        """Batches that this rank still takes in an epoch of which ``position`` samples are done."""
        full, rest = divmod(max(0, self.n - position), self.global_batch)
        if self.drop_last or not rest:
            return full
        has_share = self.shuffle or rest > self.rank * self.batch_size
        return full + int(has_share)

    def positions(self, position: int, first: int, count: int) -> list[NDArray[np.int64]]:
        """The positions of steps ``first`` .. ``first + count - 1`` counted from ``position``.

        Returns:
            One int64 array per batch; all but an epoch's last are of length ``batch_size``.
        """
        last = min(first + count, self.steps(position))
        full = max(first, min(last, (self.n - position) // self.global_batch))
        starts = position + np.arange(first, full, dtype=np.int64) * self.global_batch
        own = np.arange(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        batches = list(starts[:, None] + own)
        if full < last:
            batches.append(self._incomplete(position + full * self.global_batch))
        return batches

    def _incomplete(self, start: int) -> NDArray[np.int64]:
        """This rank's share of the last global batch, which begins at position ``start``."""
        rest = self.n - start
        if self.shuffle:
            share = -(-rest // self.world_size)
            low = start + self.rank * share
        else:
            low = start + self.rank * self.batch_size
            share = min(self.batch_size, self.n - low)
        return np.arange(low, low + share, dtype=np.int64) % self.n

    def next_position(self, position: int) -> int:
        """The epoch's position after one more step from ``position``."""
        return min(position + self.global_batch, self.n)

    def indices(self, seed: int, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Dataset indices at ``positions`` of epoch ``epoch``, int64 of the same shape."""
        key = derive_key(seed, _ORDER, epoch)
        if self.shuffle and self.blocks is not None:
            positions = self.blocks.indices(self.n, key, positions)
        elif self.shuffle:
            positions = shuffled(self.n, key, positions)
        if self.choice is not None:
            return self.choice.indices(seed, epoch, positions)
        return positions
