"""What this machine lets this process use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from fastdata.errors import UsageError

__all__ = [
    "available_cpus",
    "available_memory",
    "cpu_quota",
    "cpus_of_a_rank",
    "environment_count",
    "keep_freed_memory",
    "memory_limit",
]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h
_MMAP_THRESHOLD = 32 << 20  # the most that glibc takes
_TRIM_THRESHOLD = 256 << 20
_NO_LIMIT = 1 << 60  # bytes; cgroup v1 has no word for "no limit" but a huge number


def available_cpus() -> int:
    """CPUs that this process may keep busy: its affinity, capped by the cgroup's quota."""
    cpus = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return max(1, min(cpus, int(quota + 0.5))) if quota is not None else cpus


def cpu_quota() -> float | None:
    """The cgroups' CPU quota in CPUs (version 2, then 1), or None where there is none."""
    quotas, known = [], False
    for folder in _cgroups(None):
        try:
            quota, period = (folder / "cpu.max").read_text().split()[:2]
            if quota != "max":
                quotas.append(int(quota) / int(period))
            known = True
        except (OSError, ValueError, ZeroDivisionError):
            pass
    for folder in [] if known else _cgroups("cpu"):
        try:
            limit = int((folder / "cpu.cfs_quota_us").read_text())
            if limit > 0:
                quotas.append(limit / int((folder / "cpu.cfs_period_us").read_text()))
        except (OSError, ValueError, ZeroDivisionError):
            pass
    return min(quotas, default=None)


def memory_limit() -> int:
    """Bytes that this process and its like may use in all: the cgroup's limit, else what the
    machine has. A virtual machine's memory may grow up to that limit only as it is used."""
    tightest = _memory_cgroup()
    return _meminfo("MemTotal") if tightest is None else tightest[0]


def available_memory() -> int:
    """Bytes that can be had without anything being killed or swapped; the page cache counts."""
    available = _meminfo("MemAvailable")
    tightest = _memory_cgroup()
    if tightest is None:
        return available
    limit, free = tightest
    # Memory that grows: what is free now says nothing.
    return free if limit > _meminfo("MemTotal") else min(available, free)


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


def _cgroups(controller: str | None) -> list[Path]:
    """Folders of the cgroup that this process is in, and of those around it, whose limits apply as
    well: of version 1 for a controller, of version 2 for None."""
    root = Path("/sys/fs/cgroup") / (controller or "")
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return [root]
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if (number == "0" and controller is None) or controller in controllers.split(","):
            inner = root / path.lstrip("/")
            # Inside a container the path may be the host's, which does not exist here.
            return [inner, *(above for above in inner.parents if root in (above, *above.parents))]
    return [root]


def _number(path: Path) -> int | None:
    """The number in a file; None where there is none, or it says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _memory_cgroup() -> tuple[int, int] | None:
    """Limit of the memory cgroup that leaves least, and the bytes that it leaves; the page cache
    that it is charged for could be given back."""
    names = (
        (None, "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    )
    found = []
    for controller, limit_name, usage_name in names:
        for folder in _cgroups(controller):
            limit, usage = _number(folder / limit_name), _number(folder / usage_name)
            if limit is not None and usage is not None and limit < _NO_LIMIT:
                found.append((limit - usage + _file_pages(folder), limit))
    return min(found)[::-1] if found else None


def _file_pages(folder: Path) -> int:
    """Bytes of the page cache that a cgroup is charged for."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split() for line in lines if len(line.split()) == 2)
    return int(found.get("inactive_file", 0)) + int(found.get("active_file", 0))
