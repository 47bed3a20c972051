"""Records -> plan: which sample goes where, fixed before any work starts.

The plan lies in the staging folder as plain arrays, which worker processes map: what a shard will
hold depends on nothing but the plan, so shards can be written in any order, anywhere, again.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.options import Options
from converters.sources import Source, Unreadable
from fastdata.errors import DestinationError
from fastdata.files import npy_bytes, write_whole
from fastdata.hashing import derive_key
from fastdata.paths import PathTable, display
from fastdata.sampling import shuffled

__all__ = ["Plan"]

PLAN = "plan.json"
_SHUFFLE = 4  # purpose word of the shuffle's key, see hashing.derive_key
_SOURCE_ARRAYS = ("labels", "bytes", "stamps", "places", "groups")
_SOURCE_TABLES = ("paths", "files")
_SMALL = 1 << 20
_DEFAULT_SHARDS = 32
_DEFAULT_SHARD_BYTES = (4_000_000, 256_000_000)


@dataclass(frozen=True)
class Plan:
    """What a conversion will do.

    Attributes:
        options: the arguments that decide the bytes.
        source: what will be converted, in the source's order.
        order: int64 [N * copies], the item at each plan position: source index * copies + copy.
        starts: int64 [shards + 1], the first plan position of each shard, and their total.
    """

    options: Options
    source: Source
    order: NDArray[np.int64]
    starts: NDArray[np.int64]

    @property
    def shards(self) -> int:
        return len(self.starts) - 1

    @property
    def copies(self) -> bool:
        """Whether the samples are variants of their sources."""
        return self.options.copies > 1 or len(self.source.groups) > 0

    def item(self, position: int) -> tuple[int, int]:
        """Source index and copy at a plan position."""
        return divmod(int(self.order[position]), self.options.copies)

    @classmethod
    def make(cls, options: Options, source: Source) -> Plan:
        """Order the samples and cut them into shards."""
        order = np.arange(len(source) * options.copies, dtype=np.int64)
        if options.shuffle:  # copies of an image part, as images of a class do
            order = shuffled(len(order), derive_key(options.seed, _SHUFFLE), order)
        sizes = np.maximum(source.bytes[order // options.copies], 0)
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
        source = self.source
        arrays = {name: npy_bytes(getattr(source, name)) for name in _SOURCE_ARRAYS}
        tables = {name: getattr(source, name).tobytes() for name in _SOURCE_TABLES}
        plan = {"order": npy_bytes(self.order), "starts": npy_bytes(self.starts)}
        for name, data in {**arrays, **tables, **plan}.items():
            with write_whole(_plan_file(staging, name)) as file:
                file.write(data)
        document = {
            "options": self.options.as_json(),
            "kind": source.kind,
            "root": os.fsdecode(source.root),
            "classes": source.classes,
            "columns": source.columns,
            "identity": source.identity,
            "unreadable": [asdict(folder) for folder in source.unreadable],
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
        columns: dict[str, Any] = {
            **{name: _mapped(_plan_file(staging, name)) for name in _SOURCE_ARRAYS},
            **{name: PathTable.open(_plan_file(staging, name)) for name in _SOURCE_TABLES},
        }
        source = Source(
            kind=document["kind"],
            root=os.fsencode(document["root"]),
            classes=document["classes"],
            columns=document["columns"],
            identity=document["identity"],
            unreadable=[Unreadable(**folder) for folder in document["unreadable"]],
            **columns,
        )
        order, starts = (_mapped(_plan_file(staging, name)) for name in ("order", "starts"))
        return cls(options, source, order, starts)

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


def _plan_file(staging: Path, name: str) -> Path:
    return staging / f"plan-{name}"


def _mapped(path: Path) -> NDArray[Any]:
    # An array without elements cannot be mapped, and a small one need not be.
    mode: Any = "r" if path.stat().st_size > _SMALL else None
    array: NDArray[Any] = np.load(path, mmap_mode=mode)
    return array


def _document(staging: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((staging / PLAN).read_bytes())
    return document


def _source_difference(now: Source, before: Source) -> str | None:
    """The first way in which two scans of a source differ, in words."""
    if now.root != before.root:
        return f"the source was {display(before.root)} and is now {display(now.root)}"
    for i in range(min(len(now), len(before))):
        if now.paths[i] != before.paths[i]:
            return f"in the source, {display(before.paths[i])} was followed or replaced by " + (
                f"{display(now.paths[i])}"
            )
    if len(now) != len(before):
        return f"the source had {len(before)} images and has now {len(now)}"
    changed = np.flatnonzero((now.bytes != before.bytes) | (now.stamps != before.stamps))
    if changed.size:
        return f"{display(now.paths[int(changed[0])])} was changed in the source"
    if now.summary() != before.summary() or now.columns != before.columns:
        return "the labels or classes were changed"
    return None
