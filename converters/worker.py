"""The program of a conversion's worker process: ``python -m converters.worker STAGING ON_ERROR``.

It reads shard numbers from its standard input, a line each, and answers in JSON lines. A program
of its own instead of multiprocessing: it inherits no threads, locks or CUDA state of the caller's,
and the caller's script needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from fastdata.errors import FastdataError

__all__ = ["main"]

_REPORT_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Write shards until the standard input ends."""
    answers = _private_stdout()
    try:
        _die_with_parent()
        # Imported here, so that a failure to import is an answer as well.
        import cv2

        from converters.plan import Plan
        from converters.write import ShardWriter
        from fastdata.machine import keep_freed_memory

        keep_freed_memory()
        cv2.setNumThreads(0)  # one process a core: OpenCV's own threads would only contend
        staging = Path(os.fsdecode(arguments[0]))
        plan = Plan.load(staging)
        if plan.options.augment is not None:
            _one_torch_thread()
        writer = ShardWriter(plan, staging, arguments[1])
        for line in sys.stdin:
            shard = int(line)
            progress = _Progress(answers)
            writer.write(shard, progress)
            progress.flush()
            _answer(answers, done=shard)
    except FastdataError as error:
        _answer(answers, error=type(error).__name__, args=[str(part) for part in error.args])
        return error.exit_code
    except (KeyboardInterrupt, BrokenPipeError):
        return 130
    except ImportError as error:
        _answer(answers, error="WorkerError", args=[f"a worker process cannot start: {error}"])
        return 1
    except Exception:
        _answer(answers, error="WorkerError", args=[traceback.format_exc()])
        return 1
    return 0


def _one_torch_thread() -> None:
    """What augmentations run on: one process a core, and the same sums on every machine."""
    try:
        import torch
    except ImportError:
        return
    torch.set_num_threads(1)


class _Progress:
    """Counts images and reports them now and then."""

    def __init__(self, answers: TextIO) -> None:
        self._answers = answers
        self._images = self._skipped = 0
        self._next = time.monotonic() + _REPORT_SECONDS

    def __call__(self, images: int, skipped: int) -> None:
        self._images += images
        self._skipped += skipped
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        _answer(self._answers, images=self._images, skipped=self._skipped)
        self._images = self._skipped = 0
        self._next = time.monotonic() + _REPORT_SECONDS


def _answer(answers: TextIO, **fields: Any) -> None:
    answers.write(json.dumps(fields) + "\n")
    answers.flush()


def _private_stdout() -> TextIO:
    """The pipe to the parent; what else is printed in this process goes to its stderr."""
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "w", encoding="ascii")


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent is: nobody else writes to the staging folder
    when the conversion is resumed."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
