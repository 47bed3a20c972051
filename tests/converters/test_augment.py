"""Variants of images: seeded, the same however they are made, and told apart afterwards."""

from __future__ import annotations

import functools
import io
import json
import random
import re
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import converters.conversion
import fastdata
from converters.augment import OPERATIONS, load_augmentation, variant_key
from converters.options import Options
from converters.plan import Plan
from converters.transform import Transform
from converters.write import ShardWriter
from fastdata import DestinationError, UsageError, open_dataset

convert = functools.partial(fastdata.convert, workers=1)
Pixels = NDArray[np.uint8]
Module = Callable[[str], str]


@pytest.fixture
def source(tmp_path: Path, pixels: Callable[..., Pixels]) -> Path:
    """Six PNGs of 32x24 in two classes, so that no pixel is lost before the augmentation."""
    for i in range(6):
        path = tmp_path / "source" / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(32, 24, seed=i)).save(path)
    return tmp_path / "source"


def write_here(
    staging: Path,
    shards: list[int],
    workers: int,
    on_error: str,
    progress: Callable[[int, int], None],
) -> None:
    """As run_shards, but in this process: a worker imports torch first, which takes seconds."""
    writer = ShardWriter(Plan.load(staging), staging, on_error)
    for shard in shards:
        writer.write(shard, progress)


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converters.conversion, "run_shards", write_here)


@pytest.fixture
def module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Module:
    """Write a module of the user's, or write it anew: ``module(code)`` -> its name."""
    name = "user_" + re.sub(r"\W", "_", request.node.name)
    monkeypatch.syspath_prepend(tmp_path / "modules")

    def write(code: str) -> str:
        path = tmp_path / "modules" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return name

    return write


def variants(root: Path) -> dict[tuple[bytes, int], Pixels]:
    """(path, copy) -> pixels of every sample."""
    with open_dataset(root) as dataset:
        copies = dataset.copies[:, 1].tolist() or [0] * len(dataset)
        return {(dataset.path_of(i), copies[i]): dataset.decode(i) for i in range(len(dataset))}


# The presets, one image at a time.


@pytest.fixture
def augmented(pixels: Callable[..., Pixels]) -> Callable[..., Pixels]:
    """One variant, without loss: ``augmented("flip", copy=0, seed=0, size=(24, 32))``."""

    def make(name: str, copy: int = 0, seed: int = 0, size: tuple[int, int] = (24, 32)) -> Pixels:
        options = Options(to="memmap", size=size, augment=name, copies=99, seed=seed)
        rows = Transform(options)(pixels(32, 24), "name", 0, b"a/1.png", 0, copy).pixels
        assert rows is not None
        return rows.copy()

    return make


COMBINATIONS = [*OPERATIONS, "crop+flip", "flip+rotate+color+blur", "crop+flip+rotate+color+blur"]


@pytest.mark.parametrize("name", COMBINATIONS)
def test_a_variant_is_a_function_of_seed_path_and_copy(
    name: str, augmented: Callable[..., Pixels]
) -> None:
    made = [augmented(name, copy) for copy in range(8)]
    for copy in (5, 0, 7):  # in another order, after other draws
        random.random(), np.random.random(), torch.rand(3)
        assert np.array_equal(augmented(name, copy), made[copy])
    assert len({rows.tobytes() for rows in made}) > (1 if name in ("flip", "blur") else 6)
    others = [augmented(name, copy, seed=1) for copy in range(8)]
    assert any(not np.array_equal(a, b) for a, b in zip(made, others, strict=True))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_size_gives_exactly_that_size(name: str, augmented: Callable[..., Pixels]) -> None:
    for copy in range(3):
        assert augmented(name, copy, size=(20, 17)).shape == (20, 17, 3)


def test_a_flip_gives_the_image_or_its_mirror(
    augmented: Callable[..., Pixels], pixels: Callable[..., Pixels]
) -> None:
    image = pixels(32, 24)
    made = [augmented("flip", copy) for copy in range(16)]
    kept = sum(np.array_equal(rows, image) for rows in made)
    turned = sum(np.array_equal(rows, image[:, ::-1]) for rows in made)
    assert kept + turned == 16
    assert 2 <= kept <= 14


