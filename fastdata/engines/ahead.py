"""The last stage of every engine: work on the device, ahead of the training that uses it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engines import Batch

__all__ = ["Ahead", "PinnedRing"]

Item = TypeVar("Item")


class Ahead:
    """Carries out the device's work of the next batches while the caller uses the last one.

    On CUDA the work goes to a stream of its own, so that copies and kernels overlap the training
    step; a batch is handed over to the caller's stream by an event, without waiting on the host.
    """

    def __init__(self, device: torch.device, depth: int, refill: int | None = None) -> None:
        """
        Args:
            device: of the batches.
            depth: batches that are made before they are asked for.
            refill: at so many left, all the others are made at once, which spares some of what
                each change to another stream costs; None: one by one.
        """
        self._device = device
        self.depth = depth
        self._refill = depth if refill is None else refill
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(
        self, items: Generator[Item, None, None], work: Callable[[Item], Batch]
    ) -> Generator[Batch, None, None]:
        """The batch of each item, in order; an error comes where its batch would have come.

        The items are closed with it: what an engine has under way cannot wait for the collector,
        which comes late where somebody keeps a traceback.
        """
        with closing(items):
            if self._stream is None:
                yield from map(work, items)
            else:
                yield from self._ahead(items, work, self._stream)

    def _ahead(
        self, source: Iterator[Item], work: Callable[[Item], Batch], stream: torch.cuda.Stream
    ) -> Iterator[Batch]:
        pending: deque[tuple[Batch, torch.cuda.Event]] = deque()
        errors: list[Exception] = []
        ended = False
        while True:
            if not ended and len(pending) <= self._refill:
                try:
                    with torch.cuda.stream(stream):
                        while len(pending) <= self.depth:
                            batch = work(next(source))
                            pending.append((batch, stream.record_event()))
                except StopIteration:
                    ended = True
                except Exception as error:
                    errors.append(error)
                    ended = True
            if not pending:
                if errors:
                    raise errors.pop()  # of which this frame keeps nothing: it is in its traceback
                return
            batch, event = pending.popleft()
            current = torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for tensor in _tensors((batch.images, batch.labels)):
                tensor.record_stream(current)  # its memory is not used again before this stream
            yield batch


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The CUDA tensors in what a batch may be made of."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


class PinnedBuffer:
    """Pinned host memory, and the copy from it that may still be going on.

    Attributes:
        size: bytes in use.
    """

    def __init__(self) -> None:
        self.size = 0
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None

    @property
    def array(self) -> NDArray[np.uint8]:
        """uint8 [size], to be written to."""
        array: NDArray[np.uint8] = self._memory[: self.size].numpy()
        return array

    def reuse(self, size: int) -> None:
        """Make room for ``size`` bytes, once the last copy has ended."""
        if self._copied is not None:
            self._copied.synchronize()
        if len(self._memory) < size:
            pinned = torch.cuda.is_available()
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        self.size = size

    def upload(self, out: torch.Tensor) -> None:
        """Copy to a device tensor, uint8 [size], on the current stream."""
        out.copy_(self._memory[: self.size], non_blocking=True)
        if out.is_cuda:
            self._copied = torch.cuda.current_stream(out.device).record_event()


class PinnedRing:
    """Pinned buffers that are used in turn."""

    def __init__(self, count: int) -> None:
        self._buffers = [PinnedBuffer() for _ in range(count)]
        self._next = 0

    def take(self, size: int) -> PinnedBuffer:
        """The next buffer, with room for ``size`` bytes; its contents are undefined."""
        buffer = self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        buffer.reuse(size)
        return buffer
