"""How busy a GPU was, as its driver's library counts it; no Python package is needed for that.

Utilisation is the share of time in which any kernel ran. SM activity (GPM, from Hopper on) is the
share of multiprocessors that had work, which says more: one small kernel makes a GPU "100 %" used.
"""

from __future__ import annotations

import ctypes
import statistics
import threading
from types import TracebackType
from typing import Any

__all__ = ["Busy"]

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


class Busy:
    """A context; afterwards ``utilisation`` and ``sm_activity`` are per cent of its time, or None
    where there is no such GPU, driver or counter.

    Args:
        uuid: of the GPU, as torch names it; None: there is no GPU.
    """

    def __init__(self, uuid: str | None) -> None:
        self.utilisation: float | None = None
        self.sm_activity: float | None = None
        self._library = _library() if uuid is not None else None
        self._device = ctypes.c_void_p()
        self._samples: tuple[ctypes.c_void_p, ctypes.c_void_p] | None = None
        self._seen: list[int] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        if self._library is not None and uuid is not None:
            name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
            if self._library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._device)):
                self._library = None

    def __enter__(self) -> Busy:
        if self._library is not None:
            self._samples = self._begin_activity()
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._library is None:
            return
        self._end.set()
        self._thread.join()
        if self._seen:
            self.utilisation = statistics.fmean(self._seen)
        if self._samples is not None:
            self.sm_activity = self._end_activity(*self._samples)

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
        return None if failed else asked.metrics[0].value


def _library() -> Any:
    """The driver's library, ready for calls, or None; its functions return 0 when all is well."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return None if library.nvmlInit_v2() else library
