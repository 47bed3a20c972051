"""Writing one shard: a pure function of the plan and the shard's number."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np

from converters.plan import Plan
from converters.transform import Transform
from fastdata.errors import ImageError
from fastdata.files import write_whole
from fastdata.formats import Sample, ShardRecord, Writer
from fastdata.manifest import Part
from fastdata.paths import display
from fastdata.registry import WRITERS, load

__all__ = ["ShardWriter", "load_record", "make_writer", "record_path"]

_ADVICE = "repair or remove it, or leave such files out with --on-error skip"


def make_writer(plan: Plan, staging: Path) -> Writer:
    """The format's writer for a plan."""
    options = plan.options
    writer: Writer = load(WRITERS, options.to, "format")(staging, options.name, options.size)
    return writer


class ShardWriter:
    """Carries out shards of one plan; one for each worker process."""

    def __init__(self, plan: Plan, staging: Path, on_error: str) -> None:
        self._plan = plan
        self._staging = staging
        self._skip = on_error == "skip"
        self._writer = make_writer(plan, staging)
        self._transform = Transform(plan.options)

    def write(self, shard: int, progress: Callable[[int], None]) -> None:
        """Write a shard, and its record when everything of it is safely on disk.

        Args:
            shard: its number.
            progress: called with 1 after each image.

        Raises:
            ImageError: an image is at fault and ``on_error`` is ``"raise"``.
            StorageError: the disk refused.
        """
        plan = self._plan
        start, stop = int(plan.starts[shard]), int(plan.starts[shard + 1])
        positions: list[int] = []
        sizes: list[tuple[int, int]] = []
        skipped: list[dict[str, str]] = []

        def samples() -> Iterator[Sample]:
            source, scan = plan.source, plan.source.scan
            for position in range(start, stop):
                index = int(plan.order[position])
                path = scan.paths[index]
                label = int(scan.labels[index]) if scan.labels.ndim == 1 else None
                try:
                    scanned = int(source.bytes[index]), int(source.mtimes[index])
                    sample = self._transform(scan.root, path, position, label, scanned)
                except ImageError as error:
                    if not self._skip:
                        raise ImageError(error.path, f"{error.reason}; {_ADVICE}") from error
                    reason, kind = error.reason, type(error.__cause__ or error).__name__
                    skipped.append({"path": display(path), "reason": reason, "error": kind})
                else:
                    positions.append(position)
                    sizes.append((sample.width, sample.height))
                    yield sample
                progress(1)

        spans, parts = self._writer.write_shard(shard, start, samples())
        record = ShardRecord(
            shard,
            np.array(positions, np.int64),
            np.array(sizes, np.int32).reshape(-1, 2),
            np.array(spans, np.int64).reshape(-1, 2),
            parts,
            skipped,
        )
        _save_record(record, self._staging)


def record_path(staging: Path, shard: int) -> Path:
    """Where a shard's record lies; a shard that has one is done."""
    return staging / f"shard-{shard:06d}.npz"


def _save_record(record: ShardRecord, staging: Path) -> None:
    words = {"parts": [asdict(part) for part in record.parts], "skipped": record.skipped}
    buffer = io.BytesIO()
    np.savez(
        buffer,
        positions=record.positions,
        sizes=record.sizes,
        spans=record.spans,
        words=np.frombuffer(json.dumps(words).encode("ascii"), np.uint8),
    )
    with write_whole(record_path(staging, record.shard)) as file:
        file.write(buffer.getvalue())


def load_record(staging: Path, shard: int) -> ShardRecord:
    """Read a shard's record."""
    with np.load(record_path(staging, shard)) as arrays:
        words = json.loads(arrays["words"].tobytes())
        return ShardRecord(
            shard,
            arrays["positions"],
            arrays["sizes"],
            arrays["spans"],
            [Part(**part) for part in words["parts"]],
            words["skipped"],
        )
