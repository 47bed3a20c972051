"""The part of bench.engines that needs a GPU: every engine's loading, its check, and training.

    python -m bench.engines SRC --device cuda [--workers N] [--rounds 3] [--seconds 5]
        [--engines direct:host,workers,...] [--models resnet50,resnet18|none] ...

Loading: normalised float16 batches of 512 at 224x224 on the GPU, images/s and CPU seconds (of the
process and its children) per 10,000 images, from the end of the first epoch over at least two
epochs and 50 batches. In the same process the first batch is compared with what the engine
"workers" makes of it on the CPU in float32. The synthetic bound is a copy of a batch in the GPU's
own memory.

Training: ResNet-50 and ResNet-18, SGD, bf16 autocast, channels_last. Stretches of steps on a cached
batch and on the loader's take turns; the figure is the median of the pairs' ratios.

Each measurement is a process of its own, which prints one line of JSON:

    python -m bench.engines_cuda load|train NAME PLACE BATCH WORKERS SECONDS [--device cuda]

NAME is an engine, "direct:host" for one with an option, or "synthetic".
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.measure import interleave, ratio, report
from bench.peers.common import RAW_SETS, cpu_seconds

__all__ = ["compare_on_gpu", "gpu"]

_RECIPE = "imagenet-train"
_LEAST_BATCHES, _LEAST_EPOCHS = 50, 2
_LEVELS = 1.5  # of 255: the CPU rounds to 8 bits and OpenCV's weights have 11, a GPU does neither
_HALF = 2.0**-10  # float16's rounding of numbers below 4
_NARROWEST_STD = 0.224
_STEPS = 40  # of one stretch of training
_PREFETCH = 2  # batches that a worker keeps ready
_LEAD_STEPS = 10  # before each stretch, not timed


def gpu() -> dict[str, str]:
    """Name and driver of this machine's first GPU, without a CUDA context in this process."""
    if shutil.which("nvidia-smi") is None:
        return {"gpu": "none", "driver": "none"}
    done = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    name, _, driver = done.stdout.partition("\n")[0].partition(", ")
    return {"gpu": name or "unknown", "driver": driver or "unknown"}


def compare_on_gpu(arguments: argparse.Namespace, sets: Any) -> list[dict[str, Any]]:
    """Measure every engine on every set; prints and returns the tables.

    Args:
        arguments: of bench.engines.
        sets: its Sets.
    """
    tables = []
    for name in arguments.sets.split(","):
        if name.endswith("32"):
            print(f"  {name}: left out; on the GPU the photographs' sets are measured")
            continue
        place = str(sets.dataset(name))
        words = [place, str(arguments.batch), str(arguments.workers), str(arguments.seconds)]
        engines = _able(arguments.engines or _names(name), place, arguments.batch)
        if engines:
            tables.append(_loading(name, engines, words, arguments.rounds))
            models = [] if arguments.models == "none" else arguments.models.split(",")
            tables += _training(name, engines, models, words, arguments.rounds)
        sets.forget(name)
    return tables


def _names(name: str) -> list[str]:
    """Engines, and for ``direct`` the tier that "auto" would not take."""
    from fastdata.registry import ENGINES

    names = list(ENGINES)
    if name in RAW_SETS and "direct" in names:
        names.insert(names.index("direct") + 1, "direct:host")
    return names


def _able(names: list[str], place: str, batch: int) -> list[str]:
    """Those that can load the dataset on this machine; prints what the others say."""
    able = []
    for name in names:
        done = _run(["check", name, place, str(batch), "2", "0"])
        if done.returncode:
            print(f"  {name}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        else:
            able.append(name)
    return able


def _loading(name: str, engines: list[str], words: list[str], rounds: int) -> dict[str, Any]:
    notes: dict[str, list[dict[str, Any]]] = {one: [] for one in ("synthetic", *engines)}

    def contestant(one: str) -> Callable[[], float]:
        def measure() -> float:
            notes[one].append(_result(["load", one, *words]))
            return notes[one][-1]["rate"]

        return measure

    rates = interleave({one: contestant(one) for one in notes}, rounds)
    title = f"{name}: images/s on the GPU, float16 224x224, batch {words[1]}, {words[2]} workers"
    table = report(title, rates, engines[-1], "images/s", None)
    print(f"  {'':28}{'CPU s per 10,000':>17}  {'1st batch':>9}  greatest difference to the CPU")
    for one, results in notes.items():
        cpu = statistics.median(result["cpu_seconds"] for result in results)
        first = statistics.median(result["first"] for result in results)
        worst = max(result.get("difference", 0.0) for result in results)
        says = f"{worst:.4f} (allowed {tolerance():.4f})" if one != "synthetic" else "-"
        print(f"  {one:28}{cpu:>17.2f}  {first:>7.1f} s  {says}")
        table["rows"][one]["runs"] = results
    table["tolerance"] = tolerance()
    return table


def _training(
    name: str, engines: list[str], models: list[str], words: list[str], rounds: int
) -> list[dict[str, Any]]:
    tables = []
    for model in models:
        rows = {}
        print(f"\n{name}: {model}, bf16, batch {words[1]}: images/s")
        print(f"  {'':28}{'cached':>9}  {'fed':>9}  ratio [90 % interval]")
        for one in engines:
            pairs = _result(["train", one, *words, "--model", model, "--rounds", str(rounds)])
            cached, fed = pairs["cached"], pairs["fed"]
            middle, low, high = ratio(fed, cached)
            print(
                f"  {one:28}{statistics.median(cached):>9,.0f}  {statistics.median(fed):>9,.0f}  "
                f"{middle:.3f} [{low:.3f}, {high:.3f}]"
            )
            rows[one] = {**pairs, "ratio": [middle, low, high]}
        tables.append({"title": f"{name}: {model} fed to cached", "unit": "images/s", "rows": rows})
    return tables


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench.engines_cuda", *words],
        capture_output=True,
        text=True,
        check=False,
    )


