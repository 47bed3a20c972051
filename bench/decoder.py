"""DALI's decoder, by its settings: alone, and beside a training step.

    python -m bench.decoder SRC [--device cuda|cpu] [--settings LIST] [--batch 256] [--images 2000]
        [--model resnet18|none] [--seconds 1.5] [--rounds 3] [--json FILE]

SRC is a folder of photographs with a folder per class. A setting is DECODERSxTHREADS[@LOAD], with
options behind it: the batch goes in equal parts to so many decoders of one pipeline, each with so
many threads, and the hardware decoder gets that share of the images. Options:

    +turns     each decoder has a pipeline of its own, and they take whole batches in turn
    +files     DALI reads the files; else the encoded images are in memory
    +readerN   a pipeline of its own reads them, with N threads, and looks for each image's size
    +map       it maps them, and copies from there
    +peek      it also looks for each image's size
    +read      it decodes nothing
    +coarse    colours are not interpolated
    +full      DALI runs all operators at once, each on a stream of its own

Crops are random and are not scaled. Beside training: the step runs on a batch that stays on the
device, and takes a decoded batch each time, which it does not look at. All settings are measured in
turns, in one process.
"""

from __future__ import annotations

import argparse
import itertools
import re
import statistics
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.environment import environment, facts
from bench.measure import ratio, save
from bench.peers.common import cpu_seconds
from fastdata.engines.dali.options import HARDWARE_LOAD
from fastdata.header import read_header
from fastdata.recipe import Recipe, draw

_DEFAULT = {
    "cuda": "1x14,1x6,2x7,2x7+full,2x7+turns,2x12+turns,1x14@0.95+coarse,2x4@0.95+coarse+turns,"
    "1x14+files,1x14+files+map,1x14+files+peek,1x14+files+reader2,1x14+files+reader4,"
    "1x14+files+reader8,2x7+files+turns,"
    "1x14+files+read,1x4+files+read,1x14+files+map+read,1x14+files+peek+read",
    "cpu": "1x2,2x1,2x1+turns,1x2+files,1x2+files+reader1,1x2+files+read,1x2+files+map+read,"
    "1x2+files+peek+read",
}
_SETTING = re.compile(
    r"([1-9]\d*)x([1-9]\d*)(?:@(\d*\.?\d+))?"
    r"((?:\+(?:turns|files|reader[1-9]\d*|map|peek|read|coarse|full))*)"
)
_PREFETCH, _LEAD = 3, 8


def main() -> None:
    arguments = _arguments()
    machine = environment(arguments)
    print(facts(machine))
    images = _Images(arguments)
    stream = _stream(arguments)
    step = None if arguments.model == "none" else _step(arguments)
    names = arguments.settings.split(",")
    loads = {name: _load(_pipelines(name, images, arguments), stream) for name in names}
    found: dict[str, dict[str, list[float]]] = {
        name: {"alone": [], "cores": [], "beside": []} for name in ("", *names)
    }
    for _ in range(arguments.rounds):
        for name, load in loads.items():
            rate, cores = _measure(load, arguments)
            found[name]["alone"].append(rate)
            found[name]["cores"].append(cores)
        if step is not None:
            found[""]["beside"].append(_measure(step, arguments)[0])
            for name, load in loads.items():
                found[name]["beside"].append(_measure(_both(load, step), arguments)[0])
    cached = found.pop("")["beside"]
    print(f"\n{'':28}{'images/s':>9}  {'cores':>5}  beside {arguments.model}", end="")
    print(f" ({statistics.median(cached):,.0f} on a cached batch)" if cached else "")
    for name, rates in found.items():
        alone, cores = statistics.median(rates["alone"]), statistics.median(rates["cores"])
        print(f"{name:28}{alone:>9,.0f}  {cores:>5.1f}", end="")
        if cached:
            share, low, high = ratio(rates["beside"], cached)
            beside = statistics.median(rates["beside"])
            print(f"  {beside:>9,.0f}: {share:.1%} [{low:.1%}, {high:.1%}]", end="")
        print()
    rows = {**found, "cached": {"beside": cached}}
    title = f"DALI's decoder, batch {arguments.batch}, {arguments.model}, {arguments.device}"
    save(arguments.json, machine, [{"title": title, "unit": "images/s", "rows": rows}])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("src", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--settings", help="separated by commas")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--images", type=int, default=2000, help="that are held in memory, at most")
    parser.add_argument("--model", default="none", help="of torchvision.models")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="append the result to this file")
    arguments = parser.parse_args()
    arguments.settings = arguments.settings or _DEFAULT[arguments.device]
    for name in arguments.settings.split(","):
        match = _SETTING.fullmatch(name)
        if match is None:
            parser.error(f"--settings: expected DECODERSxTHREADS[@LOAD][+option], found {name!r}")
        if "files" not in name and any(option in name for option in ("map", "peek", "read")):
            parser.error(f"--settings: expected +files with +map, +peek, +read, found {name!r}")
        if "+reader" in name and int(match[1]) > 1 and "turns" not in name:
            parser.error(f"--settings: expected one decoder with +reader, found {name!r}")
        if arguments.batch % int(match[1]) and "turns" not in name:
            parser.error(
                f"--batch: expected equal parts for {name}, found {arguments.batch} images"
            )
    return arguments


