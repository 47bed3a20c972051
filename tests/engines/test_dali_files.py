"""What DALI is given of a plain folder: sound files, whose headers are looked at once; files that
have changed since are looked at again."""

from __future__ import annotations

import io
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import DataError, Recipe, WorkerError, make_loader, open_dataset
from fastdata.engines.dali.encoded import Begun
from fastdata.engines.dali.files import ImageFiles, _Files
from fastdata.formats.folder import FolderReader
from fastdata.plan import BatchPlan, plan_batches
from fastdata.recipe import draw_key

RECIPE = Recipe(size=24, crop="center", dtype="uint8")
AHEAD = 2  # batches that are read before they are asked for
DEVICES = [
    pytest.param("dali-cpu", "cpu"),
    pytest.param(
        "dali",
        "cuda",
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def encoded(width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    ramp = np.linspace(0, 255, width * height).reshape(height, width).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(ramp).convert(mode).save(file, options.pop("format", "JPEG"), **options)
    return file.getvalue()


def sampled(data: bytes, factors: int) -> bytes:
    """A grey JPEG with other sampling factors."""
    frame = data.index(b"\xff\xc0")
    return data[: frame + 11] + bytes([factors]) + data[frame + 12 :]


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """(files' contents) -> a folder of them, named in their order."""

    def make(*files: bytes) -> Path:
        for number, data in enumerate(files):
            path = tmp_path / "images" / "a" / f"{number:02d}{'-' * number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return tmp_path / "images"

    return make


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[_Files]]:
    """Who has built a pipeline that reads, once for each."""
    found: list[weakref.ref[_Files]] = []
    build = _Files._build
    monkeypatch.setattr(_Files, "_build", lambda one: found.append(weakref.ref(one)) or build(one))
    return found


def begun(images: ImageFiles, *batches: list[int]) -> list[Begun]:
    plans = plan_batches(RECIPE, draw_key(0, 0), [np.array(one) for one in batches], None)
    found = list(images.begin(iter(plans)))
    images.close()
    return found


def contents(batch: Begun) -> list[bytes]:
    """What the pipeline is given."""
    return [bytes(np.array(batch.encoded.at(slot))) for slot in range(len(batch.given))]


def test_files_of_all_lengths_come_in_their_order(write: Callable[..., Path]) -> None:
    files = [encoded(40, 30), encoded(32, 50, comment=b"#" * 40_000), encoded(30, 30, "L")]
    files[0] += b"what is behind the end"
    with open_dataset(write(*files)) as dataset:
        found = begun(ImageFiles(dataset, RECIPE, 3, AHEAD), [0, 1, 2], [2], [1, 1], [0, 2], [1, 0])
    expected = [[0, 1, 2], [2], [1, 1], [0, 2], [1, 0]]
    assert [contents(one) for one in found] == [[files[i] for i in some] for some in expected]
    assert all(one.aside.tolist() == [] for one in found)
    # The crop is 24 of an image that was scaled to 36x27, 27x42, 27x27: of 30 pixels that became
    # 27 it takes 26.7, of 32 that became 27 28.4, of 50 that became 42 28.6.
    boxes = found[0].plan.boxes
    assert boxes is not None
    assert boxes.tolist() == [[7, 2, 27, 27], [2, 11, 28, 29], [2, 2, 27, 27]]


@pytest.mark.parametrize(
    "odd",
    [
        encoded(40, 30, format="PNG"),
        encoded(40, 30, progressive=True),
        encoded(
            40, 30, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
        ),
        sampled(encoded(40, 30, "L"), 0x22),
        encoded(40, 30)[:100],
        encoded(40, 30)[:-2],
        encoded(40, 30)[:-10] + b"\0" * 20_000,
        encoded(40, 30, comment=b"\xff\xd9")[:-2],
        b"This is no image. " * 2000,
        b"",
    ],
    ids=[
        "PNG",
        "progressive",
        "turned",
        "grey 2x2",
        "cut",
        "no end",
        "zeros at the end",
        "end in a comment",
        "text",
        "empty",
    ],
)
def test_what_is_no_plain_jpeg_is_not_given(odd: bytes, write: Callable[..., Path]) -> None:
    files = [encoded(40, 30), odd, encoded(32, 50)]
    with open_dataset(write(*files)) as dataset:
        [found] = begun(ImageFiles(dataset, RECIPE, 3, AHEAD), [0, 1, 2])
    assert contents(found) == [files[0], files[2]]
    assert found.aside.tolist() == [1]


def test_headers_are_looked_at_once_also_of_what_is_not_given(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []
    look = FolderReader.read_ends

    def counted(reader: FolderReader, index: int, most: int) -> tuple[bytes, bytes, int]:
        looks.append(index)
        return look(reader, index, most)

    monkeypatch.setattr(FolderReader, "read_ends", counted)
    with open_dataset(write(encoded(40, 30), encoded(400, 300, format="PNG"))) as dataset:
        found = begun(ImageFiles(dataset, RECIPE, 3, AHEAD), *[[1, 0, 1]] * 3, [1, 1])
    assert [one.aside.tolist() for one in found] == [[0, 2]] * 3 + [[0, 1]]
    assert [one.fed for one in found] == [True] * 3 + [False]
    assert sorted(looks) == [0, 1]


def test_a_file_that_is_gone_is_not_given(write: Callable[..., Path]) -> None:
    path = write(encoded(40, 30), encoded(32, 50))
    with open_dataset(path) as dataset:
        (path / "a" / "00.jpg").unlink()
        [found] = begun(ImageFiles(dataset, RECIPE, 2, AHEAD), [0, 1])
    assert contents(found) == [encoded(32, 50)]
    assert found.aside.tolist() == [0]


# What is behind the end marker belongs to no image.
SMALLER = encoded(30, 40).ljust(len(encoded(40, 30)), b"\0")


@pytest.mark.parametrize(("engine", "device"), DEVICES)
@pytest.mark.parametrize(
    "changed", [SMALLER, encoded(40, 30, quality=95)], ids=["other size", "other length"]
)
def test_a_file_that_has_changed_is_read_once_more(
    changed: bytes,
    engine: str,
    device: str,
    write: Callable[..., Path],
    built: list[Any],
) -> None:
    path = write(*(encoded(40, 30) for _ in range(6)))
    options: dict[str, Any] = {"recipe": RECIPE, "shuffle": False, "num_workers": 1}
    with make_loader(path, 2, engine=engine, device=device, **options) as loader:
        first = torch.cat([images for images, _ in loader])
        pipeline = loader.pipeline
        (path / "a" / "03---.jpg").write_bytes(changed)
        with make_loader(path, 6, engine="workers", device="cpu", **options) as reference:
            [(expected, _)] = list(reference)
        pipelines = [len(built)]
        for _ in range(2):
            images = torch.cat([images for images, _ in loader]).cpu()
            pipelines.append(len(built))
            # The tolerance is that of docs/architecture.md.
            assert (images.int() - expected.int()).abs().max() <= 4
            assert torch.equal(images[:2], first[:2].cpu())
        assert loader.pipeline is pipeline  # the decoder was not given it
    assert pipelines == [1, 3, 4]  # each epoch's, and another one in the first after the change


@pytest.mark.parametrize(("engine", "device"), DEVICES)
@pytest.mark.parametrize("now", [None, b"This is no image. " * 100, b"\xff\xd8\xff", b""])
def test_a_file_that_is_no_image_any_more_is_a_fault_as_in_every_engine(
    now: bytes | None, engine: str, device: str, write: Callable[..., Path]
) -> None:
    path = write(*(encoded(40, 30) for _ in range(9)))
    options: dict[str, Any] = {"recipe": RECIPE, "shuffle": False, "num_workers": 1}
    options |= {"engine": engine, "device": device, "drop_last": False}
    with (
        make_loader(path, 2, on_error="skip", **options) as skipping,
        make_loader(path, 2, **options) as raising,
    ):
        assert [len(list(loader)) for loader in (skipping, raising)] == [5, 5]
        file = path / "a" / "03---.jpg"
        file.unlink() if now is None else file.write_bytes(now)
        for _ in range(2):
            assert sum(len(labels) for _, labels in skipping) == 8
            assert [skip.index for skip in skipping.skipped] == [3]
            with pytest.raises(DataError, match="03---"):
                list(raising)


@pytest.mark.parametrize("end", ["close", "another iterator"])
def test_who_reads_for_an_iterator_that_is_kept_is_not(
    end: str, write: Callable[..., Path], built: list[weakref.ref[_Files]]
) -> None:
    path = write(*(encoded(40, 30) for _ in range(12)))
    with make_loader(path, 1, recipe=RECIPE, engine="dali-cpu", num_workers=1) as loader:
        kept = iter(loader)
        next(kept)
        if end == "close":
            loader.close()
        else:
            assert len(list(loader)) == 12
        assert [one() for one in built] == [None] * len(built) != []
        del kept


def test_files_that_cannot_be_read_and_are_at_no_fault_are_an_error(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def receive(files: Any) -> Any:
        raise RuntimeError("no memory")

    monkeypatch.setattr(_Files, "receive", receive)
    path = write(*(encoded(40, 30) for _ in range(12)))
    with make_loader(path, 1, recipe=RECIPE, engine="dali-cpu", num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(10):
            next(batches)
        with pytest.raises(WorkerError, match=r"refused 11 batches.*workers.*no memory"):
            next(batches)


def test_what_is_read_again_may_have_any_neighbours(write: Callable[..., Path]) -> None:
    other = encoded(40, 30, format="PNG")
    path = write(*(encoded(40, 30) for _ in range(4)), other, other)
    batches = [[0, 1], [4, 5], [2, 3], [1, 4], [3, 3]]
    with open_dataset(path) as dataset:
        images = ImageFiles(dataset, RECIPE, 2, AHEAD)
        before = begun(images, *batches)
        (path / "a" / "01-.jpg").write_bytes(changed := encoded(50, 40))
        after = begun(images, *batches)
    same = [one.aside.tolist() for one in before]
    assert same == [one.aside.tolist() for one in after] == [[], [0, 1], [], [1], []]
    plain = encoded(40, 30)
    assert [contents(one) for one in after if one.fed] == [
        [plain, changed],
        [plain, plain],
        [changed],
        [plain, plain],
    ]
    assert [one.failure for one in after] == [None] * 5


def test_an_error_of_the_plans_comes_behind_their_batches(write: Callable[..., Path]) -> None:
    def plans() -> Iterator[BatchPlan]:
        yield from plan_batches(RECIPE, draw_key(0, 0), [np.array([one]) for one in range(3)], None)
        raise ValueError("no more")

    with open_dataset(write(*(encoded(40, 30) for _ in range(3)))) as dataset:
        batches = ImageFiles(dataset, RECIPE, 1, AHEAD).begin(plans())
        assert [next(batches).plan.indices.tolist() for _ in range(3)] == [[0], [1], [2]]
        with pytest.raises(ValueError, match="no more"):
            next(batches)


def test_all_files_may_change_between_two_epochs(
    write: Callable[..., Path], built: list[Any]
) -> None:
    path = write(*(encoded(40, 30) for _ in range(30)))
    options: dict[str, Any] = {"recipe": RECIPE, "shuffle": False, "num_workers": 1}
    with make_loader(path, 2, engine="dali-cpu", **options) as loader:
        assert len(list(loader)) == 15
        write(*(encoded(40, 30, quality=95) for _ in range(30)))
        images = torch.cat([images for images, _ in loader])
    assert len(built) == 3  # where one file has changed, all are looked at again
    with make_loader(path, 30, engine="workers", **options) as reference:
        [(expected, _)] = list(reference)
    assert (images.int() - expected.int()).abs().max() <= 4


LIMITED = """
import pathlib, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))
from fastdata import UsageError, make_loader
options = {"engine": "dali-cpu", "recipe": "imagenet-eval", "shuffle": False}
with make_loader(sys.argv[1], 44, num_workers=1, **options) as loader:
    print(sum(len(images) for images, _ in loader))
with make_loader(sys.argv[1], 44, num_workers=1, on_error="skip", **options) as loader:
    list(loader)
    for file in sorted(pathlib.Path(sys.argv[1]).glob("*/*"))[:46]:
        file.unlink()
    print(sum(len(images) for images, _ in loader))
try:
    make_loader(sys.argv[1], 45, **options)
except UsageError as error:
    print(error)
"""


def test_a_batch_has_no_more_files_than_may_be_open(write: Callable[..., Path]) -> None:
    path = write(*(encoded(40, 30) for _ in range(50)))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LIMITED, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    loaded, left, message = done.stdout.splitlines()
    assert (loaded, left) == ("50", "4")
    assert "45, and 256 to spare, are more than the 300" in message
    assert "ulimit -n" in message
