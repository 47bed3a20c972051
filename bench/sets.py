"""The sets of images that benchmarks load, made of one folder of photographs."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from bench.outputs import link_classes
from bench.peers.common import RAW_SETS

__all__ = ["BATCHES", "Sets"]

BATCHES = {"orig": 50, "s256": 50, "raw256": 50, "t32": 400, "raw32": 400}
"""Set -> batches that an epoch of it has at least."""


class Sets:
    """The sets of images, made when they are asked for."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self._src: Path = arguments.src.resolve()
        self._batch, self._images = arguments.batch, arguments.images
        self.workers: int = arguments.workers
        self.scratch = scratch

    def folder(self, name: str) -> Path:
        """The set as a folder of class folders, repeated until an epoch is long enough."""
        made = self.scratch / f"{name}-folder"
        if made.exists():
            return made
        base = {"raw32": "t32", "raw256": "s256"}.get(name, name)
        source = _image_folder(self._src, base, self.scratch)
        files = sorted(file for file in source.glob("*/*") if file.is_file())
        if not files:
            raise SystemExit(f"{self._src}: expected class folders with images in them")
        least = self._images or BATCHES[name] * self._batch
        for turn in range(-(-least // len(files))):
            for file in files:
                copy = made / file.parent.name / f"{turn:04d}-{file.name}"
                copy.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(file, copy)
                except OSError:  # another file system
                    shutil.copyfile(file, copy)
        if source != self._src:
            shutil.rmtree(source)
            shutil.rmtree(self.scratch / f"{base}-source")
        return made

    def dataset(self, name: str, form: str = "") -> Path:
        """The set as a dataset of fastdata's: memmap for pixels, else ``form`` or webdataset."""
        from fastdata import convert

        form = "memmap" if name in RAW_SETS else form or "webdataset"
        made = self.scratch / f"{name}-{form}"
        if made.exists():
            return made
        size = int(name[3:]) if name in RAW_SETS else None
        convert(self.folder(name), made, to=form, size=size)
        return made

    def checked(self) -> Sets:
        """The sets by which outputs are compared: each image a class of its own."""
        return _CheckSets(self)

    def forget(self, name: str) -> None:
        """Remove all that was made of a set."""
        for made in self.scratch.glob(f"{name}-*"):
            shutil.rmtree(made) if made.is_dir() else made.unlink()


def _image_folder(src: Path, base: str, scratch: Path) -> Path:
    """The folder to measure: SRC, or its images made smaller by the converter's own scaling."""
    if base == "orig":
        return src
    from fastdata import convert, open_dataset

    made = scratch / f"{base}-source"
    size = {"resize": 256} if base == "s256" else {"size": 32}
    convert(src, made, shuffle=False, **size)
    folder = scratch / base
    with open_dataset(made) as dataset:
        for i, label in enumerate(dataset.labels.tolist()):
            place = folder / dataset.classes[label]
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{i:06d}.jpg").write_bytes(dataset.read(i))
    return folder


class _CheckSets(Sets):
    def __init__(self, sets: Sets) -> None:
        self._sets, self.workers = sets, sets.workers
        self.scratch = sets.scratch / "checked"
        self.scratch.mkdir(exist_ok=True)

    def folder(self, name: str) -> Path:
        made = self.scratch / f"{name}-folder"
        if not made.exists():
            link_classes(self._sets.folder(name), made, self.workers)
        return made
