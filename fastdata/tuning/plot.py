"""A picture of a profile: predicted and measured rate over workers, with every ceiling.

As self-contained HTML with an inline SVG, which needs nothing, or as PNG by matplotlib.
"""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.errors import UsageError
from fastdata.files import write_whole
from fastdata.profile import Profile
from fastdata.registry import require
from fastdata.tuning.report import report

__all__ = ["check_target", "plot"]

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 480, 80, 220, 24, 52
_COLOURS = ("#1f6feb", "#b35900", "#1a7f37", "#8250df", "#57606a")
_HEADROOM = 3.0  # a ceiling that is so many times above the highest rate would flatten the rest


@dataclass
class _Series:
    """One engine of one subject: its predicted curve, and its measured points."""

    name: str
    curve: list[tuple[float, float]]
    points: list[dict[str, Any]]
    ceilings: dict[str, float]


def check_target(path: str | os.PathLike[str]) -> None:
    """
    Raises:
        UsageError: the name does not end in .png or .html, or its folder is not there.
        MissingExtraError: a PNG is asked for, and matplotlib is not installed.
    """
    target = Path(path)
    if target.suffix not in (".png", ".html"):
        raise UsageError(f"expected a plot's name to end in .png or .html, got {target}")
    if not target.parent.is_dir():
        raise UsageError(f"expected a folder for the plot, found none: {target.parent}")
    if target.suffix == ".png":
        require("matplotlib", "plot", "a plot as PNG")


def plot(profile: Profile, path: str | os.PathLike[str]) -> None:
    """Draw predicted and measured rates over workers, ceilings, and the chosen point.

    Args:
        profile: of :func:`fastdata.tune` or :func:`fastdata.tune_dataloader`.
        path: ends in ``.png`` or ``.html``.

    Raises:
        UsageError, MissingExtraError: see :func:`check_target`.
        StorageError: the file cannot be written.
    """
    check_target(path)
    target = Path(path)
    if target.suffix == ".png":
        _png(profile, target)
    else:
        with write_whole(target) as file:
            file.write(_page(profile).encode())


def _series(profile: Profile) -> list[_Series]:
    cpus = profile.evidence["limits"]["cpus"]
    found = []
    for space in profile.evidence["spaces"]:
        ceilings = {}
        for name, cost in space["stages"].items():
            if cost["wall"] > 0:
                many = cpus if name in space["in_a_worker"] else 1
                ceilings[name] = many / cost["wall"]
        points = [
            row
            for row in profile.evidence["trials"]
            if (row["subject"], row["engine"]) == (space["subject"], space["engine"])
            and row["rate"] is not None
        ]
        curve = [(float(count), float(rate)) for count, rate in space["curve"]]
        found.append(_Series(f"{space['subject']}, {space['engine']}", curve, points, ceilings))
    return found


def _top(profile: Profile, series: list[_Series]) -> float:
    """The highest rate that is drawn."""
    rates = [rate for one in series for _, rate in one.curve]
    rates += [row["rate"]["high"] for one in series for row in one.points]
    highest = max(rates)
    if profile.ceiling is not None and profile.ceiling <= _HEADROOM * highest:
        highest = max(highest, profile.ceiling)
    return 1.1 * highest


def _png(profile: Profile, target: Path) -> None:
    figures = require("matplotlib.figure", "plot", "a plot as PNG")
    figure = figures.Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    series = _series(profile)
    top = _top(profile, series)
    for one, colour in zip(series, _COLOURS * len(series), strict=False):
        axes.plot(*zip(*one.curve, strict=True), color=colour, label=f"{one.name}: predicted")
        for row in one.points:
            rate = row["rate"]
            errors = [
                [max(0, rate["middle"] - rate["low"])],
                [max(0, rate["high"] - rate["middle"])],
            ]
            size = 11 if row["chosen"] else 6
            axes.errorbar(
                row["workers"], rate["middle"], errors, fmt="o", color=colour, markersize=size
            )
        for name, rate in one.ceilings.items():
            if rate <= top:
                axes.axhline(rate, color=colour, linewidth=0.6, linestyle=":")
                axes.text(1.0, rate, f" {name}", transform=axes.get_yaxis_transform(), fontsize=7)
    if profile.ceiling is not None and profile.ceiling <= top:
        axes.axhline(profile.ceiling, color="black", linestyle="--", label="step or target")
    axes.set(xlabel="workers", ylabel="samples/s", ylim=(0, top))
    axes.set_title(profile.verdict, fontsize=8, wrap=True)
    axes.legend(fontsize=8)
    with write_whole(target) as file:
        figure.savefig(file, format="png", dpi=120)


