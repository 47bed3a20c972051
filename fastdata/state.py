"""What a loader's saved state must be, to go on from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, UsageError

__all__ = ["STATE_VERSION", "read_state"]

STATE_VERSION = 1


def read_state(
    state: dict[str, Any], own: dict[str, Any], samples: int, path: Path
) -> tuple[int, int, int]:
    """Seed, epoch and position of a state that was saved.

    Args:
        state: what ``Loader.state_dict`` gave.
        own: what it gives of the loader that is to go on.
        samples: of its epochs.
        path: of its dataset.

    Raises:
        UsageError: no state of a loader, or one of a loader with another ``shuffle``, ``copies`` or
            ``order``.
        DatasetError: the state belongs to another dataset.
    """
    try:
        state = {key: state[key] for key in own}
    except (KeyError, TypeError) as error:
        raise UsageError(f"expected a Loader's state_dict, found one without {error}") from None
    for name in ("seed", "epoch", "position"):
        if not isinstance(state[name], int):
            raise UsageError(f"expected a state whose {name} is a number, found {state[name]!r}")
    seed, epoch, position = state["seed"], state["epoch"], state["position"]
    if epoch < 0 or not 0 <= position <= samples:
        raise UsageError(
            f"expected a state within the dataset's {samples} samples, found epoch {epoch}, "
            f"position {position}"
        )
    if state["version"] != STATE_VERSION:
        raise UsageError(
            f"expected a state of version {STATE_VERSION}, found version {state['version']!r}"
        )
    if state["dataset"] != own["dataset"]:
        raise DatasetError(
            f"the state was taken with another dataset than {path}: expected identity "
            f"{own['dataset'][:12]}, found {str(state['dataset'])[:12]}; load it with the dataset "
            "that it belongs to"
        )
    for name in ("shuffle", "copies", "order"):
        if state[name] != own[name]:
            raise UsageError(
                f"the state was taken with {name}={state[name]!r}, this loader has "
                f"{name}={own[name]!r}; make the loader as it was"
            )
    return seed, epoch, position
