"""NVIDIA's JPEG library, which DALI's decoder uses: a process gets the one that it loads first.

torchvision brings one of its own, under the same name and often older. Before version 13.2 the
library interpolates colours in whole images only (nvImageCodec's words), so that decoding crops
takes longer. That of DALI's wheel is loaded when fastdata is imported: in time where that comes
before torchvision.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from contextlib import suppress
from pathlib import Path

__all__ = ["load_dalis", "loaded_version"]


def load_dalis() -> None:
    """Load the library that was installed with DALI, if any; it takes about a millisecond."""
    spec = None
    with suppress(ImportError, ValueError):  # a stand-in without a spec
        spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        if Path(place, "dali").is_dir():
            for library in Path(place).glob("*/lib/libnvjpeg.so.*"):
                with suppress(OSError):
                    ctypes.CDLL(str(library))


def loaded_version(cuda: int) -> tuple[int, int] | None:
    """Major and minor version of the library for CUDA ``cuda`` that is loaded; None without one."""
    try:
        library = ctypes.CDLL(f"libnvjpeg.so.{cuda}", os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None
    version, numbers = ctypes.c_int(), []
    for part in range(2):  # MAJOR_VERSION and MINOR_VERSION of library_types.h
        if library.nvjpegGetProperty(part, ctypes.byref(version)):
            return None
        numbers.append(version.value)
    return numbers[0], numbers[1]
