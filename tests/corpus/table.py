"""The table of odd files that docs/formats.md has, made from the cases themselves.

``python -m tests.corpus.table`` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from tests.corpus.build import EOI, Case
from tests.corpus.cases import CASES

__all__ = ["BEGIN", "END", "table"]

BEGIN = "<!-- odd files: made by python -m tests.corpus.table -->"
END = "<!-- end -->"
_HEAD = "| the file is | webdataset, lmdb | memmap | recorded |\n|---|---|---|---|"


def table() -> str:
    """Markdown, a table under each heading, a row for each description."""
    groups: dict[str, dict[str, list[Case]]] = {}
    for case in CASES:
        groups.setdefault(case.group, {}).setdefault(case.what, []).append(case)
    tables = []
    for group, rows in groups.items():
        lines = [_row(what, cases) for what, cases in rows.items()]
        tables.append("\n".join([f"**{group}**\n", _HEAD, *lines]))
    return "\n\n".join(tables)


def _row(what: str, cases: list[Case]) -> str:
    if cases[0].pixels is None:
        assert all(case.pixels is None for case in cases), what
        return f"| {what} | refused | refused | `skipped.jsonl` |"
    recorded = {
        "treated": _each(", ".join(case.treated) for case in cases),
        "repaired": _each(", ".join(case.repaired) for case in cases),
    }
    noted = "; ".join(f"{kind}: {reasons}" for kind, reasons in recorded.items() if reasons)
    written, shown = _each(map(_written, cases)), _each(map(_shown, cases))
    return f"| {what} | {written} | {shown} | {noted or 'nothing'} |"


def _each(words: Iterable[str]) -> str:
    """Different words once each, in their order."""
    return " / ".join(dict.fromkeys(word for word in words if word))


def _written(case: Case) -> str:
    if case.written is None:
        return "encoded anew"
    if case.written == case.data:
        return "its own bytes"
    if case.data.startswith(case.written):
        return "its bytes up to the end marker"
    if case.written.startswith(case.data):
        return "its bytes and an end marker"
    if len(case.written) == len(case.data):
        return "its bytes with the usual codes"
    scan = case.written[-200 : -len(EOI)]
    assert scan in case.data, case.name  # so the picture's own bytes stay, whatever goes
    return "its bytes without these"


def _shown(case: Case) -> str:
    return "upright pixels" if "EXIF orientation" in case.treated else "its pixels"


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
