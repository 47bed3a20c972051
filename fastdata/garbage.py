"""What a process has not collected yet, kept from those that it forks."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["spared_garbage"]


@contextmanager
def spared_garbage() -> Iterator[None]:
    """Processes that are forked within leave alone what this one has not collected yet.

    A fork has its parent's garbage, and a collector. What that destroys may wait for threads, or a
    GPU, which the fork does not have: a pipeline of DALI's stops it for good.
    """
    if gc.get_freeze_count():  # by somebody else, for whom it is to stay so
        gc.collect()
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
