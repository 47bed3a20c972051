"""direct: the GPU reads the dataset's pixels itself.

From its own memory (tier ``hbm``), where the whole array fits a share of it; else over the bus from
the page cache (tier ``host``), whose pages are registered with CUDA. No CPU thread touches a pixel:
the host draws boxes and launches kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.engines import Batch, Engine, Settings, Unavailable
from fastdata.engines.ahead import Ahead, PinnedRing
from fastdata.engines.copies import RowCopies
from fastdata.engines.pixels import CropStage, pixel_refusal
from fastdata.engines.registration import Registration
from fastdata.errors import UsageError
from fastdata.kernels import pack_rows
from fastdata.plan import BatchPlan, join_adjustments

__all__ = ["DirectEngine"]

_TIERS = ("auto", "hbm", "host")
_READS = ("auto", "copies", "kernel")
_LEAST_COPY = 64 << 10  # bytes of an image: a copy takes over a microsecond, however small it is
_HBM_SHARE = 0.4
_DEPTH = 3
_GROUP = 8  # batches whose tables are uploaded at once
_UPLOAD = 64 << 20


class _Prepared(NamedTuple):
    """What the device has to know of a batch."""

    indices: NDArray[np.int64]
    table: torch.Tensor
    host_table: NDArray[np.int64]
    labels: torch.Tensor
    adjustments: torch.Tensor | None
    rows: tuple[NDArray[np.int64], NDArray[np.int64]] | None  # see pack_rows


class DirectEngine(Engine):
    """The GPU gathers its own crops; for memmap datasets on a CUDA device.

    Options:
        tier: ``"hbm"``, ``"host"`` or ``"auto"``: the first of these that fits.
        hbm_share: the most of the GPU's free memory that the dataset may take, 0.4 by default.
        host_read: how tier ``host`` reads: ``"copies"``, by the copy engines, which leaves the
            GPU's processors to the training; ``"kernel"``, faster for small images; ``"auto"``.
    """

    options = ("tier", "hbm_share", "host_read")

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        tier = settings.options.get("tier", "auto")
        if tier not in _TIERS:
            raise UsageError(f"expected tier to be one of {', '.join(_TIERS)}, got {tier!r}")
        self._read = settings.options.get("host_read", "auto")
        if self._read not in _READS:
            raise UsageError(f"expected host_read to be one of {_READS}, got {self._read!r}")
        self._crop = CropStage(settings)
        self._pixels = settings.dataset.pixels
        self._resident: torch.Tensor | None = None
        self._registration: Registration | None = None
        self._copies: RowCopies | None = None
        self._why = ""
        free = torch.cuda.mem_get_info(settings.device)[0]
        share = settings.options.get("hbm_share", _HBM_SHARE)
        fits = self._pixels.nbytes <= share * free
        if tier == "hbm" and not fits:
            raise Unavailable(
                f"{self._pixels.nbytes / 1e9:.1f} GB of pixels are more than {share:.0%} of the "
                f"{free / 1e9:.1f} GB that the GPU has free"
            )
        self.tier = "hbm" if tier == "hbm" or (tier == "auto" and fits) else "host"
        # Over the bus a batch takes ten times as long as its plan; from the GPU's memory, less.
        self.planning = "process" if self.tier == "hbm" else "here"
        if self.tier == "hbm":
            self._resident = self._upload()
            self._why = f"which take less than {share:.0%} of the GPU's free memory"
        else:
            self._register()
            how = "a kernel reads" if self._copies is None else "its copy engines read"
            self._why = f"whose pages are registered with CUDA and which {how}"
        self.prefetch_factor = settings.prefetch_factor or _DEPTH
        self._ahead = Ahead(settings.device, self.prefetch_factor, refill=self.prefetch_factor // 2)
        self._ring, self._adjustments_ring = PinnedRing(2), PinnedRing(2)

    @classmethod
    def refusal(cls, settings: Settings) -> str | None:
        if settings.device.type != "cuda":
            return "it needs a CUDA device"
        if settings.recipe.antialias:
            return "antialias=True needs the workers engine on a CUDA device"
        return pixel_refusal(settings)

    def _upload(self) -> torch.Tensor:
        flat = self._pixels.reshape(-1)
        resident = torch.empty(flat.size + 4, dtype=torch.uint8, device=self.settings.device)
        staging = torch.empty(min(_UPLOAD, flat.size), dtype=torch.uint8, pin_memory=True)
        for start in range(0, flat.size, _UPLOAD):
            count = min(_UPLOAD, flat.size - start)
            np.copyto(staging.numpy()[:count], flat[start : start + count])
            resident[start : start + count].copy_(staging[:count])
            _progress("uploading", start + count, flat.size)
        return resident

    def _register(self) -> None:
        kernel = self._crop.has_triton
        if self._read == "kernel" and not kernel:
            raise Unavailable("without Triton no kernel can read the host's memory")
        self._registration = Registration(
            self._pixels,
            lambda done, total: _progress("registering", done, total),
        )
        small = self._pixels.nbytes < _LEAST_COPY * len(self._pixels)
        if self._read == "kernel" or (self._read == "auto" and small and kernel):
            return
        try:
            room = self._registration.room
            self._copies = RowCopies(self._pixels, room, self.settings.device)
        except Unavailable:
            if self._read == "copies" or not kernel:
                self._registration.close()
                raise

    def batches(self, plans: Iterator[BatchPlan]) -> Iterator[Batch]:
        if self.tier == "host" and self._registration is None:  # closed, and used again
            self._pixels = self.settings.dataset.pixels
            self._register()
        elif self.tier == "hbm" and self._resident is None:
            self._pixels = self.settings.dataset.pixels
            self._resident = self._upload()
        return self._ahead.run(self._prepared(plans), self._make)

    def _prepared(self, plans: Iterator[BatchPlan]) -> Generator[_Prepared, None, None]:
        """Batches with their tables and labels on the device, made for several at a time: at this
        engine's speed what the host does for each batch is what limits it."""
        while group := list(islice(plans, _GROUP)):
            host = self._crop.table(group)
            parts = np.split(host, np.cumsum([len(plan) for plan in group])[:-1])
            rows = [None if self._copies is None else self._packed(part) for part in parts]
            table = self._crop.uploaded(host, self._ring)
            labels = self._crop.labels(table)
            adjustments = self._crop.uploaded_adjustments(
                join_adjustments(group), self._adjustments_ring
            )
            place = 0
            for plan, host_table, packed in zip(group, parts, rows, strict=True):
                part = slice(place, place + len(plan))
                yield _Prepared(
                    plan.indices,
                    table[part],
                    host_table,
                    labels[part],
                    None if adjustments is None else adjustments[part],
                    packed,
                )
                place += len(plan)

    def _packed(self, table: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        height, width = self._pixels.shape[1:3]
        return pack_rows(table, (height, width))

    def _make(self, batch: _Prepared) -> Batch:
        what = batch.table, batch.host_table, batch.adjustments
        if self._resident is not None:
            images = self._crop.crop(self._resident, *what)
        elif self._copies is not None and batch.rows is not None:
            images = self._crop.crop(self._copies.gather(*batch.rows), *what, staged=True)
        else:
            images = self._crop.crop_from_host(
                self._pixels.ctypes.data, batch.table, batch.adjustments
            )
        return Batch(images, batch.labels, torch.from_numpy(batch.indices), [])

    def explain(self) -> list[str]:
        where = "its own memory" if self.tier == "hbm" else "the page cache over the bus"
        lines = [
            f"engine direct: the GPU reads {self._pixels.nbytes / 1e9:.2f} GB of pixels from "
            f"{where}, {self._why}; no CPU thread copies pixels.",
            self._crop.explain(),
        ]
        if self.planning == "process":
            lines.append("A process of its own plans its batches.")
        return lines

    def close(self) -> None:
        torch.cuda.synchronize(self.settings.device)  # nothing may read what is released
        self._resident = self._copies = None
        if self._registration is not None:
            self._registration.close()
            self._registration = None


def _progress(what: str, done: int, total: int) -> None:
    """A line on a terminal, for what takes more than a moment."""
    if total > 8 << 30 and sys.stderr.isatty():
        end = "\n" if done >= total else ""
        sys.stderr.write(f"\rfastdata: {what} {done / 1e9:.0f} of {total / 1e9:.0f} GB{end}")
        sys.stderr.flush()
