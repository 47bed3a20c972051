"""PlanProcess: a function called in another process; how that ends."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastdata.errors import UsageError, WorkerError
from fastdata.plan_process import PlanProcess

PATIENCE = 30.0  # until a test fails instead of hanging


def who(number: int) -> tuple[int, int]:
    """Its argument, and the process that it ran in."""
    os.write(1, b"this is no answer")
    return number, os.getpid()


def much(size: int) -> bytes:
    """More than a pipe holds."""
    return bytes(size)


def refuse(what: str) -> None:
    raise UsageError(f"cannot plan {what}")


def stop(pid: int, finalizer: Callable[[Callable[[], None]], None]) -> None:
    """Let a process do nothing more, not even end, until the test is over."""
    os.kill(pid, signal.SIGSTOP)

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    finalizer(end)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pid: int) -> None:
    end = time.monotonic() + PATIENCE
    while is_running(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        time.sleep(0.01)


def test_answers_come_in_whatever_order_they_are_asked_for() -> None:
    process = PlanProcess(who)
    pending = [process.submit(number) for number in range(5)]
    found = [pending[at].result() for at in (3, 0, 4, 1, 2)]
    assert [number for number, _ in found] == [3, 0, 4, 1, 2]
    [pid] = {pid for _, pid in found}
    assert pid != os.getpid()
    assert pending[0].result() == (0, pid)
    process.close()
    assert not is_running(pid)


def test_an_error_is_raised_for_who_asked() -> None:
    process = PlanProcess(refuse)
    first, second = process.submit("one"), process.submit("two")
    with pytest.raises(UsageError, match="cannot plan two"):
        second.result()
    with pytest.raises(UsageError, match="cannot plan one"):
        first.result()
    process.close()


def test_a_process_that_is_killed_is_a_worker_error_and_another_one_starts(
    request: pytest.FixtureRequest,
) -> None:
    process = PlanProcess(who)
    _, pid = process.submit(1).result()
    stop(pid, request.addfinalizer)  # so that it cannot answer before it is killed
    pending, other = process.submit(2), process.submit(3)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match=rf"plans batches, {pid}, .*exit code -9"):
        pending.result()
    with pytest.raises(WorkerError):
        other.result()
    number, successor = process.submit(4).result()
    assert number == 4
    assert successor != pid
    process.close()


def test_a_call_after_its_process_has_ended_is_a_worker_error() -> None:
    process = PlanProcess(who)
    _, pid = process.submit(1).result()
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    with pytest.raises(WorkerError, match=str(pid)):  # at the latest when the answer is wanted
        process.submit(2).result()
    process.close()


def test_what_was_begun_is_no_hindrance_to_an_end() -> None:
    process = PlanProcess(much)
    assert len(process.submit(3_000_000).result()) == 3_000_000
    pending = [process.submit(3_000_000) for _ in range(3)]
    process.close()
    with pytest.raises(WorkerError):
        pending[0].result()
    assert len(process.submit(5).result()) == 5
    process.close()
    process.close()


def test_who_is_interrupted_may_ask_again(request: pytest.FixtureRequest) -> None:
    process = PlanProcess(who)
    _, pid = process.submit(1).result()
    stop(pid, request.addfinalizer)
    pending = process.submit(2)
    whom = threading.main_thread().ident
    interrupt = threading.Timer(0.2, signal.pthread_kill, [whom, signal.SIGINT])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait() -> None:
        interrupt.start()
        pending.result()

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        interrupt.join()
        signal.signal(signal.SIGINT, before)
    number, successor = process.submit(3).result()
    assert (number, successor != pid) == (3, True)
    process.close()


def test_a_process_that_is_forgotten_ends() -> None:
    process = PlanProcess(who)
    pid = process.submit(1).result()[1]
    pending = process.submit(2)
    gc.disable()  # no collection is needed for it
    try:
        del process
        wait_until_gone(pid)
    finally:
        gc.enable()
    with pytest.raises(WorkerError):
        pending.result()


def test_calls_whose_answers_nobody_wants_do_not_pile_up() -> None:
    process = PlanProcess(much)
    for _ in range(200):  # each more than a pipe holds
        process.submit(200_000)
    assert len(process.submit(7).result()) == 7
    process.close()


def test_a_fork_that_lives_on_does_not_hold_up_its_end() -> None:
    process = PlanProcess(who)
    pid = process.submit(1).result()[1]
    child = os.fork()
    if child == 0:  # keeps the pipes open
        time.sleep(PATIENCE)
        os._exit(0)
    try:
        process.close()
        assert not is_running(pid)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_it_finds_its_modules_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [tmp_path, "", *sys.path])  # a Path is no entry of it
    process = PlanProcess(who)
    assert process.submit(1).result()[0] == 1
    process.close()


def test_the_end_of_a_fork_is_not_its_end() -> None:
    process = PlanProcess(who)
    pid = process.submit(1).result()[1]
    child = os.fork()
    if child == 0:
        process.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert process.submit(2).result() == (2, pid)
    process.close()


PROGRAM = """
import sys, time
from fastdata.plan_process import PlanProcess
from tests.test_plan_process import who
process = PlanProcess(who)
print(process.submit(1).result()[1], flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_the_training(how: signal.Signals) -> None:
    def own_signals() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    command = [sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env=environment, preexec_fn=own_signals
    ) as training:
        assert training.stdout is not None
        pid = int(training.stdout.readline())
        assert is_running(pid)
        training.send_signal(how)
        training.wait(PATIENCE)
    wait_until_gone(pid)
