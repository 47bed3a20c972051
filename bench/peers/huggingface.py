"""Hugging Face datasets: an Arrow table of the files' bytes, with_transform + DataLoader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.peers import steps
from bench.peers.common import Task, classes_of, main

TITLES = {"HF datasets, PIL": ["pil"], "HF datasets, torchvision.io": ["io"]}
INSTALL = "pip install datasets torchvision"
SETS = {"orig": steps.CROP, "s256": steps.CROP, "t32": "flip"}


def _check() -> str:
    import datasets

    return f"{datasets.__version__}, torchvision {steps.version()}"


def _prepare(source: Path, place: Path, name: str, workers: int) -> None:
    from datasets import Dataset, Features, Image, Value

    def rows():
        for file, label in classes_of(source):
            yield {"image": {"bytes": file.read_bytes(), "path": None}, "label": label}

    features = Features({"image": Image(), "label": Value("int64")})
    cache = str(place.with_name(f"{place.name}-cache"))
    Dataset.from_generator(rows, features=features, cache_dir=cache).save_to_disk(str(place))


def _batches(task: Task):
    from datasets import Image, load_from_disk
    from torch.utils.data import DataLoader
    from torchvision.transforms import v2

    table = load_from_disk(str(task.place))
    if task.extra == ["io"]:
        table = table.cast_column("image", Image(decode=False))
        change = steps.transform(task.size)
    else:
        change = steps.transform(task.size, v2.ToImage())

    def finish(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
        images = rows["image"]
        if task.extra == ["io"]:
            images = [steps.decode(image["bytes"]) for image in images]
        else:
            images = [image.convert("RGB") for image in images]
        return {"image": [change(image) for image in images], "label": rows["label"]}

    loader = DataLoader(
        table.with_transform(finish),
        batch_size=task.batch,
        shuffle=True,
        drop_last=True,
        num_workers=task.workers,
        persistent_workers=task.workers > 0,
    )
    return lambda: ((batch["image"], batch["label"]) for batch in loader)


if __name__ == "__main__":
    main(_check, _batches, _prepare)
