"""The encoded images of a plain folder: DALI's threads read them, for which Python's would wait for
each other, in a pipeline of its own."""

from __future__ import annotations

import resource
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, pipeline_def, types

from fastdata.dataset import Dataset
from fastdata.engines.dali.encoded import Begun, EncodedImages, Slots
from fastdata.engines.dali.headers import JPEG, is_whole, plain_header, sound_header
from fastdata.engines.samples import NO_SIZE
from fastdata.files import SYSTEM_FAULTS
from fastdata.formats.folder import FolderReader
from fastdata.header import HeaderReader
from fastdata.machine import available_cpus, cpus_of_a_rank
from fastdata.plan import BatchPlan
from fastdata.recipe import Recipe
from fastdata.threads import Threads, results

__all__ = ["ImageFiles", "batch_refusal"]

_MOST_THREADS = 8
_ENDS = 1 << 14  # bytes, of which a JPEG's header, and what is behind its end, rarely has more
_SPARE_FILES = 256  # that may be open besides a batch's: maps, the GPU's, other loaders'


def batch_refusal(dataset: Dataset, batch_size: int) -> str | None:
    """Why a pipeline cannot be given batches of this size of it; None where it can."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if dataset.plain or most == resource.RLIM_INFINITY or batch_size + _SPARE_FILES <= most:
        return None
    return (
        f"DALI opens all files of a batch at once: {batch_size}, and {_SPARE_FILES} to spare, "
        f"are more than the {most} that a process may have open; raise that (ulimit -n)"
    )


class ImageFiles(EncodedImages):
    """A plain folder's. Each header is looked at once, and whether the file has an end; what is
    read later is compared with that, in its length and its image's size. A change that keeps both,
    such as of the orientation alone, is not seen."""

    def __init__(self, dataset: Dataset, recipe: Recipe, batch_size: int, ahead: int) -> None:
        """
        Args:
            dataset, recipe: of images that have no size yet; the recipe's draws complete a plan.
            batch_size: images of a plan, at most.
            ahead: batches that are read before they are asked for.
        """
        self._dataset, self._recipe = dataset, recipe
        self._batch_size, self._ahead = batch_size, ahead
        self._known = np.zeros(len(dataset), np.bool_)
        self._sound = np.zeros(len(dataset), np.bool_)
        self._facts = np.zeros((len(dataset), 3), np.int64)  # height, width, bytes
        cpus = cpus_of_a_rank(available_cpus())
        self._readers = min(_MOST_THREADS, max(2, cpus // 4))
        self._lookers = min(_MOST_THREADS, max(2, cpus // 2))  # who wait more than they work
        self._threads: Threads | None = None

    def begin(self, plans: Iterator[BatchPlan]) -> Iterator[Begun]:
        files, asked = _Files(self._readers, self._batch_size), deque[Begun]()
        failure = None
        while True:
            try:
                asked.append(self._ask(files, next(plans)))
            except StopIteration:
                break
            except Exception as error:
                failure = error  # comes behind the batches that were asked for before
                break
            if len(asked) > self._ahead:
                yield self._receive(files, asked)
        while asked:
            yield self._receive(files, asked)
        if failure is not None:
            raise failure

    def _ask(self, files: _Files, plan: BatchPlan) -> Begun:
        indices = plan.indices
        self._look_at(np.unique(indices[~self._known[indices]]))
        sound = self._sound[indices]
        sizes = np.where(sound[:, None], self._facts[indices, 1::-1], NO_SIZE).astype(np.int32)
        begun = Begun(plan.with_sizes(self._recipe, sizes), np.flatnonzero(~sound))
        if begun.fed:
            given = indices[sound]
            paths = [self._reader.path(index) for index in given.tolist()]
            files.ask(paths, self._facts[given])
        return begun

    def _receive(self, files: _Files, asked: deque[Begun]) -> Begun:
        """The first that was asked for, with its images."""
        begun = asked.popleft()
        failure = _receive(files, begun)
        if failure is not None:  # files have changed since their headers were looked at
            self._look_again(begun.plan.indices)
            files.restart()
            begun = self._ask(files, begun.plan)
            failure = _receive(files, begun)
            if failure is not None:
                files.restart()
                begun = Begun.unread(begun.plan, failure)
            others = [self._ask(files, other.plan) for other in asked]
            asked.clear()
            asked.extend(others)
        return begun

    def _look_again(self, indices: Slots) -> None:
        """At headers of files that may have changed."""
        before = self._sound[indices], self._facts[indices]
        self._known[indices] = False
        self._look_at(np.unique(indices))
        if any(map(np.any, (before[0] != self._sound[indices], before[1] != self._facts[indices]))):
            self._known[:] = False  # where one has changed, others may have

    def explain(self) -> list[str]:
        return [
            f"{self._readers} more of DALI's threads read its files; in the first epoch "
            f"{self._lookers} of this process look at their headers."
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
            self._threads = Threads(self._lookers, "fastdata-headers")
        shares = np.array_split(indices, self._lookers)
        results([self._threads.start(self._look_at_some, share) for share in shares if len(share)])

    def _look_at_some(self, indices: Slots) -> None:
        headers = HeaderReader()
        for index in indices.tolist():
            try:
                data, last, length = self._reader.read_ends(index, _ENDS)
                if len(data) < length and sound_header(headers, data) is None and data[:2] == JPEG:
                    data = self._reader.read(index)  # its header is longer
            except OSError as error:  # who reads them one by one says which it was
                self._known[index] = error.errno not in SYSTEM_FAULTS
                continue
            header = plain_header(headers, data)
            if header is not None and is_whole(header, last, length):
                self._facts[index] = header.height, header.width, length
                self._sound[index] = True
            self._known[index] = True

    @property
    def _reader(self) -> FolderReader:
        reader = self._dataset.reader
        assert isinstance(reader, FolderReader)
        return reader


class _Files:
    """A pipeline of DALI's that reads files, batches of them ahead."""

    def __init__(self, threads: int, batch_size: int) -> None:
        self._threads, self._batch_size = threads, batch_size
        self.restart()

    def restart(self) -> None:
        """Let go of the pipeline, and of what it has under way: one that had an error is invalid,
        and has files open. The next batch that is asked for starts another one."""
        self._pipeline: Pipeline | None = None
        self._asked = deque[tuple[NDArray[np.uint8], NDArray[np.int64]]]()

    def _build(self) -> Pipeline:
        def graph() -> Any:
            names = fn.external_source(name="names", no_copy=True, dtype=types.UINT8, ndim=1)
            encoded = fn.io.file.read(names, dont_use_mmap=True)  # a cut file's map kills
            return encoded, fn.peek_image_shape(encoded, adjust_orientation=False)

        pipeline = pipeline_def(graph)(
            batch_size=self._batch_size,
            num_threads=self._threads,
            device_id=None,
            prefetch_queue_depth=1,  # DALI asks for so many before it begins
            exec_dynamic=True,
        )
        pipeline.build()
        return pipeline

    def ask(self, paths: list[bytes], facts: NDArray[np.int64]) -> None:
        """Begin to read a batch.

        Args:
            paths: of its files.
            facts: height, width and length in bytes that each has, int64 [B, 3].
        """
        if self._pipeline is None:
            self._pipeline = self._build()
        # Rows of one length make one array: what is behind a name are NULs, which end it.
        names = np.array(paths, np.bytes_)
        rows = names.view(np.uint8).reshape(len(paths), names.itemsize)
        self._pipeline.feed_input("names", rows)
        self._pipeline.schedule_run()
        self._asked.append((rows, facts))

    def receive(self) -> Any:
        """The files that were asked for first.

        Raises:
            Exception: of DALI's, whose types are many: a file cannot be read, or is no image.
            ValueError: a file has other facts.
        """
        assert self._pipeline is not None
        encoded, shapes = self._pipeline.outputs()
        _, facts = self._asked.popleft()
        lengths = np.array(encoded.shape(), np.int64)
        found = np.concatenate([shapes.as_array()[:, :2], lengths], axis=1)
        changed = np.flatnonzero((found != facts).any(axis=1))
        if len(changed):
            raise ValueError(f"{len(changed)} files of a batch have changed")
        return encoded


def _receive(files: _Files, begun: Begun) -> Exception | None:
    """Add its images to a plan that was asked for; what went wrong, if it did."""
    try:
        if begun.fed:
            begun.encoded = files.receive()
    except Exception as error:  # DALI's have many types
        return error.with_traceback(None)  # which would keep the pipeline
    return None
