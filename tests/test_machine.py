"""CPUs: affinity and container quotas, with the files of both cgroup versions played by a dict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastdata.errors import UsageError
from fastdata.machine import (
    available_cpus,
    available_memory,
    environment_count,
    memory_limit,
)

OWN = "/proc/self/cgroup"
V2 = "/sys/fs/cgroup/cpu.max"
QUOTA, PERIOD = "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"

CASES: dict[str, tuple[int, dict[str, str], int]] = {
    # name: CPUs of the affinity, files, expected
    "no cgroup files": (8, {}, 8),
    "v2 without a limit": (8, {V2: "max 100000\n"}, 8),
    "v2 below the affinity": (8, {V2: "300000 100000\n"}, 3),
    "v2 above the affinity": (2, {V2: "800000 100000\n"}, 2),
    "v2 with another period": (8, {V2: "100000 50000\n"}, 2),
    "v2 of 1.5 CPUs, rounded up": (8, {V2: "150000 100000\n"}, 2),
    "v2 of 2.4 CPUs, rounded down": (8, {V2: "240000 100000\n"}, 2),
    "v2 of a tenth of a CPU": (8, {V2: "10000 100000\n"}, 1),
    "v2 without a limit hides v1": (8, {V2: "max 100000\n", QUOTA: "100000", PERIOD: "100000"}, 8),
    "v2 damaged": (8, {V2: "\n"}, 8),
    "v2 damaged, v1 whole": (8, {V2: "odd text\n", QUOTA: "400000\n", PERIOD: "100000\n"}, 4),
    "v1 without a limit": (8, {QUOTA: "-1\n", PERIOD: "100000\n"}, 8),
    "v1 below the affinity": (8, {QUOTA: "200000\n", PERIOD: "100000\n"}, 2),
    "v1 above the affinity": (3, {QUOTA: "900000\n", PERIOD: "100000\n"}, 3),
    "v1 without its period": (8, {QUOTA: "200000\n"}, 8),
    "v1 with a period of zero": (8, {QUOTA: "200000\n", PERIOD: "0\n"}, 8),
    "v2 with a period of zero": (8, {V2: "200000 0\n"}, 8),
    "v2 of a cgroup within a container's": (
        8,
        {
            OWN: "0::/job/step\n",
            "/sys/fs/cgroup/job/step/cpu.max": "max 100000\n",
            "/sys/fs/cgroup/job/cpu.max": "300000 100000\n",
        },
        3,
    ),
    "v2 of the tightest of several": (
        8,
        {
            OWN: "0::/job/step\n",
            "/sys/fs/cgroup/job/step/cpu.max": "200000 100000\n",
            "/sys/fs/cgroup/job/cpu.max": "500000 100000\n",
        },
        2,
    ),
    "v1 of a cgroup within others": (
        8,
        {
            OWN: "4:memory:/other\n3:cpu,cpuacct:/slurm/job\n0::/\n",
            "/sys/fs/cgroup/cpu/slurm/job/cpu.cfs_quota_us": "400000\n",
            "/sys/fs/cgroup/cpu/slurm/job/cpu.cfs_period_us": "100000\n",
            QUOTA: "-1\n",
        },
        4,
    ),
    "v1 damaged": (8, {QUOTA: "\n", PERIOD: "\n"}, 8),
}


@pytest.mark.parametrize("name", CASES)
def test_cpus_are_the_affinity_capped_by_the_quota(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus, files, expected = CASES[name]

    def read_text(self: Path, *args: object, **options: object) -> str:
        if str(self) not in files:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return files[str(self)]

    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))
    assert available_cpus() == expected


def test_a_cgroup_that_may_not_be_read_is_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **options: object) -> str:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 9})
    assert available_cpus() == 3


def test_this_machine_gives_at_least_one_and_no_more_than_its_affinity() -> None:
    assert 1 <= available_cpus() <= len(os.sched_getaffinity(0))


def test_a_launchers_number_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert environment_count("WORLD_SIZE", 1) == 1
    for text, number in (("8", 8), ("0", 0), ("007", 7)):
        monkeypatch.setenv("WORLD_SIZE", text)
        assert environment_count("WORLD_SIZE", 1) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "2 ", "²"])
def test_what_is_no_number_is_refused_by_the_variables_name(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", text)
    with pytest.raises(UsageError, match="variable RANK to be a number") as caught:
        environment_count("RANK", 0)
    assert repr(text) in str(caught.value)


def test_memory_is_what_the_kernel_says() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    assert 0 < available_memory() <= max(total, memory_limit())
    assert memory_limit() > 0


MEMORY = {
    "v2": (
        {
            OWN: "0::/box\n",
            "/sys/fs/cgroup/box/memory.max": "3000000000\n",
            "/sys/fs/cgroup/box/memory.current": "1000000000\n",
            "/sys/fs/cgroup/box/memory.stat": "anon 700000000\nactive_file 200000000\n",
        },
        (3_000_000_000, 2_200_000_000),
    ),
    "v1": (
        {
            OWN: "5:memory:/box\n",
            "/sys/fs/cgroup/memory/box/memory.limit_in_bytes": "3000000000\n",
            "/sys/fs/cgroup/memory/box/memory.usage_in_bytes": "2500000000\n",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes": "2500000000\n",
        },
        (3_000_000_000, 500_000_000),
    ),
    "none": ({}, (8_000_000_000, 6_000_000_000)),
}


@pytest.mark.parametrize("name", MEMORY)
def test_memory_is_capped_by_the_cgroup(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, expected = MEMORY[name]
    files = {"/proc/meminfo": "MemTotal: 7812500 kB\nMemAvailable: 5859375 kB\n", **files}

    def read_text(self: Path, *args: object, **options: object) -> str:
        if str(self) not in files:
            raise FileNotFoundError(2, "No such file or directory", str(self))
        return files[str(self)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert (memory_limit(), available_memory()) == expected
