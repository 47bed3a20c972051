"""What a figure depends on besides the code: machine, versions, options, source."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

__all__ = ["environment", "facts", "gpu"]

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = (
    "numpy", "torch", "torchvision", "simplejpeg", "opencv-python-headless", "pillow", "lmdb",
)  # fmt: skip
_OPTIONAL = (
    "nvidia-dali-cuda120", "nvidia-dali-cuda130", "nvidia-nvimgcodec-cu12",
    "nvidia-nvimgcodec-cu13", "nvidia-nvjpeg-cu12", "nvidia-nvjpeg",
)  # fmt: skip


def environment(arguments: argparse.Namespace) -> dict[str, Any]:
    """Machine, versions, date, commit, and what was asked for; the GPU only where it was used.

    Args:
        arguments: of the benchmark; paths among them are left out, of ``src`` it is told how many
            images of how many bytes it has.
    """
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    for package in _OPTIONAL:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cpu = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    told = vars(arguments)
    found: dict[str, Any] = {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": cpu,
        "cpus": len(os.sched_getaffinity(0)),
        "load_before": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "versions": versions,
        "options": {key: value for key, value in told.items() if _is_plain(value)},
    }
    if told.get("src") is not None:
        found["source"] = _source(told["src"])
    return found | (gpu() if told.get("device") == "cuda" else {})


def facts(machine: dict[str, Any]) -> str:
    """A line of it."""
    longer = ("versions", "peers", "options", "source")
    named = [f"{key} {value}" for key, value in machine.items() if key not in longer]
    if "source" in machine:
        source = machine["source"]
        named.append(f"{source['images']:,} images of {source['mean_bytes'] / 1000:,.0f} kB")
    return ", ".join(named)


def gpu() -> dict[str, str]:
    """Name and driver of this machine's first GPU, without a CUDA context in this process."""
    none = {"gpu": "none", "driver": "none"}
    if shutil.which("nvidia-smi") is None:
        return none
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return none
    name, _, driver = done.stdout.partition("\n")[0].partition(", ")
    return {"gpu": name or "unknown", "driver": driver or "unknown"}


def _is_plain(value: Any) -> bool:
    """Whether an option tells nothing of this machine's folders, and JSON can hold it."""
    if isinstance(value, float):
        return value < float("inf")
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return isinstance(value, bool | int) or (isinstance(value, str) and os.sep not in value)


def _source(folder: Path) -> dict[str, int]:
    """Of a folder with a folder per class."""
    sizes = [file.stat().st_size for file in folder.glob("*/*") if file.is_file()]
    return {"images": len(sizes), "mean_bytes": sum(sizes) // max(1, len(sizes))}


def _commit() -> str | None:
    """Of the checkout, with a + where it was changed; None where there is none to ask."""
    git = ["git", "-C", str(_ROOT)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}+" if changed else commit
