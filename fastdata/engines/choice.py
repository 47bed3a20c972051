"""Which engine carries out the plans, and why not another one."""

from __future__ import annotations

from dataclasses import dataclass

from fastdata.engines import Engine, Settings, Unavailable
from fastdata.errors import MissingExtraError, UsageError
from fastdata.registry import ENGINES, load

__all__ = ["Choice", "choose"]

_LAST_RESORT = "workers"


@dataclass(frozen=True)
class Choice:
    """An engine.

    Attributes:
        name: in the registry.
        engine: made, but not started.
        passed_over: engines that were tried before it -> why they were not taken.
    """

    name: str
    engine: Engine
    passed_over: dict[str, str]


def choose(name: str, settings: Settings) -> Choice:
    """Make the engine that was asked for, or the first of the registry that can do the work.

    Args:
        name: ``"auto"`` or a name in the registry. One that can do the work, but not on this
            machine, gives way to those behind it.

    Raises:
        UsageError: there is no such engine, it cannot do this work, or an option is at fault.
    """
    passed_over: dict[str, str] = {}
    names = list(ENGINES)
    if name != "auto":
        kind: type[Engine] = load(ENGINES, name, "engine")
        refusal = kind.refusal(settings)
        if refusal is not None:
            raise UsageError(f"engine={name!r}: {refusal}")
        names = names[names.index(name) :]
    for candidate in names:
        needs = ENGINES[candidate].device
        if candidate != name and needs not in (None, settings.device.type):
            passed_over[candidate] = f"it needs a {needs.upper()} device"
            continue
        try:
            kind = load(ENGINES, candidate, "engine")
        except MissingExtraError as error:
            if candidate == name:
                raise
            passed_over[candidate] = str(error)
            continue
        unknown = sorted(settings.options.keys() - set(kind.options))
        if unknown and (candidate == name or (name == "auto" and candidate == _LAST_RESORT)):
            raise UsageError(
                f"the {candidate} engine has no option {unknown[0]!r}; "
                f"it has {', '.join(kind.options) or 'none'}"
            )
        reason = kind.refusal(settings)
        if reason is None and unknown:
            reason = f"it has no option {unknown[0]!r}"
        if reason is None:
            try:
                return Choice(candidate, kind(settings), passed_over)
            except Unavailable as error:
                reason = str(error)
        passed_over[candidate] = reason
    raise UsageError(
        "no engine can do this: " + "; ".join(f"{k}: {why}" for k, why in passed_over.items())
    )
