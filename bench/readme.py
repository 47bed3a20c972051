"""Write README's figures anew, from the committed results.

    python -m bench.readme

The figures stand between two markers in README.md; everything between them comes from
bench/results/*.json*, of each table the newest. A test compares the two.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.figures import (
    SETS,
    Result,
    load,
    machines,
    markdown,
    missing,
    newest,
    paragraphs,
    rounds,
    times,
)
from bench.measure import ratio
from bench.readme_gpu import on_gpu
from bench.tuner import ENOUGH, TITLE

__all__ = ["README", "RESULTS", "render", "written"]

_ROOT = Path(__file__).resolve().parent.parent
README, RESULTS = _ROOT / "README.md", Path(__file__).resolve().parent / "results"
_BEGIN, _END = "<!-- figures: python -m bench.readme -->", "<!-- end of the figures -->"


def main() -> None:
    text = README.read_text(encoding="utf-8")
    before, _, after = _split(text)
    README.write_text(f"{before}{_BEGIN}\n{render(load(RESULTS))}{_END}{after}", encoding="utf-8")


def written() -> str:
    """What stands between the markers."""
    return _split(README.read_text(encoding="utf-8"))[1]


def _split(text: str) -> tuple[str, str, str]:
    before, begun, rest = text.partition(f"{_BEGIN}\n")
    inside, ended, after = rest.partition(_END)
    if not begun or not ended:
        raise SystemExit(f"{README}: expected the lines {_BEGIN!r} and {_END!r} in it, in order")
    return before, inside, after


def render(results: list[Result]) -> str:
    """Markdown of all that is known."""
    kinds = (_engines, _loading, _conversion, on_gpu, _ladder, _single)
    sections = (section(results) for section in kinds)
    return "".join(f"{text}\n" for text in sections if text)


def _engines(results: list[Result]) -> str:
    """Fastdata's fastest engine to every peer, on each set."""
    tables = _compared(results)
    sets = [one for one in SETS if one in tables]
    if not sets:
        return ""
    peers: dict[str, dict[str, str]] = {}
    for one in sets:
        rows = tables[one].table["rows"]
        ours = [
            title
            for title, row in rows.items()
            if _ours(title) and "antialias" not in title and _as_it_should_be(row)
        ]
        best = max(ours, key=lambda title: statistics.median(rows[title]["samples"]))
        for title, row in rows.items():
            if not _ours(title) and not title.startswith("bound") and _as_it_should_be(row):
                to_it = ratio(rows[best]["samples"], row["samples"])
                peers.setdefault(title, {})[one] = times(to_it)
    header = ["fastdata to", *(SETS[one] for one in sets)]
    table = [[title, *(found.get(one, "") for one in sets)] for title, found in peers.items()]
    chosen = {one: tables[one] for one in sets}
    first = tables[sets[0]]
    words = first.table["title"].split(", ")
    told = [word for word in words if word.endswith("workers") or word.startswith("batch")]
    what = ["uint8", *told, rounds(chosen.values()), first.source, machines(chosen)]
    return paragraphs(
        "`bench.engines`: images/s of fastdata's fastest engine to each peer as its documentation "
        "sets it up (random resized crop of 224, at 32x32 a flip; what else differs stands in its "
        f"output), {', '.join(filter(None, what))}:",
        markdown(header, table),
        *missing(chosen),
    )


def _as_it_should_be(row: dict[str, Any]) -> bool:
    """Whether a contestant's outputs were those of the reference, where they were compared."""
    return not (row.get("outputs") or {}).get("faults")


def _compared(results: list[Result]) -> dict[str, Result]:
    """Set -> the newest table of bench.engines."""

    def name(table: dict[str, Any]) -> str | None:
        rows = table["rows"].values()
        compared = any("reference_to_it" in row for row in rows if isinstance(row, dict))
        return table["title"].partition(":")[0] if compared else None

    return newest(results, name)