def _page(profile: Profile) -> str:
    title = html.escape(profile.verdict)
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>fastdata tune</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
pre {{ font-size: 12px; overflow-x: auto; background: #f6f8fa; padding: 1rem }}
svg {{ width: 100%; height: auto }} text {{ font: 12px system-ui, sans-serif; fill: #1f2328 }}
</style></head><body>
<h1>fastdata tune</h1>
<p><strong>{title}</strong></p>
{_svg(profile)}
<pre>{html.escape(report(profile))}</pre>
</body></html>
"""


def _svg(profile: Profile) -> str:
    series = _series(profile)
    top = _top(profile, series)
    most = max(1.0, *(count for one in series for count, _ in one.curve))
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM

    def x(workers: float) -> float:
        return _LEFT + (right - _LEFT) * workers / most

    def y(rate: float) -> float:
        return bottom - (bottom - _TOP) * min(rate, top) / top

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'aria-label="Rate over workers, predicted and measured">',
        f'<path d="M{_LEFT} {_TOP}V{bottom}H{right}" fill="none" stroke="#57606a"/>',
        f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">workers</text>',
        f'<text x="{_LEFT}" y="{_TOP - 8}" text-anchor="middle">samples/s</text>',
    ]
    for part in range(5):
        rate = top * part / 4
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y(rate) + 4:.1f}" text-anchor="end">{rate:,.0f}</text>'
        )
    every = max(1, round(most / 8))
    for workers in range(0, int(most) + 1, every):
        parts.append(
            f'<text x="{x(workers):.1f}" y="{bottom + 18}" text-anchor="middle">{workers}</text>'
        )
    if profile.ceiling is not None and profile.ceiling <= top:
        parts += _line("step or target", profile.ceiling, y, right, "#cf222e", "6 4")
    for number, one in enumerate(series):
        colour = _COLOURS[number % len(_COLOURS)]
        for name, rate in one.ceilings.items():
            if rate <= top:
                parts += _line(name, rate, y, right, colour, "2 4")
        path = " ".join(f"{x(count):.1f},{y(rate):.1f}" for count, rate in one.curve)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(
            f'<text x="{_LEFT + 10}" y="{_TOP + 14 + 16 * number}" style="fill:{colour}">'
            f"{html.escape(one.name)}: predicted; dots: measured; large: chosen</text>"
        )
        for row in one.points:
            rate, place = row["rate"], x(row["workers"])
            parts.append(
                f'<path d="M{place:.1f} {y(rate["low"]):.1f}V{y(rate["high"]):.1f}" '
                f'stroke="{colour}"/>'
                f'<circle cx="{place:.1f}" cy="{y(rate["middle"]):.1f}" '
                f'r="{8 if row["chosen"] else 4}" fill="{colour}"><title>'
                f"{html.escape(row['setting'])}: {rate['middle']:,.0f} samples/s</title></circle>"
            )
    return "\n".join([*parts, "</svg>"])


def _line(name: str, rate: float, y: Any, right: int, colour: str, dashes: str) -> list[str]:
    return [
        f'<path d="M{_LEFT} {y(rate):.1f}H{right}" stroke="{colour}" stroke-dasharray="{dashes}"/>',
        f'<text x="{right + 6}" y="{y(rate) + 4:.1f}">{html.escape(name)} {rate:,.0f}</text>',
    ]
