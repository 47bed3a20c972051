"""The contract of bench.peers: what each module names, and what its commands print."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers import PEERS
from bench.peers.common import JPEG_SETS, RAW_SETS
from fastdata.demo.images import write_folder

ROOT = Path(__file__).parents[2]
LIMIT = 120  # seconds; nothing comes near it unless something hangs


@pytest.mark.parametrize("name", PEERS)
def test_a_module_says_what_it_is_without_its_library(name: str) -> None:
    module = importlib.import_module(f"bench.peers.{name}")
    assert module.TITLES
    assert module.INSTALL
    assert set(module.SETS) <= {*JPEG_SETS, *RAW_SETS}
    assert set(getattr(module, "AHEAD", {})) <= set(module.SETS)


def run(*words: str) -> str:
    command = [sys.executable, "-m", "bench.peers.torchvision", *words]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_torchvision_prints_what_it_is_asked_for(tmp_path: Path) -> None:
    write_folder(tmp_path, 40, sizes=[(32, 32)])
    found = json.loads(run("outputs", str(tmp_path), "t32", "8", "0", "io"))
    assert found["shapes"] == [[32, 32, 3]]
    assert found["dtypes"] == ["uint8"]
    assert sorted(found["labels"]) == sorted(list(range(10)) * 4)
    first, imported, cpu, rate = map(
        float, run("rate", str(tmp_path), "t32", "8", "0", "0.1", "io").split()
    )
    assert first > imported > 0
    assert cpu > 0
    assert rate > 0
