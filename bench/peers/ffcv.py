"""FFCV: .beton files, JPEG mode for the sets of JPEGs and raw mode for those of pixels.

FFCV always encodes anew: it takes pixels, never a JPEG. The quality is chosen so that its JPEGs
are about as large as the source's. Its batches are memory that it overwrites later.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from bench.peers.common import RAW_SETS, Task, classes_of, main

TITLES = {"FFCV": []}
INSTALL = (
    "apt-get install libopencv-dev libturbojpeg0-dev pkg-config; in a venv of its own: pip install "
    "torch numba opencv-python-headless; pip install --no-build-isolation ffcv; then "
    "--python ffcv=VENV/bin/python"
)
_CROP = "random resized crop 224 (area filter), flip; batches are overwritten later"
SETS = {
    "orig": f"JPEG mode, re-encoded; {_CROP}",
    "s256": f"JPEG mode, re-encoded; {_CROP}",
    "t32": "JPEG mode, re-encoded; flip; batches are overwritten later",
    "raw256": f"raw mode; {_CROP}",
    "raw32": "raw mode; flip; batches are overwritten later",
}
AHEAD = {
    "t32": "its compiled loop runs in threads and overwrites the batches that it has handed out; "
    "ours stay as they are, and go from process to process",
}
_QUALITIES = range(85, 100)
_TRIED = 64  # images by which the quality is chosen


def _check() -> str:
    from importlib.metadata import version

    import ffcv  # noqa: F401

    return version("ffcv")


class _Pixels:
    """The dataset that FFCV writes: index -> (uint8 [H, W, 3], label)."""

    def __init__(self, source: Path, raw: bool) -> None:
        import numpy as np

        self._files: list[tuple[Path, int]] = []
        if raw:
            self._images = np.load(source / "images.npy", mmap_mode="r")
            self._labels = np.load(source / "labels.npy")
        else:
            self._images = None
            self._files = classes_of(source)

    def __len__(self) -> int:
        return len(self._files) if self._images is None else len(self._images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        import numpy as np
        from PIL import Image

        if self._images is not None:
            return np.array(self._images[index]), int(self._labels[index])
        path, label = self._files[index]
        return np.array(Image.open(path).convert("RGB")), label

    def source_bytes(self, index: int) -> int:
        return self._files[index][0].stat().st_size


def _prepare(source: Path, place: Path, name: str, workers: int) -> str | None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    raw = name in RAW_SETS
    dataset = _Pixels(source, raw)
    remark, options = None, {"write_mode": "raw"}
    if not raw:
        quality, remark = _quality(dataset)
        options = {"write_mode": "jpg", "jpeg_quality": quality}
    fields = {"image": RGBImageField(**options), "label": IntField()}
    DatasetWriter(str(place), fields, num_workers=workers).from_indexed_dataset(dataset)
    return remark


def _quality(dataset: _Pixels) -> tuple[int, str]:
    """The quality at which cv2, which FFCV encodes by, comes closest to the source's bytes."""
    import cv2

    step = max(1, len(dataset) // _TRIED)
    tried = range(0, len(dataset), step)
    theirs = sum(dataset.source_bytes(index) for index in tried)
    images = [dataset[index][0][:, :, ::-1] for index in tried]
    sizes = {
        quality: sum(
            len(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, quality])[1])
            for image in images
        )
        for quality in _QUALITIES
    }
    best = min(sizes, key=lambda quality: abs(sizes[quality] - theirs))
    return best, f"quality {best}: {sizes[best] / theirs:.2f} of the source's bytes"


def _batches(task: Task):
    from ffcv.fields.decoders import (
        IntDecoder,
        RandomResizedCropRGBImageDecoder,
        SimpleRGBImageDecoder,
    )
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    if task.size == 32:
        decoder = SimpleRGBImageDecoder()
    else:
        decoder = RandomResizedCropRGBImageDecoder((task.size, task.size))
    images = [decoder, RandomHorizontalFlip(), ToTensor(), ToTorchImage(convert_back_int16=False)]
    loader = Loader(
        str(task.place),
        batch_size=task.batch,
        num_workers=task.workers,
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        pipelines={"image": images, "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return lambda: loader


if __name__ == "__main__":
    main(_check, _batches, _prepare)
    # Its threads are not always joined at an orderly exit, which then ends in abort().
    sys.stdout.flush()
    os._exit(0)
