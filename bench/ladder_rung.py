"""One rung of bench.ladder, in a process of its own; prints a line of JSON.

python -m bench.ladder_rung JSON

Stretches of training on a batch that stays on the device (the ceiling) and on the loader's take
turns. What a loader has made ready meanwhile is taken first and not counted.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.peers.common import cpu_seconds
from bench.training import batches_a_turn, drain
from fastdata.tuning.gpu import GpuWatch

__all__ = ["Rung"]

_LEAD = 5  # steps before every stretch, where there is time for them
_LEAST = 2  # steps, however slow; of workers each one's
_PREFETCH = 4  # batches that a worker makes ready, on the rung that is about it
_CLASSES = 1000
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Rung:
    """What to measure.

    Attributes:
        loader: "torch:" and "default", "workers" or "pinned" (torchvision and DataLoader);
            "tuned"; "advised", tuned with ``others`` beside it and converted where that is the
            advice; or an engine of fastdata's, with ":" and a tier for ``direct``.
        place: what it reads.
        others: the same images in other formats.
        flags: of "amp", "channels_last", "benchmark", "tf32".
        model: name of torchvision's, or "small".
        device, batch, workers: as in training.
        steps, seconds: a stretch ends at the first of them, with all workers' batches.
        rounds: pairs of stretches.
        budget: seconds that tuning may take.
    """

    loader: str
    place: str
    others: list[str]
    flags: list[str]
    model: str
    device: str
    batch: int
    workers: int
    steps: int
    seconds: float
    rounds: int
    budget: float


def main() -> None:
    rung = Rung(**json.loads(sys.argv[1]))
    cuda = rung.device == "cuda"
    torch.backends.cudnn.benchmark = "benchmark" in rung.flags
    torch.backends.cudnn.allow_tf32 = "tf32" in rung.flags
    torch.backends.cuda.matmul.allow_tf32 = "tf32" in rung.flags
    torch.manual_seed(0)
    if not cuda:  # the other cores are for the loader; threads that wait for each other spoil both
        torch.set_num_threads(1)
    step = _step(rung)
    started = time.perf_counter()
    loader, remark = _loader(rung, step)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    first = _on_device(next(batches), rung)
    _wait(cuda)
    made: dict[str, Any] = {"first_batch_seconds": time.perf_counter() - started}
    told = asdict(rung) | {  # they lay in a temporary folder
        "place": Path(rung.place).name,
        "others": [Path(other).name for other in rung.others],
    }
    made |= {"remark": remark, "rung": told}
    made |= _pairs(rung, step, batches, loader, first)
    print(json.dumps(made))


def _pairs(
    rung: Rung,
    step: Callable[[Any], None],
    batches: Iterator[Any],
    loader: Any,
    first: Any,
) -> dict[str, Any]:
    found: dict[str, list[Any]] = {"cached": [], "fed": []}
    sources = {"cached": itertools.repeat(first), "fed": batches}
    for turn in range(rung.rounds):
        for key in sources if turn % 2 == 0 else reversed(sources):
            if key == "fed":
                drain(batches, loader, rung.batch / found["cached"][-1]["rate"])
            whole = batches_a_turn(loader) if key == "fed" else 1
            found[key].append(_stretch(rung, step, sources[key], whole))
    return found


def _stretch(
    rung: Rung, step: Callable[[Any], None], batches: Iterator[Any], whole: int
) -> dict[str, Any]:
    """Train for a while, a multiple of ``whole`` steps: images/s, share of time without data,
    cores, and how busy the GPU was."""
    cuda = rung.device == "cuda"
    begun = time.perf_counter()
    for count in range(_LEAD):
        step(_on_device(next(batches), rung))
        if count + 1 >= _LEAST and time.perf_counter() - begun > rung.seconds:
            break
    _wait(cuda)
    gaps = _Gaps(cuda)
    cpu, started, count = cpu_seconds(), time.perf_counter(), 0
    with GpuWatch(torch.device("cuda:0" if cuda else "cpu")) as watch:
        while True:
            gaps.end_step()
            batch = _on_device(next(batches), rung)
            gaps.begin_step()
            step(batch)
            count += 1
            late = count >= _LEAST and time.perf_counter() - started > rung.seconds
            if count % whole == 0 and (late or count >= rung.steps):
                break
        _wait(cuda)
        seconds = time.perf_counter() - started
    return {
        "rate": count * rung.batch / seconds,
        "steps": count,
        "seconds": seconds,
        "data_wait": min(1.0, gaps.seconds() / seconds),
        "cpu_cores": (cpu_seconds() - cpu) / seconds,
        "utilisation": _per_cent(watch.busy),
        "sm_activity": _per_cent(watch.sm_active),
    }


def _per_cent(share: float | None) -> float | None:
    return None if share is None else 100 * share


class _Gaps:
    """Time between a step's end and the next one's beginning: on the GPU's own clock, as a host
    that runs ahead of it waits without harm; on a CPU by the wall."""

    def __init__(self, cuda: bool) -> None:
        self._cuda = cuda
        self._marks: list[Any] = []

    def end_step(self) -> None:
        self._mark()

    def begin_step(self) -> None:
        self._mark()

    def _mark(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def seconds(self) -> float:
        pairs = zip(self._marks[::2], self._marks[1::2], strict=True)
        if self._cuda:
            return sum(end.elapsed_time(begin) for end, begin in pairs) / 1000
        return sum(begin - end for end, begin in pairs)


def _step(rung: Rung) -> Callable[[Any], None]:
    """The model's training step on a batch that is on the device."""
    if rung.model == "small":
        from fastdata.demo.train import SmallCNN

        model: nn.Module = nn.Sequential(nn.AvgPool2d(4), SmallCNN(_CLASSES))
    else:
        import torchvision

        model = getattr(torchvision.models, rung.model)()
    model = model.to(rung.device).train()
    if "channels_last" in rung.flags:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    lossy = nn.CrossEntropyLoss()

    def step(batch: Any) -> None:
        images, labels = batch
        optimizer.zero_grad(set_to_none=True)
        amp = torch.autocast(rung.device, dtype=torch.bfloat16)
        with amp if "amp" in rung.flags else contextlib.nullcontext():
            loss = lossy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def _on_device(batch: Any, rung: Rung) -> tuple[torch.Tensor, torch.Tensor]:
    last = torch.channels_last if "channels_last" in rung.flags else torch.contiguous_format
    images, labels = (one.to(rung.device, non_blocking=True) for one in batch)
    return images.contiguous(memory_format=last), labels


