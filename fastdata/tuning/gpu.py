"""How busy a GPU is, as its driver counts: through nvidia-ml-py, where that is installed."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

import torch

__all__ = ["GpuWatch", "why_not_watched"]

_PERIOD = 0.1  # seconds between two looks


def why_not_watched(device: torch.device) -> str | None:
    """Why nobody can tell how busy the device is; None where it can be told."""
    if device.type != "cuda":
        return "no CUDA device is used"
    try:
        import pynvml

        pynvml.nvmlInit()
        _handle(pynvml, device)
    except Exception as error:  # the package, the driver or the permission is missing
        return f"nvidia-ml-py cannot be used: {error}"
    return None


def _handle(pynvml: Any, device: torch.device) -> Any:
    uuid = torch.cuda.get_device_properties(device).uuid
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


class GpuWatch:
    """Looks at a GPU again and again, in a thread, while the block lasts.

    Attributes:
        busy: share of the time in which a kernel ran; a list of one, empty where it is not known.
        sm_active: share of the multiprocessors that were at work, likewise.
    """

    def __init__(self, device: torch.device) -> None:
        self.busy: list[float] = []
        self.sm_active: list[float] = []
        self._device = device
        self._seen: list[float] = []
        self._sm: _SmActivity | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> GpuWatch:
        if why_not_watched(self._device) is None:
            import pynvml

            self._pynvml, self._gpu = pynvml, _handle(pynvml, self._device)
            self._sm = _SmActivity.begin(pynvml, self._gpu)
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(_PERIOD):
            rates = self._pynvml.nvmlDeviceGetUtilizationRates(self._gpu)
            self._seen.append(rates.gpu / 100)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._seen:
            self.busy = [sum(self._seen) / len(self._seen)]
        if self._sm is not None:
            self.sm_active = self._sm.end()


class _SmActivity:
    """The counters of GPUs from Hopper on."""

    def __init__(self, pynvml: Any, gpu: Any) -> None:
        self._pynvml, self._gpu = pynvml, gpu
        self._first = pynvml.nvmlGpmSampleAlloc()
        pynvml.nvmlGpmSampleGet(gpu, self._first)

    @classmethod
    def begin(cls, pynvml: Any, gpu: Any) -> _SmActivity | None:
        """Begin to count; None where the GPU or the driver does not."""
        try:
            if not pynvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
                return None
            return cls(pynvml, gpu)
        except (AttributeError, pynvml.NVMLError):
            return None

    def end(self) -> list[float]:
        """The share since the beginning; empty where the driver gives none."""
        nvml = self._pynvml
        try:
            last = nvml.nvmlGpmSampleAlloc()
            nvml.nvmlGpmSampleGet(self._gpu, last)
            query = nvml.c_nvmlGpmMetricsGet_t()
            query.version = nvml.NVML_GPM_METRICS_GET_VERSION
            query.numMetrics = 1
            query.sample1, query.sample2 = self._first, last
            query.metrics[0].metricId = nvml.NVML_GPM_METRIC_SM_UTIL
            nvml.nvmlGpmMetricsGet(query)
            share = query.metrics[0].value / 100
            for sample in (self._first, last):
                nvml.nvmlGpmSampleFree(sample)
        except (AttributeError, nvml.NVMLError):
            return []
        return [share] if 0 <= share <= 1 else []
