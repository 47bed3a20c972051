"""What a pipeline of DALI's is given in place of a plan's encoded images.

Of a converted dataset that is the bytes, in the maps of its files. A plain folder's files are read
by DALI's threads, so it is their names: Python's threads would wait for each other.

A header that DALI cannot parse, or a box outside of the image, does not raise in the threads of its
decoder: it ends the process. So nothing reaches the decoder that was not looked at before.
"""

from __future__ import annotations

import resource
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia import nvimgcodec
from nvidia.dali import fn, math, types

from fastdata.dataset import Dataset
from fastdata.engines.samples import NO_SIZE
from fastdata.formats.folder import FolderReader
from fastdata.header import Header, HeaderReader
from fastdata.machine import available_cpus, cpus_of_a_rank
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe
from fastdata.threads import Threads, results

__all__ = ["EncodedImages", "ImageFiles", "MappedImages", "batch_refusal", "encoded_images"]

_MOST_THREADS = 8
_BEGINNING = 1 << 14  # bytes, of which a JPEG's header rarely has more
_JPEG = b"\xff\xd8"
_SPARE_FILES = 256  # that may be open besides a batch's: maps, the GPU's, other loaders'

Columns = list[Sequence[NDArray[Any]] | NDArray[Any]]
Slots = NDArray[np.int64]


class EncodedImages(ABC):
    """The columns that stand for encoded images, and what the graph makes of them.

    Attributes:
        inputs: DALI's type and the number of dimensions of each column that :meth:`take` gives.
    """

    inputs: tuple[tuple[Any, int], ...]

    @abstractmethod
    def take(self, plan: BatchPlan) -> tuple[Columns, BatchPlan, Slots]:
        """Columns with a row for each slot that DALI may have; the plan, with its draws; and its
        other slots, int64: of images that are no plain JPEGs, or what DALI cannot parse.

        Raises:
            OSError, ValueError: some image cannot be read; who reads them one by one can say which.
        """

    @abstractmethod
    def decodable(self, columns: Sequence[Any], corner: Any) -> tuple[Any, Any]:
        """In the pipeline's graph: the encoded images of the columns, and the boxes' corners."""

    def forget(self, indices: Slots) -> None:  # noqa: B027 - what is mapped stays as it is
        """A batch of these samples was refused: their files may have changed."""

    def explain(self) -> list[str]:
        """Lines about who reads."""
        return []

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """End what was started; the next plan starts it again."""


def encoded_images(dataset: Dataset, recipe: Recipe) -> EncodedImages:
    """What a pipeline is given of a dataset of encoded images; the recipe's draws complete a plan
    of images that had no size yet."""
    return MappedImages(dataset) if dataset.plain else ImageFiles(dataset, recipe)


def batch_refusal(dataset: Dataset, batch_size: int) -> str | None:
    """Why a pipeline cannot be given batches of this size of it; None where it can."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if dataset.plain or most == resource.RLIM_INFINITY or batch_size + _SPARE_FILES <= most:
        return None
    return (
        f"DALI opens all files of a batch at once: {batch_size}, and {_SPARE_FILES} to spare, "
        f"are more than the {most} that a process may have open; raise that (ulimit -n)"
    )


class MappedImages(EncodedImages):
    """A converted dataset's. Each header is looked at once."""

    inputs = ((types.UINT8, 1),)

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._single = np.zeros(len(dataset), np.int32)  # see Header.single
        self._sound = np.zeros(len(dataset), np.bool_)

    def take(self, plan: BatchPlan) -> tuple[Columns, BatchPlan, Slots]:
        data = self._dataset.reader.read_many(plan.indices)
        encoded = [np.frombuffer(one, np.uint8) for one in data]
        for slot in np.flatnonzero(~self._sound[plan.indices]).tolist():
            self._look_at(int(plan.indices[slot]), encoded[slot])
        for slot in np.flatnonzero(self._single[plan.indices]).tolist():
            encoded[slot] = _as_single(encoded[slot], int(self._single[plan.indices[slot]]))
        sound = self._sound[plan.indices]
        return [[encoded[slot] for slot in np.flatnonzero(sound)]], plan, np.flatnonzero(~sound)

    def decodable(self, columns: Sequence[Any], corner: Any) -> tuple[Any, Any]:
        return columns[0], corner

    def _look_at(self, index: int, encoded: NDArray[np.uint8]) -> None:
        channels = _channels(encoded, tuple(self._dataset.sizes[index].tolist()))
        if channels == 1:
            header = _header(HeaderReader(), encoded.tobytes())
            channels = 0 if header is None else 1
            self._single[index] = 0 if header is None else header.single
        self._sound[index] = channels > 0


