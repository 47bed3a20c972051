"""Arguments of make_loader: checked, and turned into what the rest of the library works with."""

from __future__ import annotations

import os
from typing import Any

import torch

from fastdata.errors import UsageError
from fastdata.machine import environment_count

__all__ = ["expect", "expect_type", "parse_count", "parse_device", "parse_dtype", "parse_ranks"]

_DTYPES = {
    "uint8": torch.uint8,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
}


def expect(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value not in allowed:
        expected = " or ".join(repr(each) for each in allowed)
        raise UsageError(f"expected {name} to be {expected}, got {value!r}")


def expect_type(name: str, value: Any, *kinds: type) -> None:
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"expected {name} to be of type {names}, got {value!r}")


def parse_device(device: str | torch.device | None) -> torch.device:
    try:
        found = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"expected device to be a torch device, got {device!r}: {error}") from None
    count = torch.cuda.device_count() if found.type == "cuda" else 0
    if found.type == "cuda" and (found.index or 0) >= count:
        raise UsageError(
            f"device={str(found)!r}: torch finds {count} CUDA devices here; use one of those, or "
            "the CPU"
        )
    if str(found) == "cuda":  # without an index
        return torch.device("cuda", torch.cuda.current_device())
    return found


def parse_count(name: str, value: int | str, least: int) -> int | None:
    if value == "auto":
        return None
    if not isinstance(value, int) or value < least:
        raise UsageError(f"expected {name} to be 'auto' or at least {least}, got {value!r}")
    return value


def parse_dtype(dtype: str | torch.dtype | None, device: torch.device) -> torch.dtype:
    if dtype is None:
        return torch.float16 if device.type == "cuda" else torch.float32
    found = _DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    if found is None or found not in _DTYPES.values():
        raise UsageError(f"expected dtype to be one of {', '.join(_DTYPES)}, got {dtype!r}")
    return found


def parse_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise UsageError("give rank and world_size together, or neither")
    if rank is not None and world_size is not None:
        return rank, world_size
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    world_size = environment_count("WORLD_SIZE", 1)
    if world_size > 1 and "RANK" not in os.environ:
        raise UsageError(
            f"WORLD_SIZE is {world_size} and RANK is not set: every process would load the same "
            "samples; make the loader after torch.distributed.init_process_group (with Lightning: "
            "in train_dataloader), or give rank and world_size"
        )
    return environment_count("RANK", 0), world_size
