"""The memory of a process and of all below it, watched while it works."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["Memory"]

_SECONDS = 0.1


class Memory:
    """A context in which a thread looks at this process's tree again and again.

    Counted is what is this tree's own: anonymous and shared memory, each page once. Pages of mapped
    files are the system's cache, and it takes them back.

    Attributes:
        peak: bytes, the most that was seen.
    """

    def __init__(self) -> None:
        self.peak = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while True:
            self.peak = max(self.peak, sum(map(_own, _tree())))
            if self._end.wait(_SECONDS):
                return


def _tree() -> list[int]:
    """This process and all below it."""
    found, left = [], [os.getpid()]
    while left:
        process = left.pop()
        found.append(process)
        for task in Path(f"/proc/{process}/task").glob("*/children"):
            try:
                left += map(int, task.read_text().split())
            except OSError:  # it has just ended
                continue
    return found


def _own(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has just ended
        return 0
    sizes = {line.split()[0]: int(line.split()[1]) for line in lines[1:]}
    return 1024 * (sizes.get("Pss_Anon:", 0) + sizes.get("Pss_Shmem:", 0))
