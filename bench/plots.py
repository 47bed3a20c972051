"""Plots as SVG text, and the page that holds them: one file, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fastdata.files import write_whole

__all__ = ["Bar", "bars", "lines", "write_page"]

_WIDTH, _BAR, _GAP, _LEFT, _RIGHT = 860, 20, 10, 270, 110
_HEIGHT, _TOP, _BOTTOM, _SIDE, _LEGEND = 350, 28, 48, 76, 190
_COLOURS = ("#2f6fb0", "#d9822b", "#3d8f5f", "#a2559c", "#7a6a4f", "#c0484e", "#5d7a8c", "#8a8f2a")
_GREY, _INK = "#9aa4ae", "#333"


class Bar(NamedTuple):
    """A row of a bar chart: ``low`` and ``high`` are the ends of its whisker."""

    name: str
    value: float
    low: float
    high: float
    note: str = ""
    grey: bool = False


def bars(rows: Sequence[Bar], unit: str) -> str:
    """Horizontal bars from zero, with whiskers."""
    most = max((row.high for row in rows), default=0.0) or 1.0
    room = _WIDTH - _LEFT - _RIGHT
    step = _BAR + _GAP
    parts = []
    for at, row in enumerate(rows):
        y, middle = at * step, at * step + _BAR / 2
        end, low, high = (
            _LEFT + room * max(0.0, value) / most for value in (row.value, row.low, row.high)
        )
        fill = _GREY if row.grey else _COLOURS[0]
        note = row.note or _short(row.value)
        parts += [
            _text(_LEFT - 8, middle, row.name, "end"),
            f'<rect x="{_LEFT}" y="{y}" width="{end - _LEFT:.1f}" height="{_BAR}" fill="{fill}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="{_INK}"/>',
            _text(max(end, high) + 6, middle, note, "start"),
        ]
    height = len(rows) * step + 22
    parts.append(_text(_LEFT, height - 10, unit, "start"))
    return _svg(height, parts)


def lines(
    series: dict[str, Sequence[tuple[float, float]]], across: str, up: str, fits: Sequence[str] = ()
) -> str:
    """Curves on two logarithmic axes, names beside them; points that are not positive are left out.

    Args:
        series: name -> points.
        across, up: what the axes are.
        fits: a remark on each series, shown below its name.
    """
    kept = {name: [p for p in points if min(p) > 0] for name, points in series.items()}
    points = [point for curve in kept.values() for point in curve]
    if not points:
        return "<p>nothing was measured</p>"
    (left, right), (low, high) = (_decades([point[axis] for point in points]) for axis in (0, 1))

    def place(x: float, y: float) -> tuple[float, float]:
        width, height = _WIDTH - _SIDE - _LEGEND, _HEIGHT - _TOP - _BOTTOM
        return (
            _SIDE + width * (math.log10(x) - left) / (right - left),
            _TOP + height * (high - math.log10(y)) / (high - low),
        )

    parts = []
    for power in range(left, right + 1):
        x, bottom = place(10.0**power, 10.0**low)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom:.1f}" stroke="#ddd"/>')
        parts.append(_text(x, bottom + 14, _short(10.0**power), "middle"))
    for power in range(low, high + 1):
        x, y = place(10.0**left, 10.0**power)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{_WIDTH - _LEGEND}" stroke="#ddd"/>')
        parts.append(_text(x - 8, y, _short(10.0**power), "end"))
    for at, (name, curve) in enumerate(kept.items()):
        colour = _COLOURS[at % len(_COLOURS)]
        places = [place(*point) for point in sorted(curve)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = _TOP + 10 + 38 * at
        parts.append(_text(_WIDTH - _LEGEND + 12, y, name, "start", colour))
        parts.append(_text(_WIDTH - _LEGEND + 12, y + 16, [*fits, *[""] * len(kept)][at], "start"))
    parts.append(_text((_SIDE + _WIDTH - _LEGEND) / 2, _HEIGHT - 10, across, "middle"))
    parts.append(_text(8, 8, up, "start"))
    return _svg(max(_HEIGHT, _TOP + 38 * len(kept) + 10), parts)


def write_page(path: Path, title: str, facts: str, parts: Sequence[str]) -> None:
    """Write an HTML page of headings, tables and plots."""
    head = f"<h1>{html.escape(title)}</h1><p>{html.escape(facts)}</p>"
    page = _PAGE.replace("TITLE", html.escape(title)).replace("BODY", "\n".join([head, *parts]))
    with write_whole(path) as file:
        file.write(page.encode("utf-8"))


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def _short(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1e6:,.3g}M"
    if value >= 10_000:
        return f"{value / 1e3:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(x: float, y: float, words: str, anchor: str, colour: str = _INK) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central" '
        f'fill="{colour}">{html.escape(words)}</text>'
    )


def _svg(height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13">{"".join(parts)}</svg>'
    )


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>TITLE</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; white-space: nowrap; }
svg { width: 100%; height: auto; margin: 0.5rem 0 1rem; }
</style></head><body>
BODY
</body></html>
"""
