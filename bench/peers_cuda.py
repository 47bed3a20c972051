"""What others do on a GPU with a folder of JPEGs: rows of bench.engines --device cuda.

    dali_files    NVIDIA DALI as its documentation has it: file reader, decoding of a random crop on
                  the GPU, resize, flip and normalisation; hw_decoder_load and threads are the best
                  of a sweep (:func:`sweep`); with its default, which repeats the colours of pixels
                  that share them, or ("fancy") interpolates them, as libjpeg does
    torchvision   torchvision.io.decode_jpeg on the GPU, a batch at a time, of bytes that DataLoader
                  workers have read; RandomResizedCrop, flip and normalisation on the GPU

Both are iterables of batches, normalised float16 of 224x224, epoch after epoch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["DaliFiles", "Torchvision", "sweep"]

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_SIZE = 224
_LOADS = (0.5, 0.65, 0.8, 0.95)
_SPARED = (8, 2, 0)  # CPUs that DALI's threads leave: more of them, those of our own engine, none
_PREFETCH = 3  # batches under way, as in our own engine; DALI's default is 2
_SWEEP_SECONDS = 1.5
_WARM_UP_BATCHES = 8


class DaliFiles:
    """DALI reads and shuffles the files itself."""

    def __init__(
        self, folder: Path, batch: int, load: float, threads: int, fancy: bool = False
    ) -> None:
        from nvidia.dali import fn, pipeline_def, types
        from nvidia.dali.plugin.base_iterator import LastBatchPolicy
        from nvidia.dali.plugin.pytorch import DALIGenericIterator

        @pipeline_def(
            batch_size=batch,
            num_threads=threads,
            device_id=0,
            prefetch_queue_depth=_PREFETCH,
        )
        def pipeline() -> Any:
            files, labels = fn.readers.file(
                file_root=str(folder), shuffle_after_epoch=True, name="reader"
            )
            images = fn.decoders.image_random_crop(
                files,
                device="mixed",
                random_area=(0.08, 1.0),
                random_aspect_ratio=(3 / 4, 4 / 3),
                num_attempts=10,
                hw_decoder_load=load,
                jpeg_fancy_upsampling=fancy,
            )
            images = fn.resize(
                images, size=(_SIZE, _SIZE), interp_type=types.INTERP_LINEAR, antialias=False
            )
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.FLOAT16,
                output_layout="HWC",  # channels_last memory, as ours
                mean=[255 * mean for mean in _MEAN],
                std=[255 * std for std in _STD],
                mirror=fn.random.coin_flip(),
            )
            return images, labels

        self._iterator = DALIGenericIterator(
            [pipeline()],
            ["images", "labels"],
            reader_name="reader",
            last_batch_policy=LastBatchPolicy.DROP,
            auto_reset=True,
        )

    def __iter__(self) -> Iterator[Any]:
        for [one] in self._iterator:
            yield one["images"], one["labels"]


class Torchvision:
    """torchvision decodes batches on the GPU."""

    def __init__(self, folder: Path, batch: int, workers: int) -> None:
        import torch
        from torch.utils.data import DataLoader
        from torchvision.datasets import ImageFolder
        from torchvision.transforms import v2

        self._steps = v2.Compose([v2.RandomResizedCrop(_SIZE), v2.RandomHorizontalFlip()])
        self._finish = v2.Compose(
            [v2.ToDtype(torch.float16, scale=True), v2.Normalize(_MEAN, _STD)]
        )
        self._loader = DataLoader(
            ImageFolder(str(folder), loader=_bytes),
            batch_size=batch,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
            collate_fn=_joined,
        )

    def __iter__(self) -> Iterator[Any]:
        import torch
        from torchvision.io import ImageReadMode, decode_jpeg

        for files, lengths, labels in self._loader:
            encoded = list(files.split(lengths))
            images = decode_jpeg(encoded, ImageReadMode.RGB, device="cuda")
            batch = torch.stack([self._steps(image) for image in images])
            batch = self._finish(batch).contiguous(memory_format=torch.channels_last)
            yield batch, labels.to("cuda")


def _bytes(path: str) -> Any:
    from torchvision.io import read_file

    return read_file(path)


def _joined(samples: list[Any]) -> Any:
    """The files of a batch as one tensor: each tensor on its way is an open file, and beyond the
    limit of those a DataLoader waits for ever."""
    import torch

    files, labels = zip(*samples, strict=True)
    return torch.cat(files), [len(file) for file in files], torch.tensor(labels)


def sweep(folder: Path, batch: int, fancy: bool) -> tuple[float, int]:
    """hw_decoder_load and threads with which :class:`DaliFiles` is fastest here."""
    import torch

    cpus = len(os.sched_getaffinity(0))
    best, chosen = 0.0, (_LOADS[0], cpus)
    for threads in sorted({max(1, cpus - spared) for spared in _SPARED}):
        for load in _LOADS:
            batches = _endless(DaliFiles(folder, batch, load, threads, fancy))
            for _ in range(_WARM_UP_BATCHES):
                next(batches)
            torch.cuda.synchronize()
            started, count = time.perf_counter(), 0
            while time.perf_counter() - started < _SWEEP_SECONDS:
                next(batches)
                count += 1
            torch.cuda.synchronize()
            rate = count * batch / (time.perf_counter() - started)
            if rate > best:
                best, chosen = rate, (load, threads)
    return chosen


def _endless(epochs: Any) -> Iterator[Any]:
    while True:
        yield from epochs
