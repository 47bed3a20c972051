"""Every odd file into every format: what is refused, what is written, and what is to be seen.

Expected bytes and pixels come with the cases, none of them from fastdata.
"""

from __future__ import annotations

import functools
import io
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import turbojpeg
from numpy.typing import NDArray
from PIL import Image

import fastdata
from converters.options import Options
from converters.transform import Transform
from fastdata import ImageError, open_dataset
from fastdata.decode import Decode
from fastdata.formats import Sample
from fastdata.registry import DECODERS, WRITERS, load
from tests.corpus.build import EOI, HEIGHT, WIDTH, Case, Pixels, markers, segments
from tests.corpus.cases import CASES

FORMATS = sorted(WRITERS)
REFUSED = [case for case in CASES if case.pixels is None]
TAKEN = [case for case in CASES if case.pixels is not None]
_LUMA = {(1, 1), (2, 1), (2, 2), (1, 2), (4, 1)}

each_format = pytest.mark.parametrize("to", FORMATS)


def each(cases: list[Case]) -> pytest.MarkDecorator:
    """A test for each of the cases, called by the file's name."""
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


@functools.cache
def transform(to: str, size: tuple[int, int] | None, exif: str, strict: bool) -> Transform:
    """Kept between cases, as a conversion keeps one: no case may leave traces in the next."""
    return Transform(Options(to, size=size, exif=exif, strict=strict))


def convert(case: Case, to: str, strict: bool = False) -> Sample:
    """Into an encoded format in its own size, into memmap in the size that is expected."""
    size = None
    if to == "memmap":
        size = (HEIGHT, WIDTH) if case.pixels is None else case.pixels.shape[:2]
    return transform(to, size, case.exif, strict)(case.data, case.name, 0, case.name.encode(), None)


def opened(data: bytes) -> Pixels:
    """Decoded by Pillow, as it lies in the file."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def reencoded(pixels: Pixels) -> Pixels:
    """What encoding by Pillow, as the converter's quality says, makes of pixels."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90, subsampling="4:2:0")
    return opened(buffer.getvalue())


def assert_near(found: NDArray[Any], expected: Pixels, mean: float, most: float) -> None:
    """Equal shapes, and nearly equal values."""
    assert found.dtype == np.uint8
    assert found.shape == expected.shape
    error = np.abs(found.astype(np.int64) - expected)
    assert error.mean() <= mean
    assert error.max() <= most


def assert_seen(case: Case, found: NDArray[Any], to: str) -> None:
    """The case's pixels, but for what encoding them anew costs."""
    assert case.pixels is not None
    if to == "memmap" or case.written is not None:
        assert_near(found, case.pixels, case.mean, case.most)
    else:
        assert_near(found, reencoded(case.pixels), case.mean + 3, case.most + 16)


def assert_training_ready(data: bytes) -> None:
    """One picture that every decoder takes, the GPU's included, and nothing behind it."""
    header = {marker: data[start + 4 : end] for marker, start, end in segments(data)}
    assert 0xC0 in header
    assert 0xC4 in header
    frame, scan = header[0xC0], header[0xDA]
    assert frame[0] == 8
    assert frame[5] in (1, 3)
    assert scan[0] == frame[5]
    sampling = [(frame[7 + 3 * i] >> 4, frame[7 + 3 * i] & 15) for i in range(frame[5])]
    assert frame[5] == 1 or sampling[0] in _LUMA
    assert frame[5] == 1 or sampling[1:] == [(1, 1)] * 2
    found = markers(data)
    assert [at for kind, at in found if kind == 0xD9] == [len(data) - len(EOI)]
    assert not {kind for kind, _ in found} & {0xDA, 0xC4}


@each(REFUSED)
@each_format
def test_what_has_no_whole_picture_is_refused_with_its_reason(case: Case, to: str) -> None:
    with pytest.raises(ImageError) as caught:
        convert(case, to)
    assert caught.value.path == case.name
    assert re.search(case.refused, caught.value.reason)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")  # Pillow's own decoder
@each(TAKEN)
@each_format
def test_whole_pictures_are_written_as_the_policy_says(case: Case, to: str) -> None:
    assert case.pixels is not None
    sample = convert(case, to)
    assert sample.treated == case.treated
    assert sorted(sample.repaired) == sorted(case.repaired)
    assert (sample.height, sample.width) == case.pixels.shape[:2]
    if to == "memmap":
        assert sample.pixels is not None
        assert_seen(case, sample.pixels, to)
        return
    if case.written is not None:
        assert sample.data == case.written
    else:
        assert sample.data != case.data
        assert b"Exif" not in sample.data  # so it says of no orientation
    assert_training_ready(sample.data)
    assert_seen(case, opened(sample.data), to)
    for name in DECODERS:
        decode: Decode = load(DECODERS, name, "decoder")
        assert_seen(case, decode(sample.data, (sample.width, sample.height)), to)
    # The libraries themselves, warnings being errors.
    assert_seen(case, simplejpeg.decode_jpeg(sample.data, strict=True), to)
    library = turbojpeg.TurboJPEG()
    assert_seen(case, library.decode(sample.data, pixel_format=turbojpeg.TJPF_RGB), to)


