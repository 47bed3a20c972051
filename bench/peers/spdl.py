"""SPDL: a pipeline of threads; FFmpeg decodes, crops, scales and mirrors by one filter graph."""

from __future__ import annotations

import random
from typing import Any

from bench.peers.boxes import random_box
from bench.peers.common import Task, classes_of, main

TITLES = {"SPDL": []}
INSTALL = "apt-get install ffmpeg; pip install spdl torch"
_CROP = "random resized crop 224 by FFmpeg (bilinear scaler), flip"
SETS = {"orig": _CROP, "s256": _CROP, "t32": "flip"}


def _check() -> str:
    from importlib.metadata import version

    import spdl.dataloader
    import spdl.io

    spdl.io.demux_config()  # loads FFmpeg
    return version("spdl")


def _batches(task: Task):
    import spdl.io
    import torch
    from spdl.dataloader import DataLoader

    records = classes_of(task.place)

    def read(record: tuple[Any, int]) -> tuple[Any, int]:
        packets = spdl.io.demux_image(str(record[0]))
        graph = _graph(packets.width, packets.height, task.size)
        return spdl.io.decode_packets(packets, filter_desc=graph), record[1]

    def gather(items: list[tuple[Any, int]]) -> tuple[Any, Any]:
        buffer = spdl.io.convert_frames([frames for frames, _ in items])
        return spdl.io.to_torch(buffer), torch.tensor([label for _, label in items])

    def epoch() -> DataLoader:
        random.shuffle(records)
        return DataLoader(
            records,
            preprocessor=read,
            batch_size=task.batch,
            drop_last=True,
            aggregator=gather,
            num_threads=task.workers,
        )

    return epoch


def _graph(width: int, height: int, size: int) -> str:
    steps = ["hflip"] if random.random() < 0.5 else []
    if size != 32:
        x, y, wide, high = random_box(width, height, random.random)
        steps.insert(0, f"crop={wide}:{high}:{x}:{y}:exact=1,scale={size}:{size}:flags=bilinear")
    return ",".join([*steps, "format=pix_fmts=rgb24"])


if __name__ == "__main__":
    main(_check, _batches)
