"""Committed results, and how figures are written: for README, see bench.readme."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Table

__all__ = ["SETS", "Result", "load", "markdown", "newest", "paragraphs", "times"]

SETS = {
    "orig": "originals",
    "s256": "short side 256",
    "t32": "32x32 JPEGs",
    "raw256": "256x256 pixels",
    "raw32": "32x32 pixels",
}


class Result(NamedTuple):
    """A table, and where and when it was measured."""

    environment: dict[str, Any]
    table: dict[str, Any]

    @property
    def machine(self) -> str:
        """In words."""
        gpu = self.environment.get("gpu", "none")
        first = f"{gpu}, " if gpu != "none" else ""
        versions = self.environment["versions"]
        named = (f"{name} {versions[name]}" for name in ("torch", "torchvision") if versions[name])
        return (
            f"{first}{self.environment['cpus']} cores ({self.environment['cpu']}), "
            f"Python {self.environment['python']}, {', '.join(named)}, "
            f"{self.environment['date'][:10]}"
        )


def load(folder: Path) -> list[Result]:
    """All tables with rows, the oldest first; bench.run's have other parts, for its own report."""
    found = []
    for file in sorted(folder.glob("*.json*")):
        for line in filter(None, file.read_text(encoding="utf-8").splitlines()):
            run = json.loads(line)
            tables = (table for table in run["tables"] if "rows" in table)
            found += [Result(run["environment"], table) for table in tables]
    return sorted(found, key=lambda result: result.environment["date"])


def newest(
    results: Iterable[Result], key: Callable[[dict[str, Any]], str | None]
) -> dict[str, Result]:
    """Key of a table -> the newest that has it; tables without a key are left out."""
    return {name: one for one in results if (name := key(one.table)) is not None}


def times(figures: Iterable[float]) -> str:
    middle, low, high = figures
    digits = 0 if middle >= 20 else 1 if middle >= 1 else 2
    return f"{middle:.{digits}f}x ({low:.{digits}f} to {high:.{digits}f})"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    return Table("", header, rows).markdown().split("\n", 2)[2].rstrip()


def paragraphs(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"
