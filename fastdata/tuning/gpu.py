"""How busy a GPU is, as its driver's library counts it; no Python package is needed for that.

Utilisation is the share of time in which any kernel ran. SM activity (GPM, from Hopper on) is the
share of multiprocessors that had work, which says more: one small kernel makes a GPU "100 %" used.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from types import TracebackType
from typing import Any

import torch

__all__ = ["GpuWatch", "why_not_watched"]

_SECONDS = 0.1
_SM_ACTIVITY = 2  # NVML_GPM_METRIC_SM_UTIL
_VERSION = 1  # of the two structures of GPM


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Support(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("supported", ctypes.c_uint))


class _Metric(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("status", ctypes.c_int),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    )


class _Metrics(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("first", ctypes.c_void_p),
        ("second", ctypes.c_void_p),
        ("metrics", _Metric * 512),  # at least as many as any driver's table
    )


def why_not_watched(device: torch.device) -> str | None:
    """Why nobody can tell how busy the device is; None where it can be told."""
    if device.type != "cuda":
        return "no CUDA device is used"
    library = _library()
    if library is None:
        return "the driver's library libnvidia-ml.so.1 is missing or refuses"
    return None if _handle(library, device) else "the driver's library does not know this device"


class GpuWatch:
    """Looks at a GPU again and again, in a thread, while the context lasts.

    Attributes:
        busy: share of the time in which a kernel ran, in [0, 1]; None where it is not known.
        sm_active: share of the multiprocessors that had work, likewise.
    """

    def __init__(self, device: torch.device) -> None:
        self.busy: float | None = None
        self.sm_active: float | None = None
        self._library: Any = _library() if device.type == "cuda" else None
        self._device = None if self._library is None else _handle(self._library, device)
        self._samples: tuple[ctypes.c_void_p, ctypes.c_void_p] | None = None
        self._seen: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="fastdata-gpu", daemon=True)

    def __enter__(self) -> GpuWatch:
        if self._device is not None:
            self._samples = self._begin_activity()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._device is None:
            return
        self._end.set()
        self._thread.join()
        if self._seen:
            self.busy = statistics.fmean(self._seen) / 100
        if self._samples is not None:
            self.sm_active = self._end_activity(*self._samples)

    def _look(self) -> None:
        rates = _Rates()
        while not self._end.wait(_SECONDS):
            if not self._library.nvmlDeviceGetUtilizationRates(self._device, ctypes.byref(rates)):
                self._seen.append(rates.gpu)

    def _begin_activity(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p] | None:
        support = _Support(version=_VERSION)
        query = getattr(self._library, "nvmlGpmQueryDeviceSupport", None)
        if query is None or query(self._device, ctypes.byref(support)) or not support.supported:
            return None
        samples = (ctypes.c_void_p(), ctypes.c_void_p())
        for sample in samples:
            if self._library.nvmlGpmSampleAlloc(ctypes.byref(sample)):
                return None
        failed = self._library.nvmlGpmSampleGet(self._device, samples[0])
        return None if failed else samples

    def _end_activity(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> float | None:
        asked = _Metrics(version=_VERSION, count=1, first=first, second=second)
        asked.metrics[0].id = _SM_ACTIVITY
        failed = self._library.nvmlGpmSampleGet(self._device, second)
        failed = failed or self._library.nvmlGpmMetricsGet(ctypes.byref(asked))
        failed = failed or asked.metrics[0].status
        for sample in (first, second):
            self._library.nvmlGpmSampleFree(sample)
        share = asked.metrics[0].value / 100
        return None if failed or not 0 <= share <= 1 else share


def _library() -> Any:
    """The driver's library, ready for calls, or None; its functions return 0 when all is well."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library


def _handle(library: Any, device: torch.device) -> ctypes.c_void_p | None:
    """The library's name of a CUDA device, which may count devices in another order than torch."""
    handle = ctypes.c_void_p()
    name = f"GPU-{torch.cuda.get_device_properties(device).uuid}".encode()
    return None if library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) else handle
