"""NVIDIA's JPEG library: that of DALI's wheel comes first, and tells its version."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import nvidia
import pytest

from fastdata.engines.dali.options import nvjpeg_notes

PROGRAM = "import fastdata.nvjpeg; print(fastdata.nvjpeg.loaded_version(99))"


@pytest.mark.parametrize("dali", [True, False])
def test_the_library_beside_dali_is_loaded_by_importing_fastdata(
    dali: bool, tmp_path: Path
) -> None:
    [library] = Path(nvidia.__path__[0]).glob("*/lib/libnvjpeg.so.*")
    name = library.name.encode()
    copy = tmp_path / "nvidia" / "any" / "lib" / "libnvjpeg.so.99"
    copy.parent.mkdir(parents=True)
    # A library is found again by its own name.
    copy.write_bytes(library.read_bytes().replace(name, b"libnvjpeg.so.99"))
    (tmp_path / "nvidia" / "__init__.py").touch()
    if dali:
        (tmp_path / "nvidia" / "dali").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    package = {b"libnvjpeg.so.12": "nvidia-nvjpeg-cu12", b"libnvjpeg.so.13": "nvidia-nvjpeg"}[name]
    major, minor, *_ = importlib.metadata.version(package).split(".")
    assert done.stdout == (f"({major}, {minor})\n" if dali else "None\n")


def test_a_stand_in_for_the_package_is_no_hindrance() -> None:
    code = "import sys, types; sys.modules['nvidia'] = types.ModuleType('nvidia'); import fastdata"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("wheel", "version", "installed", "fancy", "expected"),
    [
        (13000, (13, 3), "13.3.2.43", True, None),
        (13000, (13, 2), "13.2", True, None),
        (13000, None, None, True, None),
        (13000, (13, 0), "13.3", False, None),
        (13000, (13, 0), "13.3", True, "nvJPEG 13.0 .* import fastdata before torchvision"),
        (13000, (13, 0), "13.0.1", True, "nvJPEG 13.0 .* pip install -U nvidia-nvjpeg;"),
        (13000, (13, 1), None, True, "nvJPEG 13.1 .* pip install -U nvidia-nvjpeg;"),
        (12090, (12, 4), None, True, "nvJPEG 12.4 .* install nvidia-dali-cuda130, not -cuda120"),
    ],
)
def test_an_older_one_is_named_with_a_way_out(
    wheel: int,
    version: tuple[int, int] | None,
    installed: str | None,
    fancy: bool,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nvidia.dali.__cuda_version__", wheel)
    asked = []

    def loaded(cuda: int) -> tuple[int, int] | None:
        asked.append(cuda)
        return version

    def version_of(package: str) -> str:
        assert package == "nvidia-nvjpeg"
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr("fastdata.engines.dali.options.loaded_version", loaded)
    monkeypatch.setattr("importlib.metadata.version", version_of)
    notes = nvjpeg_notes({"jpeg_fancy_upsampling": fancy})
    assert asked == [wheel // 1000]
    if expected is None:
        assert notes == []
    else:
        [note] = notes
        assert re.search(expected, note)
