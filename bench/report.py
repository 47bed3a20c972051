"""What a benchmark leaves behind: tables on the terminal, and JSON, Markdown and HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.environment import facts
from bench.measure import save
from bench.plots import write_page
from fastdata.files import write_whole

__all__ = ["OUT", "Table", "publish"]

OUT = Path("bench-report")


class Table(NamedTuple):
    """Words in rows: the same for the terminal, for Markdown and for the page."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """For a terminal: the first column to the left, figures to the right."""
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        lines = [f"\n{self.title}"]
        for row in (self.header, *self.rows):
            first, *rest = (
                word.ljust(width) if at == 0 else word.rjust(width)
                for at, (word, width) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join(["", first, *rest]).rstrip())
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def markdown(self) -> str:
        """With a heading above it."""
        lines = [f"## {self.title}", ""]
        lines += [_row(self.header), _row(["---", *["---:"] * (len(self.header) - 1)])]
        lines += map(_row, self.rows)
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes)])

    def html(self) -> str:
        """With a heading above it."""
        parts = [f"<h2>{html.escape(self.title)}</h2>", "<table>"]
        for tag, rows in (("th", [self.header]), ("td", self.rows)):
            for row in rows:
                cells = "".join(f"<{tag}>{html.escape(word)}</{tag}>" for word in row)
                parts.append(f"<tr>{cells}</tr>")
        notes = (f"<p>{html.escape(note)}</p>" for note in self.notes)
        return "\n".join([*parts, "</table>", *notes])


def publish(
    out: Path,
    name: str,
    title: str,
    machine: dict[str, Any],
    results: list[dict[str, Any]],
    parts: Sequence[Table | str],
) -> None:
    """Append to ``out/NAME.jsonl``; write ``out/NAME.md`` and ``out/NAME.html`` anew.

    Args:
        out: a folder, made where there is none.
        name: of the files.
        title: of the page.
        machine: of bench.environment.
        results: all that was measured, with every sample.
        parts: tables, and plots as SVG, in the order of the page.
    """
    out.mkdir(parents=True, exist_ok=True)
    save(out / f"{name}.jsonl", machine, results)
    tables = [part for part in parts if isinstance(part, Table)]
    text = "\n".join([f"# {title}", "", facts(machine), "", *(one.markdown() for one in tables)])
    with write_whole(out / f"{name}.md") as file:
        file.write(text.encode("utf-8"))
    shown = [part.html() if isinstance(part, Table) else part for part in parts]
    write_page(out / f"{name}.html", title, facts(machine), shown)
    print(f"\n{out}/{name}.jsonl, .md, .html")


def _row(words: Sequence[str]) -> str:
    return f"| {' | '.join(word.replace('|', '/') for word in words)} |"