def _ours(title: str) -> bool:
    return title.startswith("fastdata")


def _loading(results: list[Result]) -> str:
    """Formats to torchvision's ImageFolder + DataLoader."""
    base = "ImageFolder + DataLoader"
    tables = newest(
        results,
        lambda table: table["title"].partition(":")[0] if table.get("baseline") == base else None,
    )
    if not tables:
        return ""
    kept = [name for name in SETS if name in tables]
    rows: dict[str, list[str]] = {}
    for at, name in enumerate(kept):
        for title, row in tables[name].table["rows"].items():
            if title != base:
                rows.setdefault(title, [""] * len(kept))[at] = times(row["ratio"])
    header = [f"images/s to {base}", *(SETS[name] for name in kept)]
    table = [[title, *cells] for title, cells in rows.items()]
    chosen = {name: tables[name] for name in kept}
    what = f"`bench.loading`, uint8 batches, {rounds(chosen.values())}, {machines(chosen)}:"
    return paragraphs(what, markdown(header, table))


def _conversion(results: list[Result]) -> str:
    works = {
        "pass-through, --check decode": "pass-through, every image decoded once (the default)",
        "pass-through, --check structure": "pass-through, `--check structure`",
        "--resize 256": "`--resize 256`",
    }
    tables = newest(
        results, lambda table: name if (name := table["title"].partition(":")[0]) in works else None
    )
    rows = []
    for name, words in works.items():
        if name in tables:
            table = tables[name].table
            middle = times(table["rows"]["fastdata convert"]["ratio"])
            rows.append([f"{words}, to {table['baseline']}", middle])
    if not rows:
        return ""
    return paragraphs("`bench.conversion`:", markdown(["`fastdata convert`", "ratio"], rows))


def _ladder(results: list[Result]) -> str:
    """The newest ladder on each GPU, and the newest without one."""
    ladders = {one.gpu: one for one in results if one.table["title"].startswith("The ladder")}
    alone = ladders.pop("none", None)
    return "\n".join(_rungs(one) for one in [*ladders.values(), alone] if one is not None)


def _rungs(ladder: Result) -> str:
    """A rung a row and a model a column."""
    what = (
        f"`bench.ladder`, {ladder.machine}: training on the GPU; images/s, share of the rate on a "
        "cached batch, and the GPU's utilisation:"
    )
    if ladder.gpu == "none":
        what = (
            f"`bench.ladder` without a GPU, {ladder.machine}: a small CNN trains on one core, "
            "which the loader uses, too; images/s, and share of its rate on a cached batch:"
        )
    measured = ladder.table["rows"]
    models = list(next(iter(measured.values()))["models"])
    rows = []
    for name, rung in measured.items():
        cells = []
        for model in models:
            pairs = rung["models"][model]
            rate = statistics.median(run["rate"] for run in pairs["fed"])
            shares = [f"{pairs['share'][0]:.1%}"]
            used = [one["utilisation"] for one in pairs["fed"] if one["utilisation"] is not None]
            if used:
                shares.append(f"{statistics.median(used):.0f}% used")
            cells.append(f"{rate:,.0f} ({', '.join(shares)})")
        rows.append([name, *cells])
    return paragraphs(what, markdown(["rung", *models], rows))


def _single(results: list[Result]) -> str:
    """Figures that make a line each."""
    found = (
        make(results)
        for make in (_antialias, _first_batch, _tuner, _cold, _checks, _memory, _scanning)
    )
    return "".join(f"- {line}\n" for lines in found for line in lines)


def _antialias(results: list[Result]) -> list[str]:
    costs = []
    for one in _compared(results).values():
        rows = one.table["rows"]
        if "fastdata workers, antialias" in rows:
            pair = (rows[f"fastdata workers{end}"]["samples"] for end in ("", ", antialias"))
            costs.append(ratio(*pair)[0])
    if not costs:
        return []
    return [
        f"torchvision's filter (`antialias=True`) takes {min(costs):.1f} to {max(costs):.1f} times "
        "as long as fastdata's default"
    ]


