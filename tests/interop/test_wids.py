"""wids reads shards in place, in any order, through wids.json."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import wids
from PIL import Image

Pairs = list[tuple[bytes, int]]


def digests(out: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.iterdir()}


# The default decoder, named "PIL", is deprecated in favour of functions that wids does not export.
@pytest.mark.filterwarnings("ignore:String specifications for transformations:UserWarning")
def test_any_sample_is_read_in_place(
    made: Callable[..., Path], expected: Callable[[Path], Pairs]
) -> None:
    out = made(to="webdataset")
    pairs, before = expected(out), digests(out)
    index = str(out / "wids.json")
    # The dataset's folder is a cache that holds every shard already.
    decoded = wids.ShardListDataset(index, cache_dir=str(out))
    encoded = wids.ShardListDataset(index, cache_dir=str(out), transformations=[])
    assert len(decoded) == len(encoded) == len(pairs)
    for i in random.Random(0).sample(range(len(pairs)), len(pairs)):
        data, label = pairs[i]
        assert encoded[i][".jpg"].read() == data
        sample = decoded[i]
        assert type(sample[".cls"]) is int
        assert sample[".cls"] == label
        with Image.open(io.BytesIO(data)) as image:
            np.testing.assert_array_equal(np.asarray(sample[".jpg"]), np.asarray(image))
    decoded.close()
    encoded.close()
    assert digests(out) == before
