"""What a machine allows, and what is refused before it is tried."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastdata.tuning.limits import Need, busy_cpus, read_limits
from tests.tuning.conftest import LIMITS, PROBES, FakeSubject

FITS = Need(memory=1, shm=1, files=1)


@pytest.mark.parametrize(
    ("changes", "cpus", "words"),
    [
        ({}, 8, "8 CPUs"),
        ({"affinity": 3}, 3, "3 affinity-limited CPUs"),
        ({"quota": 1.5}, 1.5, "1.5 quota-limited CPUs"),
        ({"quota": 1.0, "affinity": 4}, 1, "1 quota-limited CPU"),
        ({"quota": 12.0}, 8, "8 CPUs"),
        ({"ranks": 4}, 2, "2 CPUs (of 4 ranks)"),
    ],
)
def test_cpus_of_a_rank(changes: dict[str, object], cpus: float, words: str) -> None:
    limits = replace(LIMITS, **changes)  # type: ignore[arg-type]
    assert limits.cpus == cpus
    assert limits.words() == words
    assert limits.restricted == (cpus < 8 / limits.ranks)


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        ({"others": 0.0}, 8),
        ({"others": 3.0}, 5),
        ({"others": 7.5}, 4),  # half of it is one's own in any case
        ({"others": 3.0, "quota": 2.0}, 2),  # five CPUs are idle, two may be used
        ({"others": 2.0, "ranks": 2}, 3),
    ],
)
def test_cpus_that_others_keep_busy_are_not_free(changes: dict[str, Any], free: float) -> None:
    assert replace(LIMITS, **changes).free_cpus == free


def test_others_are_seen() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            assert busy_cpus(1.0) > 0.3  # it gets its share, whoever else is there
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("need", "words"),
    [
        (replace(FITS, memory=9 * 10**9), "9 GB of memory, 8 GB"),  # 80 % of 10 GB
        (replace(FITS, shm=2 * 10**9), "2 GB of /dev/shm, which has 1 GB free"),
        (replace(FITS, files=1001), "1001 open files, 1000 are allowed"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_figures(need: Need, words: str) -> None:
    assert words in (LIMITS.refusal(need) or "")
    assert LIMITS.refusal(FITS) is None


def test_ranks_share_what_is_free() -> None:
    need = replace(FITS, shm=6 * 10**8)
    assert LIMITS.refusal(need) is None
    assert "500 MB free" in (replace(LIMITS, ranks=2).refusal(need) or "")


def test_without_shared_memory_nothing_fits_that_needs_it() -> None:
    assert "/dev/shm" in (replace(LIMITS, shm=None).refusal(FITS) or "")


def test_what_a_setting_needs() -> None:
    candidate = replace(FakeSubject().incumbent(), workers=3, prefetch=4)
    need = replace(PROBES, in_shm=True).need(candidate)
    assert need.memory == 3 * 10**8 + 14 * 10**6  # three workers; 3 x 4 batches and two more
    assert need.shm == 14 * 10**6
    assert need.files == 64 + 3 * 6
    assert PROBES.need(candidate).shm == 0
    assert replace(PROBES, in_shm=True).need(replace(candidate, workers=0)).shm == 0


def test_the_system_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    small = SimpleNamespace(f_bavail=3, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: small if path == "/dev/shm" else None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    limits = read_limits()
    assert limits.shm == 3 * 4096
    assert limits.ranks == 2
    assert limits.affinity == len(os.sched_getaffinity(0))


def test_an_affinity_is_seen() -> None:
    code = "from fastdata.tuning.limits import read_limits; print(read_limits().cpus)"
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) == 1.0


@pytest.fixture
def half_a_cpu() -> Iterator[Path]:
    """A cgroup, of either version, with a quota of half a CPU."""
    name = f"fastdata-test-{os.getpid()}"
    first, second = Path("/sys/fs/cgroup/cpu") / name, Path("/sys/fs/cgroup") / name
    group = first if first.parent.is_dir() else second
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        if group is first:
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("50000")
        else:
            (group / "cpu.max").write_text("50000 100000")
        yield group
    except OSError as error:
        pytest.skip(f"no quota can be set here: {error}")
    finally:
        group.rmdir()


def test_a_real_quota_is_seen(half_a_cpu: Path) -> None:
    code = f"""
import os
from pathlib import Path
Path({str(half_a_cpu)!r}, "cgroup.procs").write_text(str(os.getpid()))
from fastdata.tuning.limits import read_limits
print(read_limits().quota, read_limits().words())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(None, 1) == ["0.5", "0.5 quota-limited CPUs\n"]
