"""Records -> plan: which sample goes where, fixed before any work starts.

The plan lies in the staging folder as plain arrays, which worker processes map: what a shard will
hold depends on nothing but the plan, so shards can be written in any order, anywhere, again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.options import Options
from converters.scan import Source
from fastdata.errors import DestinationError
from fastdata.files import npy_bytes, write_whole
from fastdata.formats.folder import FolderScan
from fastdata.hashing import derive_key
from fastdata.paths import PathTable, display
from fastdata.sampling import shuffled

__all__ = ["Plan"]

PLAN = "plan.json"
_SHUFFLE = 4  # purpose word of the shuffle's key, see hashing.derive_key
_DEFAULT_SHARDS = 32
_DEFAULT_SHARD_BYTES = (4_000_000, 256_000_000)


@dataclass(frozen=True)
class Plan:
    """What a conversion will do.

    Attributes:
        options: the arguments that decide the bytes.
        source: what will be converted, in the source's order.
        order: int64 [N], the source index at each plan position.
        starts: int64 [shards + 1], the first plan position of each shard, and N.
    """

    options: Options
    source: Source
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def shards(self) -> int:
        return len(self.starts) - 1

    @classmethod
    def make(cls, options: Options, source: Source) -> Plan:
        """Order the samples and cut them into shards."""
        order = np.arange(len(source), dtype=np.int64)
        if options.shuffle:
            order = shuffled(len(source), derive_key(options.seed, _SHUFFLE), order)
        sizes = np.maximum(source.bytes[order], 0)
        ends = np.cumsum(sizes)
        # The default gives small sources shards enough for every worker, and does not look at
        # how many workers there are: the plan must be the same for any number of them.
        low, high = _DEFAULT_SHARD_BYTES
        target = options.shard_size or min(max(int(ends[-1]) // _DEFAULT_SHARDS, low), high)
        shard = (ends - sizes) // target
        starts = np.flatnonzero(np.diff(shard, prepend=-1, append=np.iinfo(np.int64).max))
        return cls(options, source, order, starts.astype(np.int64))

    def save(self, staging: Path) -> None:
        """Write the plan; ``plan.json`` comes last and says that the rest is there."""
        scan = self.source.scan
        arrays = {
            "plan-labels.npy": npy_bytes(scan.labels),
            "plan-paths.bin": scan.paths.tobytes(),
            "plan-bytes.npy": npy_bytes(self.source.bytes),
            "plan-mtimes.npy": npy_bytes(self.source.mtimes),
            "plan-order.npy": npy_bytes(self.order),
            "plan-starts.npy": npy_bytes(self.starts),
        }
        for name, data in arrays.items():
            with write_whole(staging / name) as file:
                file.write(data)
        document = {
            "options": self.options.as_json(),
            "root": os.fsdecode(scan.root),
            "classes": scan.classes,
            "shards": self.shards,
        }
        with write_whole(staging / PLAN) as file:
            file.write(json.dumps(document, indent=1).encode("ascii"))

    @classmethod
    def load(cls, staging: Path) -> Plan:
        """Map the plan that :meth:`save` wrote."""
        document = _document(staging)
        size = document["options"]["size"]
        options = Options(**{**document["options"], "size": None if size is None else tuple(size)})
        scan = FolderScan(
            os.fsencode(document["root"]),
            PathTable.open(staging / "plan-paths.bin"),
            np.load(staging / "plan-labels.npy"),
            document["classes"],
        )
        source = Source(
            scan,
            np.load(staging / "plan-bytes.npy", mmap_mode="r"),
            np.load(staging / "plan-mtimes.npy", mmap_mode="r"),
        )
        order = np.load(staging / "plan-order.npy", mmap_mode="r")
        return cls(options, source, order, np.load(staging / "plan-starts.npy"))

    def check_resumable(self, staging: Path) -> None:
        """Refuse to go on with the conversion in ``staging`` unless its plan is this one.

        Raises:
            DestinationError: an argument or the source differs; the message names it.
        """
        document = _document(staging)
        difference = self.options.difference(document["options"])
        if difference is None:
            difference = _source_difference(self.source, Plan.load(staging).source)
        if difference is not None:
            raise DestinationError(
                f"{staging.parent} holds an unfinished conversion that cannot be resumed: "
                f"{difference}; undo that, or start from the beginning with --no-resume"
            )


def _document(staging: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((staging / PLAN).read_bytes())
    return document


def _source_difference(now: Source, before: Source) -> str | None:
    """The first way in which two scans of a source differ, in words."""
    paths_now, paths_before = now.scan.paths, before.scan.paths
    if now.scan.root != before.scan.root:
        return f"the source was {display(before.scan.root)} and is now {display(now.scan.root)}"
    for i in range(min(len(paths_now), len(paths_before))):
        if paths_now[i] != paths_before[i]:
            return f"in the source, {display(paths_before[i])} was followed or replaced by " + (
                f"{display(paths_now[i])}"
            )
    if len(paths_now) != len(paths_before):
        return f"the source had {len(paths_before)} images and has now {len(paths_now)}"
    changed = np.flatnonzero((now.bytes != before.bytes) | (now.mtimes != before.mtimes))
    if changed.size:
        return f"{display(paths_now[int(changed[0])])} was changed in the source"
    return None
