"""MosaicML Streaming: MDS shards on the local disk, StreamingDataset + StreamingDataLoader; items
are the files' bytes, decoded by torchvision.io."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers import steps
from bench.peers.common import Task, classes_of, main

TITLES = {"MosaicML Streaming": []}
INSTALL = (
    "in a venv of its own (it needs numpy below 2.2): pip install mosaicml-streaming torchvision; "
    "then --python mosaicml=VENV/bin/python"
)
SETS = {"orig": steps.CROP, "s256": steps.CROP, "t32": "flip"}


def _check() -> str:
    import streaming

    return f"{streaming.__version__}, torchvision {steps.version()}"


def _prepare(source: Path, place: Path, name: str, workers: int) -> None:
    from streaming import MDSWriter

    columns = {"image": "bytes", "label": "int"}
    with MDSWriter(out=str(place), columns=columns, size_limit=1 << 26) as writer:
        for file, label in classes_of(source):
            writer.write({"image": file.read_bytes(), "label": label})


def _batches(task: Task):
    from streaming import StreamingDataLoader, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    change = steps.transform(task.size)

    class Images(StreamingDataset):
        def __getitem__(self, index: Any) -> Any:
            item = super().__getitem__(index)
            return change(steps.decode(item["image"])), item["label"]

    clean_stale_shared_memory()  # of a run before this one; it refuses to start otherwise
    loader = StreamingDataLoader(
        Images(local=str(task.place), shuffle=True, batch_size=task.batch),
        batch_size=task.batch,
        num_workers=task.workers,
        drop_last=True,
        persistent_workers=task.workers > 0,
    )
    return lambda: loader


if __name__ == "__main__":
    main(_check, _batches, _prepare)