class ImageFiles(EncodedImages):
    """A plain folder's. Each header is looked at once; the pipeline compares what it reads later
    with that, and refuses a batch of which a file has changed in its length or its image's size.
    A change that keeps both, such as of the orientation alone, is not seen."""

    inputs = ((types.UINT8, 1), (types.INT64, 1))

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        self._dataset, self._recipe = dataset, recipe
        self._known = np.zeros(len(dataset), np.bool_)
        self._sound = np.zeros(len(dataset), np.bool_)
        self._facts = np.zeros((len(dataset), 3), np.int64)  # width, height, bytes
        self._count = min(_MOST_THREADS, max(2, cpus_of_a_rank(available_cpus()) // 2))
        self._threads: Threads | None = None

    def take(self, plan: BatchPlan) -> tuple[Columns, BatchPlan, Slots]:
        indices = plan.indices
        self._look_at(np.unique(indices[~self._known[indices]]))
        sound = self._sound[indices]
        sizes = np.where(sound[:, None], self._facts[indices, :2], NO_SIZE).astype(np.int32)
        plan = plan.with_sizes(self._recipe, sizes)
        given = indices[sound]
        paths = [self._reader.path(index) for index in given.tolist()]
        # Rows of one length make one array: what is behind a name are NULs, which end it.
        names = np.array(paths, np.bytes_)
        rows = names.view(np.uint8).reshape(len(given), names.itemsize)
        return [rows, self._facts[given]], plan, np.flatnonzero(~sound)

    def decodable(self, columns: Sequence[Any], corner: Any) -> tuple[Any, Any]:
        names, facts = columns
        encoded = fn.io.file.read(names, dont_use_mmap=True)  # a map of a cut file ends the process
        found = fn.peek_image_shape(encoded, adjust_orientation=False)  # raises where it cannot
        changed = (
            math.abs(found[1] - facts[0])
            + math.abs(found[0] - facts[1])
            + math.abs(encoded.shape()[0] - facts[2])
        )
        return encoded, fn.reshape(corner, shape=fn.reshape(2 + changed, shape=[1]))  # raises, too

    def forget(self, indices: Slots) -> None:
        before = self._sound[indices], self._facts[indices]
        self._known[indices] = False
        self._look_at(np.unique(indices))
        if any(map(np.any, (before[0] != self._sound[indices], before[1] != self._facts[indices]))):
            self._known[:] = False  # where one has changed, others may have

    def explain(self) -> list[str]:
        return [
            "DALI's threads read its files; in the first epoch "
            f"{self._count} of this process look at their headers."
        ]

    def close(self) -> None:
        if self._threads is not None:
            self._threads.close()
            self._threads = None

    def _look_at(self, indices: Slots) -> None:
        """Look at headers, in threads, which mostly wait for the disk."""
        if not len(indices):
            return
        self._sound[indices] = False
        if self._threads is None:
            self._threads = Threads(self._count, "fastdata-headers")
        shares = np.array_split(indices, self._count)
        results([self._threads.start(self._look_at_some, share) for share in shares if len(share)])

    def _look_at_some(self, indices: Slots) -> None:
        headers = HeaderReader()
        for index in indices.tolist():
            with suppress(OSError):  # who reads them one by one says which it was
                data, length = self._reader.read_beginning(index, _BEGINNING)
                if len(data) < length and _header(headers, data) is None and data[:2] == _JPEG:
                    data = self._reader.read(index)  # its header is longer
                size = _plain_size(headers, data)
                if size is not None:
                    self._facts[index] = *size, length
                    self._sound[index] = True
            self._known[index] = True

    @property
    def _reader(self) -> FolderReader:
        reader = self._dataset.reader
        assert isinstance(reader, FolderReader)
        return reader


def _plain_size(reader: HeaderReader, data: bytes) -> tuple[int, int] | None:
    """Width and height by the header of a JPEG that DALI may have as it is; None of others."""
    header = _header(reader, data) if data[:2] == _JPEG else None
    if header is None or not header.plain or header.single:
        return None
    size = header.width, header.height
    return size if _channels(np.frombuffer(data, np.uint8), size) else None


def _header(reader: HeaderReader, data: bytes) -> Header | None:
    """Its header; None where it has none that is sound."""
    try:
        return reader.read(data)
    except (OSError, ValueError):
        return None


def _channels(encoded: NDArray[np.uint8], size: tuple[int, int]) -> int:
    """How many components a JPEG has by its header; 0 where DALI's own parser refuses it, or finds
    another size (width, height) in it."""
    try:
        stream = nvimgcodec.CodeStream(encoded)
        sound = stream.codec_name == "jpeg" and (stream.width, stream.height) == size
        return int(stream.num_channels) if sound else 0
    except RuntimeError:
        return 0


def _as_single(encoded: NDArray[np.uint8], offset: int) -> NDArray[np.uint8]:
    """A grey JPEG whose sampling factors, at ``offset``, are 1x1: the GPU's hardware decoder takes
    others at their word, and makes a heap of tiles of the image."""
    changed = encoded.copy()
    changed[offset] = 0x11
    return changed
