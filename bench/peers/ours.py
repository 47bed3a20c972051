"""fastdata on the CPU. EXTRA: the engine's name, and ``antialias`` for torchvision's filter."""

from __future__ import annotations

from dataclasses import replace

from bench.peers.common import Task, main

_CROP = "random resized crop 224, reduction and bilinear (its default), flip"
_FLIP = "flip"
SETS = {"orig": _CROP, "s256": _CROP, "t32": _FLIP, "raw256": _CROP, "raw32": _FLIP}
ANTIALIAS = "random resized crop 224, torchvision's filter (Recipe.antialias), flip"


def _check() -> str:
    import fastdata
    import fastdata.loader  # torch comes with it

    return fastdata.__version__


def _batches(task: Task):
    from fastdata import FastdataError, Recipe, make_loader

    engine, *flags = task.extra
    if task.size == 32:
        recipe = Recipe(size=32, hflip=0.5)
    else:
        recipe = replace(Recipe.preset("imagenet-train"), antialias="antialias" in flags)
    try:
        loader = make_loader(
            task.place,
            task.batch,
            recipe=recipe,
            engine=engine,
            num_workers=task.workers,
            dtype="uint8",
        )
    except FastdataError as error:  # it does not run on this device or format, or is not installed
        raise SystemExit(f"unable: {error}") from None
    return lambda: loader


if __name__ == "__main__":
    main(_check, _batches)