def _result(words: list[str]) -> dict[str, Any]:
    done = _run(words)
    if done.returncode:
        raise SystemExit(f"bench.engines_cuda {' '.join(words)} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def tolerance() -> float:
    """The greatest difference of normalised values that the check allows."""
    return _LEVELS / 255 / _NARROWEST_STD + _HALF


# What follows runs in the measured process.

_BEGAN = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("check", "load", "train"))
    parser.add_argument("name")
    parser.add_argument("place", type=Path)
    parser.add_argument("batch", type=int)
    parser.add_argument("workers", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cpu: to try the code, not the speed")
    parser.add_argument("--steps", type=int, default=_STEPS)
    arguments = parser.parse_args()
    made: dict[str, Any]
    if arguments.what == "check":
        made = {"engine": _loader(arguments).engine}
    elif arguments.what == "train":
        made = _train(arguments)
    elif arguments.name == "synthetic":
        made = _measure(_Synthetic(arguments), arguments)
    else:
        loader = _loader(arguments)
        made = _measure(loader, arguments)
        loader.close()
        made["difference"] = _difference(arguments)
    print(json.dumps(made))


def _loader(arguments: argparse.Namespace) -> Any:
    from fastdata import UsageError, make_loader

    engine, _, tier = arguments.name.partition(":")
    try:
        loader = make_loader(
            arguments.place,
            arguments.batch,
            recipe=_RECIPE,
            engine=engine,
            device=arguments.device,
            dtype="float16",
            num_workers=arguments.workers,
            prefetch_factor=_PREFETCH,
            engine_options={"tier": tier} if tier else None,
        )
    except UsageError as error:
        raise SystemExit(f"unable: {error}") from None
    if loader.engine != engine:  # it gives way where this machine cannot do it
        raise SystemExit(f"unable: {engine} gave way to {loader.engine}:\n{loader.explain()}")
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
    cpu, started = cpu_seconds(), time.perf_counter()
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
    difference = (images - expected).abs().max().item()
    if difference > tolerance():
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
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lossy = torch.nn.CrossEntropyLoss()
    loader = _loader(arguments)
    fed = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    images, labels = (tensor.clone() for tensor in next(fed))
    cached = itertools.repeat((images, labels))

    def train(batches: Iterator[Any], steps: int) -> None:
        for pixels, classes in itertools.islice(batches, steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                loss = lossy(model(pixels), classes)
            loss.backward()
            optimizer.step()

    # What a loader has made ready meanwhile must not count: a worker keeps two batches.
    leads = {"cached": _LEAD_STEPS, "fed": _LEAD_STEPS}
    if loader.engine == "workers":
        leads["fed"] += _PREFETCH * arguments.workers

    def stretch(key: str, batches: Iterator[Any]) -> float:
        train(batches, leads[key])
        _wait(arguments.device)
        started = time.perf_counter()
        train(batches, arguments.steps)
        _wait(arguments.device)
        return arguments.steps * arguments.batch / (time.perf_counter() - started)

    found: dict[str, list[float]] = {"cached": [], "fed": []}
    for turn in range(arguments.rounds):
        order = [("cached", cached), ("fed", fed)]
        for key, batches in order if turn % 2 == 0 else reversed(order):
            found[key].append(stretch(key, batches))
    loader.close()
    return {**found, "steps": arguments.steps, "engine": loader.engine}


if __name__ == "__main__":
    main()
