"""What test_ddp.py runs: ranks that are real processes, joined by gloo.

    python ranks_program.py DATASET OUT WORLD_SIZE...

For each number of ranks these leave what they saw in OUT, one JSON file a rank, and begin an epoch
that the next number of ranks goes on with.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # by DistributedDataParallel: once here, and not in every fork
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from fastdata import Loader, Recipe, make_loader

TRAIN = Recipe(size=16, crop="random_resized", hflip=0.5, mean=(0.5,) * 3, std=(0.25,) * 3)
EVAL = Recipe(size=16, crop="center", mean=(0.5,) * 3, std=(0.25,) * 3)
SAMPLES_A_STEP = 8  # of all ranks together


def train(model: torch.nn.Module, loader: Loader) -> list[list[float]]:
    """Two epochs; the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        loader.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [parameter.detach().flatten().tolist() for parameter in model.parameters()]


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 16 * 16, 3))


def epochs(path: str, count: int, batch_size: int, **options: Any) -> list[list[list[int]]]:
    """The indices of this rank's batches in each epoch."""
    with make_loader(path, batch_size, with_index=True, **options) as loader:
        seen = []
        for epoch in range(count):
            loader.set_epoch(epoch)
            seen.append([indices.tolist() for *_, indices in loader])
    return seen


def of_all_ranks(mine: Any) -> list[Any]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    return gathered


def run(rank: int, path: str, out: Path, world_size: int, state: Path | None) -> None:
    torch.set_num_threads(1)
    rendezvous = f"file://{out}/rendezvous-{world_size}"
    dist.init_process_group("gloo", rendezvous, rank=rank, world_size=world_size)
    batch_size = SAMPLES_A_STEP // world_size
    found: dict[str, Any] = {}
    for name, drop_last in (("training", True), ("training, keeping the rest", False)):
        options = {"recipe": TRAIN, "drop_last": drop_last, "num_workers": 0}
        found[name] = of_all_ranks(epochs(path, 2, batch_size, **options))
    # More than one rank's share, and more than the whole dataset.
    options = {"recipe": TRAIN, "drop_last": False, "num_workers": 0}
    found["large batches"] = of_all_ranks(epochs(path, 1, 50, **options))
    found["evaluation"] = of_all_ranks(epochs(path, 1, 3, recipe=EVAL, num_workers=2))
    with make_loader(path, batch_size, recipe=TRAIN, num_workers=1) as loader:
        model = DistributedDataParallel(network())
        found["parameters"] = of_all_ranks(train(model, loader))
    found["accuracy"] = accuracy(model, path)
    found |= interrupted(path, out, world_size, state)
    (out / f"found-{world_size}-{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def accuracy(model: DistributedDataParallel, path: str) -> list[float]:
    """As the README has it: sum over the rank's own steps, reduce once at the end."""
    right_and_seen = torch.zeros(2)
    with make_loader(path, 3, recipe=EVAL, num_workers=0) as loader, torch.no_grad():
        for images, labels in loader:
            right = (model.module(images).argmax(dim=1) == labels).sum()
            right_and_seen += torch.stack([right, torch.tensor(len(labels))])
    dist.all_reduce(right_and_seen)
    return right_and_seen.tolist()


def interrupted(path: str, out: Path, world_size: int, state: Path | None) -> dict[str, Any]:
    """An epoch left after two steps, and one of another number of ranks gone on with."""
    options = {"recipe": TRAIN, "with_index": True, "num_workers": 1, "drop_last": False}
    found = {}
    with make_loader(path, 2, **options) as loader:
        loader.set_epoch(3)
        begun = [indices.tolist() for *_, indices in itertools.islice(loader, 2)]
        states = of_all_ranks(loader.state_dict())
        found["begun"] = of_all_ranks(begun)
        found["states differ"] = any(each != states[0] for each in states)
        if dist.get_rank() == 0:
            (out / f"state-{world_size}.json").write_text(json.dumps(states[0]))
        if state is not None:
            loader.load_state_dict(json.loads(state.read_text()))
            rest = [indices.tolist() for *_, indices in loader]
            found["gone on"] = of_all_ranks(rest)
    return found


def main() -> None:
    path, out, *world_sizes = sys.argv[1:]
    state = None
    for world_size in map(int, world_sizes):
        # Forks of a process that has computed nothing yet spare each rank the imports.
        torch.multiprocessing.start_processes(
            run,
            (path, Path(out), world_size, state),
            nprocs=world_size,
            start_method="fork",
        )
        state = Path(out) / f"state-{world_size}.json"


if __name__ == "__main__":
    main()
