"""Writing one shard: a pure function of the plan and the shard's number."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from converters.faults import ADVICE
from converters.plan import Plan
from converters.sources import open_records
from converters.transform import Transform
from fastdata.errors import ImageError
from fastdata.files import write_whole
from fastdata.formats import Sample, ShardRecord, Writer
from fastdata.manifest import Part
from fastdata.paths import display
from fastdata.registry import WRITERS, load

__all__ = ["ShardWriter", "load_record", "make_writer", "record_path"]


def make_writer(plan: Plan, staging: Path) -> Writer:
    """The format's writer for a plan."""
    options = plan.options
    make = load(WRITERS, options.to, "format")
    writer: Writer = make(staging, options.name, options.size, plan.copies)
    return writer


class ShardWriter:
    """Carries out shards of one plan; one for each worker process."""

    def __init__(self, plan: Plan, staging: Path, on_error: str) -> None:
        self._plan = plan
        self._staging = staging
        self._skip = on_error == "skip"
        self._writer = make_writer(plan, staging)
        self._records = open_records(plan.source)
        self._transform = Transform(plan.options)

    def write(self, shard: int, progress: Callable[[int, int], None]) -> None:
        """Write a shard, and its record when everything of it is safely on disk.

        Args:
            shard: its number.
            progress: called after each image with 1, and with 1 where it was left out, else 0.

        Raises:
            ImageError: an image is at fault and ``on_error`` is ``"raise"``.
            StorageError: the disk refused.
        """
        plan = self._plan
        start, stop = int(plan.starts[shard]), int(plan.starts[shard + 1])
        positions: list[int] = []
        sizes: list[tuple[int, int]] = []
        skipped: list[dict[str, Any]] = []
        treated: Counter[str] = Counter()
        repaired: list[dict[str, Any]] = []

        def samples() -> Iterator[Sample]:
            for position in range(start, stop):
                path = display(plan.source.paths[plan.item(position)[0]])
                try:
                    sample = self._sample(position)
                except ImageError as error:
                    if not self._skip:
                        raise ImageError(error.path, f"{error.reason}; {ADVICE}") from error
                    reason, kind = error.reason, type(error.__cause__ or error).__name__
                    copy = plan.item(position)[1]
                    skipped.append({"path": path, "reason": reason, "error": kind, "copy": copy})
                    progress(1, int(copy == 0))
                    continue
                positions.append(position)
                sizes.append((sample.width, sample.height))
                treated.update(sample.treated)
                if sample.repaired and plan.item(position)[1] == 0:
                    repaired.append({"path": path, "reason": ", ".join(sample.repaired)})
                yield sample
                progress(1, 0)

        spans, parts = self._writer.write_shard(shard, start, samples())
        record = ShardRecord(
            shard,
            np.array(positions, np.int64),
            np.array(sizes, np.int32).reshape(-1, 2),
            np.array(spans, np.int64).reshape(-1, 2),
            parts,
            skipped,
            dict(treated),
            repaired,
        )
        _save_record(record, self._staging)

    def _sample(self, position: int) -> Sample:
        source = self._plan.source
        index, copy = self._plan.item(position)
        if len(source.groups):
            copy = int(source.groups[index, 1])
        return self._transform(
            self._records.read(index),
            self._records.name(index),
            position,
            source.paths[index],
            source.label(index),
            copy,
        )


def record_path(staging: Path, shard: int) -> Path:
    """Where a shard's record lies; a shard that has one is done."""
    return staging / f"shard-{shard:06d}.npz"


def _save_record(record: ShardRecord, staging: Path) -> None:
    words = {
        "parts": [asdict(part) for part in record.parts],
        "skipped": record.skipped,
        "treated": record.treated,
        "repaired": record.repaired,
    }
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
            words["treated"],
            words["repaired"],
        )
