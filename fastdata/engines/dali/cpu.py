"""dali-cpu: DALI's CPU operators decode, resize and mirror."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from nvidia.dali import Pipeline, fn, pipeline_def, types
from torch.utils.dlpack import from_dlpack

from fastdata.adjust import adjust, fill_colour
from fastdata.engines import Batch, Settings
from fastdata.engines.dali.base import DaliBase, Done, built, corners, decoded_crops
from fastdata.engines.fetch import HostBatch
from fastdata.machine import cpus_of_a_rank
from fastdata.plan import BatchPlan

__all__ = ["DaliCpuEngine"]

_MOST_HALVINGS = 3  # reductions are 1, 2, 4 or 8


class DaliCpuEngine(DaliBase):
    """DALI's CPU operators, for datasets of encoded images.

    ``num_workers`` is the number of DALI's threads (at least one), ``prefetch_factor`` the number
    of batches that it has under way; of a plain folder as many are read ahead, by threads of their
    own, a quarter of the CPUs and at least two. Where a crop is reduced, blocks of the decoded
    JPEG are averaged, as for pixels: DALI has no access to the JPEG's own scaling. Colours and
    erasing are done in the training thread. Damage within a JPEG's data that ends no row early is
    decoded without a word; the conversion has looked for it.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._halvings = _halvings(settings)
        self._fill = fill_colour(settings.recipe)

    def _threads(self) -> int:
        return cpus_of_a_rank(self._cpus)

    @staticmethod
    def _geometry(settings: Settings) -> Any:
        halvings = _halvings(settings)

        def inputs(plan: BatchPlan) -> Sequence[NDArray[Any]]:
            """Corners and sizes of the boxes, flips; for each halving who has it, and its size."""
            assert plan.boxes is not None
            assert plan.reductions is not None
            mirror = np.zeros((len(plan), 2), np.float32)
            mirror[:, 1] = plan.flips
            columns: list[NDArray[Any]] = [*corners(plan), mirror]
            height_width = plan.boxes[:, :1:-1]
            for step in range(halvings):
                columns.append(plan.reductions > 1 << step)
                columns.append(np.ascontiguousarray(height_width / (2 << step)))
            return columns

        return inputs

    def _build(self) -> Pipeline:
        size, halvings = self.settings.recipe.size, self._halvings
        linear = {"interp_type": types.INTERP_LINEAR, "antialias": False}
        geometry = [(types.INT32, 1), (types.INT32, 1), (types.FLOAT, 1)]
        geometry += [(types.BOOL, 0), (types.FLOAT, 1)] * halvings

        def graph() -> Any:
            images, (mirror, *halves) = decoded_crops(self._feed, geometry, "cpu")
            # Between two pixels the linear filter gives their mean, so at half the size it gives
            # the means of blocks.
            for step in range(halvings):
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

        return built(self, pipeline_def(enable_conditionals=halvings > 0)(graph), None)

    def _finish(self, done: Done) -> Batch:
        if done.whole is not None:
            return self._finish_whole(done.whole)
        plan = done.begun.plan
        # Nothing is copied: the tensor owns the memory, which the pipeline does not use again.
        images = from_dlpack(done.images.as_tensor())
        if done.aside is not None:
            given, images = images, images.new_empty((len(plan), *images.shape[1:]))
            images[torch.from_numpy(done.begun.given)] = given
            images[torch.from_numpy(done.begun.aside)] = done.aside.images
        if plan.adjustments is not None:
            adjust(images.numpy(), plan.adjustments, self._fill)
        labels = self.settings.dataset.labels[plan.indices]
        return self._finish_whole(HostBatch(images, labels, plan.indices, []))

    def explain(self) -> list[str]:
        lines = ["engine dali-cpu: NVIDIA DALI decodes the crops, resizes and mirrors them."]
        lines += super().explain()
        if self._halvings:
            lines.append(f"Large crops are halved up to {self._halvings} times before.")
        return lines


def _halvings(settings: Settings) -> int:
    """How often the largest image of the dataset may have to be halved."""
    size = settings.recipe.size
    if size is None or not settings.dataset.encoded:
        return 0
    if not settings.dataset.plain:
        return _MOST_HALVINGS  # sizes are not known in advance
    fit = int(settings.dataset.sizes.min(axis=1).max()) // size
    return min(_MOST_HALVINGS, max(0, fit.bit_length() - 1))
