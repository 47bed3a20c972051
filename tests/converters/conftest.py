"""What the converter's tests share: images made by Pillow, digests, and processes to hurt."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import fastdata

REPOSITORY = Path(fastdata.__file__).parent.parent
HANG_GUARD = 120  # seconds; no test comes near it unless something hangs

# Runs a program without the right to ignore file permissions, which root has: capabilities that
# are dropped from the bounding set are gone after the exec. For other users nothing changes.
UNPRIVILEGED = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""


@pytest.fixture(scope="session")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory where the system has one: a conversion syncs each of its files, and
    these tests convert hundreds of times. The formats' own tests stay on a real disk."""
    shared = Path("/dev/shm")
    if not (os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 1 << 30):
        yield tmp_path_factory.mktemp("memory")
        return
    folder = tempfile.mkdtemp(prefix="fastdata-tests-", dir=shared)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture
def tmp_path(memory: Path) -> Iterator[Path]:
    """As pytest's own, but in memory, and gone after the test."""
    with tempfile.TemporaryDirectory(prefix="test-", dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def pixels() -> Callable[..., NDArray[np.uint8]]:
    """Make a smooth, colourful picture: ``pixels(width, height, seed=0)``, uint8 [h, w, 3].

    Smooth, so that JPEG keeps it to a few grey levels; no symmetry, so that turning, mirroring or
    swapping colour channels shows.
    """

    def make(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
        generator = np.random.default_rng(seed)
        coarse = generator.integers(0, 256, (4, 5, 3), np.uint8)
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        return np.array(image)

    return make


@pytest.fixture
def encode() -> Callable[..., bytes]:
    """Encode pixels by Pillow: ``encode(pixels, format="JPEG", mode="RGB", **save options)``."""

    def encode(
        pixels: NDArray[np.uint8], format: str = "JPEG", mode: str = "RGB", **options: Any
    ) -> bytes:
        buffer = io.BytesIO()
        defaults: dict[str, Any] = {"quality": 95, "subsampling": 0} if format == "JPEG" else {}
        Image.fromarray(pixels).convert(mode).save(buffer, format, **{**defaults, **options})
        return buffer.getvalue()

    return encode


@pytest.fixture
def digests() -> Callable[[Path], dict[str, str]]:
    """SHA-256 of every file below a folder, hidden ones and staging included."""

    def digest(root: Path) -> dict[str, str]:
        return {
            os.fsdecode(os.path.relpath(path, root)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(root.rglob("*"))
            if path.is_file()
        }

    return digest


@pytest.fixture
def python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program: ``python(code, argument, ...)``; arguments reach it as ``sys.argv[1:]``.

    Args of the function: wrap: command to run it under; unprivileged: without root's right to
    ignore permissions; cwd, env: as subprocess has them.
    """

    def run(
        code: str,
        *arguments: object,
        wrap: list[str] | None = None,
        unprivileged: bool = False,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        program = [UNPRIVILEGED, code] if unprivileged else [code]
        return subprocess.run(
            [*(wrap or []), sys.executable, "-c", *program, *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(env or {})},
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=HANG_GUARD,
            check=False,
        )

    return run


@pytest.fixture
def start() -> Any:
    """Start a conversion in a process of its own: ``start(src, dst, **options)`` -> Popen.

    It leads a process group, as a shell's foreground job does. What is left of it at the end of
    the test is killed.
    """
    code = "import json, sys; from fastdata import convert; convert(**json.loads(sys.argv[1]))"
    started: list[subprocess.Popen[str]] = []

    def begin(src: Path, dst: Path, **options: Any) -> subprocess.Popen[str]:
        arguments = json.dumps({"src": str(src), "dst": str(dst), **options})
        process = subprocess.Popen(
            [sys.executable, "-c", code, arguments],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Interrupted(BaseException):
    """Raised by :class:`Interrupter`; no Exception, like KeyboardInterrupt."""


class Interrupter:
    """A progress that ends the conversion from inside after a number of images."""

    def __init__(self, images: int) -> None:
        self._left = images

    def scanned(self, images: int) -> None: ...

    def planned(self, images: int, done: int) -> None: ...

    def converted(self, images: int) -> None:
        self._left -= images
        if self._left <= 0:
            raise Interrupted

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def interrupt() -> Callable[..., None]:
    """Run a conversion and end it in the middle: ``interrupt(src, dst, images=1, **options)``."""

    def run(src: Path, dst: Path, images: int = 1, **options: Any) -> None:
        with pytest.raises(Interrupted):
            fastdata.convert(src, dst, progress=Interrupter(images), workers=1, **options)

    return run
