"""Samples at fault: raised or skipped, and named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import turbojpeg
from numpy.typing import NDArray

import fastdata.decode.turbojpeg
from fastdata import Recipe, make_loader, open_dataset
from fastdata.errors import DataError, ImageError, MissingExtraError, UsageError
from fastdata.registry import READERS, load

# torch warns of more workers than CPUs, which is what these tests want on any machine.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")

ENCODED = [
    name
    for name in ["folder", *READERS]
    if name == "folder" or load(READERS, name, "format").encoded
]
TRAIN = Recipe(size=32, crop="random_resized", hflip=0.5, dtype="uint8")
EVAL = Recipe(size=32, crop="center", dtype="uint8")
COUNT = 22  # images in the folders
BAD = 13  # the sample that is damaged: a large one, and not the first of its batch
DAMAGE = ["cut in half", "empty", "deleted", "no image"]


def identity(image: NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(image)


def damage(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
    elif how == "no image":
        path.write_text("this is not the picture that you are looking for")
    else:
        os.truncate(path, path.stat().st_size // 2 if how == "cut in half" else 0)


@pytest.fixture
def damaged(folder: Path, tmp_path: Path) -> Callable[..., Any]:
    """(how, indices) -> the plain folder, opened before files of it were damaged."""

    def make(how: str, indices: Iterable[int] = (BAD,), source: Path = folder) -> Any:
        path = Path(shutil.copytree(source, tmp_path / "damaged"))
        files, dataset = sorted(path.rglob("*.jpg")), open_dataset(path)
        for index in indices:
            damage(files[index], how)
        return dataset

    return make


def without(batches: list[Any], bad: set[int], training: bool) -> list[Any]:
    """What skipping must make of the batches of an undamaged dataset."""
    expected = []
    for images, labels, indices in batches:
        keep = [slot for slot, index in enumerate(indices.tolist()) if index not in bad]
        if training:  # the batch's first good sample fills the slot
            keep = [slot if slot in keep else keep[0] for slot in range(len(indices))]
        if keep:
            expected.append((images[keep], labels[keep], indices[keep]))
    return expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("how", DAMAGE)
def test_a_sample_at_fault_raises_and_is_named(
    how: str,
    recipe: Recipe,
    workers: int,
    folder: Path,
    damaged: Callable[..., Any],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
    order: Callable[..., list[int]],
) -> None:
    dataset = damaged(how)
    name = sorted(folder.rglob("*.jpg"))[BAD].relative_to(folder)
    options = {"recipe": recipe, "num_workers": workers, "drop_last": False, "with_index": True}
    expected = run(folder, recipe=recipe, drop_last=False)
    with make_loader(dataset, 4, **options) as loader:
        for _ in range(2):  # it can be iterated again, and is as it was
            loader.set_epoch(0)
            seen: list[Any] = []
            with pytest.raises(ImageError) as caught:
                seen.extend(iter(loader))
            assert caught.value.path == str(dataset.path / name)
            assert caught.value.reason
            # The batches before it arrived whole.
            assert BAD in order(expected[len(seen) :][:1])
            assert not seen or same(seen, expected[: len(seen)])
        assert loader.skipped == []


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("how", DAMAGE)
def test_skipping_drops_a_sample_in_evaluation_and_fills_its_slot_in_training(
    how: str,
    recipe: Recipe,
    workers: int,
    folder: Path,
    damaged: Callable[..., Any],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    dataset = damaged(how)
    options = {"recipe": recipe, "drop_last": False, "on_error": "skip", "with_index": True}
    with make_loader(dataset, 4, num_workers=workers, **options) as loader:
        for epoch in range(2):
            whole = run(folder, recipe=recipe, drop_last=False, epoch=epoch)
            assert same(list(loader), without(whole, {BAD}, recipe.random))
        (skipped,) = loader.skipped
        assert skipped.index == BAD
        assert skipped.name == str(dataset.path / "b" / f"{BAD}.jpg")
        assert skipped.reason
        assert skipped.count == 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("shuffle", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("bad", [0, 5], ids=["first", "later"])
def test_a_sample_without_a_size_is_no_reason_to_blame_the_sizes_of_the_others(
    bad: int,
    shuffle: bool,
    on_error: str,
    workers: int,
    uniform: Path,
    damaged: Callable[..., Any],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    """The raw recipe takes images of one size only; a file without a header has none."""
    dataset = damaged("empty", [bad], uniform)
    options = {"recipe": "raw", "shuffle": shuffle, "drop_last": False}
    if on_error == "raise":
        with pytest.raises(ImageError, match=f"{bad:02d}.jpg"):
            run(dataset, num_workers=workers, **options)
        return
    found = run(dataset, on_error="skip", num_workers=workers, **options)
    assert same(found, without(run(uniform, **options), {bad}, shuffle))


def test_several_samples_at_fault_are_all_skipped_and_listed(
    folder: Path,
    damaged: Callable[..., Any],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    bad = [0, 1, 4, 13, 14, 15, 21]  # first, neighbours, last
    dataset = damaged("cut in half", bad)
    for recipe in (TRAIN, EVAL):
        options = {"recipe": recipe, "drop_last": False}
        whole = run(folder, **options)
        with make_loader(
            dataset, 4, num_workers=1, on_error="skip", with_index=True, **options
        ) as loader:
            assert same(list(loader), without(whole, set(bad), recipe.random))
            assert sorted(skipped.index for skipped in loader.skipped) == bad


def test_skipping_never_moves_a_position(
    folder: Path, damaged: Callable[..., Any], order: Callable[..., list[int]]
) -> None:
    options = {"recipe": EVAL, "with_index": True, "num_workers": 0, "on_error": "skip"}
    dataset = damaged("empty", [4, 5, 6, 7])  # the whole second batch
    with make_loader(dataset, 4, **options) as loader:
        assert len(loader) == 6
        positions = [loader.state_dict()["position"] for _ in loader]
        # A batch of which nothing is left is not handed out.
        assert positions == [4, 12, 16, 20, 22]
        state = {**loader.state_dict(), "epoch": 0, "position": 8}
        loader.load_state_dict(state)
        assert order(loader) == list(range(8, COUNT))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_training_batch_without_one_good_sample_is_an_error(
    workers: int, damaged: Callable[..., Any]
) -> None:
    dataset = damaged("empty", range(COUNT))
    options = {"recipe": TRAIN, "num_workers": workers, "on_error": "skip"}
    with (
        make_loader(dataset, 4, **options) as loader,
        pytest.raises(DataError, match=rf"not one of the 4 samples.*{dataset.path}.*empty"),
    ):
        list(loader)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_evaluation_without_one_good_sample_hands_out_nothing(
    workers: int, damaged: Callable[..., Any]
) -> None:
    dataset = damaged("empty", range(COUNT))
    options = {"recipe": EVAL, "num_workers": workers, "on_error": "skip"}
    with make_loader(dataset, 4, **options) as loader:
        assert list(loader) == []
        assert [skipped.index for skipped in loader.skipped] == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
@pytest.mark.parametrize("name", sorted(set(ENCODED) - {"folder"}))
def test_bytes_overwritten_in_a_converted_dataset_raise_or_are_skipped(
    name: str,
    recipe: Recipe,
    workers: int,
    folder: Path,
    in_format: Callable[[str, Path], Path],
    tmp_path: Path,
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    path = Path(shutil.copytree(in_format(name, folder), tmp_path / "damaged"))
    data = sorted(folder.rglob("*.jpg"))[BAD].read_bytes()
    (file,) = [each for each in path.iterdir() if data in each.read_bytes()]
    with file.open("r+b") as shard:
        shard.seek(file.read_bytes().index(data) + len(data) // 2)
        shard.write(b"\xff\xd9" * 20)  # ends the picture
    options = {"recipe": recipe, "drop_last": False, "num_workers": workers, "with_index": True}
    with make_loader(path, 4, **options) as loader:
        with pytest.raises(ImageError) as caught:
            list(loader)
        assert caught.value.path == f"sample {BAD} of {path} (from b/{BAD}.jpg)"
    with make_loader(path, 4, on_error="skip", **options) as loader:
        whole = run(folder, recipe=recipe, drop_last=False)
        assert same(list(loader), without(whole, {BAD}, recipe.random))
        assert [(each.index, each.name) for each in loader.skipped] == [(BAD, caught.value.path)]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ENCODED)
def test_images_of_different_sizes_need_a_recipe_with_a_size(
    name: str,
    workers: int,
    folder: Path,
    in_format: Callable[[str, Path], Path],
    run: Callable[..., list[Any]],
) -> None:
    path = in_format(name, folder)
    # The folder's images are 80 x 60, then 61 x 97: the second does not fit.
    message = r"expected 80x60 pixels, found 61x97 in .*a[/\\]01\.jpg.*use a recipe with a size"
    for on_error in ("raise", "skip"):  # not the sample's fault
        with pytest.raises(UsageError, match=message):
            run(path, recipe="raw", num_workers=workers, on_error=on_error)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("recipe", [TRAIN, EVAL], ids=["train", "eval"])
def test_samples_at_fault_never_reach_a_transform(
    recipe: Recipe,
    workers: int,
    folder: Path,
    damaged: Callable[..., Any],
    run: Callable[..., list[Any]],
    same: Callable[..., bool],
) -> None:
    options = {"recipe": recipe, "drop_last": False, "transform": identity}
    whole, dataset = run(folder, **options), damaged("cut in half")
    with pytest.raises(ImageError, match=f"{BAD}.jpg"):
        run(dataset, num_workers=workers, **options)
    found = run(dataset, num_workers=workers, on_error="skip", **options)
    assert same(found, without(whole, {BAD}, recipe.random))


def test_a_decoder_that_cannot_work_is_no_faulty_sample(
    packed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With "skip" every good image would be left out, without a word."""

    class Library:
        def __init__(self) -> None:
            raise RuntimeError("Unable to locate turbojpeg library automatically.")

    monkeypatch.setattr(turbojpeg, "TurboJPEG", Library)
    fastdata.decode.turbojpeg._library.cache_clear()
    options: dict[str, Any] = {"engine_options": {"decoder": "turbojpeg"}, "num_workers": 0}
    with (
        make_loader(packed, 4, recipe=TRAIN, on_error="skip", **options) as loader,
        pytest.raises(MissingExtraError, match="libturbojpeg0"),
    ):
        list(loader)
    assert not loader.skipped
    fastdata.decode.turbojpeg._library.cache_clear()