class _Images:
    """Encoded images, their files and random boxes, batch after batch."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        files = sorted(file for file in arguments.src.glob("*/*") if file.is_file())
        if not files:
            raise SystemExit(f"{arguments.src}: expected class folders with images in them")
        files = files[: arguments.images]
        self._encoded = [np.fromfile(file, np.uint8) for file in files]
        self._sizes = np.array(list(map(_size, files, self._encoded)), np.int32)
        self._names = np.array([bytes(file.absolute()) for file in files], np.bytes_)
        self._recipe, self._random = Recipe.preset("imagenet-train"), np.random.default_rng(0)

    def source(self, parts: int, batch: int, files: bool) -> Callable[[], list[Any]]:
        """For each of the parts: encoded images, or files' names; corners; sizes of boxes."""
        turns = itertools.count()

        def take() -> list[Any]:
            some = self._random.integers(0, len(self._encoded), batch).astype(np.int64)
            drawn, _, _ = draw(self._recipe, next(turns), some, self._sizes[some])
            boxes = drawn.astype(np.int32)
            columns: list[Any] = []
            for part in np.array_split(np.arange(batch), parts):
                if files:
                    columns.append(self._names[some[part]].view(np.uint8).reshape(len(part), -1))
                else:
                    columns.append([self._encoded[one] for one in some[part]])
                columns += [boxes[part, :2].copy(), boxes[part, 2:].copy()]
            return columns

        return take


def _size(file: Path, encoded: Any) -> tuple[int, int]:
    try:
        return read_header(encoded.tobytes()).stored_size
    except ValueError as error:
        raise SystemExit(f"{file}: expected a JPEG, found none that is sound: {error}") from None


def _pipelines(name: str, images: _Images, arguments: argparse.Namespace) -> list[Any]:
    """The pipelines of a setting."""
    match = _SETTING.fullmatch(name)
    assert match is not None
    count, options = int(match[1]), match[4].split("+")[1:]
    threads, load = int(match[2]), float(match[3] or HARDWARE_LOAD)
    if "turns" in options:
        return [_pipeline(images, arguments, 1, threads, load, options) for _ in range(count)]
    return [_pipeline(images, arguments, count, threads, load, options)]


