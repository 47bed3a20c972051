"""A profile as a text for people."""

from __future__ import annotations

from typing import Any

from fastdata.profile import Profile

__all__ = ["report"]


def report(profile: Profile) -> str:
    """Limits, stages, the table of candidates, what is wrong, and the verdict."""
    evidence = profile.evidence
    limits = evidence["limits"]
    lines = [
        f"CPUs to use: {limits['cpus']:.3g} of {limits['machine_cpus']}; others kept "
        f"{limits['others']:.1f} of them busy"
    ]
    step = evidence["step"]
    if step is not None:
        line = f"the step on a cached batch: {_rate(step)}"
        if step["beside_workers"] is not None:
            line += f"; while workers run: {_rate(step['beside_workers'])}"
        lines.append(line)
    elif profile.ceiling is not None:
        lines.append(f"the target: {profile.ceiling:,.0f} samples/s")
    for space in evidence["spaces"]:
        lines += ["", f"{space['subject']}, engine {space['engine']}: us per sample"]
        lines.append(f"  {'stage':18}{'CPU':>9}{'waiting':>9}")
        for name, cost in space["stages"].items():
            lines.append(f"  {name:18}{cost['cpu'] * 1e6:9.1f}{cost['blocked'] * 1e6:9.1f}")
        lines += [f"  {name:18} not measured: {why}" for name, why in space["not_measured"].items()]
    lines += ["", *_candidates(evidence), ""]
    for one in evidence["formats"]:
        measured = "measured" if one["measured"] else "predicted"
        lines.append(f"{one['name']}: {one['rate']:,.0f} samples/s ({measured}); {one['repaid']}")
    seconds = evidence["seconds"]
    lines.append(
        f"{seconds['budget']:.0f} s, and {seconds['start_up']:.0f} s for start-up and "
        f"conversion; ended because {evidence['stopped']}"
    )
    if profile.prediction_error is not None:
        lines.append(f"the predictions were off by {profile.prediction_error:.0%} (median)")
    lines += [f"not measured: {what}: {why}" for what, why in profile.not_measured.items()]
    lines += [f"found: {one['words']}" for one in profile.findings]
    settings = ", ".join(f"{name}={value!r}" for name, value in profile.setting.items())
    return "\n".join([*lines, "", profile.verdict, f"setting: {settings}"])


def _candidates(evidence: dict[str, Any]) -> list[str]:
    """The table of candidates."""
    several = len({row["subject"] for row in evidence["trials"]}) > 1
    heading = f"{'candidate':44}{'predicted':>10}{'measured [90 %]':>28}{'error':>7}"
    lines = [f"{heading}  {'to current [90 %]':20}{'start s':>8}{'wait p50/p95 ms':>17}"]
    for row in evidence["trials"]:
        name = f"{row['subject']}: {row['setting']}" if several else row["setting"]
        marks = ("*" if row["chosen"] else "") + (" (current)" if row["incumbent"] else "")
        if row["rate"] is None:
            lines.append(f"{name + marks:44}{row['predicted']:10,.0f}{'not tried':>28}")
            continue
        against = row["to_incumbent"]
        to_current = "" if against is None else _ratio(against)
        lines.append(
            f"{name + marks:44}{row['predicted']:10,.0f}{_rate(row['rate']):>28}"
            f"{row['error']:+7.0%}  {to_current:20}{row['start_seconds']:8.2f}"
            f"{row['wait_p50'] * 1e3:9.1f}/{row['wait_p95'] * 1e3:<7.1f}"
        )
    lines += [
        f"{one['subject']}: {one['setting']}: not tried: it {one['reason']}"
        for one in evidence["dropped"]
    ]
    lines.append("* the chosen setting")
    return lines


def _rate(found: dict[str, float]) -> str:
    return f"{found['middle']:,.0f} [{found['low']:,.0f}, {found['high']:,.0f}]"


def _ratio(found: dict[str, float]) -> str:
    return f"{found['middle']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"
