"""Training on several GPUs of one host: does loading cost a rank anything?

    python -m bench.ranks SRC [--ranks 2] [--model resnet18] [--engine direct] [--tier host]
        [--batch 512] [--rounds 3] [--steps 40] [--images 50000] [--json FILE]

SRC is a folder of photographs with a folder per class; a memmap of 256x256 is made of it. First one
rank trains alone, then as many as asked for under DistributedDataParallel (NCCL; gloo with
--device cpu, to try the code). Every rank trains stretches of steps on a cached batch and on the
loader's, in turn; the figure is the median of its pairs' ratios. Then an evaluation epoch: every
sample has to be seen exactly once over all ranks.

Each rank is a process of its own, which prints one line of JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from bench.environment import environment, facts
from bench.measure import ratio, save, spread
from bench.sets import Sets
from bench.training import train_in_pairs


def main() -> None:
    arguments = _arguments()
    if "RANK" in os.environ:
        print(json.dumps(_rank(arguments)))
        return
    machine = environment(arguments)
    print(facts(machine))
    with tempfile.TemporaryDirectory(prefix="bench-ranks-") as scratch:
        arguments.workers = 2
        place = Sets(arguments, Path(scratch)).dataset("raw256")
        tables = [_compare(arguments, place, ranks) for ranks in sorted({1, arguments.ranks})]
    shares = [[row["ratio"][0] for row in table["rows"].values()] for table in tables]
    alone, together = shares[0], shares[-1]
    print(
        f"\nshare of the rate on a cached batch: alone {alone[0]:.3f}, the slowest of "
        f"{len(together)} ranks {min(together):.3f}: {min(together) / alone[0]:.3f} of it"
    )
    save(arguments.json, machine, tables)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--model", default="resnet18", help="of torchvision.models")
    parser.add_argument("--engine", default="direct")
    parser.add_argument("--tier", help="of the engine direct")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40, help="of a stretch")
    parser.add_argument("--images", type=int, default=50_000, help="at least so many an epoch")
    parser.add_argument("--json", type=Path, help="append the result to this file")
    return parser.parse_args()


def _compare(arguments: argparse.Namespace, place: Path, ranks: int) -> dict[str, Any]:
    """Run the ranks; prints and returns their table."""
    results = _run(arguments, place, ranks)
    title = f"{arguments.model}, {ranks} x batch {arguments.batch}, {arguments.engine}"
    print(f"\n{title}: images/s of a rank")
    print(f"  {'':8}{'cached':>9}  {'fed':>9}  ratio [{spread(arguments.rounds)}]")
    rows = {}
    for number, result in enumerate(results):
        cached, fed = result["cached"], result["fed"]
        middle, low, high = ratio(fed, cached)
        print(
            f"  rank {number:<3}{statistics.median(cached):>9,.0f}  "
            f"{statistics.median(fed):>9,.0f}  {middle:.3f} [{low:.3f}, {high:.3f}]"
        )
        rows[f"rank {number}"] = {**result, "seen": None, "ratio": [middle, low, high]}
    seen = sorted(itertools.chain.from_iterable(result["seen"] for result in results))
    if seen != list(range(results[0]["samples"])):
        raise SystemExit(f"{len(seen)} samples seen of {results[0]['samples']}: not each once")
    print(f"  an evaluation epoch saw each of {len(seen):,} samples exactly once")
    return {"title": title, "unit": "images/s", "rows": rows, "seen_once": len(seen)}


def _run(arguments: argparse.Namespace, place: Path, ranks: int) -> list[dict[str, Any]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "bench.ranks", str(place)]
    for option in ("device", "model", "engine", "tier", "batch", "rounds", "steps"):
        value = getattr(arguments, option)
        words += [] if value is None else [f"--{option}", str(value)]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            words,
            env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    with ThreadPoolExecutor(ranks) as pool:
        done = [pool.submit(process.communicate) for process in processes]
        try:
            for _ in as_completed(done):
                if any(process.returncode for process in processes):
                    raise SystemExit("a rank failed, see above")
        finally:  # the others would wait for it
            for process in processes:
                process.kill()
    return [json.loads(future.result()[0].splitlines()[-1]) for future in done]


# What follows runs in a rank's process.


def _rank(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch
    import torchvision
    from torch.nn.parallel import DistributedDataParallel

    from fastdata import make_loader

    cuda = arguments.device == "cuda"
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    torch.backends.cudnn.benchmark = True
    model = getattr(torchvision.models, arguments.model)().to(device)
    model = model.to(memory_format=torch.channels_last).train()
    model = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    options: dict[str, Any] = {"engine": arguments.engine, "device": device}
    if arguments.tier:
        options["engine_options"] = {"tier": arguments.tier}
    loader = make_loader(arguments.src, arguments.batch, recipe="imagenet-train", **options)
    found = train_in_pairs(
        model,
        loader,
        device,
        batch=arguments.batch,
        rounds=arguments.rounds,
        steps=arguments.steps,
        meet=torch.distributed.barrier,
    )
    samples, engine = len(loader.dataset), loader.engine
    loader.close()
    evaluation = make_loader(
        arguments.src, arguments.batch, recipe="imagenet-eval", with_index=True, **options
    )
    seen = [index for *_, indices in evaluation for index in indices.tolist()]
    evaluation.close()
    torch.distributed.destroy_process_group()
    return {**found, "engine": engine, "samples": samples, "seen": seen}


if __name__ == "__main__":
    main()
