"""bench.decoder needs DALI, which `make bench-smoke` does not install: here it runs, briefly."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_option_runs_on_the_cpu(make_folder: Callable[..., Path], tmp_path: Path) -> None:
    settings = ["1x1", "2x1+full", "1x1+files", "2x1+files+read"]
    command = [sys.executable, "-W", "ignore", "-m", "bench.decoder", str(make_folder({"a": 9}))]
    command += ["--settings", ",".join(settings), "--batch", "6", "--seconds", "0.05"]
    command += ["--model", "shufflenet_v2_x0_5", "--rounds", "2", "--json", str(tmp_path / "made")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    [table] = json.loads((tmp_path / "made").read_text())["tables"]
    for name in settings:
        row = table["rows"][name]
        assert len(row["alone"]) == len(row["beside"]) == 2
        assert min(row["alone"] + row["beside"]) > 0
