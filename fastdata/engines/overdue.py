"""Workers that send nothing any more: a wait that would not end becomes an error."""

from __future__ import annotations

import math
import weakref
from pathlib import Path
from typing import Any

from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from fastdata.engines import Settings
from fastdata.errors import UsageError, WorkerError

__all__ = ["TIMEOUT", "limit_waiting", "parse_timeout"]

TIMEOUT = "timeout"
"""The name of the option."""
_SECONDS = 600.0
_STATES = {
    "R": "it computes",
    "D": "it waits for storage",
    "S": "it sleeps, as one does that waits for a lock, a process or the network",
    "T": "it was stopped",
}


def parse_timeout(settings: Settings) -> float:
    """The option ``timeout`` of an engine.

    Raises:
        UsageError: it is no number of seconds.
    """
    seconds = settings.options.get(TIMEOUT, _SECONDS)
    known = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not known or not math.isfinite(seconds) or seconds < 0:
        raise UsageError(
            f"expected {TIMEOUT} to be a number of seconds, or 0 for waiting on, got {seconds!r}"
        )
    return float(seconds)


def limit_waiting(received: Any, seconds: float) -> None:
    """Let an iterator of a DataLoader raise WorkerError where no worker sends anything for so many
    seconds, 0 for never; rounded up to whole times of torch's looks for dead workers, 5 s.

    The DataLoader's own timeout would not look for them. Looks are counted and no time is taken,
    because this process may be stopped in between.
    """
    if not seconds:
        return
    most = math.ceil(seconds / MP_STATUS_CHECK_INTERVAL)
    look, reference, missed = type(received)._try_get_data, weakref.ref(received), 0

    def patient(timeout: float = MP_STATUS_CHECK_INTERVAL) -> Any:
        nonlocal missed
        iterator = reference()
        found = look(iterator, timeout)
        missed = 0 if found[0] else missed + 1
        if missed >= most:
            raise WorkerError(_overdue(iterator, seconds))
        return found

    received._try_get_data = patient


def _overdue(received: Any, seconds: float) -> str:
    task = received._task_info.get(received._rcvd_idx)  # None: what was abandoned is waited for
    worker = received._workers[task[0] if task else 0].pid
    return (
        f"no worker has sent anything for {seconds:g} s; process {worker}, which is the next one "
        f"to send a batch: {_state(worker)}. If it never sent one, it may wait for a lock that "
        "this process held when it was forked: engine_options={'start_method': 'forkserver'} "
        "starts workers without. If batches do take so long, raise engine_options="
        f"{{{TIMEOUT!r}: ...}}"
    )


def _state(process: int) -> str:
    try:
        letter = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "nothing is known of it"
    return _STATES.get(letter, f"its state is {letter}")