def test_a_crop_without_a_size_is_a_region_of_the_image(pixels: Callable[..., Pixels]) -> None:
    image = pixels(40, 30)
    crop = load_augmentation("crop", None)
    shapes = set()
    for seed in range(30):
        torch.manual_seed(seed)
        box = np.asarray(crop(Image.fromarray(image)))
        height, width = box.shape[:2]
        windows = np.lib.stride_tricks.sliding_window_view(image, box.shape)
        assert (windows == box).all(axis=(-3, -2, -1)).any()
        share, ratio = height * width / image[..., 0].size, width / height
        assert 0.06 < share <= 1  # sides are rounded to pixels
        assert 0.65 < ratio < 1.54
        shapes.add(box.shape)
    assert len(shapes) > 15


def test_a_colour_jitter_moves_no_edge_and_a_blur_keeps_the_mean(
    augmented: Callable[..., Pixels], pixels: Callable[..., Pixels]
) -> None:
    image = pixels(32, 24).astype(np.float64)
    shades = []
    for copy in range(8):
        blurred = augmented("blur", copy).astype(np.float64)
        assert np.abs(blurred.mean((0, 1)) - image.mean((0, 1))).max() < 6
        coloured = augmented("color", copy).astype(np.float64)
        shades.append(coloured.mean())
        rows = np.corrcoef(coloured.mean(2).ravel(), image.mean(2).ravel())
        assert rows[0, 1] > 0.7
    assert np.ptp(shades) > 10


# Whole conversions with presets, by processes.


