"""What both engines share: a pipeline that is fed plans, and batches that it refuses."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, types

from fastdata.engines import Batch, Engine, Settings
from fastdata.engines.ahead import Ahead
from fastdata.engines.dali.encoded import Begun, EncodedImages
from fastdata.engines.dali.feed import Feed
from fastdata.engines.dali.files import ImageFiles, batch_refusal
from fastdata.engines.dali.mapped import MappedImages
from fastdata.engines.fetch import Fetcher, HostBatch
from fastdata.engines.transfer import Finisher
from fastdata.errors import DataError, WorkerError
from fastdata.machine import available_cpus
from fastdata.plan import BatchPlan

__all__ = ["DaliBase", "Done", "built", "corners", "decoded_crops"]

# nvImageCodec warns of each image anew; what is an error DALI raises. For all pipelines of the
# process; who sets it to another level sees more.
os.environ.setdefault("DALI_NVIMGCODEC_LOG_LEVEL", "1")

_PREFETCH = 3
_AHEAD = 1
_MOST_REFUSALS = 10


@dataclass
class Done:
    """A begun plan and its images: a batch of the pipeline's, and what was made aside; or all of
    them as they were made without it."""

    begun: Begun
    images: Any = None
    aside: HostBatch | None = None
    whole: HostBatch | None = None


class DaliBase(Engine):
    """What both engines do with a pipeline."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._cpus = available_cpus()
        asked = settings.num_workers
        self.num_workers = self._threads() if asked is None else max(1, asked)
        self.prefetch_factor = settings.prefetch_factor or _PREFETCH
        self._finisher = Finisher(settings.recipe, settings.device, settings.dtype)
        images = _encoded_images(settings, self.prefetch_factor)
        self._feed = Feed(images, self._geometry(settings))
        self._under_way = False  # batches of the iteration that was current last
        self._refusals = 0  # of batches in which nobody else finds a fault
        self._fetch = Fetcher(settings, shared=False)

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        if not settings.dataset.encoded:
            return f"{settings.dataset.format} holds pixels, which need no decoder"
        if settings.transform is not None:
            return "transform= is a Python callable, which needs the workers engine"
        if settings.recipe.size is None:
            return "a recipe without a size needs the workers engine"
        if settings.recipe.crop == "random_pad":
            return "padding needs the workers engine: DALI decodes no boxes that reach outside"
        if settings.recipe.antialias:
            return "antialias=True needs the workers engine, for the filter that torchvision has"
        return batch_refusal(settings.dataset, settings.batch_size)

    @abstractmethod
    def _threads(self) -> int:
        """How many threads DALI gets where nobody says."""

    @staticmethod
    @abstractmethod
    def _geometry(settings: Settings) -> Any:
        """See :class:`fastdata.engines.dali.feed.Feed`; it must not hold the engine."""

    @abstractmethod
    def _build(self) -> Pipeline:
        """A new pipeline, fed by ``self._feed``."""

    @abstractmethod
    def _finish(self, done: Done) -> Batch:
        """The device's part of a batch."""

    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        return Ahead(self.settings.device, _AHEAD).run(self._received(plans), self._finish)

    def _received(self, plans: Iterator[BatchPlan]) -> Generator[Done, None, None]:
        self._abandon()
        current = self._feed.start(plans)
        while current is self._feed.current:
            if self.pipeline is None:
                self.pipeline = self._build()
            self._under_way = True
            images, failure = None, None
            try:
                images = self._run(self.pipeline)
            except StopIteration:
                self.pipeline.reset()
                self._under_way = False
            except Exception as error:  # DALI's have many types; ours wait in the iteration
                failure = error
            except BaseException:
                self.close()
                raise
            while current.begun and not current.begun[0].fed:
                yield self._without_dali(current.begun.popleft())
            if images is not None:
                self._refusals = 0
                yield self._with_aside(current.begun.popleft(), images)
            elif failure is not None:
                begun = current.begun.popleft()
                begun.failure, begun.encoded = failure.with_traceback(None), ()
                # DALI calls a pipeline invalid after any error, so another one does what it had.
                self.pipeline, self._under_way = None, False
                current.again()
                yield self._without_dali(begun)
            elif current.error is not None:
                raise current.error
            else:
                return

    def _run(self, pipeline: Pipeline) -> Any:
        """The next batch's images, on the current stream where they are on a GPU."""
        (images,) = pipeline.run()
        return images

    def _without_dali(self, begun: Begun) -> Done:
        whole = self._fetch(begun.plan)
        self._refusals += begun.failure is not None and not whole.skipped
        if self._refusals > _MOST_REFUSALS:
            raise WorkerError(
                f"DALI has refused {self._refusals} batches in which no sample is at fault; "
                f'take engine="workers". The last time it said: {begun.failure}'
            ) from begun.failure
        return Done(begun, whole=whole)

    def _with_aside(self, begun: Begun, images: Any) -> Done:
        """Add the samples that DALI was not given."""
        begun.encoded = ()  # the pipeline is done with them
        if not len(begun.aside):
            return Done(begun, images)
        # Adjusted with all others, later.
        plan = replace(begun.plan.take(begun.aside), adjustments=None)
        try:
            aside = self._fetch(plan)
        except DataError:
            if not self.settings.skip_errors:
                raise
            return self._without_dali(begun)
        if aside.skipped:  # what fills its slot is for the whole batch to say
            return self._without_dali(begun)
        return Done(begun, images, aside)

    def _abandon(self) -> None:
        """Take what is left of an iteration out of the pipeline; it has been made by now."""
        self._feed.start(iter(()))
        while self._under_way and self.pipeline is not None:
            try:
                self._run(self.pipeline)
            except StopIteration:
                self.pipeline.reset()
                self._under_way = False
            except Exception:
                self.pipeline, self._under_way = None, False

    def _finish_whole(self, host: HostBatch) -> Batch:
        return Batch(
            self._finisher.images(host.images),
            self._finisher.labels(torch.from_numpy(host.labels)),
            torch.from_numpy(host.indices),
            host.skipped,
        )

    def explain(self) -> list[str]:
        threads = f"{self.num_workers} threads of DALI's"
        if self.settings.num_workers is None:
            threads = f"{threads}, for the {self._cpus} CPUs that this process may use,"
        lines = [f"{threads} serve it.", f"Up to {self.prefetch_factor} batches are under way."]
        return lines + self._feed.explain()

    def close(self) -> None:
        self._feed.close()
        self.pipeline, self._under_way = None, False


