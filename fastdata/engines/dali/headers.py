"""Which encoded images DALI may be given: a header that it cannot parse ends the process."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from nvidia import nvimgcodec

from fastdata.dataset import Dataset
from fastdata.engines.samples import NO_SIZE
from fastdata.header import Header, HeaderReader

__all__ = ["Headers"]

Encoded = list[NDArray[np.uint8]]


class Headers:
    """Looks at the header of each sample once. Those of a plain folder, whose files may change, are
    looked at again where the bytes differ.
    """

    def __init__(self, dataset: Dataset) -> None:
        """
        Args:
            dataset: of encoded images.
        """
        count = len(dataset)
        self._dataset = dataset
        self._reader = HeaderReader()
        self._single = np.zeros(count, np.int32)  # see Header.single
        self._sound = np.zeros(count, np.bool_)
        if not dataset.plain:
            self._sizes = np.zeros((count, 2), np.int32)
            self._lengths = np.zeros(count, np.int32)
            self._sums = np.zeros(count, np.uint32)

    def check(
        self, indices: NDArray[np.int64], encoded: Encoded
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """For a converted dataset's samples, :attr:`fastdata.header.Header.single`, int32 [B], and
        the slots of those whose headers were damaged since, int64."""
        for slot in np.flatnonzero(~self._sound[indices]).tolist():
            index = indices[slot]
            channels = _channels(encoded[slot], tuple(self._dataset.sizes[index].tolist()))
            if channels == 1:
                header = self._header(encoded[slot].tobytes())
                channels = 0 if header is None else 1
                self._single[index] = 0 if header is None else header.single
            self._sound[index] = channels > 0
        return self._single[indices], np.flatnonzero(~self._sound[indices])

    def read(
        self, indices: NDArray[np.int64], encoded: Encoded
    ) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64]]:
        """For a plain folder's samples, sizes, int32 [B, 2]; :attr:`fastdata.header.Header.single`,
        int32 [B]; and the slots of those that are no plain JPEGs or damaged, int64."""
        sizes, single, sound = self._sizes[indices], self._single[indices], self._sound[indices]
        known = zip(self._lengths[indices].tolist(), self._sums[indices].tolist(), strict=True)
        for slot, (length, crc) in enumerate(known):
            if not length or crc32(encoded[slot].data[:length]) != crc:
                index = indices[slot]
                self._look_at(index, encoded[slot])
                sizes[slot], single[slot] = self._sizes[index], self._single[index]
                sound[slot] = self._sound[index]
        return sizes, single, np.flatnonzero(~sound)

    def _look_at(self, index: np.int64, encoded: NDArray[np.uint8]) -> None:
        header = self._header(encoded.tobytes())
        size, length, single, sound = NO_SIZE, 0, 0, False
        if header is not None:
            size, length, single = (header.width, header.height), header.length, header.single
            sound = header.plain and _channels(encoded, size) > 0
        self._sizes[index], self._lengths[index] = size, length
        self._single[index], self._sound[index] = single, sound
        self._sums[index] = crc32(encoded.data[:length])

    def _header(self, data: bytes) -> Header | None:
        """Its header; None where it has none that is sound."""
        try:
            return self._reader.read(data)
        except (OSError, ValueError):
            return None


def _channels(encoded: NDArray[np.uint8], size: tuple[int, int]) -> int:
    """How many components a JPEG has by its header; 0 where DALI cannot parse that, or finds
    another size (width, height) in it.

    One that it cannot parse, or a box outside of the image, does not raise in DALI's threads: it
    ends the process. This is its own parser.
    """
    try:
        stream = nvimgcodec.CodeStream(encoded)
        sound = stream.codec_name == "jpeg" and (stream.width, stream.height) == size
        return int(stream.num_channels) if sound else 0
    except RuntimeError:
        return 0