def test_bytes_do_not_depend_on_workers_or_interruptions(
    source: Path,
    tmp_path: Path,
    interrupt: Callable[..., None],
    digests: Callable[[Path], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"augment": "crop+flip+rotate+color+blur", "copies": 2, "shard_size": 3000}
    with monkeypatch.context() as patch:
        patch.setattr(converters.conversion, "run_shards", write_here)
        convert(source, tmp_path / "1", **options)
        interrupt(source, tmp_path / "3", images=4, **options)
    result = fastdata.convert(source, tmp_path / "3", workers=3, **options)
    expected = digests(tmp_path / "1")
    shards = len([name for name in expected if name.endswith(".tar")])
    assert 0 < result.resumed <= shards - 3  # so each of the three has some left to write
    assert digests(tmp_path / "3") == expected
    sizes = np.load(tmp_path / "1" / "sizes.npy")
    assert (sizes <= [32, 24]).all()
    assert len(np.unique(sizes, axis=0)) > 3  # boxes keep their own size


@pytest.mark.usefixtures("inline")
def test_another_seed_gives_other_variants(source: Path, tmp_path: Path) -> None:
    options = {"to": "memmap", "size": (24, 32), "augment": "crop", "copies": 2}
    convert(source, tmp_path / "0", seed=0, **options)
    convert(source, tmp_path / "1", seed=1, **options)
    zero, one = variants(tmp_path / "0"), variants(tmp_path / "1")
    assert zero.keys() == one.keys()
    assert not any(np.array_equal(zero[key], one[key]) for key in zero)
    assert len({rows.tobytes() for rows in zero.values()}) == 12


@pytest.mark.usefixtures("inline")
def test_the_shuffle_and_the_shards_do_not_change_a_variant(source: Path, tmp_path: Path) -> None:
    options = {"to": "memmap", "size": (24, 32), "augment": "crop+flip", "copies": 2}
    convert(source, tmp_path / "0", shard_size=1000, **options)
    convert(source, tmp_path / "1", shuffle=False, **options)
    zero, one = variants(tmp_path / "0"), variants(tmp_path / "1")
    assert zero.keys() == one.keys()
    assert all(np.array_equal(zero[key], one[key]) for key in zero)


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("to", ["webdataset", "lmdb"])
def test_encoded_variants_are_pictures_of_their_source(
    to: str, source: Path, tmp_path: Path
) -> None:
    options = {"augment": "flip", "copies": 3}
    result = convert(source, tmp_path / "out", to=to, **options)
    assert (result.samples, result.treated) == (18, {"PNG": 18, "augmented": 18})
    for (path, _), rows in variants(tmp_path / "out").items():
        with Image.open(source / path.decode()) as file:
            image = np.asarray(file, np.float64)
        errors = [np.abs(rows - image).mean(), np.abs(rows - image[:, ::-1]).mean()]
        assert min(errors) < 8


@pytest.mark.usefixtures("inline")
def test_one_variant_alone_needs_no_copies(source: Path, tmp_path: Path) -> None:
    result = convert(source, tmp_path / "out", augment="flip")
    assert result.samples == 6
    assert not (tmp_path / "out" / "copies.npy").exists()
    assert open_dataset(tmp_path / "out").copies.shape == (0, 2)


# A function of the user's.

DRAWS = """
    import random
    import numpy as np
    import torch

    def draw(image):
        values = [random.random(), np.random.random(), torch.rand(()).item()]
        return np.full((4, 5, 3), [int(value * 256) for value in values], np.uint8)
"""


def test_draws_in_a_function_are_seeded_by_seed_path_and_copy(
    source: Path, tmp_path: Path, module: Module
) -> None:
    options = {"to": "memmap", "size": (4, 5), "augment": f"{module(DRAWS)}:draw", "copies": 2}
    fastdata.convert(source, tmp_path / "2", workers=2, shard_size=2000, seed=3, **options)
    found = variants(tmp_path / "2")
    assert len(found) == 12
    for (path, copy), rows in found.items():
        key = variant_key(3, path, copy)
        expected = [
            random.Random(key).random(),
            np.random.RandomState(key & 0xFFFFFFFF).random_sample(),
            torch.rand((), generator=torch.Generator().manual_seed(key & (1 << 63) - 1)).item(),
        ]
        assert (rows == [int(value * 256) for value in expected]).all()
    assert len({rows.tobytes() for rows in found.values()}) == 12


def test_a_variants_key_differs_for_every_seed_path_and_copy() -> None:
    keys = {
        variant_key(seed, path, copy)
        for seed in (0, 1, 2**63)
        for path in (b"a", b"b", b"a/b", b"\xff")
        for copy in range(50)
    }
    assert len(keys) == 3 * 4 * 50
    assert all(0 <= key < 1 << 64 for key in keys)


@pytest.mark.usefixtures("inline")
def test_a_function_may_return_an_image_or_an_array_of_any_size(
    source: Path, tmp_path: Path, module: Module
) -> None:
    name = module("""
        import numpy as np

        def grey(image):
            return image.convert("L").crop((0, 0, 10, 6))

        class Kinds:
            @staticmethod
            def strided(image):
                return np.asarray(image)[::-2, ::2]
    """)
    convert(source, tmp_path / "grey", augment=f"{name}:grey")
    assert open_dataset(tmp_path / "grey").sizes.tolist() == [[10, 6]] * 6
    options = {"to": "memmap", "size": (12, 16), "augment": f"{name}:Kinds.strided"}
    convert(source, tmp_path / "array", **options)
    for (path, _), rows in variants(tmp_path / "array").items():
        with Image.open(source / path.decode()) as file:
            assert np.array_equal(rows, np.asarray(file)[::-2, ::2])


@pytest.mark.usefixtures("inline")
def test_any_callable_will_do(source: Path, tmp_path: Path, module: Module) -> None:
    # Such as a torchvision pipeline made once, a partial, or a function of another module.
    name = module("""
        import functools
        from PIL.ImageOps import mirror
        from torchvision.transforms import v2

        pipeline = v2.Compose([v2.RandomHorizontalFlip(1.0)])
        partial = functools.partial(mirror)
    """)
    for function in ("pipeline", "partial", "mirror"):
        options = {"to": "memmap", "size": (24, 32), "augment": f"{name}:{function}"}
        convert(source, tmp_path / function, **options)
        for (path, _), rows in variants(tmp_path / function).items():
            with Image.open(source / path.decode()) as file:
                assert np.array_equal(rows, np.asarray(file)[:, ::-1])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zoom", "crop, flip, rotate, color, blur.*got 'zoom'"),
        ("crop+zoom", "got 'crop\\+zoom'"),
        ("flip+crop+flip", "each at most once.*got 'flip\\+crop\\+flip'"),
        ("", "got ''"),
        ("flip+", "got 'flip\\+'"),
        ("no_such_module:f", "cannot import 'no_such_module:f'.*no_such_module"),
        ("MODULE:absent", "cannot import 'MODULE:absent'"),
        ("MODULE:", "cannot import 'MODULE:'"),
        (":f", "cannot import ':f'"),
        (".relative:f", "cannot import '.relative:f'"),
        ("MODULE:number", "MODULE:number is not callable, but a int"),
    ],
)
def test_what_is_no_augmentation_is_refused_before_any_work(
    name: str, message: str, source: Path, tmp_path: Path, module: Module
) -> None:
    user = module("number = 3")
    with pytest.raises(UsageError, match=message.replace("MODULE", user)):
        convert(source, tmp_path / "out", augment=name.replace("MODULE", user))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("code", ["def f(image:", "1 / 0"], ids=["no Python", "raises"])
