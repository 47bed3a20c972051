"""What this machine lets this process use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from fastdata.errors import UsageError

__all__ = [
    "available_cpus",
    "available_memory",
    "cpus_of_a_rank",
    "environment_count",
    "keep_freed_memory",
    "memory_limit",
]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_MMAP_THRESHOLD = 32 << 20  # the most that glibc takes
_TRIM_THRESHOLD = 256 << 20


def available_cpus() -> int:
    """CPUs that this process may keep busy: its affinity, capped by the cgroup's quota."""
    cpus = len(os.sched_getaffinity(0))
    quota = _cgroup_quota()
    return max(1, min(cpus, int(quota + 0.5))) if quota is not None else cpus


def memory_limit() -> int:
    """Bytes that this process and its like may use in all: the cgroup's limit, else what the
    machine has. A virtual machine's memory may grow up to that limit only as it is used."""
    limit = _cgroup_number("memory.max")
    return _meminfo("MemTotal") if limit is None else limit


def available_memory() -> int:
    """Bytes that can be had without anything being killed or swapped; the page cache counts."""
    available = _meminfo("MemAvailable")
    limit, current = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    if limit is None or current is None:
        return available
    if limit > _meminfo("MemTotal"):  # memory that grows: what is free now says nothing
        return limit - current + _cgroup_file_pages()
    return min(available, limit - current + _cgroup_file_pages())


def environment_count(name: str, default: int) -> int:
    """A number that a launcher such as torchrun puts into the environment.

    Raises:
        UsageError: the variable is set to something else.
    """
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"expected the environment variable {name} to be a number, got {text!r}")
    return int(text)


def cpus_of_a_rank(cpus: int) -> int:
    """CPUs divided by the ranks on this host; at least 1."""
    return max(1, cpus // max(1, environment_count("LOCAL_WORLD_SIZE", 1)))


def keep_freed_memory() -> None:
    """Ask glibc to keep what is freed, in a process that decodes one image after the other.

    By default an image's memory goes back to the system and comes as new pages for the next one:
    a tenth of the time of decoding a photograph. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD)


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def _cgroup_number(name: str) -> int | None:
    """A number of cgroup v2; None where there is none, or it says "max"."""
    try:
        return int((Path("/sys/fs/cgroup") / name).read_text())
    except (OSError, ValueError):
        return None


def _cgroup_file_pages() -> int:
    """Bytes of the page cache that the cgroup is charged for and could give back."""
    try:
        lines = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(found.get("inactive_file", 0)) + int(found.get("active_file", 0))


def _cgroup_quota() -> float | None:
    """The container's CPU quota in CPUs (cgroup v2, then v1), or None where there is none."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        pass
    try:
        base = Path("/sys/fs/cgroup/cpu")
        limit = int((base / "cpu.cfs_quota_us").read_text())
        return None if limit <= 0 else limit / int((base / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
