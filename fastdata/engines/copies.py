"""Rows of registered host memory brought to the GPU by its copy engines.

A kernel that reads the host's memory keeps processors of the GPU waiting for the bus, which the
training then misses; a copy engine does not. A call for each image would cost more than its copy,
so the driver's call for a batch of copies is used (CUDA 12.8 and later).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engines import Unavailable

__all__ = ["BatchedCopy", "RowCopies"]

_ANY_ORDER = 3  # CU_MEMCPY_SRC_ACCESS_ORDER_ANY: nothing in the stream writes to the source
_OVERLAP = 1  # CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of cuda.h."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_location", ctypes.c_int * 2),
        ("target_location", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class BatchedCopy:
    """The driver's call for a batch of copies."""

    def __init__(self) -> None:
        """
        Raises:
            Unavailable: there is no driver, or it is older than the call.
        """
        self._attributes = _Attributes(source_access_order=_ANY_ORDER, flags=_OVERLAP)
        self._from = ctypes.c_size_t(0)  # the attributes are those of all copies
        self._failed: tuple[Any, ...] = ()
        try:
            driver = ctypes.CDLL("libcuda.so.1")
            if hasattr(driver, "cuMemcpyBatchAsync_v2"):
                self._call = driver.cuMemcpyBatchAsync_v2
            else:  # the call's first version has one argument more, which says what failed
                self._call = driver.cuMemcpyBatchAsync
                self._index = ctypes.c_size_t(0)
                self._failed = (ctypes.byref(self._index),)
        except (OSError, AttributeError) as error:
            raise Unavailable(f"the CUDA driver copies no batches (12.8 does): {error}") from None

    def __call__(
        self,
        targets: NDArray[np.int64],
        sources: NDArray[np.int64],
        sizes: NDArray[np.int64],
        stream: int,
    ) -> None:
        """Enqueue copies of ``sizes`` bytes, none of them 0, from addresses to addresses.

        Host memory has to be pinned or registered, each copy's within one registration.

        Raises:
            Unavailable: the driver refuses.
        """
        arrays = [np.ascontiguousarray(array, np.int64) for array in (targets, sources, sizes)]
        status = self._call(
            *(ctypes.c_void_p(array.ctypes.data) for array in arrays),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(self._attributes),
            ctypes.byref(self._from),
            ctypes.c_size_t(1),
            *self._failed,
            ctypes.c_void_p(stream),
        )
        if status:
            raise Unavailable(f"the CUDA driver refuses a batch of copies (error {status})")


class RowCopies:
    """Gathers rows of an array in host memory on the device."""

    def __init__(
        self,
        array: NDArray[np.uint8],
        room: Callable[[NDArray[np.int64]], NDArray[np.int64]],
        device: torch.device,
        copy: Callable[..., None] | None = None,
    ) -> None:
        """
        Args:
            array: uint8 [N, H, W, 3], contiguous, in memory that the device may read.
            room: tells for addresses, int64 [K], the bytes from each to where one copy has to end.
            device: where the rows go.
            copy: see :meth:`BatchedCopy.__call__`, which it is by default.

        Raises:
            Unavailable: the driver cannot do it; found out by one copy.
        """
        self._address = array.ctypes.data
        self._row_bytes = array.shape[2] * 3
        self._room = room
        self._device = device
        self._copy = BatchedCopy() if copy is None else copy
        with _stream(device):  # the call refuses the default stream
            self.gather(np.zeros(1, np.int64), np.ones(1, np.int64))

    def gather(self, first: NDArray[np.int64], counts: NDArray[np.int64]) -> torch.Tensor:
        """Rows ``first[i]`` .. ``first[i] + counts[i] - 1``, counted through all images, one group
        after the other: uint8 [bytes] on the device, on the current stream."""
        sizes = counts * self._row_bytes
        ends = np.cumsum(sizes)
        staging = torch.empty(max(1, int(ends[-1])), dtype=torch.uint8, device=self._device)
        sources = self._address + first * self._row_bytes
        targets = staging.data_ptr() + ends - sizes
        room = self._room(sources)
        over = sizes - room
        split = np.flatnonzero(over > 0)  # a few of many: what goes on in the next registration
        if split.size:
            sources = np.concatenate([sources, (sources + room)[split]])
            targets = np.concatenate([targets, (targets + room)[split]])
            sizes = np.concatenate([np.minimum(sizes, room), over[split]])
        if not sizes.all():
            sources, targets, sizes = (part[sizes > 0] for part in (sources, targets, sizes))
        if len(sizes):
            self._copy(targets, sources, sizes, _stream_handle(self._device))
        return staging


def _stream(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """A stream that is not the default one."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]


def _stream_handle(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
