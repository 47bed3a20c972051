"""Committed results, and how figures are written: for README, see bench.readme."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from bench.report import Table

__all__ = [
    "SETS",
    "Result",
    "load",
    "machines",
    "markdown",
    "missing",
    "newest",
    "paragraphs",
    "rounds",
    "times",
]

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
        gpu, commit = self.gpu, self.environment.get("commit")
        first = f"{gpu}, " if gpu != "none" else ""
        versions = self.environment["versions"]
        named = (f"{name} {versions[name]}" for name in ("torch", "torchvision") if versions[name])
        return (
            f"{first}{self.environment['cpus']} cores ({self.environment['cpu']}), "
            f"Python {self.environment['python']}, {', '.join(named)}, "
            f"{self.environment['date'][:10]}{f', commit {commit}' if commit else ''}"
        )

    @property
    def gpu(self) -> str:
        """Its name, or "none"."""
        return str(self.environment.get("gpu", "none"))

    @property
    def source(self) -> str:
        """The images that it was measured on, in words; empty where that was not kept."""
        source = self.environment.get("source")
        if source is None:
            return ""
        return f"{source['images']:,} images of {source['mean_bytes'] / 1000:,.0f} kB"

    def is_beside(self, other: Result) -> bool:
        """Whether both were measured on a machine of one kind."""
        kinds = ([one.environment.get(key) for key in ("cpu", "cpus")] for one in (self, other))
        return self.gpu == other.gpu and next(kinds) == next(kinds)


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
    """Key of a table -> the newest that has it, of those from the kind of machine on which the
    newest of all was measured; tables without a key are left out."""
    keyed = [(name, one) for one in results if (name := key(one.table)) is not None]
    return {name: one for name, one in keyed if one.is_beside(keyed[-1][1])}


def machines(results: dict[str, Result]) -> str:
    """Where and when they were measured; each by itself where they were not measured together."""
    groups: dict[str, list[str]] = {}
    for name, one in results.items():
        groups.setdefault(one.machine, []).append(SETS.get(name, name))
    if len(groups) == 1:
        return next(iter(groups))
    return "; ".join(f"{', '.join(names)}: {machine}" for machine, names in groups.items())


def rounds(results: Iterable[Result]) -> str:
    """How often their rows were measured, in words."""
    counts = sorted({len(row["samples"]) for one in results for row in one.table["rows"].values()})
    words = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))
    return f"{words} rounds"


def missing(results: dict[str, Result]) -> list[str]:
    """A paragraph on who could not be measured, and why; none where nobody is missing."""
    where: dict[tuple[str, str], list[str]] = {}  # who and why -> on which sets
    for name, one in results.items():
        for entry in one.table.get("missing", {}).items():
            where.setdefault(entry, []).append(SETS.get(name, name))
    alike: dict[str, list[str]] = {}
    for (title, why), names in where.items():
        alike.setdefault(f"({', '.join(names)}): {why}", []).append(title)
    if not alike:
        return []
    words = (f"{', '.join(titles)} {why}" for why, titles in alike.items())
    return [f"Not measured: {'; '.join(words)}."]


def times(figures: Iterable[float]) -> str:
    middle, low, high = figures
    digits = 0 if middle >= 20 else 1 if middle >= 1 else 2
    return f"{middle:.{digits}f}x ({low:.{digits}f} to {high:.{digits}f})"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    return Table("", header, rows).markdown().split("\n", 2)[2].rstrip()


def paragraphs(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"