@each([case for case in TAKEN if case.repaired])
@each_format
def test_strict_takes_nothing_that_needs_repair(case: Case, to: str) -> None:
    with pytest.raises(ImageError) as caught:
        convert(case, to, strict=True)
    for flaw in case.repaired:
        assert flaw in caught.value.reason


@each([case for case in TAKEN if not case.repaired and case.name.startswith(("mpo", "exif-6"))])
def test_strict_takes_what_is_treated_only(case: Case) -> None:
    assert convert(case, "webdataset", strict=True) == convert(case, "webdataset")


def test_a_case_stands_for_each_way_to_write_and_each_decision() -> None:
    # A slip in the cases' making could leave a list empty, and the tests would pass.
    assert len(REFUSED) > 70
    assert sum(case.written == case.data for case in TAKEN) > 50
    assert sum(case.written not in (None, case.data) for case in TAKEN) > 20
    assert sum(case.written is None for case in TAKEN) > 90


def noted(path: Path) -> dict[str, str]:
    """path -> reason of a dataset's list, none of them twice."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = {line["path"]: line["reason"] for line in lines}
    assert len(found) == len(lines)
    return found


@each_format
def test_a_folder_of_all_of_them_is_converted_and_accounted_for(to: str, tmp_path: Path) -> None:
    cases = {case.name: case for case in CASES if case.default}
    source, made = tmp_path / "source", tmp_path / "made"
    source.mkdir()
    for case in cases.values():
        (source / case.name).write_bytes(case.data)
    size = (HEIGHT, WIDTH) if to == "memmap" else None
    fastdata.convert(source, made, to=to, size=size, on_error="skip", workers=2)

    taken = {name: case for name, case in cases.items() if case.pixels is not None}
    skipped = noted(made / "skipped.jsonl")
    assert set(skipped) == set(cases) - set(taken)
    assert [n for n, reason in skipped.items() if not re.search(cases[n].refused, reason)] == []
    repaired = noted(made / "repaired.jsonl")
    assert {name: set(reasons.split(", ")) for name, reasons in repaired.items()} == {
        name: set(case.repaired) for name, case in taken.items() if case.repaired
    }
    treated = Counter(reason for case in taken.values() for reason in case.treated)
    if size is not None:
        shapes = [case.pixels.shape[:2] for case in taken.values() if case.pixels is not None]
        treated["scaled"] = sum(shape != size for shape in shapes)
    with open_dataset(made) as dataset:
        assert dataset.manifest is not None
        assert dataset.manifest.skipped == len(skipped)
        assert dataset.manifest.treated == treated
        flaws = Counter(flaw for case in taken.values() for flaw in case.repaired)
        assert dataset.manifest.repaired == flaws
        paths = [os.fsdecode(dataset.path_of(i)) for i in range(len(dataset))]
        assert sorted(paths) == sorted(taken)
        for i, path in enumerate(paths):
            case, pixels = taken[path], dataset.decode(i)
            assert case.pixels is not None
            if size is None or case.pixels.shape[:2] == size:
                assert_seen(case, pixels, to)
            else:
                assert pixels.shape == (*size, 3)


# Run by itself, since memory once taken is no measure. Numbers are bytes.
CLAIMS = """
import json, resource, sys
from converters.options import Options
from converters.transform import Transform
from fastdata import ImageError

made = [Transform(Options("webdataset")), Transform(Options("memmap", size=(8, 8)))]
with open("/proc/self/statm") as file:
    mapped = int(file.read().split()[0]) * resource.getpagesize()
most = mapped + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (most, most))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reasons = []
for path in sys.argv[1:]:
    with open(path, "rb") as file:
        data = file.read()
    for transform in made:
        try:
            transform(data, path, 0, b"", None)
        except ImageError as error:
            reasons.append(error.reason)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps([reasons, grown << 10]))
"""


def test_a_header_that_claims_a_huge_picture_takes_no_memory(tmp_path: Path) -> None:
    huge = [case for case in REFUSED if case.name.startswith("huge")]
    assert {Path(case.name).suffix for case in huge} == {".jpg", ".png", ".bmp", ".gif"}
    for case in huge:
        (tmp_path / case.name).write_bytes(case.data)
    root = str(Path(fastdata.__file__).parent.parent)
    result = subprocess.run(
        [sys.executable, "-c", CLAIMS, *[str(tmp_path / case.name) for case in huge]],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    reasons, grown = json.loads(result.stdout)
    assert len(reasons) == 2 * len(huge)
    assert all(re.search(huge[0].refused, reason) for reason in reasons)
    assert grown < 32 << 20
