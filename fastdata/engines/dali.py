"""dali-cpu: NVIDIA DALI decodes crops, resizes and mirrors; what to do is the plan's.

A pipeline of DALI's has no random operator here: each batch's encoded images, boxes and flips go in
from outside, so it gives the samples of every other engine. Labels do not go through it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia import nvimgcodec
from nvidia.dali import Pipeline, fn, pipeline_def, types
from torch.utils.dlpack import from_dlpack

from fastdata.adjust import adjust, fill_colour
from fastdata.dataset import Dataset
from fastdata.engines import Batch, Engine, Settings
from fastdata.engines.ahead import Ahead
from fastdata.engines.fetch import Fetcher, HostBatch
from fastdata.engines.transfer import Finisher
from fastdata.errors import WorkerError
from fastdata.machine import available_cpus, cpus_of_a_rank
from fastdata.plan import BatchPlan

__all__ = ["DaliEngine"]

_PREFETCH = 3
_AHEAD = 1
_MOST_HALVINGS = 3  # reductions are 1, 2, 4 or 8
_MOST_REFUSALS = 10
_DTYPES = [types.UINT8, types.INT32, types.INT32, types.FLOAT]


class DaliEngine(Engine):
    """DALI's CPU operators, for datasets of encoded images.

    ``num_workers`` is the number of DALI's threads (at least one), ``prefetch_factor`` the number
    of batches that it has under way. Where a crop is reduced, blocks of the decoded JPEG are
    averaged, as for pixels: DALI has no access to the JPEG's own scaling. Colours and erasing are
    done in the training thread. Damage within a JPEG's data that ends no row early is decoded
    without a word; the conversion has looked for it.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._cpus = available_cpus()
        asked = settings.num_workers
        self.num_workers = cpus_of_a_rank(self._cpus) if asked is None else max(1, asked)
        self.prefetch_factor = settings.prefetch_factor or _PREFETCH
        self._finisher = Finisher(settings.recipe, settings.device, settings.dtype)
        self._halvings = _halvings(settings)
        self._feed = _Feed(settings.dataset, self._halvings)
        self._pipeline: Pipeline | None = None
        self._under_way = False  # batches of the iteration that was current last
        self._refusals = 0  # of batches in which nobody else finds a fault
        self._fill = fill_colour(settings.recipe)
        # What DALI refuses is done without it: that names the sample, and knows what to do then.
        self._fetch = Fetcher(settings, shared=False)

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        if not settings.dataset.encoded:
            return f"{settings.dataset.format} holds pixels, which need no decoder"
        if not settings.dataset.plain:
            # It may hold PNGs and turned images, and their sizes are not known in advance.
            return "a plain folder may hold anything, which needs the workers engine; or convert it"
        if settings.transform is not None:
            return "transform= is a Python callable, which needs the workers engine"
        if settings.recipe.size is None:
            return "a recipe without a size needs the workers engine"
        if settings.recipe.crop == "random_pad":
            return "padding needs the workers engine: DALI decodes no boxes that reach outside"
        if settings.recipe.antialias:
            return "antialias=True needs the workers engine, for the filter that torchvision has"
        return None

    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        return Ahead(self.settings.device, _AHEAD).run(self._received(plans), self._finish)

    def _received(self, plans: Iterator[BatchPlan]) -> Iterator[_Done]:
        self._abandon()
        current = self._feed.current = _Iteration(plans)
        while current is self._feed.current:
            if self._pipeline is None:
                self._pipeline = self._build()
            self._under_way = True
            images, failure = None, None
            try:
                (images,) = self._pipeline.run()
            except StopIteration:
                self._pipeline.reset()
                self._under_way = False
            except Exception as error:  # DALI's have many types; ours wait in the iteration
                failure = error
            except BaseException:
                self.close()
                raise
            while current.begun and not current.begun[0].fed:
                plan = current.begun.popleft().plan
                yield _Done(plan, self._fetch(plan))
            if images is not None:
                self._refusals = 0
                yield _Done(current.begun.popleft().plan, images)
            elif failure is not None:
                plan = current.begun.popleft().plan
                # DALI calls a pipeline invalid after any error, so another one does what it had.
                self._pipeline, self._under_way = None, False
                current.again()
                fetched = self._fetch(plan)
                self._refusals += not fetched.skipped
                if self._refusals > _MOST_REFUSALS:
                    raise WorkerError(
                        f"DALI has refused {self._refusals} batches in which no sample is at "
                        f'fault; take engine="workers". The last time it said: {failure}'
                    ) from failure
                yield _Done(plan, fetched)
            elif current.error is not None:
                raise current.error
            else:
                return

    def _abandon(self) -> None:
        """Take what is left of an iteration out of the pipeline; it has been made by now."""
        self._feed.current = _Iteration(iter(()))
        while self._under_way and self._pipeline is not None:
            try:
                self._pipeline.run()
            except StopIteration:
                self._pipeline.reset()
                self._under_way = False
            except Exception:
                self._pipeline, self._under_way = None, False

    def _build(self) -> Pipeline:
        size = self.settings.recipe.size
        linear = {"interp_type": types.INTERP_LINEAR, "antialias": False}
        inputs: dict[str, Any] = {
            "num_outputs": 4 + 2 * self._halvings,
            "batch": True,
            "no_copy": True,  # DALI holds the arrays, and so the maps, until it is done with them
            "dtype": _DTYPES + [types.BOOL, types.FLOAT] * self._halvings,
            "ndim": [1, 1, 1, 1] + [0, 1] * self._halvings,
        }

        def graph() -> Any:
            encoded, corner, box, mirror, *halves = fn.external_source(self._feed, **inputs)
            images = fn.decoders.image_slice(
                encoded,
                corner,
                box,
                device="cpu",
                axis_names="WH",
                adjust_orientation=False,  # converted datasets hold upright images
            )
            # Between two pixels the linear filter gives their mean, so at half the size it gives
            # the means of blocks.
            for step in range(self._halvings):
                if halves[2 * step]:  # DALI's own "if": it splits the batch
                    images = fn.resize(images, size=halves[2 * step + 1], **linear)
            # A region that ends left of where it begins comes out mirrored, at no cost.
            return fn.resize(
                images,
                size=[size, size],
                roi_start=mirror,
                roi_end=types.Constant([1.0, 1.0]) - mirror,
                roi_relative=True,
                **linear,
            )

        pipeline = pipeline_def(enable_conditionals=self._halvings > 0)(graph)(
            batch_size=self.settings.batch_size,
            num_threads=self.num_workers,
            device_id=None,
            prefetch_queue_depth=self.prefetch_factor,
            exec_dynamic=True,  # the other one uses a batch's memory again while the caller has it
        )
        pipeline.build()
        return pipeline

    def _finish(self, done: _Done) -> Batch:
        dataset, plan = self.settings.dataset, done.plan
        if isinstance(done.result, HostBatch):
            host = done.result
            images, skipped = host.images, host.skipped
            labels, indices = host.labels, host.indices
        else:
            # Nothing is copied: the tensor owns the memory, which the pipeline does not use again.
            images, skipped = from_dlpack(done.result.as_tensor()), []
            if plan.adjustments is not None:
                adjust(images.numpy(), plan.adjustments, self._fill)
            labels, indices = dataset.labels[plan.indices], plan.indices
        return Batch(
            self._finisher.images(images),
            self._finisher.labels(torch.from_numpy(labels)),
            torch.from_numpy(indices),
            skipped,
        )

    def explain(self) -> list[str]:
        threads = f"{self.num_workers} threads"
        if self.settings.num_workers is None:
            how = f"{threads} of DALI's, for the {self._cpus} CPUs that this process may use,"
        else:
            how = f"{threads} of DALI's"
        lines = [f"engine dali-cpu: {how} decode the crops, resize and mirror them."]
        lines.append(f"Up to {self.prefetch_factor} batches are under way.")
        if self._halvings:
            lines.append(f"Large crops are halved up to {self._halvings} times before.")
        return lines

    def close(self) -> None:
        self._feed.current = _Iteration(iter(()))
        self._pipeline, self._under_way = None, False


