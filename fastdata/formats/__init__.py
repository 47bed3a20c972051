"""Formats: where a dataset's bytes lie on disk.

One file a format, its reader and its writer together, because the bytes between them are the
contract. Both are listed in :mod:`fastdata.registry`.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastdata.manifest import Part

__all__ = ["OFFSETS", "Label", "Reader", "Sample", "ShardRecord", "Writer"]

OFFSETS = "offsets.npy"
"""int64 [N, 2]: offset and length of each encoded image in its file."""


class Reader(ABC):
    """Reads the samples of a dataset.

    A converted format's reader is made with ``(root: Path, manifest: Manifest)`` and raises
    DatasetError where a file is missing or has not the size that the manifest names. A reader
    belongs to the process that opened it; :class:`fastdata.dataset.Dataset` opens a new one after
    a fork.
    """

    encoded = True
    """True: :meth:`read` gives encoded images. False: :attr:`pixels` gives decoded ones."""

    def read(self, index: int) -> bytes | memoryview:
        """The encoded image of sample ``index``; a memoryview is valid until :meth:`close`."""
        raise NotImplementedError(f"{type(self).__name__} holds pixels, not encoded images")

    def read_many(self, indices: NDArray[np.int64]) -> Sequence[bytes | memoryview]:
        """What :meth:`read` gives for each of ``indices``; for small images its cost counts."""
        return [self.read(index) for index in indices.tolist()]

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """All images, uint8 [N, H, W, 3], mapped read-only."""
        raise NotImplementedError(f"{type(self).__name__} holds encoded images, not pixels")

    def will_need(self, indices: NDArray[np.int64]) -> None:  # noqa: B027 - most need nothing
        """Ask the system to read samples from the disk, without waiting for it."""

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Stored bytes of each image, int64 [N]; not for a plain folder."""
        raise NotImplementedError(f"{type(self).__name__} does not know its images' lengths")

    @abstractmethod
    def location(self, index: int) -> tuple[str | bytes | os.PathLike[str], int, int]:
        """Where sample ``index`` lies: file, offset and length in bytes."""

    @abstractmethod
    def close(self) -> None:
        """Release files and maps; calling it again does nothing."""


Label = int | float | list[int] | list[float] | None
"""A class index, a target, several columns, or no label."""


class Sample(NamedTuple):
    """A source image on its way into a dataset.

    Attributes:
        position: its place in the plan.
        path: source path relative to the source folder.
        label: what its source says.
        width, height: in pixels.
        data: the encoded image, for encoded formats; empty for others.
        pixels: uint8 [height, width, 3], for formats of pixels; None for others.
        copy: which variant of its source it is, from 0.
        treated: what was done to a file with nothing wrong about it, a word for each.
        repaired: what was wrong with the file and is mended.
    """

    position: int
    path: bytes
    label: Label
    width: int
    height: int
    data: bytes = b""
    pixels: NDArray[np.uint8] | None = None
    copy: int = 0
    treated: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()


@dataclass
class ShardRecord:
    """What became of one shard; its presence in the staging folder says that the shard is done.

    Attributes:
        shard: its number.
        positions: int64 [n], the plan positions of the samples that were written.
        sizes: int32 [n, 2], their width and height.
        spans: int64 [n, 2], offset and length of each encoded image in the shard's file, or
            [0, 2] for formats of pixels.
        parts: the shard's own finished files.
        skipped: what was left out: dicts of ``path``, ``reason``, ``error``.
        treated: reason -> number of sound files that were changed.
        repaired: what was mended: dicts of ``path``, ``reason``.
    """

    shard: int
    positions: NDArray[np.int64]
    sizes: NDArray[np.int32]
    spans: NDArray[np.int64]
    parts: list[Part]
    skipped: list[dict[str, Any]]
    treated: dict[str, int] = field(default_factory=dict)
    repaired: list[dict[str, Any]] = field(default_factory=list)


class Writer(ABC):
    """Writes a dataset: shards in any order and in any process, then once :meth:`finish`.

    All files go to the staging folder under their final names; the converter moves them.
    """

    encoded = True

    def __init__(
        self,
        staging: Path,
        name: str,
        image_size: tuple[int, int] | None,
        copies: bool = False,
    ) -> None:
        """
        Args:
            staging: folder for everything that is written.
            name: prefix of the shards' names.
            image_size: (height, width) of every image, for formats of pixels.
            copies: whether the samples are variants of their sources.
        """
        self.staging = staging
        self.name = name
        self.image_size = image_size
        self.copies = copies

    def prepare(self, starts: NDArray[np.int64]) -> None:  # noqa: B027 - most need nothing
        """Called once, before any shard.

        Args:
            starts: int64 [shards + 1]: first plan position of each shard, and the total.
        """

    @abstractmethod
    def write_shard(
        self, shard: int, start: int, samples: Iterable[Sample]
    ) -> tuple[list[tuple[int, int]], list[Part]]:
        """Write one shard; a pure function of its arguments.

        Args:
            shard: its number.
            start: its first plan position.
            samples: those that survived, in plan order, made one by one as they are taken.

        Returns:
            (offset, length) of each sample's encoded image, and the shard's finished files.
        """

    @abstractmethod
    def finish(
        self, shards: list[ShardRecord], labels: NDArray[Any], note: Callable[[str], None]
    ) -> list[Part]:
        """Make whole what the shards have left.

        Args:
            shards: all of them, in order.
            labels: of the surviving samples, int64 or float32, [N] or [N, K].
            note: called with a line for the user when something takes long.

        Returns:
            Every file of the format, in ranges; the data's ranges name their samples.
        """
