"""README states what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench import readme
from bench.figures import load

MACHINE: dict[str, Any] = {
    "date": "2026-02-01",
    "cpus": 2,
    "cpu": "B",
    "python": "3.12",
    "versions": {"torch": "2.11", "torchvision": "0.26"},
}


def test_figures_are_those_of_the_results() -> None:
    expected = readme.render(load(readme.RESULTS))
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
    text = readme.render(load(tmp_path))
    assert "2,000,000 files" in text
    assert "1,000,000 files" not in text


def test_reports_of_other_parts_are_left_alone(tmp_path: Path) -> None:
    tables = [{"title": "fastdata on photos", "loading": {}}]
    run = {"environment": {"date": "2026-02-01"}, "tables": tables}
    (tmp_path / "run.jsonl").write_text(json.dumps(run) + "\n")
    assert readme.render(load(tmp_path)) == ""


def test_without_results_nothing_is_stated(tmp_path: Path) -> None:
    assert readme.render(load(tmp_path)) == ""


def test_gpus_have_tables_of_their_own(tmp_path: Path) -> None:
    def ranks(count: int, share: float) -> dict[str, Any]:
        rows = {f"rank {i}": {"ratio": [share + i / 100, 0, 0]} for i in range(count)}
        return {"title": f"resnet18, {count} x batch 512, direct", "rows": rows, "seen_once": 9}

    loading = {
        "title": "s256: images/s on the GPU, float16 224x224, batch 512, 16 workers",
        "rows": {"dali": {"samples": [1, 25_000, 90_000], "runs": [{"cpu_seconds": 3.25}]}},
    }
    training = {
        "title": "s256: resnet18 fed to cached",
        "rows": {"dali": {"fed": [12_000.0], "ratio": [0.975, 0.97, 0.98]}},
    }
    tables = [loading, training, ranks(1, 0.996), ranks(2, 0.985)]
    run = {"environment": MACHINE | {"gpu": "GPU A", "cpus": 16}, "tables": tables}
    (tmp_path / "a.json").write_text(json.dumps(run))
    text = readme.render(load(tmp_path))
    assert "| dali | 25,000 (3.2) |" in text
    assert "GPU A, 16 cores" in text
    assert "| dali | 12,000 (97.5%, 97.0% to 98.0%) |" in text
    assert "On 2 GPUs of a host the slowest rank trains at 98.5%" in text
    assert "one alone at 99.6%" in text


def test_who_is_missing_is_named_with_the_reason(tmp_path: Path) -> None:
    def table(name: str, missing: dict[str, str]) -> dict[str, Any]:
        figures = {"samples": [1.0], "reference_to_it": [1, 1, 1]}
        row = figures | {"first_batch_seconds": [[1.0, 0.1]]}
        rows = {"fastdata workers": row, "other": row}
        return {"title": f"{name}: images/s, 2 workers", "rows": rows, "missing": missing}

    tables = [
        table("orig", {"A": "not installed", "B": "not installed", "C": "it failed"}),
        table("s256", {"A": "not installed", "B": "not installed"}),
    ]
    (tmp_path / "a.json").write_text(json.dumps({"environment": MACHINE, "tables": tables}))
    text = readme.render(load(tmp_path))
    assert (
        "Not measured: A, B (originals, short side 256): not installed; C (originals): it failed.\n"
    ) in text


def test_tables_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    def run(cpus: int, date: str, name: str, commit: str) -> dict[str, Any]:
        row = {"samples": [2.0], "ratio": [2.0, 1.0, 3.0]}
        base = "ImageFolder + DataLoader"
        rows = {base: row, f"fastdata on {cpus}": row}
        environment = MACHINE | {"cpus": cpus, "date": date, "commit": commit}
        return {
            "environment": environment,
            "tables": [{"title": f"{name}: images/s", "baseline": base, "rows": rows}],
        }

    runs = [
        run(16, "2026-01-01", "s256", "aaa"),
        run(2, "2026-01-02", "orig", "bbb"),
        run(2, "2026-01-03", "t32", "ccc"),
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    text = readme.render(load(tmp_path))
    assert "| fastdata on 2 | 2.0x (1.0 to 3.0) | 2.0x (1.0 to 3.0) |" in text
    assert "on 16" not in text
    assert "originals: 2 cores (B), Python 3.12, torch 2.11, torchvision 0.26, 2026-01-02" in text
    assert "2026-01-03, commit ccc" in text


def test_the_ladder_has_a_table_for_each_machine(tmp_path: Path) -> None:
    def run(date: str, gpu: str, model: str, rate: float, used: float | None) -> dict[str, Any]:
        fed = [{"rate": rate, "utilisation": used}]
        rows = {"memmap gather": {"models": {model: {"fed": fed, "share": [0.987, 0.9, 1.0]}}}}
        return {
            "environment": MACHINE | {"date": date, "gpu": gpu},
            "tables": [{"title": "The ladder, batch 8", "rows": rows}],
        }

    runs = [
        run("2026-01-01", "GPU A", "resnet18", 1.0, 5.0),
        run("2026-01-02", "GPU A", "resnet18", 12_345.0, 93.4),
        run("2026-01-03", "none", "small", 678.0, None),
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    text = readme.render(load(tmp_path))
    assert text.count("| memmap gather |") == 2
    assert "| memmap gather | 12,345 (98.7%, 93% used) |" in text
    assert "| memmap gather | 678 (98.7%) |" in text


def test_the_tuner_has_a_line_for_each_machine(tmp_path: Path) -> None:
    def run(date: str, gpu: str, setup: str, reached: float, errors: list[float]) -> dict[str, Any]:
        row = {"reached": reached, "errors": errors}
        table = {"title": f"tuner beside a grid: {setup}", "rows": {setup: row}}
        return {"environment": {"date": date, "gpu": gpu}, "tables": [table]}

    runs = [
        run("2026-01-01", "none", "folder", 0.2, [9.0]),
        run("2026-01-02", "none", "folder", 0.96, [-0.3, 0.1]),
        run("2026-01-03", "none", "memmap", 0.94, [0.2]),
        run("2026-01-04", "GPU A", "folder", 1.0, [0.05]),
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    text = readme.render(load(tmp_path))
    assert "in 1 of 2 set-ups, and its predictions were off by 20%" in text
    assert "in 1 of 1 set-ups on a machine with GPU A, and its predictions were off by 5%" in text


def test_who_does_less_than_asked_is_no_peer(tmp_path: Path) -> None:
    def row(rate: float, **more: Any) -> dict[str, Any]:
        figures = {"samples": [rate, rate], "reference_to_it": [1, 1, 1], **more}
        return {**figures, "first_batch_seconds": [[1.0, 0.1]]}

    rows = {
        "fastdata workers": row(300),
        "honest": row(100, outputs={"faults": []}),
        "hasty": row(900, outputs={"faults": ["half of its pixels"]}),
    }
    table = {"title": "orig: images/s", "rows": rows}
    run = {"environment": MACHINE, "tables": [table]}
    (tmp_path / "a.json").write_text(json.dumps(run))
    text = readme.render(load(tmp_path))
    assert "| honest | 3.0x" in text
    assert "hasty" not in text
