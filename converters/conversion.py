"""convert(): scan -> plan -> shards -> manifest."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from converters.augment import check_augmentation
from converters.destination import Destination
from converters.faults import ON_ERROR, ErrorPolicy, SkipLimit
from converters.finish import finish, skipped_entries
from converters.labels import LABEL_COLUMN, PATH_COLUMN, read_classes, read_table
from converters.local import run_shards
from converters.options import Options
from converters.plan import Plan
from converters.sources import Source, scan_source
from converters.write import load_record, make_writer, record_path
from fastdata.dataset import SKIPPED
from fastdata.errors import DestinationError, ImageError, UsageError
from fastdata.machine import available_cpus
from fastdata.manifest import MANIFEST, Manifest

__all__ = ["Conversion", "Progress", "convert"]


class Progress(Protocol):
    """What a conversion tells while it runs."""

    def scanned(self, images: int) -> None:
        """``images`` were found so far."""

    def planned(self, images: int, done: int) -> None:
        """``images`` will be converted, of which ``done`` are from an earlier run."""

    def converted(self, images: int) -> None:
        """``images`` more are done."""

    def note(self, line: str) -> None:
        """Something worth a line, such as a long last step."""

    def close(self) -> None:
        """Nothing more will be told."""


class _Silent:
    def scanned(self, images: int) -> None: ...

    def planned(self, images: int, done: int) -> None: ...

    def converted(self, images: int) -> None: ...

    def note(self, line: str) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Conversion:
    """What a conversion did.

    Attributes:
        path: the dataset.
        format: its format.
        samples: number of samples in it.
        classes: number of classes.
        skipped: number of records left out, listed in ``skipped.jsonl``.
        treated: reason -> number of samples that are not their source's own bytes, though nothing
            was wrong with those.
        repaired: what was wrong -> number of samples mended, listed in ``repaired.jsonl``.
        ignored: reason -> number of files and folders in the source that are no samples.
        bytes: size of the dataset's files.
        seconds: wall time of this run.
        resumed: shards that an earlier, interrupted run had finished.
        already_done: the dataset was there, made by an identical conversion; nothing was done.
    """

    path: str
    format: str
    samples: int
    classes: int
    skipped: int
    treated: dict[str, int]
    repaired: dict[str, int]
    ignored: dict[str, int]
    bytes: int
    seconds: float
    resumed: int
    already_done: bool


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    to: str = "webdataset",
    resize: int | None = None,
    size: int | tuple[int, int] | None = None,
    quality: int = 90,
    shuffle: bool = True,
    seed: int = 0,
    shard_size: int | None = None,
    name: str = "shard",
    check: str = "decode",
    exif: str = "apply",
    strict: bool = False,
    labels: str | os.PathLike[str] | None = None,
    path_column: str = PATH_COLUMN,
    label_column: str | Sequence[str] = LABEL_COLUMN,
    classes: str | os.PathLike[str] | None = None,
    augment: str | None = None,
    copies: int = 1,
    workers: int | None = None,
    on_error: str = "raise",
    max_errors: int | str | None = None,
    overwrite: bool = False,
    resume: bool | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert images into a dataset.

    A baseline JPEG that needs no change of its pixels passes through byte for byte. The result's
    bytes depend on the source and on the arguments before ``workers`` alone.

    Args:
        src: a folder with a folder per class, or with the images themselves; a dataset; a folder
            of other people's WebDataset shards, or one shard.
        dst: the dataset's folder; absent, empty, or holding this same conversion.
        to: ``"webdataset"``, ``"lmdb"`` or ``"memmap"``.
        resize: scale the short side down to this many pixels; never enlarges.
        size: side, or (height, width), in pixels: scale to cover it, cut out the centre.
            memmap requires it.
        quality: JPEG quality, 1..100, of images that are encoded anew.
        shuffle: mix the samples once, so that sequential readers see mixed classes.
        seed: of the shuffle.
        shard_size: source bytes of a shard; None chooses by the source's size.
        name: prefix of the shards' names.
        check: ``"decode"``: decode every image once, also where its bytes pass through;
            ``"structure"``: only walk the markers of those.
        exif: ``"apply"``: turn the pixels as the EXIF orientation says; ``"ignore"``: leave them as
            they are stored, as torchvision does. The tag goes in both cases.
        strict: refuse images that need repair, though their pixels are whole.
        labels: ``.csv``, ``.tsv`` or ``.jsonl`` file of paths and labels, see
            :func:`converters.labels.read_table`; None: class folders are the labels.
        path_column, label_column: its columns; several label columns give labels [N, K].
        classes: a dataset, or a text file with a name in a line: count labels by these classes.
        augment: operations joined by ``+`` (see :data:`converters.augment.OPERATIONS`), or
            ``"module:function"``, a callable on a PIL image: what to make the variants by.
        copies: variants of each source image.
        workers: processes; None: the CPUs that this process may use.
        on_error: ``"raise"``, or ``"skip"``: leave out images that are at fault and list them in
            ``skipped.jsonl``.
        max_errors: with ``"skip"``: the most images to leave out, a number or ``"1%"``; None: any
            number.
        overwrite: replace the dataset that lies at ``dst``; removes only files that its manifest
            names, and only when the new one is whole.
        resume: None: go on with an interrupted conversion where one lies there; True: demand
            one; False: start from the beginning.
        progress: is told how far the conversion is.

    Raises:
        UsageError: an argument, or the destination, is at fault; nothing was written.
        SourceError: the source folder is at fault; nothing was written.
        ImageError: an image is at fault, with ``on_error="raise"``; what was done is kept and the
            next call goes on from there.
        StorageError: the disk refused; likewise.
        WorkerError: a worker process died; likewise.
    """
    started = time.monotonic()
    progress = _Silent() if progress is None else progress
    sizes = (size, size) if isinstance(size, int) else size
    options = Options(
        to=to,
        resize=resize,
        size=sizes,
        quality=quality,
        shuffle=shuffle,
        seed=seed,
        shard_size=shard_size,
        name=name,
        check=check,
        exif=exif,
        strict=strict,
        augment=augment,
        copies=copies,
        augment_code="" if augment is None else check_augmentation(augment),
    )
    workers = available_cpus() if workers is None else workers
    if workers < 1:
        raise UsageError(f"expected --workers of at least 1, got {workers}")
    if on_error not in ON_ERROR:
        raise UsageError(f"expected --on-error {' or '.join(ON_ERROR)}, got {on_error!r}")
    if max_errors is not None and on_error != "skip":
        raise UsageError("--max-errors bounds what --on-error skip leaves out: give both")
    policy = ErrorPolicy(on_error, SkipLimit.parse(max_errors))
    destination = Destination(Path(os.path.abspath(dst)))
    destination.check(Path(src), resume)
    with _closing(progress):
        columns = [label_column] if isinstance(label_column, str) else list(label_column)
        table = None if labels is None else read_table(labels, path_column, columns)
        known = None if classes is None else read_classes(classes)
        source = scan_source(src, table, known, progress.scanned)
        if augment is not None and len(source.groups):
            raise UsageError(f"{os.fspath(src)} holds augmented copies already")
        old = destination.finished()
        if old is not None:
            destination.clean()
        if old is not None and not overwrite:
            destination.check_replaceable(old, options, source)
            if old.skipped and on_error == "raise":
                _raise_skipped(destination.root / SKIPPED)
            planned = len(source) + len(source.unreadable)
            policy.check(old.skipped, planned, destination.root / SKIPPED)
            return _report(old, destination, source, started, already_done=True)
        with destination.lock():
            if old is None and destination.finished() is not None:
                raise DestinationError(
                    f"another conversion into {destination.root} ended just now; run the command "
                    "again"
                )
            if destination.ready_to_publish() and resume is not False:
                destination.check_publishable(options, source)
                resumed = sum(1 for _ in destination.staging.glob("shard-*.npz"))
            else:
                plan = Plan.make(options, source)
                resumed = _carry_out(plan, destination, workers, policy, resume, progress)
            manifest = destination.publish()
        return _report(manifest, destination, source, started, resumed=resumed)


