"""What test_faults.py runs: a training that is to be ended from outside, or that runs out of room.

    python training_program.py DATASET WORKERS BATCH_SIZE [transform]

Prints its own process id and those of its workers, then goes on for ever; where the loader raises,
the exception's type and message, and how many processes are left once the loader is closed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from typing import Any

import torch

from fastdata import FastdataError, Recipe, make_loader

RECIPE = Recipe(size=224, crop="random_resized", dtype="uint8")


def main() -> None:
    # Whoever started the tests in the background of a shell has had this signal ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path, workers, batch_size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    options: dict[str, Any] = {"recipe": RECIPE, "drop_last": False, "num_workers": workers}
    if sys.argv[4:] == ["transform"]:
        options["transform"] = torch.from_numpy
    with make_loader(path, batch_size, **options) as loader:
        told = False
        try:
            while True:
                for _ in loader:
                    if not told:
                        pids = [child.pid for child in multiprocessing.active_children()]
                        tell(" ".join(map(str, [os.getpid(), *pids])))
                        told = True
        except FastdataError as error:
            tell(f"{type(error).__name__}: {error}")
    tell(f"{len(multiprocessing.active_children())} left")


def tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
