"""Profile: a tuned setting, its evidence, and where it is kept; read by the loader.

Profiles lie in ``$XDG_CACHE_HOME/fastdata/profiles`` (``~/.cache`` where that is not set), one JSON
file for each machine, dataset, recipe, batch size and device. ``fastdata tune`` writes them.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fastdata._version import __version__
from fastdata.errors import UsageError
from fastdata.files import storage_errors, write_whole
from fastdata.machine import cpu_quota, environment_count, memory_limit

__all__ = ["Profile", "environment", "profile_path"]

_VERSION = 2


@dataclass(frozen=True)
class Profile:
    """A setting that was measured, and the evidence for it.

    All rates are samples (images) a second; all intervals are 90 % bootstrap intervals of a median.

    Attributes:
        setting: the arguments to give: of :func:`make_loader` (engine, num_workers,
            prefetch_factor, engine_options), or of torch's DataLoader.
        rate: of the training loop with this setting; without a step, of the loader alone.
        rate_interval: lowest and highest rate that the measurements allow.
        loader_rate: of the loader alone, its batches thrown away; None: not measured.
        step_rate: of the step on a cached batch; None where there was no step.
        ceiling: what the rate is compared with: the step's rate, or the target; None: neither.
        share: rate / ceiling, at most 1; None without a ceiling.
        limit: what limits the rate, a name such as ``"step"``, ``"decode"``, ``"fetch"``.
        next_limit: what would limit it next.
        prediction_error: median over the trials of ``|predicted / measured - 1|``; None where
            nothing was tried.
        verdict: one sentence.
        convert_to: the one of ``formats`` that the verdict says to convert to, as it was given;
            None: that is not worth it, no other format was given, or neither step nor target.
        findings: what is wrong, the most important first: dictionaries with ``code`` and
            ``words``; empty where nothing is.
        not_measured: what could not be measured here -> why.
        work: what was tuned: path, identity, recipe, batch_size, device.
        environment: what the figures depend on; a profile of another one is not used.
        evidence: limits, stages, models, candidates, formats; plain JSON values.
        created: date and time in UTC, ISO 8601.
    """

    setting: dict[str, Any]
    rate: float
    rate_interval: tuple[float, float]
    verdict: str
    limit: str
    next_limit: str
    work: dict[str, Any]
    environment: dict[str, Any]
    created: str
    loader_rate: float | None = None
    step_rate: float | None = None
    ceiling: float | None = None
    share: float | None = None
    prediction_error: float | None = None
    convert_to: str | None = None
    findings: list[dict[str, str]] = field(default_factory=list)
    not_measured: dict[str, str] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)
    version: int = _VERSION

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self), indent=1, allow_nan=False)

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the profile, whole or not at all.

        Args:
            path: a file; None: where ``make_loader(profile="auto")`` looks for it.

        Raises:
            StorageError: it cannot be written.
        """
        target = profile_path(self.work) if path is None else Path(path)
        with storage_errors(target.parent):
            target.parent.mkdir(parents=True, exist_ok=True)
        with write_whole(target) as file:
            file.write(self.to_json().encode() + b"\n")
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile.

        Raises:
            UsageError: there is none, or the file is no profile.
        """
        advice = "make it anew with: fastdata tune"
        try:
            found = json.loads(Path(path).read_bytes())
        except (OSError, ValueError) as error:
            raise UsageError(
                f"expected a profile, found a file that cannot be read: {os.fspath(path)} "
                f"({error}); {advice}"
            ) from None
        problem = _problem(found)
        if problem:
            raise UsageError(f"{os.fspath(path)} is no profile: {problem}; {advice}")
        found["rate_interval"] = tuple(found["rate_interval"])
        return cls(**found)

    def mismatch(self, work: dict[str, Any], environment: dict[str, Any]) -> str | None:
        """Why the profile does not hold for this work and environment; None where it does."""
        for then, now, names in (
            (self.work, work, ("identity", "recipe", "batch_size", "device")),
            (self.environment, environment, tuple(environment)),
        ):
            for name in names:
                if then.get(name) != now.get(name):
                    return f"{name} was {then.get(name)!r} and is {now.get(name)!r} now"
        return None

    def words(self) -> str:
        """Where the figures come from, for :meth:`Loader.explain`."""
        share = "" if self.share is None else f", {self.share:.0%} of its ceiling"
        return f"the profile of {self.created[:10]} ({self.rate:,.0f} samples/s{share})"


def _problem(found: Any) -> str | None:
    """What keeps parsed JSON from being a profile."""
    if not isinstance(found, dict):
        return f"expected an object, found {type(found).__name__}"
    if found.get("version") != _VERSION:
        return f"expected version {_VERSION}, found {found.get('version')!r}"
    names = {one.name for one in fields(Profile)}
    if names != found.keys():
        return f"missing or unknown fields: {', '.join(sorted(names ^ found.keys()))}"
    kinds: dict[type | tuple[type, ...], tuple[str, ...]] = {
        dict: ("setting", "work", "environment", "evidence", "not_measured"),
        str: ("verdict", "limit", "next_limit", "created"),
        (int, float): ("rate",),
        list: ("rate_interval", "findings"),
    }
    for kind, fields_of_it in kinds.items():
        for name in fields_of_it:
            if not isinstance(found[name], kind):
                return f"{name} is {found[name]!r}"
    for name in ("num_workers", "prefetch_factor"):
        count = found["setting"].get(name)
        if count is not None and (not isinstance(count, int) or count < 0):
            return f"{name} is {count!r}"
    if not isinstance(found["convert_to"], str | None):
        return f"convert_to is {found['convert_to']!r}"
    if not isinstance(found["setting"].get("engine", ""), str):
        return f"engine is {found['setting']['engine']!r}"
    if not isinstance(found["setting"].get("engine_options", {}), dict):
        return f"engine_options is {found['setting']['engine_options']!r}"
    return None if len(found["rate_interval"]) == 2 else "rate_interval has not two ends"


def profile_path(work: dict[str, Any]) -> Path:
    """Where the profile of some work on this machine is kept."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    keys = ("identity", "recipe", "batch_size", "device")
    text = json.dumps([platform.node(), *(work[key] for key in keys)])
    digest = hashlib.sha256(text.encode()).hexdigest()[:24]
    return root / "fastdata" / "profiles" / f"{digest}.json"


def environment(device: str) -> dict[str, Any]:
    """What a rate depends on besides the work: the machine, what of it may be used, versions."""
    gpu = None
    if device.startswith("cuda"):
        import torch

        gpu = torch.cuda.get_device_name(torch.device(device))
    return {
        "cpu": _cpu_model(),
        "cpus": os.cpu_count(),
        "affinity": len(os.sched_getaffinity(0)),
        "quota": cpu_quota(),
        "memory_gb": round(memory_limit() / 1e9),
        "ranks_on_host": environment_count("LOCAL_WORLD_SIZE", 1),
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "fastdata": __version__,
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
