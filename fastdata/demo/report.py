"""The demo's HTML report: one file, its plots inline."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.dataset import Dataset
from fastdata.demo.train import Epoch
from fastdata.files import write_whole
from fastdata.registry import require

__all__ = ["Row", "write_report"]

_BLUE, _GREY, _ORANGE = "#2f6fb0", "#9aa4ae", "#d9822b"


@dataclass(frozen=True)
class Row:
    """A source in the table.

    Attributes:
        source: its name.
        bytes: size on disk.
        seconds: that the conversion took; None where there was none in this run.
        rates: images/s, one for each round.
        median: of the rates.
        ratio: of the median to the plain folder's.
    """

    source: str
    bytes: int
    seconds: float | None
    rates: list[float]
    median: float
    ratio: float


def write_report(
    path: Path, dataset: Dataset, rows: Sequence[Row], history: Sequence[Epoch], facts: str
) -> None:
    """Write the report.

    Args:
        path: of the HTML file.
        dataset: whose first images of each class are shown.
        rows: the table.
        history: of the training.
        facts: a line on the machine and the work that was measured.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require("matplotlib", "plot", "the demo's report")
    body = [
        "<h1>fastdata demo</h1>",
        f"<p>{html.escape(facts)}</p>",
        "<h2>What was loaded</h2>",
        _pictures(dataset),
        "<h2>How fast each source loads</h2>",
        _bars(rows),
        _table(rows),
        "<h2>That it trains</h2>",
        _curves(history),
    ]
    page = _PAGE.replace("BODY", "\n".join(body))
    with write_whole(path) as file:
        file.write(page.encode("utf-8"))


def _pictures(dataset: Dataset) -> str:
    shown: dict[int, int] = {}
    for index, label in enumerate(dataset.labels.tolist()):
        shown.setdefault(label, index)
    figures = []
    for label, index in sorted(shown.items()):
        data = base64.b64encode(dataset.read(index)).decode("ascii")
        name = html.escape(dataset.classes[label])
        figures.append(
            f'<figure><img alt="{name}" src="data:image/jpeg;base64,{data}">'
            f"<figcaption>{name}</figcaption></figure>"
        )
    return f'<div class="pictures">{"".join(figures)}</div>'


def _bars(rows: Sequence[Row]) -> str:
    figure, axes = _figure(0.6 + 0.45 * len(rows))
    names = [row.source for row in rows]
    medians = [row.median for row in rows]
    low = [row.median - min(row.rates) for row in rows]
    high = [max(row.rates) - row.median for row in rows]
    colours = [_GREY if row.source == "folder" else _BLUE for row in rows]
    axes.barh(names, medians, xerr=[low, high], color=colours, ecolor="#444", height=0.6)
    for row in rows:
        axes.annotate(
            f" {row.ratio:.1f}x",
            (max(row.rates), row.source),
            va="center",
        )
    axes.invert_yaxis()
    axes.set_xlabel("images/s (median of rounds; whiskers: slowest and fastest round)")
    axes.margins(x=0.12)
    return _svg(figure)


def _curves(history: Sequence[Epoch]) -> str:
    figure, axes = _figure(2.8)
    epochs = range(1, len(history) + 1)
    axes.plot(epochs, [epoch.loss for epoch in history], color=_ORANGE, marker="o")
    axes.set_ylabel("training loss", color=_ORANGE)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("epoch")
    right = axes.twinx()
    right.spines["top"].set_visible(False)
    right.plot(epochs, [100 * epoch.accuracy for epoch in history], color=_BLUE, marker="o")
    right.set_ylabel("held-out images right, %", color=_BLUE)
    right.set_ylim(0, 103)
    return _svg(figure)


def _figure(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _table(rows: Sequence[Row]) -> str:
    lines = [
        "<table><tr><th>source<th>size, MB<th>converted in, s<th>images/s<th>to the folder</tr>"
    ]
    for row in rows:
        seconds = "" if row.seconds is None else f"{row.seconds:.1f}"
        lines.append(
            f"<tr><td>{html.escape(row.source)}<td>{row.bytes / 1e6:.1f}<td>{seconds}"
            f"<td>{row.median:,.0f}<td>{row.ratio:.2f}x</tr>"
        )
    return "\n".join([*lines, "</table>"])


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>fastdata demo</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
.pictures { display: flex; flex-wrap: wrap; gap: 0.6rem; }
figure { margin: 0; text-align: center; font-size: 0.85rem; }
figure img { height: 7rem; width: 9.3rem; object-fit: cover; border-radius: 4px; display: block; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { padding: 0.25rem 0.9rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; }
svg { max-width: 100%; height: auto; }
</style></head><body>
BODY
</body></html>
"""
