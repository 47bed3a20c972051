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
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from fastdata.errors import WorkerError

__all__ = ["PlanProcess", "serve"]

Answer = TypeVar("Answer")
_MOST_PENDING = 4  # calls without an answer; more would fill both pipes, and both sides wait
_PATIENCE = 2.0  # seconds
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
        while len(self._pending) >= _MOST_PENDING:
            self._receive()
        pending = Pending(self)
        with self._whole():
            self._pending.append(pending)
            assert self._process is not None
            _send(self._process, arguments)
        return pending

    def _start(self) -> None:
        # What is found from another working directory, too, and by this interpreter's own path.
        path = [os.path.abspath(place) for place in sys.path if isinstance(place, str)]
        command = [sys.executable, "-c", _PROGRAM.format(path)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        try:
            # Out of the terminal's group: a Ctrl-C is the training's to answer.
            process = subprocess.Popen(command, **pipes, start_new_session=True)
            _send(process, self._function)
        except (OSError, TypeError) as error:  # TypeError: nobody knows the interpreter's path
            raise WorkerError(
                f"the process that plans batches cannot be started: {error}"
            ) from None
        self._end = weakref.finalize(self, _end, process, os.getpid())
        self._process = process

    def _receive(self) -> None:
        """Take the answer of the oldest call."""
        with self._whole():
            assert self._process is not None
            assert self._process.stdout is not None
            answer = pickle.load(self._process.stdout)  # of a process of ours
            self._pending.popleft().answer(answer)

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """A message that is not sent or received as a whole, be it for a Ctrl-C, is the last."""
        try:
            yield
        except (BrokenPipeError, EOFError, pickle.UnpicklingError):
            raise self._died() from None
        except BaseException:
            self.close()
            raise

    def _died(self) -> WorkerError:
        assert self._process is not None
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE)  # for its own exit code
        self.close()
        return WorkerError(
            f"the process that plans batches, {process.pid}, has ended with exit code "
            f"{process.returncode} (-9: killed, often for want of memory); iterating again starts "
            "another"
        )

    def close(self) -> None:
        """End the process; what was begun has no answer then. The next call starts another."""
        self._process = None
        while self._pending:
            self._pending.popleft().answer(WorkerError("the process that plans batches was ended"))
        self._end()


class Pending(Generic[Answer]):
    """A call that was begun."""

    def __init__(self, process: PlanProcess[Answer]) -> None:
        self._process = weakref.ref(process)
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
            process = self._process()
            if process is None:
                raise WorkerError("the process that plans batches was ended")
            process._receive()
        [answer] = self._answers
        if isinstance(answer, Exception):
            raise answer
        result: Answer = answer
        return result


def _send(process: subprocess.Popen[bytes], message: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
    process.stdin.flush()


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # a fork's copy of what is not its own
        return
    process.kill()  # it has nothing to save, and a fork may keep its pipes open
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError):  # what is left to be written
            pipe.close()


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