def test_a_module_that_cannot_be_imported_is_a_wrong_call(
    code: str, source: Path, tmp_path: Path, module: Module
) -> None:
    name = module(code)
    with pytest.raises(UsageError, match=f"cannot import '{name}:f'"):
        convert(source, tmp_path / "out", augment=f"{name}:f")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('lost')", "failed on {file}: KeyError: 'lost'"),
        ("raise ValueError('wrong')", "failed on {file}: ValueError: wrong"),
        ("return None", "expected a PIL image or a uint8 array [H, W, 3], got None for {file}"),
        ("return 'image'", "got 'image' for {file}"),
        ("return np.zeros((4, 4, 3), np.float32)", "got float32 (4, 4, 3) for {file}"),
        ("return np.zeros((4, 4), np.uint8)", "got uint8 (4, 4) for {file}"),
        ("return np.zeros((0, 4, 3), np.uint8)", "got uint8 (0, 4, 3) for {file}"),
        ("return np.zeros((3, 4, 4), np.uint8)", "got uint8 (3, 4, 4) for {file}"),
        ("return image.crop((0, 0, 0, 4))", "for {file}"),
    ],
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.usefixtures("inline")
def test_a_function_at_fault_is_named_with_its_file_and_never_skipped(
    body: str, message: str, on_error: str, source: Path, tmp_path: Path, module: Module
) -> None:
    name = module(f"import numpy as np\ndef f(image):\n    {body}\n")
    with pytest.raises(UsageError) as caught:
        convert(source, tmp_path / "out", augment=f"{name}:f", on_error=on_error, shuffle=False)
    assert f"--augment {name}:f" in str(caught.value)
    assert message.format(file=source / "a" / "0.png") in str(caught.value)


def test_the_error_of_a_function_comes_through_a_worker(
    source: Path, tmp_path: Path, module: Module
) -> None:
    name = module("def f(image):\n    raise KeyError('lost')\n")
    with pytest.raises(UsageError, match=rf"{name}:f failed on .*\.png: KeyError: 'lost'"):
        convert(source, tmp_path / "out", augment=f"{name}:f", on_error="skip")


@pytest.mark.usefixtures("inline")
def test_a_changed_module_is_not_mixed_with_its_former_self(
    source: Path, tmp_path: Path, module: Module
) -> None:
    code = "def f(image):\n    if {}: raise ValueError('not yet')\n    return image\n"
    name = module(code.format("True"))
    options = {"augment": f"{name}:f", "shard_size": 2000}
    with pytest.raises(UsageError, match="not yet"):
        convert(source, tmp_path / "out", **options)
    module(code.format("False or False"))
    with pytest.raises(DestinationError, match=r"the module of --augment was changed.*--no-resume"):
        convert(source, tmp_path / "out", **options)


@pytest.mark.usefixtures("inline")
def test_a_changed_module_is_no_answer_to_the_same_conversion(
    source: Path, tmp_path: Path, module: Module
) -> None:
    name = module("def f(image):\n    return image\n")
    convert(source, tmp_path / "out", augment=f"{name}:f")
    assert convert(source, tmp_path / "out", augment=f"{name}:f").already_done
    module("def f(image):\n    return image.convert('L')\n")
    with pytest.raises(DestinationError, match="the module of --augment was changed"):
        convert(source, tmp_path / "out", augment=f"{name}:f")


