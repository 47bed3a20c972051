"""One measurement of bench.scale, in a process of its own; prints a line of JSON.

python -m bench.scale_one index SAMPLES BATCH SECONDS
python -m bench.scale_one load PLACE ENGINE BATCH WORKERS SIDE SECONDS
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from bench.peers.common import measured_rate
from bench.watch import Memory


def main() -> None:
    what, *words = sys.argv[1:]
    with Memory() as memory:
        made = _index(*words) if what == "index" else _load(*words)
    print(json.dumps(made | {"memory": memory.peak}))


def _index(samples: str, batch: str, seconds: str) -> dict[str, Any]:
    """Plans of batches, of epochs of so many samples; no sample exists."""
    from fastdata.planner import EpochPlanner
    from fastdata.recipe import Recipe
    from fastdata.sampling import BatchSampler

    np.zeros(1).sort()  # numpy's first call is not the index's
    started = time.perf_counter()
    sampler = BatchSampler(int(samples), int(batch), shuffle=True, drop_last=True)
    planner = EpochPlanner(sampler, Recipe.preset("imagenet-train"), None, where="here")
    first, done, epoch = 0.0, 0, 0
    while True:
        for plan in planner.plans(0, epoch, 0):
            if not first:
                first = time.perf_counter()
            done += len(plan.indices)
            if time.perf_counter() - first > float(seconds):
                elapsed = time.perf_counter() - started
                return {"start": first - started, "rate": done / elapsed}
        epoch += 1


def _load(
    place: str, engine: str, batch: str, workers: str, side: str, seconds: str
) -> dict[str, Any]:
    from fastdata import Recipe, make_loader

    recipe = Recipe(size=int(side), crop="random_resized", hflip=0.5)
    started = time.perf_counter()
    loader = make_loader(
        place,
        int(batch),
        recipe=recipe,
        engine=engine,
        num_workers=int(workers),
        dtype="uint8",
    )
    first, _, rate = measured_rate(lambda: loader, float(seconds))
    loader.close()
    return {"start": first - started, "rate": rate}


if __name__ == "__main__":
    main()
