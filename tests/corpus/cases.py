"""All odd files, by the headings of the table that docs/formats.md has of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.corpus import damaged_cases, jpeg_cases, other_cases, png_cases
from tests.corpus.build import Case

__all__ = ["CASES"]

_GROUPS: dict[str, list[Callable[[], Iterator[Case]]]] = {
    "JPEG": [
        jpeg_cases.kept_jpegs,
        jpeg_cases.cut_jpegs,
        jpeg_cases.oriented_jpegs,
        jpeg_cases.unusual_jpegs,
    ],
    "JPEG with something wrong about it": [
        damaged_cases.mended_jpegs,
        damaged_cases.truncated_jpegs,
        damaged_cases.damaged_jpegs,
    ],
    "Other formats": [
        png_cases.png_cases,
        png_cases.damaged_pngs,
        other_cases.other_formats,
        other_cases.ignored_orientations,
    ],
    "No image": [other_cases.no_images],
}


def _all() -> list[Case]:
    cases = [
        replace(case, group=group)
        for group, makers in _GROUPS.items()
        for make in makers
        for case in make()
    ]
    names = [case.name for case in cases]
    assert len(set(names)) == len(names), {name for name in names if names.count(name) > 1}
    return cases


CASES = _all()
