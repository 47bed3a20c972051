"""The encoded images of a converted dataset, in the maps of its files."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fastdata.dataset import Dataset
from fastdata.engines.dali.encoded import Begun, EncodedImages
from fastdata.engines.dali.headers import as_single, channels_of, sound_header
from fastdata.errors import FastdataError
from fastdata.header import HeaderReader
from fastdata.plan import BatchPlan

__all__ = ["MappedImages"]


class MappedImages(EncodedImages):
    """A converted dataset's. Each header is looked at once."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._single = np.zeros(len(dataset), np.int32)  # see Header.single
        self._sound = np.zeros(len(dataset), np.bool_)

    def begin(self, plans: Iterator[BatchPlan]) -> Iterator[Begun]:
        return map(self._begin, plans)

    def _begin(self, plan: BatchPlan) -> Begun:
        try:
            encoded = self._read(plan)
        except FastdataError:
            raise
        except (OSError, ValueError) as error:
            return Begun.unread(plan, error)
        sound = self._sound[plan.indices]
        given = [encoded[slot] for slot in np.flatnonzero(sound)]
        return Begun(plan, np.flatnonzero(~sound), given)

    def _read(self, plan: BatchPlan) -> list[NDArray[np.uint8]]:
        data = self._dataset.reader.read_many(plan.indices)
        encoded = [np.frombuffer(one, np.uint8) for one in data]
        for slot in np.flatnonzero(~self._sound[plan.indices]).tolist():
            self._look_at(int(plan.indices[slot]), encoded[slot])
        for slot in np.flatnonzero(self._single[plan.indices]).tolist():
            encoded[slot] = as_single(encoded[slot], int(self._single[plan.indices[slot]]))
        return encoded

    def _look_at(self, index: int, encoded: NDArray[np.uint8]) -> None:
        channels = channels_of(encoded, tuple(self._dataset.sizes[index].tolist()))
        if channels == 1:
            header = sound_header(HeaderReader(), encoded.tobytes())
            channels = 0 if header is None else 1
            self._single[index] = 0 if header is None else header.single
        self._sound[index] = channels > 0
