"""Training in pairs: stretches of steps on a cached batch and on a loader's, in turn."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["train_in_pairs"]

_LEAD_STEPS = 10  # before each stretch, not timed


def train_in_pairs(
    model: Any,
    loader: Any,
    device: Any,
    *,
    batch: int,
    rounds: int,
    steps: int,
    lead: int = 0,
    meet: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Images/s of a cached batch and of the loader's batches: ``cached`` and ``fed``, one a round.

    Args:
        model: is trained by SGD with bf16 autocast.
        loader: is iterated epoch after epoch.
        device: torch.device of the batches.
        batch, rounds, steps: images of a batch, pairs, and steps of a stretch.
        lead: batches that the loader may have made ready, which must not count.
        meet: called before the clock starts, where ranks wait for each other.
    """
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lossy = torch.nn.CrossEntropyLoss()
    fed = itertools.chain.from_iterable(itertools.repeat(loader))
    images, labels = (tensor.clone() for tensor in next(fed))
    sources = {"cached": itertools.repeat((images, labels)), "fed": fed}
    leads = {"cached": _LEAD_STEPS, "fed": _LEAD_STEPS + lead}

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
            train(sources[key], leads[key])
            meet()
            wait()
            started = time.perf_counter()
            train(sources[key], steps)
            wait()
            found[key].append(steps * batch / (time.perf_counter() - started))
    return found
