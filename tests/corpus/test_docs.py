"""The table in docs/formats.md is what the tests test."""

from __future__ import annotations

from pathlib import Path

import fastdata
from tests.corpus.table import BEGIN, END, table

FORMATS = Path(fastdata.__file__).parent.parent / "docs" / "formats.md"


def test_the_table_of_odd_files_is_up_to_date() -> None:
    text = FORMATS.read_text(encoding="utf-8")
    assert text.count(BEGIN) == 1
    found = text.partition(BEGIN)[2].partition(END)[0]
    assert found.strip() == table(), "run python -m tests.corpus.table, and put it there"