@dataclass
class _Begun:
    """A plan that was taken; ``fed``: the pipeline has it."""

    plan: BatchPlan
    fed: bool


@dataclass
class _Done:
    """A plan and its images: a batch of the pipeline's, or one that was made without it."""

    plan: BatchPlan
    result: Any


class _Iteration:
    """Plans, and those of them that were begun and not given out yet."""

    def __init__(self, plans: Iterator[BatchPlan]) -> None:
        self.plans = plans
        self.begun: deque[_Begun] = deque()
        self.error: Exception | None = None

    def again(self) -> None:
        """Begin anew what was begun: the pipeline that had it is gone."""
        self.plans = chain([one.plan for one in self.begun], self.plans)
        self.begun = deque()


class _Feed:
    """The source of the pipeline, which holds it: so it does not hold the engine.

    Attributes:
        current: the iteration whose plans are taken.
    """

    def __init__(self, dataset: Dataset, halvings: int) -> None:
        self.current = _Iteration(iter(()))
        self._dataset = dataset
        self._halvings = halvings
        self._checked = np.zeros(len(dataset), np.bool_)

    def __call__(self) -> tuple[Any, ...]:
        """The inputs of the next batch; called by the pipeline, in the training thread."""
        current = self.current
        try:
            for plan in current.plans:
                encoded = self._encoded(plan)
                current.begun.append(_Begun(plan, encoded is not None))
                if encoded is not None:
                    return (encoded, *self._geometry(plan))
        except Exception as error:
            current.error = error  # raised where the batch would have come
        current.plans = iter(())
        raise StopIteration

    def _encoded(self, plan: BatchPlan) -> list[NDArray[np.uint8]] | None:
        """The encoded images, in the maps of their files; None where DALI must not see them."""
        dataset = self._dataset
        data = dataset.reader.read_many(plan.indices)
        encoded = [np.frombuffer(one, np.uint8) for one in data]
        if not self._checked[plan.indices].all():
            # A header that DALI cannot parse, or of another size, does not raise in its threads:
            # it ends the process. This is its own parser.
            sizes = dataset.sizes[plan.indices].tolist()
            for one, size in zip(encoded, sizes, strict=True):
                try:
                    stream = nvimgcodec.CodeStream(one)
                    if stream.codec_name != "jpeg" or [stream.width, stream.height] != size:
                        return None
                except RuntimeError:
                    return None
            self._checked[plan.indices] = True
        return encoded

    def _geometry(self, plan: BatchPlan) -> list[NDArray[Any]]:
        """Corners and sizes of the boxes, flips; for each halving who has it, and its size."""
        assert plan.boxes is not None
        assert plan.flips is not None
        assert plan.reductions is not None
        boxes = plan.boxes.astype(np.int32)
        corner, size = boxes[:, :2], boxes[:, 2:]
        mirror = np.zeros((len(plan), 2), np.float32)
        mirror[:, 1] = plan.flips
        columns: list[NDArray[Any]] = [corner.copy(), size.copy(), mirror]
        height_width = plan.boxes[:, :1:-1]
        for step in range(self._halvings):
            columns.append(plan.reductions > 1 << step)
            columns.append(np.ascontiguousarray(height_width / (2 << step)))
        return columns


def _halvings(settings: Settings) -> int:
    """How often the largest image of the dataset may have to be halved."""
    size = settings.recipe.size
    if size is None or not settings.dataset.encoded or not settings.dataset.plain:
        return 0
    fit = int(settings.dataset.sizes.min(axis=1).max()) // size
    return min(_MOST_HALVINGS, max(0, fit.bit_length() - 1))
