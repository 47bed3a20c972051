"""Upper bounds for pixels on disk: rows of the memory map gathered into one batch, no more."""

from __future__ import annotations

from bench.peers.common import Task, main

TITLES = {"bound: np.take": ["numpy"], "bound: torch.index_select": ["torch"]}
INSTALL = "pip install numpy torch"
_DOES = "copies whole images into a batch that is used again: no crop, no flip, no hand-over"
SETS = {"raw256": _DOES, "raw32": _DOES}


def _check() -> str:
    import numpy as np
    import torch

    return f"numpy {np.__version__}, torch {torch.__version__}"


def _batches(task: Task):
    import numpy as np
    import torch

    images = np.load(task.place / "images.npy", mmap_mode="c")
    source = torch.from_numpy(images.reshape(len(images), -1))
    out = torch.empty((task.batch, source.shape[1]), dtype=torch.uint8)
    torch.set_num_threads(max(1, task.workers))
    generator = np.random.default_rng(0)

    def epoch():
        order = generator.permutation(len(images))
        for start in range(0, len(order) - task.batch + 1, task.batch):
            rows = order[start : start + task.batch]
            if task.extra == ["numpy"]:  # mode: without it np.take fills a copy of out first
                np.take(source.numpy(), rows, axis=0, out=out.numpy(), mode="clip")
            else:
                torch.index_select(source, 0, torch.from_numpy(rows), out=out)
            yield (out,)

    return epoch


if __name__ == "__main__":
    main(_check, _batches)
