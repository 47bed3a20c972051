"""How busy a GPU is, as its driver counts: through nvidia-ml-py, where that is installed."""

from __future__ import annotations

import threading
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
    """Looks at a GPU again and again, in a thread, from now until it is stopped."""

    def __init__(self, device: torch.device) -> None:
        self._busy: list[float] = []
        self._sm: _SmActivity | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if why_not_watched(device) is None:
            import pynvml

            self._pynvml, self._gpu = pynvml, _handle(pynvml, device)
            self._sm = _SmActivity.begin(pynvml, self._gpu)
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(_PERIOD):
            rates = self._pynvml.nvmlDeviceGetUtilizationRates(self._gpu)
            self._busy.append(rates.gpu / 100)

    def stop(self) -> tuple[list[float], list[float]]:
        """Means since the beginning, each in a list that is empty where it is not known: the share
        of time in which a kernel ran, and the share of the multiprocessors that were at work."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        busy = [sum(self._busy) / len(self._busy)] if self._busy else []
        return busy, [] if self._sm is None else self._sm.end()


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
