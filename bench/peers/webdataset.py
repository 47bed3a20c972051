"""webdataset: tar shards, a shuffle buffer, batches made in WebLoader's workers."""

from __future__ import annotations

from pathlib import Path

from bench.peers import steps
from bench.peers.common import Task, classes_of, main

TITLES = {"webdataset, PIL": ["pil"], "webdataset, torchvision.io": ["io"]}
INSTALL = "pip install webdataset torchvision"
SETS = {"orig": steps.CROP, "s256": steps.CROP, "t32": "flip"}
_SHARDS_A_WORKER = 4


def _check() -> str:
    import webdataset

    return f"{webdataset.__version__}, torchvision {steps.version()}"


def _prepare(source: Path, place: Path, name: str, workers: int) -> None:
    from webdataset import TarWriter

    place.mkdir()
    shards = _SHARDS_A_WORKER * max(1, workers)
    files = classes_of(source)
    for shard in range(shards):  # dealt out: a worker's shards hold all classes
        with TarWriter(str(place / f"{shard:04d}.tar")) as archive:
            for index in range(shard, len(files), shards):
                file, label = files[index]
                archive.write({"__key__": f"{index:08d}", "jpg": file.read_bytes(), "cls": label})


def _batches(task: Task):
    import webdataset
    from torchvision.transforms import v2

    if task.extra == ["io"]:
        decoder, change = _decoded, steps.transform(task.size)
    else:
        decoder, change = "pil", steps.transform(task.size, v2.ToImage())
    shards = sorted(str(shard) for shard in task.place.glob("*.tar"))
    images = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), empty_check=False)
        .shuffle(1000)
        .decode(decoder)
        .to_tuple("jpg", "cls")
        .map_tuple(change, int)
        .batched(task.batch, partial=False)
    )
    loader = webdataset.WebLoader(
        images,
        batch_size=None,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return lambda: loader


def _decoded(key: str, data: bytes):
    return steps.decode(data) if key.endswith("jpg") else None


if __name__ == "__main__":
    main(_check, _batches, _prepare)
