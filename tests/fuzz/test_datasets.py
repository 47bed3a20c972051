"""Mutated datasets, shards and label files: an error, or what was written."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from converters.labels import encode_labels, read_table
from converters.sources import open_records, scan_source
from fastdata import convert, open_dataset
from fastdata.registry import WRITERS
from fastdata.verify import verify

# Few examples, and always the same ones; `make fuzz` looks longer, and for new ones.
fuzz = settings(
    max_examples=int(os.environ.get("FASTDATA_FUZZ", "60")),
    derandomize="FASTDATA_FUZZ" not in os.environ,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Attempt = Callable[..., tuple[Any, str | None]]
SAMPLES = 6


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, images: dict[str, bytes]) -> Path:
    root = tmp_path_factory.mktemp("fuzz") / "source"
    for number in range(SAMPLES):
        path = root / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images[["baseline", "grey", "restarts"][number % 3]])
    return root


@pytest.fixture(scope="module", params=list(WRITERS))
def dataset(request: pytest.FixtureRequest, source: Path) -> Path:
    out = source.with_name(request.param)
    convert(source, out, to=request.param, size=(37, 45), workers=1, shard_size=3000)
    return out


def contents(path: Path) -> list[tuple[int, bytes, tuple[int, int], NDArray[np.uint8]]]:
    """Label, source, size and pixels of every sample."""
    with open_dataset(path) as opened:
        assert len(opened) == SAMPLES
        return [
            (
                int(opened.labels[i]),
                opened.path_of(i),
                tuple(opened.sizes[i].tolist()),
                opened.decode(i),
            )
            for i in range(SAMPLES)
        ]


@fuzz
@given(data=st.data())
def test_a_mutated_dataset_is_found_out(
    data: st.DataObject,
    dataset: Path,
    edits: st.SearchStrategy[Any],
    edited: Callable[..., bytes],
    attempt: Attempt,
) -> None:
    copy = dataset.with_name(f"{dataset.name}-copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(dataset, copy)
    name = data.draw(st.sampled_from(sorted(path.name for path in dataset.iterdir())))
    before = (copy / name).read_bytes()
    after = edited(before, data.draw(edits))
    (copy / name).write_bytes(after)
    if after == before:
        assert verify(copy, decode=True).problems == []
        return
    checked, refusal = attempt(lambda: verify(copy, decode=True))
    if refusal is None:
        assert any(str(copy / name) in problem for problem in checked.problems)
    else:
        assert name == "fastdata.json"
        assert str(copy / name) in refusal
    images = {"images.npy", "data.mdb"}
    found, refusal = attempt(contents, copy)
    if refusal is not None:
        assert str(copy) in refusal
        return
    # The images' own bytes are for verify to compare; all that finds them is compared always.
    for (*words, pixels), (*expected, original) in zip(found, contents(dataset), strict=True):
        assert words == expected
        if name not in images and not name.endswith(".tar"):
            assert np.array_equal(pixels, original)


@pytest.fixture(scope="module")
def shard(images: dict[str, bytes]) -> bytes:
    """Somebody else's shard."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(4):
            for ending, content in (("jpg", images["baseline"]), ("cls", b"%d" % number)):
                info = tarfile.TarInfo(f"folder/{number:04d}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@fuzz
@given(data=st.data())
def test_a_mutated_shard_is_an_error_or_samples(
    data: st.DataObject,
    shard: bytes,
    edits: st.SearchStrategy[Any],
    edited: Callable[..., bytes],
    attempt: Attempt,
    tmp_path: Path,
) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(edited(shard, data.draw(edits)))

    def read() -> None:
        source = scan_source(path)
        records = open_records(source)
        for index in range(len(source)):
            assert len(records.read(index)) == source.bytes[index]
            assert source.label(index) is None or isinstance(source.label(index), int | float)

    _, refusal = attempt(read)
    assert refusal is None or str(path) in refusal


TABLES = {
    ".csv": b'path,label\r\na/0.jpg,1\r\n"b,1.jpg",2\r\nc.jpg,3\r\n',
    ".tsv": b"path\tlabel\na/0.jpg\tant\nb.jpg\tbee\n",
    ".jsonl": b'{"path": "a.jpg", "label": [1, 0]}\n{"path": "b.jpg", "label": [0, 1.5]}\n',
}


@pytest.mark.parametrize("ending", TABLES)
@fuzz
@given(data=st.data())
def test_a_mutated_label_file_is_an_error_or_labels(
    ending: str,
    data: st.DataObject,
    edits: st.SearchStrategy[Any],
    edited: Callable[..., bytes],
    attempt: Attempt,
    tmp_path: Path,
) -> None:
    path = tmp_path / f"labels{ending}"
    path.write_bytes(edited(TABLES[ending], data.draw(edits)))
    table, refusal = attempt(read_table, path)
    labels = None
    if refusal is None:
        labels, refusal = attempt(encode_labels, table)
    if labels is None:
        assert refusal is not None
        assert str(path) in refusal
        return
    assert len(labels.labels) == len(table.paths)
    assert labels.labels.dtype in (np.int64, np.float32)
