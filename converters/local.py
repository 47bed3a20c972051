"""Carrying out a plan's shards in processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import fastdata.errors
from fastdata.errors import FastdataError, WorkerError

__all__ = ["run_shards"]


def run_shards(
    staging: Path,
    shards: Iterable[int],
    workers: int,
    on_error: str,
    progress: Callable[[int, int], None],
) -> None:
    """Write shards of the plan in ``staging`` by ``workers`` processes.

    Args:
        staging: folder with the plan.
        shards: numbers of the shards to write.
        workers: number of processes.
        on_error: ``"raise"`` or ``"skip"``, for images that are at fault.
        progress: called with the numbers of images done, and left out, since the last call; it may
            raise to end the work.

    Raises:
        FastdataError: the first error of any worker; the others are ended.
        WorkerError: a worker died.
    """
    queue = list(shards)[::-1]
    pool = [_Worker(staging, on_error) for _ in range(min(workers, len(queue)))]
    try:
        with selectors.DefaultSelector() as selector:
            for worker in pool:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
                worker.start(queue.pop())
            busy = len(pool)
            while busy:
                for key, _ in selector.select():
                    worker = key.data
                    for answer in worker.read():
                        if "images" in answer:
                            progress(answer["images"], answer["skipped"])
                        elif "done" not in answer:
                            raise _error(answer)
                        elif queue:
                            worker.start(queue.pop())
                        else:
                            busy -= 1
                            selector.unregister(worker.answers)
    finally:
        for worker in pool:
            worker.end()


class _Worker:
    """A worker process and the two pipes to it."""

    def __init__(self, staging: Path, on_error: str) -> None:
        self.shard = -1
        command = [sys.executable, "-m", "converters.worker", os.fspath(staging), on_error]
        # The child imports what this process imports. Python puts the working directory first,
        # so that is one without modules.
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        environment = {**os.environ, "PYTHONPATH": paths}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            cwd=staging,
            start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its workers
        )
        assert self._process.stdout is not None
        self.answers = self._process.stdout
        self._rest = b""

    def start(self, shard: int) -> None:
        """Give it a shard."""
        self.shard = shard
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its answers say why
            self._process.stdin.write(b"%d\n" % shard)
            self._process.stdin.flush()

    def read(self) -> list[dict[str, Any]]:
        """The answers that have come, at least a part of one.

        Raises:
            WorkerError: the process has ended.
        """
        data = os.read(self.answers.fileno(), 1 << 16)
        if not data:
            raise WorkerError(self._obituary())
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def _obituary(self) -> str:
        code = self._process.wait()
        how = f"with exit code {code}"
        if code < 0:
            how = f"by signal {-code} ({signal.Signals(-code).name})"
        hint = (
            "; the system may have run out of memory: try fewer --workers"
            if code == -signal.SIGKILL
            else ""
        )
        return (
            f"a worker process ended {how} while it wrote shard {self.shard}{hint}; "
            "run the same command again to resume"
        )

    def end(self) -> None:
        """End the process, at once if it still works."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()
        self.answers.close()


def _error(answer: dict[str, Any]) -> FastdataError:
    kind = getattr(fastdata.errors, answer["error"], WorkerError)
    error: FastdataError = kind(*answer["args"])
    return error
