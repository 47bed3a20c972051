"""README states what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import readme


def test_figures_are_those_of_the_results() -> None:
    expected = readme.render(readme.load(readme.RESULTS))
    assert readme.written() == expected, (
        "README.md does not state what bench/results says; run: python -m bench.readme"
    )


def test_the_newest_result_of_a_table_counts(tmp_path: Path) -> None:
    def run(date: str, files: int) -> dict[str, Any]:
        rows = {"files": files, "seconds": 5.0, "megabytes": 205.0}
        return {"environment": {"date": date}, "tables": [{"title": "scanning", "rows": rows}]}

    runs = [run("2026-02-01", 2_000_000), run("2026-01-01", 1_000_000)]
    (tmp_path / "b.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    (tmp_path / "a.json").write_text(json.dumps(run("2026-01-15", 3)))
    text = readme.render(readme.load(tmp_path))
    assert "2,000,000 files" in text
    assert "1,000,000 files" not in text


def test_without_results_nothing_is_stated(tmp_path: Path) -> None:
    assert readme.render(readme.load(tmp_path)) == ""
