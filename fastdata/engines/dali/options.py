"""What DALI's GPU decoder needs to know and to have: memory for a dataset's sizes, and a driver."""

from __future__ import annotations

import ctypes
import importlib.metadata
from typing import Any

import numpy as np

from fastdata.engines import Settings, Unavailable
from fastdata.nvjpeg import loaded_version

__all__ = ["HARDWARE_LOAD", "decoder_options", "nvjpeg_notes", "wheel_refusal"]

HARDWARE_LOAD = 0.65  # the best of sweeps on an H200 with 8 to 14 threads; it falls as threads rise
_DEVICE_BYTES, _HOST_BYTES = 5.5, 3.7
"""Of nvJPEG's buffers for each pixel: NVIDIA's figures for ImageNet, divided by the pixels of its
largest image."""
_LEAST, _MOST = 1 << 20, 64 << 20
_INTERPOLATES_CROPS = 13, 2  # version of nvJPEG, which there is for CUDA 13
_NVJPEG = "nvidia-nvjpeg"  # its package
_PERCENTILE = 99.9  # a few images may be larger: then a buffer grows


def decoder_options(settings: Settings) -> dict[str, Any]:
    """The arguments of the decoder: the user's, else what follows from the images' sizes.

    By default DALI's buffers are made for large photographs, and there are three for each thread.
    """
    options: dict[str, Any] = {
        "hw_decoder_load": HARDWARE_LOAD,
        "jpeg_fancy_upsampling": True,  # as libjpeg has it, and every other engine
    }
    if settings.dataset.plain and len(settings.dataset):
        sizes = settings.dataset.sizes
        pixels = float(np.percentile(sizes.astype(np.int64).prod(axis=1), _PERCENTILE))
        width, height = np.percentile(sizes, _PERCENTILE, axis=0)
        options |= {
            "device_memory_padding": int(min(max(pixels * _DEVICE_BYTES, _LEAST), _MOST)),
            "host_memory_padding": int(min(max(pixels * _HOST_BYTES, _LEAST), _MOST)),
            "preallocate_width_hint": int(np.ceil(width)),
            "preallocate_height_hint": int(np.ceil(height)),
        }
    return options | settings.options


def nvjpeg_notes(options: dict[str, Any]) -> list[str]:
    """What to know of the nvJPEG in use, once a pipeline was built: the one that DALI's wheel
    depends on, or another one that the process had loaded before."""
    cuda = _wheel()
    version = loaded_version(cuda)
    if version is None or version >= _INTERPOLATES_CROPS or not options["jpeg_fancy_upsampling"]:
        return []
    if cuda < _INTERPOLATES_CROPS[0]:
        way = f"where the driver knows CUDA 13, install nvidia-dali-cuda130, not -cuda{cuda}0"
    elif _installed(_NVJPEG) < _INTERPOLATES_CROPS:
        way = f"pip install -U {_NVJPEG}"
    else:
        way = "import fastdata before torchvision, which brings its own one"
    return [
        f"nvJPEG {version[0]}.{version[1]} interpolates colours in whole images only, and 13.2 in "
        f'crops, which is faster: {way}; or engine_options={{"jpeg_fancy_upsampling": False}}.'
    ]


def _installed(package: str) -> tuple[int, ...]:
    """Major and minor version of a package; empty where it is not there."""
    try:
        numbers = importlib.metadata.version(package).split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return ()
    return tuple(int(number) for number in numbers if number.isdigit())


def _wheel() -> int:
    """The major version of CUDA that DALI's wheel was built for."""
    from nvidia import dali

    return int(dali.__cuda_version__) // 1000


def wheel_refusal() -> None:
    """Compare the driver with the CUDA version that DALI's wheel was built for.

    Raises:
        Unavailable: the driver is older; the message has the line that installs another wheel.
    """
    wheel, version = _wheel(), ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError as error:
        raise Unavailable(f"there is no CUDA driver: {error}") from None
    driver = version.value // 1000
    if driver < wheel:
        raise Unavailable(
            f"the installed DALI was built for CUDA {wheel}, and the driver knows CUDA {driver}: "
            f"pip uninstall nvidia-dali-cuda{wheel}0 and pip install nvidia-dali-cuda{driver}0, "
            "or update the driver"
        )