# Copies.


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("to", ["webdataset", "lmdb", "memmap"])
def test_copies_are_numbered_and_skipped_sources_are_absent(
    to: str, source: Path, tmp_path: Path
) -> None:
    (source / "a" / "bad.png").write_bytes(b"no image")
    options = {"to": to, "size": (24, 32), "augment": "flip", "copies": 3}
    # Shards of about one source: copies of the bad one lie in several of them.
    result = convert(source, tmp_path / "out", on_error="skip", shard_size=1000, **options)
    assert (result.samples, result.skipped) == (18, 1)
    (line,) = (tmp_path / "out" / "skipped.jsonl").read_text().splitlines()
    assert json.loads(line)["path"] == "a/bad.png"
    copies = np.load(tmp_path / "out" / "copies.npy")
    assert (copies.dtype, copies.shape) == (np.int64, (18, 2))
    paths = (tmp_path / "out" / "paths.bin").read_bytes().split(b"\0")[:-1]
    order = sorted(["a/0.png", "a/2.png", "a/4.png", "a/bad.png", "b/1.png", "b/3.png", "b/5.png"])
    assert sorted(map(tuple, copies.tolist())) == [
        (i, copy) for i in (0, 1, 2, 4, 5, 6) for copy in range(3)
    ]
    assert paths == [order[i].encode() for i in copies[:, 0]]
    labels = np.load(tmp_path / "out" / "labels.npy")
    assert labels.tolist() == ["ab".index(path.decode()[0]) for path in paths]
    if to == "memmap":
        assert np.load(tmp_path / "out" / "images.npy").shape == (18, 24, 32, 3)
    if to == "webdataset":
        found = []
        for shard in sorted((tmp_path / "out").glob("*.tar")):
            with tarfile.open(shard) as archive:
                for member in archive:
                    if member.name.endswith(".json"):
                        fields = json.load(archive.extractfile(member))  # type: ignore[arg-type]
                        found.append((fields["path"].encode(), fields["copy"]))
        assert found == list(zip(paths, copies[:, 1].tolist(), strict=True))


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize(
    ("shape", "options"),
    [((1, 60_000), {"size": (200, 32)}), ((1, 70_000), {})],
    ids=["scaled beyond any picture", "too wide for a JPEG"],
)
def test_a_variant_that_cannot_be_stored_is_its_functions_fault(
    shape: tuple[int, int], options: dict[str, Any], source: Path, tmp_path: Path, module: Module
) -> None:
    # Drawn for some copies only: left out, they would be gone without a word.
    name = module(f"""
        import random
        import numpy as np

        def f(image):
            return np.zeros(({shape[0]}, {shape[1]}, 3), np.uint8) if draw() else image

        def draw():
            return random.random() >= 0.5
    """)
    drawn = [random.Random(variant_key(0, b"a/0.png", copy)).random() >= 0.5 for copy in range(6)]
    copies = drawn.index(True) + 1
    assert copies > 1
    with pytest.raises(UsageError, match=rf"--augment {name}:f.*0\.png"):
        convert(
            source,
            tmp_path / "out",
            augment=f"{name}:f",
            copies=copies,
            on_error="skip",
            shuffle=False,
            **options,
        )


@pytest.mark.usefixtures("inline")
def test_a_repaired_source_is_listed_once(
    tmp_path: Path, pixels: Callable[..., Pixels], encode: Callable[..., bytes]
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jpg").write_bytes(encode(pixels(32, 24)) + b"rest")
    result = convert(tmp_path / "in", tmp_path / "out", augment="flip", copies=3)
    assert result.repaired == {"bytes behind the end of the picture": 1}
    assert len((tmp_path / "out" / "repaired.jsonl").read_text().splitlines()) == 1


def test_copies_without_an_augmentation_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--copies without --augment"):
        convert(source, tmp_path / "out", copies=2)
    for copies in (0, -1, 1001):
        with pytest.raises(UsageError, match=f"--copies from 1 to 1000, got {copies}"):
            convert(source, tmp_path / "out", copies=copies, augment="flip")


@pytest.mark.usefixtures("inline")
def test_a_dataset_of_copies_stays_one_and_takes_no_further_copies(
    source: Path, tmp_path: Path
) -> None:
    convert(source, tmp_path / "first", augment="flip", copies=2)
    for extra in ({"copies": 2}, {}):
        with pytest.raises(UsageError, match="first holds augmented copies already"):
            convert(tmp_path / "first", tmp_path / "out", augment="flip", **extra)
    before = np.load(tmp_path / "first" / "copies.npy")
    with open_dataset(tmp_path / "first") as first:
        images = {tuple(before[i]): first.read(i) for i in range(12)}
    for to in ("webdataset", "lmdb", "memmap"):
        convert(tmp_path / "first", tmp_path / to, to=to, seed=4, size=(24, 32))
        after = np.load(tmp_path / to / "copies.npy")
        assert sorted(map(tuple, after.tolist())) == sorted(map(tuple, before.tolist()))
        assert after.tolist() != before.tolist()  # in another order, so each has its own row
        with open_dataset(tmp_path / to) as dataset:
            assert np.array_equal(dataset.copies, after)
            for i, pair in enumerate(after.tolist()):
                with Image.open(io.BytesIO(images[tuple(pair)])) as file:
                    expected = np.asarray(file.convert("RGB"), np.float64)
                assert np.abs(dataset.decode(i) - expected).max() <= 4
                if dataset.encoded:
                    assert dataset.read(i) == images[tuple(pair)]


@pytest.mark.usefixtures("inline")
def test_a_dataset_without_copies_can_be_augmented(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "first", to="memmap", size=(24, 32))
    options = {"to": "memmap", "size": (24, 32), "augment": "flip", "copies": 2}
    convert(tmp_path / "first", tmp_path / "second", **options)
    convert(source, tmp_path / "direct", **options)
    found, expected = variants(tmp_path / "second"), variants(tmp_path / "direct")
    assert found.keys() == expected.keys()  # paths are the first source's, so draws are as well
    assert all(np.array_equal(found[key], expected[key]) for key in found)
