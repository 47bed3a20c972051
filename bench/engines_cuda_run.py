"""One measurement of bench.engines on a GPU, in a process of its own; prints one line of JSON.

    python -m bench.engines_cuda_run check|sweep|load|train NAME PLACE BATCH WORKERS SECONDS
        [--device cuda]

NAME is an engine, "direct:host" for one with an option, "dali@folder" for another format than the
set's own, "dali_files", "dali_files:fancy" or "torchvision" for those of bench.peers_cuda, or
"synthetic".
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers.common import cpu_seconds
from bench.peers_cuda import DaliFiles, Torchvision, sweep
from bench.training import train_in_pairs

__all__ = ["OTHER_WORK", "PEERS", "tolerance"]

OTHER_WORK = "unable: "  # before why an engine does not do this kind of work
PEERS = ("dali_files", "dali_files:fancy", "torchvision")
_OPTIONS: dict[str, dict[str, Any] | None] = {
    "": None,
    "host": {"tier": "host"},
    "coarse": {"jpeg_fancy_upsampling": False},
}
_BEGAN = time.perf_counter()
_RECIPE = "imagenet-train"
_LEAST_BATCHES, _LEAST_EPOCHS = 50, 2
_LEVELS = 1.5  # of 255: the CPU rounds to 8 bits and OpenCV's weights have 11, a GPU does neither
_HALF = 2.0**-10  # float16's rounding of numbers below 4
_NARROWEST_STD = 0.224
_STEPS = 40  # of one stretch of training
_PREFETCH = 2  # batches that a worker keeps ready


def tolerance() -> float:
    """The greatest difference of normalised values that the check allows."""
    return _LEVELS / 255 / _NARROWEST_STD + _HALF


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("check", "sweep", "load", "train"))
    parser.add_argument("name")
    parser.add_argument("place", type=Path)
    parser.add_argument("batch", type=int)
    parser.add_argument("workers", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cpu: to try the code, not the speed")
    parser.add_argument("--steps", type=int, default=_STEPS)
    parser.add_argument("--load", type=float, default=0.65, help="hw_decoder_load of dali_files")
    parser.add_argument("--threads", type=int, default=8, help="of dali_files")
    parser.add_argument("--unchecked", action="store_true", help="compare no batch")
    arguments = parser.parse_args()
    made: dict[str, Any]
    if arguments.what == "check":
        loader = _peer(arguments) if arguments.name in PEERS else _loader(arguments)
        next(iter(loader))
        made = {}
    elif arguments.what == "sweep":
        load, threads = sweep(arguments.place, arguments.batch, _fancy(arguments.name))
        made = {"load": load, "threads": threads}
    elif arguments.what == "train":
        made = _train(arguments)
    elif arguments.name == "synthetic":
        made = _measure(_Synthetic(arguments), arguments)
    elif arguments.name in PEERS:
        made = _measure(_peer(arguments), arguments)
    else:
        loader = _loader(arguments)
        made = _measure(loader, arguments)
        loader.close()
        if not arguments.unchecked:
            made["difference"] = _difference(arguments)
    print(json.dumps(made))


def _peer(arguments: argparse.Namespace) -> Any:
    try:
        if arguments.name.startswith("dali_files"):
            load, threads = arguments.load, arguments.threads
            fancy = _fancy(arguments.name)
            return DaliFiles(arguments.place, arguments.batch, load, threads, fancy)
        return Torchvision(arguments.place, arguments.batch, arguments.workers)
    except ImportError as error:
        raise SystemExit(f"not installed: {error}") from None


def _fancy(name: str) -> bool:
    return name.endswith(":fancy")


def _loader(arguments: argparse.Namespace) -> Any:
    from fastdata import UsageError, make_loader

    engine, _, option = arguments.name.partition("@")[0].partition(":")
    own = engine.startswith("dali")  # threads of DALI's: what it takes by itself
    try:
        loader = make_loader(
            arguments.place,
            arguments.batch,
            recipe=_RECIPE,
            engine=engine,
            device=arguments.device,
            dtype="float16",
            num_workers="auto" if own else arguments.workers,
            prefetch_factor="auto" if own else _PREFETCH,
            engine_options=_OPTIONS[option],
        )
    except UsageError as error:
        raise SystemExit(f"{OTHER_WORK}{error}") from None
    if loader.engine != engine:  # it gives way where this machine cannot do it
        raise SystemExit(f"{loader.explain()}\n{engine} gave way to {loader.engine}, see above")
    return loader


class _Synthetic:
    """Batches that are copies of one on the GPU: no loader hands them over faster."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        import torch

        self._images = torch.zeros(
            (arguments.batch, 3, 224, 224), dtype=torch.float16, device=arguments.device
        ).to(memory_format=torch.channels_last)

    def __iter__(self) -> Iterator[Any]:
        for _ in range(_LEAST_BATCHES):
            yield (self._images.clone(),)


def _measure(loader: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Whole epochs after the first one."""
    first = 0.0
    for batch in loader:  # warm-up: processes, kernels, page cache
        if not first:
            _wait(arguments.device)
            first = time.perf_counter() - _BEGAN
        del batch
    batches = images = epochs = 0
    _wait(arguments.device)
    cpu, own, started = cpu_seconds(), time.thread_time(), time.perf_counter()
    seconds = 0.0
    while batches < _LEAST_BATCHES or epochs < _LEAST_EPOCHS or seconds < arguments.seconds:
        for pixels, *_ in loader:
            batches += 1
            images += len(pixels)
        epochs += 1
        _wait(arguments.device)
        seconds = time.perf_counter() - started
    return {
        "rate": images / seconds,
        "cpu_seconds": (cpu_seconds() - cpu) / images * 10_000,
        "own_seconds": (time.thread_time() - own) / images * 10_000,
        "first": first,
        "batches": batches,
        "epochs": epochs,
        "seconds": seconds,
    }


def _wait(device: str) -> None:
    import torch

    if device != "cpu":
        torch.cuda.synchronize()


def _difference(arguments: argparse.Namespace) -> float:
    """Greatest difference of the first batch to the reference; ends the process beyond what is
    allowed."""
    import torch

    from fastdata import make_loader

    with _loader(arguments) as loader:
        images, labels = next(iter(loader))
        images, labels = images.float().cpu(), labels.cpu()
    with make_loader(
        arguments.place,
        arguments.batch,
        recipe=_RECIPE,
        engine="workers",
        dtype="float32",
        num_workers=0,
    ) as reference:
        expected, expected_labels = next(iter(reference))
    if not torch.equal(labels, expected_labels):
        raise SystemExit(f"{arguments.name}: the labels of the first batch are not the reference's")
    differences = (images - expected).abs()
    difference = differences.max().item()
    dali = arguments.name.startswith("dali")
    if (differences.mean().item() if dali else difference) > tolerance():
        raise SystemExit(
            f"{arguments.name}: the first batch differs from the reference by {difference:.4f}, "
            f"allowed {tolerance():.4f}"
        )
    return difference


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Stretches of training on a cached batch and on the loader's, in turn."""
    import torch
    import torchvision

    device = torch.device(arguments.device)
    torch.backends.cudnn.benchmark = True
    model = getattr(torchvision.models, arguments.model)().to(device)
    model = model.to(memory_format=torch.channels_last).train()
    loader = _loader(arguments)
    found = train_in_pairs(
        model,
        loader,
        device,
        batch=arguments.batch,
        rounds=arguments.rounds,
        steps=arguments.steps,
    )
    loader.close()
    return {**found, "steps": arguments.steps, "engine": loader.engine}


if __name__ == "__main__":
    main()
