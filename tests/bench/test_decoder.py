"""bench.decoder needs DALI, which `make bench-smoke` does not install: here it runs, briefly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        ("1x1,2x1+full,2x1+turns,1x1+files,2x1+files+map+peek+read", "none"),
        ("1x1", "shufflenet_v2_x0_5"),
    ],
)
def test_every_option_runs_on_the_cpu(
    settings: str, model: str, make_folder: Callable[..., Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "ignore", "-m", "bench.decoder", str(make_folder({"a": 9}))]
    command += ["--settings", settings, "--batch", "2", "--seconds", "0.02", "--rounds", "1"]
    command += ["--model", model, "--json", str(tmp_path / "made")]
    few = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=few, timeout=120
    )
    assert done.returncode == 0, done.stderr
    [table] = json.loads((tmp_path / "made").read_text())["tables"]
    for name in settings.split(","):
        [alone] = table["rows"][name]["alone"]
        beside = table["rows"][name]["beside"]
        assert len(beside) == (model != "none")
        assert min([alone, *beside]) > 0
