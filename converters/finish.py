"""The last step of a conversion: the sidecars, and the manifest that says all is whole."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from converters.destination import Destination
from converters.faults import ErrorPolicy
from converters.plan import Plan
from fastdata._version import __version__
from fastdata.dataset import COPIES, LABELS, PATHS, REPAIRED, SIZES, SKIPPED
from fastdata.errors import DataError, ImageError
from fastdata.files import npy_bytes, sha256_range, write_whole
from fastdata.formats import ShardRecord, Writer
from fastdata.manifest import Manifest, Part
from fastdata.paths import PathTable, display

__all__ = ["finish", "skipped_entries"]


def skipped_entries(shard: ShardRecord) -> list[dict[str, str]]:
    """What a shard has left out, a line for each source record, not for each copy."""
    entries = [dict(entry) for entry in shard.skipped]
    return [entry for entry in entries if entry.pop("copy") == 0]


def finish(
    plan: Plan,
    writer: Writer,
    destination: Destination,
    shards: list[ShardRecord],
    policy: ErrorPolicy,
    note: Callable[[str], None],
) -> None:
    """Write the format's last files, the sidecars, and the manifest that says all is whole."""
    staging, source = destination.staging, plan.source
    skipped = [
        {"path": folder.path, "reason": folder.reason, "error": "OSError"}
        for folder in source.unreadable
    ]
    skipped += [entry for shard in shards for entry in skipped_entries(shard)]
    repaired = [entry for shard in shards for entry in shard.repaired]
    positions = np.concatenate([shard.positions for shard in shards])
    if skipped and policy.on_error == "raise":  # they were skipped by the run that this resumes
        first = skipped[0]
        raise ImageError(os.path.join(display(source.root), first["path"]), first["reason"])
    policy.check(len(skipped), len(source) + len(source.unreadable))
    if not len(positions):
        raise DataError(
            f"none of the {len(source)} images in {display(source.root)} can be used; the "
            f"first: {skipped[0]['path']}: {skipped[0]['reason']}"
        )
    indices, copies = np.divmod(plan.order[positions], plan.options.copies)
    labels: NDArray[Any] = source.labels[indices]
    parts = writer.finish(shards, labels, note)
    sidecars = {
        LABELS: npy_bytes(labels),
        SIZES: npy_bytes(np.concatenate([shard.sizes for shard in shards])),
        PATHS: PathTable.of(source.paths[i] for i in indices.tolist()).tobytes(),
        SKIPPED: _lines(skipped),
        REPAIRED: _lines(repaired),
    }
    if plan.options.copies > 1:
        sidecars[COPIES] = npy_bytes(np.stack([indices, copies], axis=1))
    elif len(source.groups):
        sidecars[COPIES] = npy_bytes(np.asarray(source.groups[indices]))
    for name, data in sidecars.items():
        with write_whole(staging / name) as file:
            file.write(data)
        digest = sha256_range(staging / name, 0, len(data))
        parts.append(Part(name, 0, len(data), digest))
    treated: Counter[str] = Counter()
    for shard in shards:
        treated.update(shard.treated)
    manifest = Manifest(
        format=plan.options.to,
        samples=len(positions),
        classes=source.classes,
        label_dtype=str(labels.dtype),
        columns=None if labels.ndim == 1 else source.columns,
        image_size=None if writer.encoded else writer.image_size,
        conversion=plan.options.as_json(),
        source=source.summary(),
        skipped=len(skipped),
        treated=dict(treated),
        repaired=dict(Counter(flaw for entry in repaired for flaw in entry["reason"].split(", "))),
        created_by=f"fastdata {__version__}",
        parts=parts,
    )
    destination.check_names(manifest)
    manifest.write(staging)


def _lines(entries: list[dict[str, str]]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode("ascii")
