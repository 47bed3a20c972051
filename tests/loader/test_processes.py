"""The loader's processes: ended with it, and told of when they are killed."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fastdata import Recipe, make_loader
from fastdata.errors import ImageError, UsageError, WorkerError
from fastdata.interrupts import held_signals
from fastdata.plan import BatchPlan
from fastdata.planner import EpochPlanner
from fastdata.registry import READERS

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders


def identity(image: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(image)


@pytest.fixture
def wait_until_gone(children: Callable[[], set[int]]) -> Callable[[set[int]], None]:
    """Wait for the end of processes; the hang guard ends this where they stay."""

    def wait(processes: set[int]) -> None:
        while processes & children():
            time.sleep(0.01)

    return wait


ENDING = """
import sys
from fastdata import make_loader
options = {"engine": sys.argv[2], "recipe": "imagenet-train", "device": "cpu"}
loader = make_loader(sys.argv[1], 4, num_workers=2, **options)
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize(
    ("engine", "to"),
    [
        ("workers", "webdataset"),
        ("gather", "memmap"),
        ("dali-cpu", "webdataset"),
        ("dali-cpu", "folder"),
    ],
)
def test_a_program_may_end_in_the_middle_of_an_epoch(
    engine: str, to: str, in_format: Callable[..., Path], uniform: Path
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ENDING, str(in_format(to, uniform)), engine]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_closing_ends_all_processes_also_while_an_iterator_is_alive(
    packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    loader = make_loader(packed, 4, recipe=TRAIN, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    workers = children() - before
    assert len(workers) == 2
    loader.close()
    assert not workers & children()
    loader.close()  # once more does nothing
    with pytest.raises(UsageError, match="one iterator of a loader at a time"):
        next(iterator)


def test_a_closed_loader_starts_again_when_it_is_iterated(
    packed: Path,
    before: set[int],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
    children: Callable[[], set[int]],
    wait_until_gone: Callable[[set[int]], None],
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=2, with_index=True) as loader:
        for epoch in range(2):
            assert same(list(loader), run(packed, epoch=epoch))
            assert len(children() - before) == 2
            loader.close()
            wait_until_gone(children() - before)


def test_a_forgotten_loader_leaves_no_processes(
    packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    """At once: where it takes the collector of cycles to find the loader, torch's queues are
    collected first, the workers do not hear that they are to end, and 5 s pass for each."""
    loader = make_loader(packed, 4, recipe=TRAIN, num_workers=2)
    for _ in loader:
        break
    workers = children() - before
    assert len(workers) == 2
    gc.disable()
    try:
        del loader
        assert not workers & children()
    finally:
        gc.enable()


def test_an_interrupt_in_the_loop_leaves_no_processes(
    packed: Path,
    before: set[int],
    children: Callable[[], set[int]],
    wait_until_gone: Callable[[set[int]], None],
) -> None:
    workers: set[int] = set()

    def train() -> None:
        with make_loader(packed, 4, recipe=TRAIN, num_workers=2) as loader:
            for _ in loader:
                workers.update(children() - before)
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train()
    assert len(workers) == 2
    wait_until_gone(workers)


def test_an_interrupt_while_waiting_for_a_batch_leaves_no_processes(
    packed: Path,
    before: set[int],
    tmp_path: Path,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
    children: Callable[[], set[int]],
) -> None:
    parent, interrupted = os.getpid(), tmp_path / "interrupted"

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        with suppress(FileExistsError):
            os.close(os.open(interrupted, os.O_CREAT | os.O_EXCL))
            os.kill(parent, signal.SIGINT)
        return identity(image)

    options = {"num_workers": 1, "transform": transform, "with_index": True}
    with make_loader(packed, 4, recipe=TRAIN, **options) as loader:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
        assert children() == before
        loader.set_epoch(0)
        assert same(list(loader), run(packed, transform=identity))


@pytest.mark.parametrize("milliseconds", [0, 3, 6, 10, 15, 20, 25, 30, 40, 50, 70, 100])
def test_an_interrupt_at_any_moment_of_the_start_leaves_no_processes(
    milliseconds: int,
    packed: Path,
    before: set[int],
    children: Callable[[], set[int]],
    wait_until_gone: Callable[[set[int]], None],
) -> None:
    whom = threading.main_thread().ident
    interrupt = threading.Timer(milliseconds / 1000, signal.pthread_kill, [whom, signal.SIGINT])
    with make_loader(packed, 4, recipe=TRAIN, num_workers=2) as loader:

        def train() -> None:
            interrupt.start()
            while True:
                list(loader)

        with pytest.raises(KeyboardInterrupt):
            train()
        # Workers go on where it came between two batches, as after a break.
        assert len(list(loader)) == 5
    wait_until_gone(children() - before)


def test_locks_that_an_interrupt_or_a_killed_worker_left_taken_do_not_hold_up_the_end(
    packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    loader = make_loader(packed, 4, recipe=TRAIN, num_workers=2)
    next(iter(loader))
    for queue in loader.carrier._loader._iterator._index_queues:
        queue._notempty.acquire()
    loader.carrier._loader._iterator._workers_done_event._cond.acquire()
    loader.close()
    assert not children() - before


def test_signals_are_held_only_by_who_holds_them() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with held_signals():
            signal.raise_signal(signal.SIGUSR1)
            child = os.fork()
            if child == 0:
                signal.raise_signal(signal.SIGUSR1)
                os._exit(len(came))
            assert came == []
        assert came == [signal.SIGUSR1]
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1

        def interrupted() -> None:
            with held_signals():
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGUSR1)

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert came == [signal.SIGUSR1] * 2
        signal.raise_signal(signal.SIGUSR1)  # is no longer held
        assert came == [signal.SIGUSR1] * 3
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_training_that_goes_on_after_control_c_keeps_its_workers(
    method: str, packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    options = {"num_workers": 2, "engine_options": {"start_method": method}}
    with make_loader(packed, 4, recipe=TRAIN, **options) as loader:
        list(loader)
        workers = [worker.pid for worker in loader.carrier._loader._iterator._workers]
        for worker in workers:
            os.kill(worker, signal.SIGINT)  # a terminal sends it to all; here, to them alone
        assert [len(list(loader)) for _ in range(4)] == [5] * 4  # more than was ready
        assert workers == [worker.pid for worker in loader.carrier._loader._iterator._workers]
    assert not set(workers) & children()


def test_control_c_ends_a_training_script_and_all_its_processes(packed: Path) -> None:
    script = f"""
import multiprocessing
from fastdata import make_loader
loader = make_loader({str(packed)!r}, 4, recipe="cifar-train", num_workers=2)
for epoch in range(10**6):
    for batch in loader:
        if epoch == 0:
            print(*[child.pid for child in multiprocessing.active_children()], flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    with process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().split()]
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
        _, errors = process.communicate()
    assert len(workers) == 2
    assert "KeyboardInterrupt" in errors
    assert process.returncode == -signal.SIGINT
    while any(Path(f"/proc/{pid}").exists() for pid in workers):  # guarded against hanging
        time.sleep(0.01)


@pytest.mark.parametrize("workers", [1, 3])
def test_a_worker_that_is_killed_while_it_works_is_a_worker_error(
    workers: int,
    packed: Path,
    before: set[int],
    tmp_path: Path,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    done = tmp_path / "done"

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        with suppress(FileExistsError):
            os.close(os.open(done, os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
        return identity(image)

    options = {"transform": transform, "num_workers": workers, "with_index": True}
    with make_loader(packed, 4, recipe=TRAIN, **options) as loader:
        with pytest.raises(WorkerError, match=r"worker.*fewer workers"):
            list(loader)
        loader.set_epoch(0)
        assert same(list(loader), run(packed, transform=identity))


def test_a_worker_that_is_killed_while_the_others_get_their_first_work_is_a_worker_error(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return identity(image)

    plans = EpochPlanner.plans

    def slow(planner: EpochPlanner, *begin: int) -> Iterator[BatchPlan]:
        for number, plan in enumerate(plans(planner, *begin)):
            if number == 1:  # the first one is with a worker, which it ends
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
            yield plan

    monkeypatch.setattr(EpochPlanner, "plans", slow)
    with (
        make_loader(packed, 4, recipe=TRAIN, transform=transform, num_workers=3) as loader,
        pytest.raises(WorkerError, match=r"worker.*fewer workers"),
    ):
        list(loader)


def stall(image: NDArray[np.uint8]) -> torch.Tensor:
    time.sleep(3600)  # without waking up, which could be just when it is looked at
    return identity(image)


@pytest.mark.parametrize("again", [False, True], ids=["waited for", "after a break"])
def test_workers_that_stand_still_are_a_worker_error(
    again: bool,
    packed: Path,
    before: set[int],
    children: Callable[[], set[int]],
    wait_until_gone: Callable[[set[int]], None],
) -> None:
    seen = multiprocessing.Value("i", 0)

    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        with seen.get_lock():
            seen.value += 1
        return stall(image) if seen.value > 4 * again else identity(image)

    options = {"transform": transform, "num_workers": 1, "engine_options": {"timeout": 15}}
    with make_loader(packed, 4, recipe=TRAIN, shuffle=True, **options) as loader:
        if again:
            next(iter(loader))
        with pytest.raises(WorkerError, match=r"for 15 s; process \d+, .*sleeps.*forkserver"):
            next(iter(loader))
        wait_until_gone(children() - before)


def test_workers_may_take_longer_than_anybody_waits_between_two_looks(packed: Path) -> None:
    def transform(image: NDArray[np.uint8]) -> torch.Tensor:
        time.sleep(1.5)
        return identity(image)

    options = {"transform": transform, "num_workers": 1, "engine_options": {"timeout": 0}}
    with make_loader(packed, 4, recipe=TRAIN, shuffle=True, **options) as loader:
        assert len(next(iter(loader))[0]) == 4


def test_workers_that_are_killed_between_two_batches_are_a_worker_error(
    packed: Path,
    before: set[int],
    children: Callable[[], set[int]],
    wait_until_gone: Callable[[set[int]], None],
) -> None:
    """Whether the training step, the wait for a batch or the receipt of one meets it first."""
    with make_loader(packed, 1, recipe=TRAIN, num_workers=2, prefetch_factor=2) as loader:

        def train() -> None:
            for step, _ in enumerate(loader):
                if step == 2:
                    workers = children() - before
                    for worker in workers:
                        os.kill(worker, signal.SIGKILL)
                    wait_until_gone(workers)  # the training step

        with pytest.raises(WorkerError):
            train()
        loader.set_epoch(0)
        assert len(list(loader)) == COUNT


def test_workers_that_are_killed_between_two_epochs_are_a_worker_error(
    packed: Path,
    before: set[int],
    children: Callable[[], set[int]],
    wait_until_gone: Callable[[set[int]], None],
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=2) as loader:

        def train() -> None:
            for _ in range(2):
                list(loader)
                workers = children() - before
                for worker in workers:
                    os.kill(worker, signal.SIGKILL)
                wait_until_gone(workers)

        with pytest.raises(WorkerError):
            train()
        assert len(list(loader)) == 5


@pytest.mark.parametrize("name", READERS)
def test_a_dataset_that_is_cut_short_while_workers_read_it_is_a_data_error(
    name: str, uniform: Path, in_format: Callable[[str, Path], Path], tmp_path: Path
) -> None:
    """Reading a map behind the end of its file kills a process; it must not be this one."""
    path = Path(shutil.copytree(in_format(name, uniform), tmp_path / "copy"))
    with make_loader(
        path, 1, recipe=EVAL, engine="workers", num_workers=1, prefetch_factor=1
    ) as loader:
        iterator = iter(loader)
        next(iterator)
        manifest = loader.dataset.manifest
        assert manifest is not None
        for file in {part.file for part in manifest.parts if part.samples}:
            os.truncate(path / file, 0)
        with pytest.raises((WorkerError, ImageError)):
            list(iterator)


def test_no_processes_are_started_without_workers(
    packed: Path, before: set[int], children: Callable[[], set[int]]
) -> None:
    with make_loader(packed, 4, recipe=TRAIN, num_workers=0) as loader:
        for _ in loader:
            assert multiprocessing.active_children() == []
            assert children() == before
