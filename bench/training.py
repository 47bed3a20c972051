"""Training in pairs: stretches of steps on a cached batch and on a loader's, in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["batches_a_turn", "drain", "train_in_pairs"]

_LEAD_STEPS = 10  # before each stretch, not timed
_WAIT_STEPS = 3  # shorter waits may be the machine's
_FINISHED = 2  # batches, at most, that an engine of fastdata's has on the device already


def train_in_pairs(
    model: Any,
    loader: Any,
    device: Any,
    *,
    batch: int,
    rounds: int,
    steps: int,
    meet: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Images/s of a cached batch and of the loader's batches: ``cached`` and ``fed``, one a round.

    Args:
        model: is trained by SGD with bf16 autocast.
        loader: is iterated epoch after epoch.
        device: torch.device of the batches.
        batch, rounds, steps: images of a batch, pairs, and steps of a stretch, at least.
        meet: called before the clock starts, where ranks wait for each other.
    """
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lossy = torch.nn.CrossEntropyLoss()
    fed = itertools.chain.from_iterable(itertools.repeat(loader))
    images, labels = (tensor.clone() for tensor in next(fed))
    sources = {"cached": itertools.repeat((images, labels)), "fed": fed}
    turn_of = batches_a_turn(loader)
    whole = {"cached": steps, "fed": -(-steps // turn_of) * turn_of}

    def train(batches: Iterator[Any], count: int) -> None:
        for pixels, classes in itertools.islice(batches, count):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = lossy(model(pixels), classes)
            loss.backward()
            optimizer.step()

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    found: dict[str, list[float]] = {"cached": [], "fed": []}
    for turn in range(rounds):
        for key in list(sources)[:: 1 if turn % 2 == 0 else -1]:
            if key == "fed":
                drain(fed, loader, batch / found["cached"][-1])
            train(sources[key], _LEAD_STEPS)
            meet()
            wait()
            started = time.perf_counter()
            train(sources[key], whole[key])
            wait()
            found[key].append(whole[key] * batch / (time.perf_counter() - started))
    return found


def drain(batches: Iterator[Any], loader: Any, step: float) -> None:
    """Take what a loader has made ready while nobody asked, which is no measure of how fast it
    makes batches; training on them would not use them up, because others are made meanwhile. It is
    used up where one has to be waited for, much longer than a ``step`` takes in seconds."""
    for _ in range(_ready_batches(loader)):
        began = time.perf_counter()
        taken = next(batches)
        waited = time.perf_counter() - began
        del taken  # which may take long, too
        if waited > _WAIT_STEPS * step:
            return


def batches_a_turn(loader: Any) -> int:
    """How many batches a loader's workers make at the same time: they come in bursts, of which only
    whole ones say how fast it is."""
    if not hasattr(loader, "carrier"):
        return max(1, loader.num_workers)
    if loader.engine != "workers":
        return 1
    return max(1, loader.carrier.num_workers) * loader.carrier.together


def _ready_batches(loader: Any) -> int:
    """How many batches a DataLoader, or a loader of fastdata's, may have made ready."""
    if not hasattr(loader, "carrier"):
        return loader.num_workers * (loader.prefetch_factor or 0)
    return batches_a_turn(loader) * (loader.carrier.prefetch_factor or 1) + _FINISHED