def _encoded_images(settings: Settings, ahead: int) -> EncodedImages:
    if settings.dataset.plain:
        return MappedImages(settings.dataset)
    return ImageFiles(settings.dataset, settings.recipe, settings.batch_size, ahead)


def decoded_crops(
    feed: Feed, geometry: list[tuple[Any, int]], device: str, **options: Any
) -> tuple[Any, list[Any]]:
    """In a pipeline's graph: the decoded crops, and the columns that the feed has besides encoded
    images, corners and boxes.

    Args:
        feed: the source.
        geometry: DALI's type and the number of dimensions of each column of its geometry.
        device: "cpu" or "mixed".
        options: further ones of the decoder.
    """
    inputs = [(types.UINT8, 1), *geometry]
    encoded, corner, box, *others = fn.external_source(
        feed,
        num_outputs=len(inputs),
        batch=True,
        no_copy=True,  # DALI holds the arrays, and so the maps, until it is done with them
        dtype=[dtype for dtype, _ in inputs],
        ndim=[ndim for _, ndim in inputs],
    )
    images = fn.decoders.image_slice(
        encoded,
        corner,
        box,
        axis_names="WH",
        adjust_orientation=False,  # those that EXIF turns do not come here
        device=device,
        **options,
    )
    return images, others


def built(engine: DaliBase, graph: Any, device_id: int | None) -> Pipeline:
    pipeline = graph(
        batch_size=engine.settings.batch_size,
        num_threads=engine.num_workers,
        device_id=device_id,
        prefetch_queue_depth=engine.prefetch_factor,
        exec_dynamic=True,  # the other one uses a batch's memory again while the caller has it
    )
    pipeline.build()
    return pipeline


def corners(plan: BatchPlan) -> list[NDArray[np.int32]]:
    """Corners and sizes of the boxes."""
    assert plan.boxes is not None
    boxes = plan.boxes.astype(np.int32)
    return [boxes[:, :2].copy(), boxes[:, 2:].copy()]
