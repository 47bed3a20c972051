"""fastdata demo: draw images, convert them to every format, load, train, report."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from converters import Conversion, convert
from fastdata.dataset import open_dataset
from fastdata.demo.images import write_folder
from fastdata.demo.report import Row, write_report
from fastdata.demo.train import train
from fastdata.errors import DataError, UsageError
from fastdata.loader import make_loader
from fastdata.machine import available_cpus
from fastdata.recipe import Recipe
from fastdata.registry import WRITERS, require
from fastdata.verify import verify

__all__ = ["tell"]

_SHORT_SIDE = 160  # what the demo converts to: enough for the 64 pixels that it trains on
_SIZE = 64
_BATCH = 64
_ROUNDS = 3
_HELD_OUT = 0.2
_IMAGES = "images"  # folder of the drawn images; it also tells a demo's folder from any other
_TRAIN = Recipe(
    size=_SIZE,
    crop="random_resized",
    scale=(0.35, 1.0),
    hflip=0.5,
    mean=(0.5, 0.5, 0.5),
    std=(0.25, 0.25, 0.25),
)
_EVAL = Recipe(size=_SIZE, crop="center", mean=_TRAIN.mean, std=_TRAIN.std)


def tell(root: Path, *, images: int = 3000, epochs: int = 8) -> None:
    """Run the whole story in ``root``; what an earlier run has left there is used again.

    Args:
        root: folder for images, datasets and ``report.html``.
        images: to draw for training; a fifth as many again are held out.
        epochs: to train.

    Raises:
        UsageError: ``root`` holds something else, or too few images are asked for.
        MissingExtraError: an optional package is not installed.
    """
    if images < 10 * _BATCH or epochs < 1:
        raise UsageError(f"the demo needs at least {10 * _BATCH} images and 1 epoch")
    if root.is_dir() and any(root.iterdir()) and not (root / _IMAGES).is_dir():
        raise UsageError(f"{root} holds something else than a demo; choose an empty folder")
    require("matplotlib", "plot", "the demo's report")
    _draw(root / _IMAGES / "train", images, seed=0)
    _draw(root / _IMAGES / "held-out", int(images * _HELD_OUT), seed=1)
    source = root / _IMAGES / "train"
    done = {to: _convert(source, root / to, to) for to in WRITERS}
    _convert(root / _IMAGES / "held-out", root / "held-out", "webdataset")
    for to in WRITERS:
        _verify(root / to)
    rows = _measure(source, {to: root / to for to in WRITERS}, done)
    print(f"training a small network on the webdataset, {_SIZE}x{_SIZE} pixels:")
    with (
        make_loader(root / "webdataset", _BATCH, recipe=_TRAIN) as training,
        make_loader(root / "held-out", 2 * _BATCH, recipe=_EVAL) as held_out,
    ):
        history = train(training, held_out, len(training.dataset.classes), epochs)
    facts = (
        f"{images} images, random crops scaled to {_SIZE}x{_SIZE} and flipped, batches of "
        f"{_BATCH}, {available_cpus()} worker processes, warm page cache, {_ROUNDS} rounds in "
        f"turn. The datasets were converted to a short side of {_SHORT_SIDE} pixels, which leaves "
        "less to decode; the folder holds the images as they were drawn."
    )
    with open_dataset(root / "webdataset") as dataset:
        write_report(root / "report.html", dataset, rows, history, facts)
    _print_table(rows, facts)
    print(f"report: {root / 'report.html'}")


def _draw(folder: Path, count: int, seed: int) -> None:
    present = sum(1 for _ in folder.rglob("*.jpg")) if folder.is_dir() else 0
    if present > count or (present and (folder.parent.parent / "webdataset").exists()):
        if present != count:
            raise UsageError(
                f"{folder} holds {present} images of an earlier demo, not {count}; choose another "
                "folder, or the same number of --images"
            )
        print(f"{folder}: {count} images are there already")
        return
    started = time.monotonic()
    write_folder(folder, count, seed=seed)
    print(f"{folder}: drew {count} images in {time.monotonic() - started:.1f} s")


def _convert(source: Path, destination: Path, to: str) -> Conversion:
    option = "size" if to == "memmap" else "resize"
    done = convert(source, destination, to=to, **{option: _SHORT_SIDE})  # type: ignore[arg-type]
    how = "was converted before" if done.already_done else f"converted in {done.seconds:.1f} s"
    print(f"{destination}: {done.samples} images, {done.bytes / 1e6:.1f} MB, {how}")
    return done


def _verify(path: Path) -> None:
    result = verify(path, decode=True)
    if result.problems:
        raise DataError("; ".join(result.problems))
    print(f"{path}: verified: {result.files} files, {result.decoded} images decoded")


def _measure(source: Path, datasets: dict[str, Path], done: dict[str, Conversion]) -> list[Row]:
    """Load whole epochs from every source in turn, so that a busy machine is unfair to none."""
    loaders = {"folder": make_loader(source, _BATCH, recipe=_TRAIN, dtype="uint8")}
    for to, path in datasets.items():
        loaders[to] = make_loader(path, _BATCH, recipe=_TRAIN, dtype="uint8")
    rates: dict[str, list[float]] = {name: [] for name in loaders}
    print(f"loading whole epochs from {', '.join(loaders)}, {_ROUNDS} rounds:")
    for number in range(_ROUNDS + 1):
        for name, loader in loaders.items():
            started, images = time.monotonic(), 0
            for batch, _ in loader:
                images += len(batch)
            if number:  # the first round starts the workers and fills the page cache
                rates[name].append(images / (time.monotonic() - started))
    for loader in loaders.values():
        loader.close()
    base = statistics.median(rates["folder"])
    rows = []
    for name, values in rates.items():
        if name == "folder":
            size, seconds = sum(path.stat().st_size for path in source.rglob("*.jpg")), None
        else:
            size = done[name].bytes
            seconds = None if done[name].already_done else done[name].seconds
        median = statistics.median(values)
        rows.append(Row(name, size, seconds, values, median, median / base))
    return rows


def _print_table(rows: list[Row], facts: str) -> None:
    print(f"\n{facts}")
    print(f"{'source':12}{'size, MB':>10}{'images/s':>11}{'to the folder':>15}")
    for row in rows:
        print(f"{row.source:12}{row.bytes / 1e6:>10.1f}{row.median:>11,.0f}{row.ratio:>14.2f}x")
