"""convert(): scan -> plan -> shards -> manifest."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from converters.destination import Destination
from converters.local import run_shards
from converters.options import Options
from converters.plan import Plan
from converters.scan import Source, scan_source
from converters.write import load_record, make_writer, record_path
from fastdata._version import __version__
from fastdata.dataset import LABELS, PATHS, SIZES, SKIPPED
from fastdata.errors import DataError, DestinationError, ImageError, UsageError
from fastdata.files import npy_bytes, sha256_range, write_whole
from fastdata.formats import ShardRecord, Writer
from fastdata.machine import available_cpus
from fastdata.manifest import MANIFEST, Manifest, Part
from fastdata.paths import PathTable, display

__all__ = ["Conversion", "Progress", "convert"]

ON_ERROR = ("raise", "skip")


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
        skipped: number of source files left out, listed in ``skipped.jsonl``.
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
    workers: int | None = None,
    check: str = "decode",
    on_error: str = "raise",
    overwrite: bool = False,
    resume: bool | None = None,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a folder of images into a dataset.

    A baseline JPEG that needs no change of its pixels passes through byte for byte. The result's
    bytes depend on the source and on the arguments before ``workers`` alone.

    Args:
        src: a folder with a folder per class, or with the images themselves.
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
        workers: processes; None: the CPUs that this process may use.
        check: ``"decode"``: decode every image once, also where its bytes pass through;
            ``"structure"``: only walk the markers of those.
        on_error: ``"raise"``, or ``"skip"``: leave out images that are at fault and list them in
            ``skipped.jsonl``.
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
    options = Options(to, resize, sizes, quality, shuffle, seed, shard_size, name, check)
    workers = available_cpus() if workers is None else workers
    if workers < 1:
        raise UsageError(f"expected --workers of at least 1, got {workers}")
    if on_error not in ON_ERROR:
        raise UsageError(f"expected --on-error {' or '.join(ON_ERROR)}, got {on_error!r}")
    destination = Destination(Path(os.path.abspath(dst)))
    destination.check(Path(src), resume)
    with _closing(progress):
        source = scan_source(src, progress.scanned)
        old = destination.finished()
        if old is not None:
            destination.clean()
        if old is not None and not overwrite:
            destination.check_replaceable(old, options, source)
            if old.skipped and on_error == "raise":
                _raise_skipped(destination.root / SKIPPED)
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
                resumed = _carry_out(plan, destination, workers, on_error, resume, progress)
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
    on_error: str,
    resume: bool | None,
    progress: Progress,
) -> int:
    """Write all that is missing; return how many shards were there already."""
    staging = destination.staging
    writer = make_writer(plan, staging)
    if not destination.resumable(plan, resume):
        writer.prepare(plan.starts)
        plan.save(staging)
    done = [k for k in range(plan.shards) if record_path(staging, k).exists()]
    counts = np.diff(plan.starts)
    progress.planned(len(plan.order), int(counts[done].sum()))
    missing = sorted(set(range(plan.shards)) - set(done))
    run_shards(staging, missing, workers, on_error, progress.converted)
    shards = [load_record(staging, k) for k in range(plan.shards)]
    _finish(plan, writer, destination, shards, on_error, progress.note)
    return len(done)


def _finish(
    plan: Plan,
    writer: Writer,
    destination: Destination,
    shards: list[ShardRecord],
    on_error: str,
    note: Callable[[str], None],
) -> None:
    """Write the format's last files, the sidecars, and the manifest that says all is whole."""
    staging, scan = destination.staging, plan.source.scan
    skipped = [entry for shard in shards for entry in shard.skipped]
    positions = np.concatenate([shard.positions for shard in shards])
    if skipped and on_error == "raise":  # they were skipped by the run that this one resumes
        first = skipped[0]
        raise ImageError(os.path.join(display(scan.root), first["path"]), first["reason"])
    if not len(positions):
        raise DataError(
            f"none of the {len(plan.order)} images in {display(scan.root)} can be used; the "
            f"first: {skipped[0]['path']}: {skipped[0]['reason']}"
        )
    indices = plan.order[positions]
    labels: NDArray[np.int64] = scan.labels[indices]
    parts = writer.finish(shards, labels, note)
    sidecars = {
        LABELS: npy_bytes(labels),
        SIZES: npy_bytes(np.concatenate([shard.sizes for shard in shards])),
        PATHS: PathTable.of(scan.paths[i] for i in indices.tolist()).tobytes(),
        SKIPPED: "".join(json.dumps(entry) + "\n" for entry in skipped).encode("ascii"),
    }
    for name, data in sidecars.items():
        with write_whole(staging / name) as file:
            file.write(data)
        digest = sha256_range(staging / name, 0, len(data))
        parts.append(Part(name, 0, len(data), digest))
    manifest = Manifest(
        format=plan.options.to,
        samples=len(positions),
        classes=scan.classes,
        image_size=None if writer.encoded else writer.image_size,
        conversion=plan.options.as_json(),
        source=plan.source.summary(),
        skipped=len(skipped),
        created_by=f"fastdata {__version__}",
        parts=parts,
    )
    destination.check_names(manifest)
    manifest.write(staging)


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
        ignored=source.scan.ignored,
        bytes=sum(part.bytes for part in manifest.parts)
        + (destination.root / MANIFEST).stat().st_size,
        seconds=time.monotonic() - started,
        resumed=resumed,
        already_done=already_done,
    )
