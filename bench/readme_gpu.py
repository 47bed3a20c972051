"""README's figures of GPUs: what engines load, and what training makes of it."""

from __future__ import annotations

import statistics
from typing import Any

from bench.figures import (
    SETS,
    Result,
    machines,
    markdown,
    missing,
    newest,
    paragraphs,
    rounds,
)
from bench.measure import ratio

__all__ = ["on_gpu"]

_LOADING, _FED = "images/s on the GPU", "fed to cached"
_ALIKE = (
    ("dali:coarse", "dali_files"),
    ("dali", "dali_files:fancy"),
    ("dali@lmdb", "dali_files:fancy"),
    ("dali@folder", "dali_files:fancy"),
    ("dali", "torchvision"),
)
"""Engines and what does the same work by itself."""


def on_gpu(results: list[Result]) -> str:
    """All that is known of GPUs."""
    return "\n".join(filter(None, (_loading(results), _training(results), _ranks(results))))


def _loading(results: list[Result]) -> str:
    """Images/s and CPU seconds, an engine a row and a set a column."""

    def name(table: dict[str, Any]) -> str | None:
        first, _, rest = table["title"].partition(": ")
        return first if rest.startswith(_LOADING) else None

    tables = newest(results, name)
    sets = [one for one in SETS if one in tables]
    if not sets:
        return ""
    rows: dict[str, dict[str, str]] = {}
    for one in sets:
        for title, row in tables[one].table["rows"].items():
            cpu = statistics.median(run["cpu_seconds"] for run in row["runs"])
            rate = statistics.median(row["samples"])
            rows.setdefault(title, {})[one] = f"{rate:,.0f} ({cpu:.2g})"
    header = ["images/s (CPU s per 10,000)", *(SETS[one] for one in sets)]
    table = [[title, *(found.get(one, "") for one in sets)] for title, found in rows.items()]
    chosen = {one: tables[one] for one in sets}
    what = tables[sets[-1]].table["title"].partition(": ")[2].removeprefix(f"{_LOADING}, ")
    words = [what, rounds(chosen.values()), tables[sets[-1]].source, machines(chosen)]
    return paragraphs(
        f"`bench.engines --device cuda`, {', '.join(filter(None, words))}:",
        markdown(header, table),
        "`synthetic` copies a batch within the GPU's memory. `direct` has the dataset there, "
        "`direct:host` in the page cache. `dali_files` is DALI's own file reader with random "
        "crops and the best settings of a sweep, `torchvision` its decoder on the GPU; "
        "`dali:coarse` and `dali_files` do not interpolate colours, `dali` and `dali_files:fancy` "
        "do.",
        *_beside_others(sets, tables),
        *missing(chosen),
    )


def _beside_others(sets: list[str], tables: dict[str, Result]) -> list[str]:
    """Ratios of the engine dali to what does the same without it."""
    found = []
    for one in sets:
        samples = {title: row["samples"] for title, row in tables[one].table["rows"].items()}
        says = []
        for ours, other in _ALIKE:
            if ours in samples and other in samples:
                middle, low, high = ratio(samples[ours], samples[other])
                once = len(samples[ours]) == 1
                spread = "one round" if once else f"{low:.2f} to {high:.2f}"
                says.append(f"`{ours}` {middle:.2f}x ({spread}) of `{other}`")
        if says:
            found.append(f"{SETS[one].capitalize()}: {', '.join(says)}.")
    return found


def _training(results: list[Result]) -> str:
    """The share of the rate on a cached batch, an engine a row and a model a column."""

    def name(table: dict[str, Any]) -> str | None:
        return table["title"] if table["title"].endswith(_FED) else None

    tables = newest(results, name)
    if not tables:
        return ""
    rows: dict[str, dict[str, str]] = {}
    models: list[str] = []
    for title, one in tables.items():
        name_of_set, _, rest = title.partition(": ")
        models.append(f"{rest.removesuffix(_FED).strip()}, {SETS[name_of_set]}")
        for engine, row in one.table["rows"].items():
            middle, low, high = row["ratio"]
            rate = statistics.median(row["fed"])
            share = f"{rate:,.0f} ({middle:.1%}, {low:.1%} to {high:.1%})"
            rows.setdefault(engine, {})[models[-1]] = share
    table = [[title, *(found.get(model, "") for model in models)] for title, found in rows.items()]
    return paragraphs(
        "Training on these batches (bf16, channels_last): images/s, and share of the rate on a "
        f"cached batch, {machines(tables)}:",
        markdown(["", *models], table),
    )


def _ranks(results: list[Result]) -> str:
    """Training on several GPUs of a host."""

    def title(table: dict[str, Any]) -> str | None:
        return table["title"] if table.get("seen_once") else None

    def share(one: Result) -> float:
        return min(row["ratio"][0] for row in one.table["rows"].values())

    lines, tables = [], newest(results, title)
    for name, one in tables.items():
        ranks = len(one.table["rows"])
        alone = tables.get(name.replace(f", {ranks} x ", ", 1 x "))
        if ranks > 1 and alone is not None:
            lines.append(
                f"On {ranks} GPUs of a host the slowest rank trains at {share(one):.1%} of its "
                f"rate on a cached batch, one alone at {share(alone):.1%} (`bench.ranks`, {name}, "
                f"{one.machine}).\n"
            )
    return "".join(lines)
