"""Reading ahead from the disk: the system hears of a plan's samples before they are looked at."""

from __future__ import annotations

from fastdata.engines import Settings
from fastdata.errors import UsageError
from fastdata.machine import available_memory
from fastdata.plan import BatchPlan

__all__ = ["READ_AHEAD", "ReadAhead"]

READ_AHEAD = "read_ahead"
"""The name of the engines' option."""
_MOST_OF_MEMORY = 0.8


class ReadAhead:
    """The option ``read_ahead`` of an engine: True, False, or ``"auto"``, the default: where the
    dataset is more than memory. In the page cache a request finds nothing to do, but costs 2 us."""

    def __init__(self, settings: Settings) -> None:
        asked, self._dataset = settings.options.get(READ_AHEAD, "auto"), settings.dataset
        if asked != "auto" and not isinstance(asked, bool):
            raise UsageError(f"expected {READ_AHEAD} to be 'auto', True or False, got {asked!r}")
        manifest = self._dataset.manifest
        if asked is True and manifest is None:
            raise UsageError(
                f"{READ_AHEAD}=True needs a converted dataset: {self._dataset.path} is a plain "
                "folder; convert it, or leave the option out"
            )
        parts = manifest.parts if manifest is not None else []
        size = sum(part.bytes for part in parts if part.samples is not None)
        exceeds = size > _MOST_OF_MEMORY * available_memory()
        self._on: bool = exceeds if asked == "auto" else asked
        self._why = "The dataset is more than memory" if asked == "auto" else "As asked"

    def __call__(self, plan: BatchPlan) -> None:
        """Ask for the samples of a plan, without waiting for them."""
        if self._on:
            self._dataset.reader.will_need(plan.indices)

    def explain(self) -> list[str]:
        return [f"{self._why}: samples are read ahead from the disk."] if self._on else []