def _first_batch(results: list[Result]) -> list[str]:
    """Seconds behind the imports, of fastdata and of everybody else."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for one in _compared(results).values():
        for title, row in one.table["rows"].items():
            if not title.startswith("bound"):
                firsts = (imported for _, imported in row["first_batch_seconds"])
                seconds[_ours(title)].append(statistics.median(firsts))
    if not seconds[True] or not seconds[False]:
        return []
    spans = {mine: f"{min(some):.2g} to {max(some):.2g} s" for mine, some in seconds.items()}
    return [
        f"the first batch comes {spans[True]} after the library is imported (the others: "
        f"{spans[False]})"
    ]


def _tuner(results: list[Result]) -> list[str]:
    setups: dict[str, dict[str, Any]] = {}  # GPU -> set-up -> its newest row
    for one in results:
        if one.table["title"].startswith(TITLE):
            setups.setdefault(one.gpu, {}).update(one.table["rows"])
    lines = []
    for gpu, rows in setups.items():
        good = sum(row["reached"] >= ENOUGH for row in rows.values())
        error = statistics.median(abs(error) for row in rows.values() for error in row["errors"])
        where = "" if gpu == "none" else f" on a machine with {gpu}"
        default = ""
        if all("default_reached" in row for row in rows.values()):
            count = sum(row["default_reached"] >= ENOUGH for row in rows.values())
            default = f" (make_loader by itself in {count})"
        lines.append(
            f"`fastdata tune` came within {1 - ENOUGH:.0%} of the best of an exhaustive grid "
            f"in {good} of {len(rows)} set-ups{where}{default}, and its predictions were off by "
            f"{error:.0%} (median; `bench.tuner`)"
        )
    return lines


def _cold(results: list[Result]) -> list[str]:
    def format_of(table: dict[str, Any]) -> str | None:
        cold = table.get("baseline") == "cold global"
        return table["title"].partition(",")[0] if cold else None

    tables = newest(results, format_of)
    return [
        f"with a cold page cache, reading ahead on a {name} gives "
        f"{times(one.table['rows']['cold global, read ahead']['ratio'])} the rate (`bench.cold`)"
        for name, one in tables.items()
    ]


def _checks(results: list[Result]) -> list[str]:
    def title(table: dict[str, Any]) -> str | None:
        return table["title"] if table["title"].startswith("checks for") else None

    rows = [one.table["rows"]["with checks"] for one in newest(results, title).values()]
    if not rows:
        return []
    costs = sorted(1 - row["ratio"][0] for row in rows)
    return [
        f"the checks for odd files take {costs[0]:.0%} to {costs[-1]:.0%} of a conversion's rate "
        "(`bench.checks`)"
    ]


def _memory(results: list[Result]) -> list[str]:
    def kind(table: dict[str, Any]) -> str | None:
        return "memory" if table["title"].startswith("memory,") else None

    lines = []
    for one in newest(results, kind).values():
        size = one.table["title"].removeprefix("memory, ")
        rows = one.table["rows"].items()
        over = [f"{row['ratio']:.2f} of that as {name}" for name, row in rows if row["ratio"] > 1]
        but = f", but {', '.join(over)}" if over else ""
        lines.append(
            f"an image of {size} takes at most twice its pixels and 150 MB of a worker's "
            f"memory{but} (`bench.memory`)"
        )
    return lines


def _scanning(results: list[Result]) -> list[str]:
    tables = newest(results, lambda table: "one" if table["title"] == "scanning" else None)
    return [
        f"{row['files']:,} files, hard links to a few whose names the kernel has in memory, are "
        f"scanned and planned in {row['seconds']:.0f} s and {row['megabytes']:.0f} MB "
        "(`bench.scanning`)"
        for row in (one.table["rows"] for one in tables.values())
    ]


if __name__ == "__main__":
    main()
