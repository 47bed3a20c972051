"""What this machine lets a loader use, and which settings cannot fit."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fastdata.machine import available_memory, cpu_quota, environment_count

__all__ = ["Limits", "Need", "busy_cpus", "read_limits"]

_SHM = "/dev/shm"
_MEMORY_SHARE = 0.8  # of what is free: the training takes some, too


@dataclass(frozen=True)
class Need:
    """What a setting takes beside what is in use already.

    Attributes:
        memory: bytes, of workers and of batches under way.
        shm: bytes of ``/dev/shm``, which torch's own batches lie in.
        files: open files of this process.
    """

    memory: int
    shm: int
    files: int


@dataclass(frozen=True)
class Limits:
    """What may be used.

    Attributes:
        machine_cpus: CPUs of the machine.
        affinity: CPUs that this process may run on.
        quota: of the cgroups, in CPUs; None: none.
        ranks: processes of this training on this host.
        memory: bytes that are free to all ranks.
        shm: bytes that are free in ``/dev/shm``; None: there is none.
        open_files: the most that this process may have open.
        others: CPUs of the affinity that somebody else keeps busy.
    """

    machine_cpus: int
    affinity: int
    quota: float | None
    ranks: int
    memory: int
    shm: int | None
    open_files: int
    others: float = 0.0

    @property
    def free_cpus(self) -> float:
        """CPUs of a rank that nobody else keeps busy; at least half of what it may use, which is
        what a fair scheduler gives to one of two who want it all."""
        free = (self.affinity - self.others) / self.ranks
        return max(min(self.cpus, free), self.cpus / 2)

    @property
    def cpus(self) -> float:
        """CPUs that a rank can keep busy; may be a fraction."""
        allowed = float(self.affinity) if self.quota is None else min(self.affinity, self.quota)
        return max(allowed / self.ranks, 0.01)

    @property
    def restricted(self) -> bool:
        """Whether the process gets fewer CPUs than the machine has."""
        return self.cpus < self.machine_cpus / self.ranks

    def words(self) -> str:
        """The CPUs, and what keeps them from being more."""
        number = f"{self.cpus:.3g}"
        kind = ""
        if self.quota is not None and self.quota < self.affinity:
            kind = "quota-limited "
        elif self.affinity < self.machine_cpus:
            kind = "affinity-limited "
        shared = f" (of {self.ranks} ranks)" if self.ranks > 1 else ""
        return f"{number} {kind}CPU{'' if number == '1' else 's'}{shared}"

    def refusal(self, need: Need) -> str | None:
        """Why a setting cannot fit; None where it does."""
        room = int(_MEMORY_SHARE * self.memory / self.ranks)
        if need.memory > room:
            return f"needs {_size(need.memory)} of memory, {_size(room)} may be taken"
        if need.shm:
            shm = 0 if self.shm is None else self.shm // self.ranks
            if need.shm > shm:
                return f"needs {_size(need.shm)} of {_SHM}, which has {_size(shm)} free"
        if need.files > self.open_files:
            return f"needs {need.files} open files, {self.open_files} are allowed (ulimit -n)"
        return None

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the CPUs that follow."""
        return {**asdict(self), "cpus": self.cpus}


def read_limits() -> Limits:
    """Read them from the system.

    Raises:
        UsageError: LOCAL_WORLD_SIZE is set and is no number.
    """
    try:
        status = os.statvfs(_SHM)
        shm: int | None = status.f_bavail * status.f_frsize
    except OSError:
        shm = None
    return Limits(
        machine_cpus=os.cpu_count() or 1,
        affinity=len(os.sched_getaffinity(0)),
        quota=cpu_quota(),
        ranks=max(1, environment_count("LOCAL_WORLD_SIZE", 1)),
        memory=available_memory(),
        shm=shm,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


def busy_cpus(seconds: float) -> float:
    """CPUs of this process's affinity that others keep busy, a hypervisor among them, seen over so
    many seconds in which this process does nothing."""
    began, before = time.perf_counter(), _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - before) / (time.perf_counter() - began)


def _busy_seconds() -> float:
    """CPU seconds since the machine's start that the CPUs of the affinity were not idle."""
    ticks = 0
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name in mine:
            user, nice, system, _idle, _waiting, irq, soft_irq, stolen = map(int, fields[:8])
            ticks += user + nice + system + irq + soft_irq + stolen
    return ticks / os.sysconf("SC_CLK_TCK")


def _size(count: int) -> str:
    return f"{count / 1e9:.2g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"
