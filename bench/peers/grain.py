"""Grain: ArrayRecord files with one record a group, as random access wants it; worker processes
that make whole batches; OpenCV decodes."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from bench.peers.boxes import random_box
from bench.peers.common import Task, classes_of, main

TITLES = {"Grain, ArrayRecord": []}
INSTALL = "pip install grain array_record opencv-python-headless"
_CROP = "decoded by OpenCV, random resized crop 224 (bilinear, no antialias), flip"
SETS = {"orig": _CROP, "s256": _CROP, "t32": "flip"}
_LABEL_BYTES = 4


def _check() -> str:
    from importlib.metadata import version

    import grain.python  # noqa: F401
    from array_record.python import array_record_module  # noqa: F401

    return f"{version('grain')}, array_record {version('array_record')}"


def _prepare(source: Path, place: Path, name: str, workers: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    place.mkdir()
    writer = ArrayRecordWriter(str(place / "images.array_record"), "group_size:1")
    for file, label in classes_of(source):
        writer.write(label.to_bytes(_LABEL_BYTES, "little") + file.read_bytes())
    writer.close()


def _batches(task: Task):
    import cv2
    import grain.python as grain
    import numpy as np

    cv2.setNumThreads(0)

    def finish(record: bytes, generator: np.random.Generator) -> tuple[Any, int]:
        data = np.frombuffer(record, np.uint8, offset=_LABEL_BYTES)
        image = cv2.imdecode(data, cv2.IMREAD_COLOR_RGB)
        if task.size != 32:
            x, y, wide, high = random_box(image.shape[1], image.shape[0], generator.random)
            image = cv2.resize(image[y : y + high, x : x + wide], (task.size, task.size))
        if generator.random() < 0.5:
            image = cv2.flip(image, 1)
        return image, int.from_bytes(record[:_LABEL_BYTES], "little")

    source = grain.ArrayRecordDataSource([str(task.place / "images.array_record")])
    images = grain.MapDataset.source(source).seed(0).shuffle().repeat().random_map(finish)
    reading = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)  # more wait for each other
    batches = images.to_iter_dataset(reading).batch(task.batch, drop_remainder=True)
    workers = grain.MultiprocessingOptions(num_workers=task.workers, per_worker_buffer_size=2)
    endless = iter(batches.mp_prefetch(workers))  # its processes start once, not every epoch
    return lambda: itertools.islice(endless, len(source) // task.batch)


if __name__ == "__main__":
    main(_check, _batches, _prepare)