def _loader(rung: Rung, step: Callable[[Any], None]) -> tuple[Any, str]:
    """The loader, and a remark on it."""
    if rung.loader.startswith("torch:"):
        return _torch_loader(rung), ""
    import fastdata

    engine, _, tier = rung.loader.partition(":")
    options: dict[str, Any] = {"recipe": "imagenet-train", "device": rung.device}
    options["dtype"] = "float16" if rung.device == "cuda" and "amp" in rung.flags else "float32"
    if engine in ("tuned", "advised"):
        return _tuned_loader(rung, step, options)
    try:
        loader = fastdata.make_loader(
            rung.place,
            rung.batch,
            engine=engine,
            num_workers="auto" if engine == "dali" else rung.workers,  # the threads that DALI takes
            engine_options={"tier": tier} if tier else None,
            **options,
        )
    except fastdata.FastdataError as error:
        raise SystemExit(f"unable: {error}") from None
    if loader.engine != engine:
        raise SystemExit(f"unable: {engine} gave way to {loader.engine}")
    return loader, ""


def _tuned_loader(
    rung: Rung, step: Callable[[Any], None], options: dict[str, Any]
) -> tuple[Any, str]:
    """What the tuner says, done: its setting, behind a conversion where it advises one."""
    from fastdata import make_loader, tune

    def tuned(place: str, others: list[str]) -> Any:
        tuning = {"step": step, "budget": rung.budget, "formats": others, "save": False}
        return tune(place, rung.batch, **tuning, **options)

    place, profile, remarks = rung.place, tuned(rung.place, rung.others), []
    if profile.convert_to is not None:
        remarks.append(profile.verdict)
        place = profile.convert_to
        profile = tuned(place, [])
    remarks.append(", ".join(f"{name} {value}" for name, value in profile.setting.items()))
    return make_loader(place, rung.batch, profile=profile, **options), "; then ".join(remarks)


def _torch_loader(rung: Rung) -> Any:
    from torch.utils.data import DataLoader
    from torchvision import transforms
    from torchvision.datasets import ImageFolder

    steps = [
        transforms.RandomResizedCrop(224),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize(_MEAN, _STD),
    ]
    options: dict[str, Any] = {}
    if rung.loader != "torch:default":
        options = {"num_workers": rung.workers, "persistent_workers": True}
    if rung.loader == "torch:pinned":
        options |= {"pin_memory": True, "prefetch_factor": _PREFETCH}
    images = ImageFolder(rung.place, transforms.Compose(steps))
    return DataLoader(images, rung.batch, shuffle=True, drop_last=True, **options)


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
