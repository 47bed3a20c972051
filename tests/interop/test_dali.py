"""DALI's pipeline on the CPU, with our index and without."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from nvidia.dali import fn, pipeline_def
from PIL import Image

Pairs = list[tuple[bytes, int]]
BATCH = 16


@pipeline_def(batch_size=BATCH, num_threads=2, device_id=None)
def read(paths: list[str], index_paths: list[str]) -> tuple[Any, ...]:
    jpeg, label = fn.readers.webdataset(
        paths=paths, index_paths=index_paths, ext=["jpg", "cls"], name="reader"
    )
    # Chroma is enlarged as Pillow does it, so that pixels can be compared.
    image = fn.decoders.image(jpeg, device="cpu", jpeg_fancy_upsampling=True)
    # Labels are ASCII, a row of bytes each; NUL bytes fill the rows up to the batch's longest.
    return jpeg, image, fn.pad(label)


def integers(rows: NDArray[np.uint8]) -> NDArray[np.int64]:
    """The labels of a batch: a row is a string to NumPy, which ends at the NUL bytes."""
    return rows.view(f"S{rows.shape[1]}")[:, 0].astype(np.int64)


@pytest.mark.parametrize("indexed", [True, False])
def test_the_pipeline_reads_images_and_labels_in_our_order(
    indexed: bool, made: Callable[..., Path], expected: Callable[[Path], Pairs]
) -> None:
    out = made(to="webdataset")
    pairs = expected(out)
    paths, indices = (sorted(map(str, out.glob(f"shard-*.{end}"))) for end in ("tar", "idx"))
    assert len(paths) == len(indices) > 4
    pipeline = read(paths, indices if indexed else [])  # without, DALI reads every header
    pipeline.build()
    assert pipeline.epoch_size("reader") == len(pairs)
    widths = set()
    for start in range(0, 2 * len(pairs), BATCH):  # the second epoch follows without a gap
        jpegs, images, labels = pipeline.run()
        batch = [pairs[i % len(pairs)] for i in range(start, start + BATCH)]
        rows = np.array(labels.as_tensor())
        assert integers(rows).tolist() == [label for _, label in batch]
        widths |= {len(bytes(row).rstrip(b"\0")) for row in rows}
        for jpeg, image, (data, _) in zip(jpegs, images, batch, strict=True):
            assert bytes(np.asarray(jpeg)) == data
            pixels = np.asarray(Image.open(io.BytesIO(data)))
            np.testing.assert_array_equal(np.asarray(image), pixels)
    assert widths == {1, 2}
