"""PlanProcess: plans made by a process of its own.

Where the device does all the work, what the training's own process does for each batch is the
limit. A thread that plans beside it would share its interpreter, one numpy call at a time.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from fastdata.errors import WorkerError

__all__ = ["PlanProcess", "serve"]

Answer = TypeVar("Answer")
_PATIENCE = 5.0  # seconds until a process that does not end is killed
_PROGRAM = "import sys; sys.path[:] = {!r}; from fastdata.plan_process import serve; serve()"


class PlanProcess(Generic[Answer]):
    """Calls a function in a process of its own, which starts with the first call.

    That is a new interpreter and no fork, for which a process that uses CUDA is no place; and it
    imports neither torch nor the program that trains.
    """

    def __init__(self, function: Callable[..., Answer]) -> None:
        """
        Args:
            function: can be pickled, as its arguments and what it returns.
        """
        self._function = function
        self._process: subprocess.Popen[bytes] | None = None
        self._pending: deque[Pending[Answer]] = deque()
        self._end: Callable[[], Any] = lambda: None

    def submit(self, *arguments: Any) -> Pending[Answer]:
        """Begin a call; several are carried out one after the other.

        Raises:
            WorkerError: the process cannot be started, or has ended.
        """
        if self._process is None:
            self._start()
        pending = Pending(self)
        self._send(arguments)
        self._pending.append(pending)
        return pending

    def _start(self) -> None:
        command = [sys.executable, "-c", _PROGRAM.format(sys.path)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            # Out of the terminal's group: a Ctrl-C is the training's to answer.
            self._process = subprocess.Popen(command, **pipes, start_new_session=True)
        except OSError as error:
            raise WorkerError(
                f"the process that plans batches cannot be started: {error}"
            ) from None
        self._end = weakref.finalize(self, _end, self._process, os.getpid())
        self._send(self._function)

    def _send(self, message: Any) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None
        except BaseException:  # a part of it may have been sent
            self.close()
            raise

    def _receive(self) -> None:
        """Take the answer of the oldest call."""
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)  # of a process of ours
        except (EOFError, pickle.UnpicklingError):
            raise self._died() from None
        except BaseException:  # such as Ctrl-C: a part of it may have been read
            self.close()
            raise
        self._pending.popleft().answer(answer)

    def _died(self) -> WorkerError:
        assert self._process is not None
        process = self._process
        self.close()
        return WorkerError(
            f"the process that plans batches, {process.pid}, has ended with exit code "
            f"{process.returncode} (-9: killed, often for want of memory); iterating again starts "
            "another"
        )

    def close(self) -> None:
        """End the process; what was begun has no answer then. The next call starts another."""
        self._end()
        self._process = None
        while self._pending:
            self._pending.popleft().answer(WorkerError("the process that plans batches was ended"))


class Pending(Generic[Answer]):
    """A call that was begun."""

    def __init__(self, process: PlanProcess[Answer]) -> None:
        self._process = process
        self._answers: list[Any] = []

    def answer(self, answer: Any) -> None:
        """What the process says."""
        self._answers.append(answer)

    def result(self) -> Answer:
        """What the function returned, as soon as it is there; what it raised is raised.

        Raises:
            WorkerError: the process has ended.
        """
        while not self._answers:
            self._process._receive()
        [answer] = self._answers
        if isinstance(answer, Exception):
            raise answer
        result: Answer = answer
        return result


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork's copy of what is not its own
        return
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            pipe.close()  # which ends it
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def serve() -> None:
    """The process: a function comes by its standard input, and then arguments until that ends."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        function = pickle.load(source)
        while True:
            arguments = pickle.load(source)
            try:
                answer = function(*arguments)
            except Exception as error:
                answer = error
            pickle.dump(answer, target, pickle.HIGHEST_PROTOCOL)
            target.flush()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        os._exit(0)  # the training has ended, or asks no more; nothing is left to be written