def _pipeline(
    images: _Images,
    arguments: argparse.Namespace,
    parts: int,
    threads: int,
    load: float,
    options: list[str],
) -> Any:
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.pipeline import OperatorConcurrency, StreamPolicy

    cuda = arguments.device == "cuda"
    decoder: dict[str, Any] = {"device": "cpu"}
    if cuda:
        decoder = {"device": "mixed", "jpeg_fancy_upsampling": "coarse" not in options}
        decoder["hw_decoder_load"] = load
    more: dict[str, Any] = {}
    if "full" in options:
        more = {"concurrency": OperatorConcurrency.FULL, "stream_policy": StreamPolicy.PER_OPERATOR}

    source = images.source(parts, arguments.batch, "files" in options)
    readers = [option for option in options if option.startswith("reader")]
    if readers:
        source = _read_apart(source, arguments.batch, int(readers[0].removeprefix("reader")))

    @pipeline_def(
        batch_size=-(-arguments.batch // parts),
        num_threads=threads,
        device_id=0 if cuda else None,
        prefetch_queue_depth=_PREFETCH,
        exec_dynamic=True,
        **more,
    )
    def pipeline() -> Any:
        columns = fn.external_source(
            source,
            num_outputs=3 * parts,
            batch=True,
            no_copy=True,
            dtype=[types.UINT8, types.INT32, types.INT32] * parts,
            ndim=[1] * 3 * parts,
        )
        made = []
        for encoded, corner, box in zip(*[iter(columns)] * 3, strict=True):
            one = encoded
            if "files" in options and not readers:
                one = fn.io.file.read(encoded, dont_use_mmap="map" not in options)
            if "peek" in options:
                made.append(fn.peek_image_shape(one))  # what nobody asks for is left out
            if "read" not in options:
                one = fn.decoders.image_slice(
                    one, corner, box, axis_names="WH", adjust_orientation=False, **decoder
                )
            made.append(one)
        return tuple(made)

    made = pipeline()
    made.build()
    return made


def _read_apart(source: Callable[[], list[Any]], batch: int, threads: int) -> Callable[[], Any]:
    """The source, with what is in the files in place of their names."""
    from nvidia.dali import fn, pipeline_def, types

    boxes: deque[list[Any]] = deque()

    def names() -> Any:
        files, *others = source()
        boxes.append(others)
        return files

    @pipeline_def(
        batch_size=batch,
        num_threads=threads,
        device_id=None,
        prefetch_queue_depth=2,
        exec_dynamic=True,
    )
    def pipeline() -> Any:
        column = fn.external_source(names, batch=True, no_copy=True, dtype=types.UINT8, ndim=1)
        encoded = fn.io.file.read(column, dont_use_mmap=True)
        return encoded, fn.peek_image_shape(encoded)

    reader = pipeline()
    reader.build()

    def take() -> list[Any]:
        encoded, sizes = reader.run()
        sizes.as_array()  # as who compares them has to
        return [encoded, *boxes.popleft()]

    return take


def _measure(turn: Callable[[], Any], arguments: argparse.Namespace) -> tuple[float, float]:
    """Images a second and CPU cores; a turn is a batch."""
    for _ in range(_LEAD):
        turn()
    _wait(arguments)
    cpu, began, count = cpu_seconds(), time.perf_counter(), 0
    while time.perf_counter() - began < arguments.seconds:
        turn()
        count += 1
    _wait(arguments)
    seconds = time.perf_counter() - began
    return count * arguments.batch / seconds, (cpu_seconds() - cpu) / seconds


def _load(pipelines: list[Any], stream: Any) -> Callable[[], Any]:
    """The next batch; on a GPU it is there for that stream, and nobody waits."""
    turns = itertools.cycle(pipelines)
    if stream is None:
        return lambda: next(turns).run()
    return lambda: next(turns).run(stream)


def _both(load: Callable[[], Any], step: Callable[[], Any]) -> Callable[[], Any]:
    def turn() -> None:
        load()
        step()

    return turn


def _step(arguments: argparse.Namespace) -> Callable[[], None]:
    """A training step on a batch that stays on the device."""
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    last, device = torch.channels_last, torch.device(arguments.device)
    model = getattr(torchvision.models, arguments.model)().to(device, memory_format=last)
    optimizer, lossy = torch.optim.SGD(model.parameters(), lr=0.01), torch.nn.CrossEntropyLoss()
    images = torch.zeros((arguments.batch, 3, 224, 224), device=device).to(memory_format=last)
    labels = torch.zeros(arguments.batch, dtype=torch.int64, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = lossy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


def _stream(arguments: argparse.Namespace) -> Any:
    if arguments.device == "cpu":
        return None
    import torch

    return torch.cuda.Stream()


def _wait(arguments: argparse.Namespace) -> None:
    if arguments.device == "cuda":
        import torch

        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
