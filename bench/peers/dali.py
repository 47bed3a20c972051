"""NVIDIA DALI on the CPU: file reader, decode with random crop, resize, flip; torch's iterator."""

from __future__ import annotations

from bench.peers.common import Task, main

TITLES = {"DALI CPU": []}
INSTALL = "pip install nvidia-dali-cuda120"
_CROP = "decodes the crop only, resize to 224 linear, antialias off (its faster setting), flip"
SETS = {"orig": _CROP, "s256": _CROP, "t32": "flip"}


def _check() -> str:
    import nvidia.dali

    return nvidia.dali.__version__


def _batches(task: Task):
    from nvidia.dali import fn, pipeline_def, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator

    @pipeline_def(batch_size=task.batch, num_threads=task.workers, device_id=None)
    def pipeline():
        files, labels = fn.readers.file(
            file_root=str(task.place), shuffle_after_epoch=True, name="reader"
        )
        if task.size == 32:
            images = fn.decoders.image(files, device="cpu")
        else:
            images = fn.decoders.image_random_crop(
                files,
                device="cpu",
                random_area=(0.08, 1.0),
                random_aspect_ratio=(3 / 4, 4 / 3),
                num_attempts=10,
            )
            images = fn.resize(
                images,
                size=(task.size, task.size),
                interp_type=types.INTERP_LINEAR,
                antialias=False,
            )
        return fn.flip(images, horizontal=fn.random.coin_flip()), labels

    iterator = DALIGenericIterator(
        [pipeline()],
        ["images", "labels"],
        reader_name="reader",
        last_batch_policy=LastBatchPolicy.DROP,
        auto_reset=True,
    )
    return lambda: ((one["images"], one["labels"]) for [one] in iterator)


if __name__ == "__main__":
    main(_check, _batches)