@contextmanager
def _closing(progress: Progress) -> Iterator[None]:
    try:
        yield
    finally:
        progress.close()


def _carry_out(
    plan: Plan,
    destination: Destination,
    workers: int,
    policy: ErrorPolicy,
    resume: bool | None,
    progress: Progress,
) -> int:
    """Write all that is missing; return how many shards were there already."""
    staging = destination.staging
    writer = make_writer(plan, staging)
    if not destination.resumable(plan, resume):
        policy.check_source(plan.source)
        writer.prepare(plan.starts)
        plan.save(staging)
    done = [k for k in range(plan.shards) if record_path(staging, k).exists()]
    counts = np.diff(plan.starts)
    progress.planned(len(plan.order), int(counts[done].sum()))
    missing = sorted(set(range(plan.shards)) - set(done))
    skipped = len(plan.source.unreadable)
    skipped += sum(len(skipped_entries(load_record(staging, k))) for k in done)

    def report(images: int, left_out: int) -> None:
        nonlocal skipped
        skipped += left_out
        policy.check(skipped, len(plan.source) + len(plan.source.unreadable))
        progress.converted(images)

    run_shards(staging, missing, workers, policy.on_error, report)
    shards = [load_record(staging, k) for k in range(plan.shards)]
    finish(plan, writer, destination, shards, policy, progress.note)
    return len(done)


def _raise_skipped(path: Path) -> None:
    with path.open("rb") as file:
        entry = json.loads(file.readline())
    raise ImageError(
        entry["path"],
        f"{entry['reason']} (left out of the finished dataset {path.parent}; to accept that, use "
        "--on-error skip)",
    )


def _report(
    manifest: Manifest,
    destination: Destination,
    source: Source,
    started: float,
    *,
    resumed: int = 0,
    already_done: bool = False,
) -> Conversion:
    return Conversion(
        path=os.fspath(destination.root),
        format=manifest.format,
        samples=manifest.samples,
        classes=len(manifest.classes),
        skipped=manifest.skipped,
        treated=manifest.treated,
        repaired=manifest.repaired,
        ignored=source.ignored,
        bytes=sum(part.bytes for part in manifest.parts)
        + (destination.root / MANIFEST).stat().st_size,
        seconds=time.monotonic() - started,
        resumed=resumed,
        already_done=already_done,
    )
