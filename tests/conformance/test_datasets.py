"""What every dataset promises, whatever its format: one suite over the registry."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import resource
import shutil
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torchvision.datasets import ImageFolder

from fastdata import open_dataset
from fastdata.dataset import Dataset
from fastdata.errors import (
    DataError,
    DatasetError,
    ImageError,
    SourceError,
    UnfinishedError,
    UsageError,
)
from fastdata.manifest import MANIFEST, STAGING
from fastdata.registry import READERS, load

PATIENCE = 60  # seconds until something counts as hanging


class Case:
    """A dataset and the source folder that tells what is in it."""

    def __init__(self, path: Path, source: Any) -> None:
        self.path = path
        self.source = source
        self.folder = ImageFolder(os.fspath(source.root))


@pytest.fixture(scope="session")
def make_case(
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> Callable[[str], Case]:
    """Format -> a dataset of images that are awkward in every way the format allows.

    Class names sort by code point (capitals first), one class has folders inside, endings are
    mixed, one name is not UTF-8, one JPEG is grey and one has full colour resolution. Formats of
    encoded images also hold sizes of all kinds, which formats of pixels cannot.
    """
    cases: dict[str, Case] = {}

    def make(name: str) -> Case:
        if name not in cases:
            varied = name == "folder" or load(READERS, name, "format").encoded
            sizes = [(61, 37), (16, 90), (8, 8), (48, 40), (130, 97), (40, 48)]
            sizes = sizes if varied else [(48, 40)]
            paths = [b"Zebra/1.jpg", b"ant/10.JPG", b"ant/2.jpeg", b"ant/deep/z.jpg"]
            paths += [b"ant/deep/er/0.jpg", b"bee hive/b.jpg", b"bee hive/\xff\xe9.jpg"]
            paths += [os.fsencode("été/x.jpg"), os.fsencode("été/y.jpg")]
            files = {}
            for number, path in enumerate(paths):
                pixels = picture(*sizes[number % len(sizes)], number)
                if number == 3:
                    pixels = np.asarray(Image.fromarray(pixels).convert("L"))
                files[path] = jpeg(pixels, **({"subsampling": 0} if number == 4 else {}))
            source = write_source(files)
            cases[name] = Case(in_format(name, source), source)
        return cases[name]

    return make


@pytest.fixture
def copied(in_format: Callable[..., Path], tmp_path: Path) -> Callable[[str, Any], Path]:
    """(format, source) -> a copy of the dataset that a test may damage."""

    def make(name: str, source: Any) -> Path:
        return Path(shutil.copytree(in_format(name, source), tmp_path / "copy"))

    return make


def contents(dataset: Dataset) -> dict[str, Any]:
    """All that a dataset tells and holds, comparable and picklable."""
    everything: dict[str, Any] = {
        "labels": dataset.labels.tolist(),
        "classes": dataset.classes,
        "sizes": dataset.sizes.tolist(),
        "paths": [dataset.path_of(i) for i in range(len(dataset))],
        "decoded": [digest(dataset.decode(i)) for i in range(len(dataset))],
    }
    if dataset.encoded:
        everything["data"] = [digest(dataset.read(i)) for i in range(len(dataset))]
    else:
        everything["data"] = [digest(row) for row in dataset.pixels]
    return everything


def digest(data: bytes | NDArray[np.uint8]) -> str:
    if isinstance(data, np.ndarray):
        return f"{data.shape} {hashlib.sha256(data.tobytes()).hexdigest()}"
    return hashlib.sha256(data).hexdigest()


class Child:
    """A forked process that runs a function; its end, whatever it is, is told and awaited."""

    def __init__(self, function: Callable[[], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._answers, end = context.Pipe(duplex=False)
        self._process = context.Process(target=self._run, args=(function, end))
        self._process.start()
        end.close()

    @staticmethod
    def _run(function: Callable[[], Any], end: Connection) -> None:
        try:
            answer = ("value", function())
        except BaseException as error:
            answer = ("error", type(error), str(error))
        end.send(answer)

    def answer(self) -> tuple[Any, ...]:
        """``("value", value)``, ``("error", type, message)`` or ``("died", exit code)``."""
        try:
            answer = self._answers.recv() if self._answers.poll(PATIENCE) else ("hangs",)
        except EOFError:
            self._process.join(PATIENCE)
            answer = ("died", self._process.exitcode)
        self._process.kill()
        self._process.join()
        self._process.close()
        self._answers.close()
        return answer


# What it tells


def test_the_length_is_the_number_of_samples(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        assert len(dataset) == len(case.folder.samples) == 9


def test_labels_and_classes_are_imagefolders(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        assert dataset.classes == case.folder.classes
        assert dataset.class_to_idx == case.folder.class_to_idx
        assert dataset.labels.dtype == np.int64
        assert dataset.labels.shape == (9,)
        assert dataset.labels.tolist() == case.folder.targets


def test_samples_stand_in_imagefolders_order(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    root = os.fsencode(case.source.root)
    expected = [os.path.relpath(os.fsencode(path), root) for path, _ in case.folder.samples]
    with open_dataset(case.path) as dataset:
        assert [dataset.path_of(i) for i in range(len(dataset))] == expected
    # The other tests take the order from the source's list of paths.
    assert expected == case.source.paths


def test_sizes_are_pillows(any_format: str, make_case: Callable[[str], Case]) -> None:
    case = make_case(any_format)
    expected = []
    for path, _ in case.folder.samples:
        with open(os.fsencode(path), "rb") as file, Image.open(file) as image:
            expected.append(image.size)
    with open_dataset(case.path) as dataset:
        assert dataset.sizes.dtype == np.int32
        assert dataset.sizes.tolist() == [list(size) for size in expected]


def test_an_encoded_image_is_the_source_file_byte_for_byte(
    encoded_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(encoded_format)
    with open_dataset(case.path) as dataset:
        assert dataset.encoded
        for index in range(len(dataset)):
            data = dataset.read(index)
            assert type(data) is bytes
            assert data == case.source.data(index)


def test_stored_pixels_are_pillows_decode_of_the_source(
    pixel_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(pixel_format)
    with open_dataset(case.path) as dataset:
        assert not dataset.encoded
        assert dataset.pixels.dtype == np.uint8
        expected = np.stack([case.source.pixels(index) for index in range(len(dataset))])
        np.testing.assert_array_equal(dataset.pixels, expected)


def test_stored_pixels_cannot_be_written(
    pixel_format: str, make_case: Callable[[str], Case]
) -> None:
    with (
        open_dataset(make_case(pixel_format).path) as dataset,
        pytest.raises(ValueError, match="read-only"),
    ):
        dataset.pixels[0] = 0


def test_a_decoded_image_is_pillows(any_format: str, make_case: Callable[[str], Case]) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        for index in range(len(dataset)):
            pixels = dataset.decode(index)
            assert pixels.dtype == np.uint8
            np.testing.assert_array_equal(pixels, case.source.pixels(index))


def test_samples_can_be_taken_in_any_order_and_again(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    order = [8, 0, 0, 5, 8, *range(8, -1, -1)]
    with open_dataset(case.path) as dataset:
        for index in order:
            # numpy integers are what an order of samples is made of
            np.testing.assert_array_equal(
                dataset.decode(np.int64(index)),  # type: ignore[arg-type]
                case.source.pixels(index),
            )


def test_samples_without_class_folders_have_labels_of_no_columns(
    any_format: str,
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> None:
    source = write_source({b"%d.jpg" % i: jpeg(picture(20, 12, i)) for i in range(3)})
    with open_dataset(in_format(any_format, source)) as dataset:
        assert dataset.labels.shape == (3, 0)
        assert dataset.labels.dtype == np.int64
        assert dataset.classes == []
        assert dataset.class_to_idx == {}
        np.testing.assert_array_equal(dataset.decode(2), source.pixels(2))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_relative_path_is_kept_when_the_process_moves(
    kind: type,
    any_format: str,
    make_case: Callable[[str], Case],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    case = make_case(any_format)
    monkeypatch.chdir(case.path.parent)
    dataset = open_dataset(kind(case.path.name))
    monkeypatch.chdir(tmp_path)
    assert dataset.path == case.path
    dataset.close()
    np.testing.assert_array_equal(dataset.decode(1), case.source.pixels(1))
    dataset.close()


# Identity


def test_the_identity_is_the_same_at_every_opening_and_for_equal_datasets(
    any_format: str, uniform: Any, in_format: Callable[..., Path], copied: Callable[..., Path]
) -> None:
    path = in_format(any_format, uniform)
    with open_dataset(path) as one, open_dataset(path) as two:
        assert one.identity == two.identity
        int(one.identity, 16)
    with open_dataset(copied(any_format, uniform)) as other:
        assert other.identity == one.identity


def test_the_identity_of_a_converted_dataset_is_another_when_one_byte_of_a_source_is(
    converted_format: str,
    uniform: Any,
    in_format: Callable[..., Path],
    write_source: Callable[..., Any],
) -> None:
    files = {path: uniform.data(index) for index, path in enumerate(uniform.paths)}
    changed = bytearray(files[b"bee/1.jpg"])
    changed[-40] ^= 1  # inside the picture's data: the same length, other pixels
    other = write_source({**files, b"bee/1.jpg": bytes(changed)})
    assert (other.pixels(5) != uniform.pixels(5)).any()
    with open_dataset(in_format(converted_format, uniform)) as dataset:
        before = dataset.identity
    with open_dataset(in_format(converted_format, other)) as dataset:
        assert dataset.identity != before


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "moved to another class"])
def test_the_identity_of_a_folder_is_another_when_its_list_of_files_is(
    change: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied("folder", uniform)
    before = open_dataset(path).identity
    file = path / "bee" / "1.jpg"
    if change == "added":
        shutil.copy(file, path / "bee" / "2.jpg")
    elif change == "removed":
        file.unlink()
    elif change == "renamed":
        file.rename(path / "bee" / "9.jpg")
    else:
        file.rename(path / "cat" / "9.jpg")
    assert open_dataset(path).identity != before


# Copies and processes


def test_a_pickle_of_a_converted_dataset_is_small(
    converted_format: str, make_case: Callable[[str], Case]
) -> None:
    with open_dataset(make_case(converted_format).path) as dataset:
        contents(dataset)  # nothing that was read may travel
        assert len(pickle.dumps(dataset)) < 1000


def test_a_pickled_copy_equals_the_original(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    with open_dataset(make_case(any_format).path) as dataset:
        expected = contents(dataset)
        with pickle.loads(pickle.dumps(dataset)) as copy:
            assert copy.identity == dataset.identity
            assert copy.path == dataset.path
            assert copy.format == dataset.format == any_format
            assert contents(copy) == expected
        assert contents(dataset) == expected


def test_forked_processes_read_at_the_same_time_as_their_parent(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    expected = [digest(case.source.pixels(i)) for i in range(9)]
    with open_dataset(case.path) as dataset:
        dataset.decode(0)  # files and maps are open when the children are made

        def decode_all() -> list[str]:
            for _ in range(5):
                order = np.random.default_rng(os.getpid()).permutation(9)
                decoded = {int(i): digest(dataset.decode(int(i))) for i in order}
            return [decoded[i] for i in range(9)]

        children = [Child(decode_all) for _ in range(3)]
        for _ in range(10):
            assert [digest(dataset.decode(i)) for i in range(9)] == expected
        assert [child.answer() for child in children] == [("value", expected)] * 3
        # The children have closed what they inherited; that must not concern the parent.
        assert [digest(dataset.decode(i)) for i in range(9)] == expected


def test_a_fork_opens_its_own_files(any_format: str, make_case: Callable[[str], Case]) -> None:
    with open_dataset(make_case(any_format).path) as dataset:
        parents = dataset.reader

        def same_reader() -> tuple[bool, bool]:
            return dataset.reader is parents, dataset.reader is dataset.reader

        assert Child(same_reader).answer() == ("value", (False, True))
        assert dataset.reader is parents


def test_a_fork_of_a_fork_reads_too(any_format: str, make_case: Callable[[str], Case]) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        dataset.decode(0)

        def child() -> Any:
            dataset.decode(1)
            return Child(lambda: digest(dataset.decode(2))).answer()

        assert Child(child).answer() == ("value", ("value", digest(case.source.pixels(2))))


def test_a_fork_may_close_without_harm_to_its_parent(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset:
        dataset.decode(0)
        assert Child(dataset.close).answer() == ("value", None)
        np.testing.assert_array_equal(dataset.decode(3), case.source.pixels(3))


def test_spawned_processes_read_at_the_same_time_as_their_parent(
    any_format: str, make_case: Callable[[str], Case]
) -> None:
    case = make_case(any_format)
    with open_dataset(case.path) as dataset, multiprocessing.get_context("spawn").Pool(2) as pool:
        waiting = pool.map_async(dataset.decode, range(9), chunksize=1)
        for _ in range(10):
            for index in range(9):
                np.testing.assert_array_equal(dataset.decode(index), case.source.pixels(index))
        for index, pixels in enumerate(waiting.get(PATIENCE)):
            np.testing.assert_array_equal(pixels, case.source.pixels(index))
        pool.close()
        pool.join()


def test_more_processes_than_samples_can_read_one_shard(
    any_format: str,
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> None:
    source = write_source(
        {b"a/0.jpg": jpeg(picture(30, 20, 1)), b"b/0.jpg": jpeg(picture(30, 20, 2))}
    )
    expected = [digest(source.pixels(i)) for i in range(2)]
    with open_dataset(in_format(any_format, source)) as dataset:
        children = [Child(lambda: [digest(dataset.decode(i)) for i in range(2)]) for _ in range(5)]
        assert [child.answer() for child in children] == [("value", expected)] * 5


def test_a_dataset_may_have_more_shards_than_a_process_may_open_files(
    any_format: str,
    write_source: Callable[..., Any],
    in_format: Callable[..., Path],
    picture: Callable[..., Any],
    jpeg: Callable[..., bytes],
) -> None:
    source = write_source({b"a/%03d.jpg" % i: jpeg(picture(8, 8, i)) for i in range(75)})
    options = {} if any_format == "folder" else {"shard_size": 1}
    path = in_format(any_format, source, **options)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 70, hard))
    try:
        with open_dataset(path) as dataset:
            order = np.random.default_rng(0).permutation(np.repeat(np.arange(75), 2))
            for index in order.tolist():
                np.testing.assert_array_equal(dataset.decode(index), source.pixels(index))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Closing


def open_files(root: Path) -> set[str]:
    """Files below ``root`` that this process has open or mapped, but for the small arrays that a
    dataset keeps in memory whether it is open or closed."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            found.add(os.readlink(descriptor))
        except FileNotFoundError:  # the one of this listing itself
            continue
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        found.add(line.split(maxsplit=5)[-1])
    kept = {"labels.npy", "sizes.npy", "paths.bin"}
    return {
        os.path.relpath(path, root)
        for path in found
        if path.startswith(f"{root}/") and os.path.basename(path) not in kept
    }


def test_closing_releases_the_data_and_using_it_opens_it_again(
    any_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(any_format, uniform)
    dataset = open_dataset(path)
    for _ in range(2):
        np.testing.assert_array_equal(dataset.decode(4), uniform.pixels(4))
        if any_format != "folder":  # a folder opens a file for as long as it reads it
            assert open_files(path)
        dataset.close()
        assert open_files(path) == set()
        dataset.close()  # once more does nothing


def test_a_context_manager_closes(
    any_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(any_format, uniform)
    with open_dataset(path) as dataset:
        dataset.decode(0)
    assert open_files(path) == set()
    with pytest.raises(IndexError), dataset:
        dataset.decode(99)
    assert open_files(path) == set()
    np.testing.assert_array_equal(dataset.decode(2), uniform.pixels(2))
    dataset.close()


def test_two_open_at_once_are_closed_independently(
    any_format: str, uniform: Any, in_format: Callable[..., Path]
) -> None:
    path = in_format(any_format, uniform)
    one, two = open_dataset(path), open_dataset(path)
    one.decode(0), two.decode(0)
    one.close()
    np.testing.assert_array_equal(two.decode(1), uniform.pixels(1))
    two.close()
    np.testing.assert_array_equal(one.decode(2), uniform.pixels(2))
    one.close()


def test_pixels_outlive_the_dataset_that_they_were_taken_from(
    pixel_format: str, uniform: Any, in_format: Callable[..., Path]
) -> None:
    dataset = open_dataset(in_format(pixel_format, uniform))
    pixels = dataset.pixels
    dataset.close()
    del dataset
    np.testing.assert_array_equal(pixels[10], uniform.pixels(10))


# Wrong use


@pytest.mark.parametrize("index", [-1, 9, 10**12])
@pytest.mark.parametrize("method", ["read", "decode", "path_of"])
def test_an_index_out_of_range_is_an_index_error(
    any_format: str, method: str, index: int, make_case: Callable[[str], Case]
) -> None:
    with open_dataset(make_case(any_format).path) as dataset:
        expected = f"sample {index} of a dataset of 9"
        with pytest.raises(IndexError, match=expected):
            getattr(dataset, method)(index)


def test_encoded_images_have_no_pixels(
    encoded_format: str, make_case: Callable[[str], Case]
) -> None:
    with (
        open_dataset(make_case(encoded_format).path) as dataset,
        pytest.raises(UsageError, match=r"encoded images; use \.read\(\) or \.decode\(\)"),
    ):
        _ = dataset.pixels


def test_pixels_have_no_encoded_images(pixel_format: str, make_case: Callable[[str], Case]) -> None:
    with (
        open_dataset(make_case(pixel_format).path) as dataset,
        pytest.raises(UsageError, match=r"no encoded images; use \.pixels or \.decode\(\)"),
    ):
        dataset.read(0)


def test_a_place_with_nothing_to_load_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for name in ("absent", "file", "empty"):
        with pytest.raises(SourceError, match=str(tmp_path / name)):
            open_dataset(tmp_path / name)


def test_an_unfinished_conversion_is_refused_as_such(
    converted_format: str, uniform: Any, tmp_path: Path
) -> None:
    # The destination as an interruption leaves it: work in the staging folder, no manifest.
    (tmp_path / STAGING).mkdir()
    (tmp_path / STAGING / "plan.json").write_text('{"shards": 7}')
    with pytest.raises(UnfinishedError, match="0 of 7 shards; run the same command again"):
        open_dataset(tmp_path)


# Damage


def cut(path: Path, how: str) -> None:
    if how == "removed":
        path.unlink()
        return
    size = path.stat().st_size
    kept = {"emptied": 0, "cut in half": size // 2, "cut by a byte": max(0, size - 1)}[how]
    os.truncate(path, kept)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut in half", "cut by a byte"])
def test_a_damaged_file_of_a_dataset_is_an_error_that_names_it_or_does_no_harm(
    how: str, converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    pristine = path.with_name("pristine")
    shutil.copytree(path, pristine)
    with open_dataset(path) as dataset:
        assert dataset.manifest is not None
        names = [*dataset.manifest.files, MANIFEST]
        expected = contents(dataset)
    wrong = []
    for name in names:
        cut(path / name, how)
        # In a process of its own, because reading a map of a file that is cut short ends it.
        answer = Child(lambda: contents(open_dataset(path))).answer()
        shutil.copy(pristine / name, path / name)
        if answer == ("value", expected):
            continue  # a file for other programs, which this one does not need
        if answer[0] == "error" and issubclass(answer[1], DatasetError | ImageError):
            if name not in answer[2]:
                wrong.append(f"{name}: the message does not name it: {answer[2]}")
        elif name == MANIFEST and how == "removed" and answer[:2] == ("error", SourceError):
            # Without its manifest it is a folder that holds neither a dataset nor images.
            assert str(path) in answer[2]
        else:
            shown = "other data than before" if answer[0] == "value" else repr(answer)
            wrong.append(f"{name}: {shown}")
    assert not wrong, f"{how}:\n" + "\n".join(wrong)


def test_damage_that_does_no_harm_is_of_files_for_other_programs_only(
    converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    """The test above would also pass for a reader that takes nothing from the dataset's files."""
    path = copied(converted_format, uniform)
    with open_dataset(path) as dataset:
        assert dataset.manifest is not None
        names = dataset.manifest.files
        data = {part.file for part in dataset.manifest.parts if part.samples}
    for name in sorted(data | {"labels.npy", "sizes.npy", "paths.bin"}):
        assert name in names
        (path / name).rename(path / "away")
        with pytest.raises(DatasetError, match=name):
            open_dataset(path)
        (path / "away").rename(path / name)


@pytest.mark.parametrize("name", ["labels.npy", "sizes.npy"])
def test_an_array_of_another_type_or_length_is_refused(
    name: str, converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    array = np.load(path / name)
    for wrong in (array.astype(np.int16), array[:-1], np.concatenate([array, array]), array[0]):
        np.save(path / name, wrong)
        with pytest.raises(DatasetError, match=name):
            open_dataset(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"fastdata": 1}', '{"fastdata": 99}'])
def test_a_manifest_that_says_something_else_is_refused(
    text: str, converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    (path / MANIFEST).write_text(text)
    with pytest.raises(DatasetError, match=MANIFEST):
        open_dataset(path)


def test_a_manifest_of_an_unknown_format_is_refused(
    converted_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(converted_format, uniform)
    text = (path / MANIFEST).read_text()
    (path / MANIFEST).write_text(text.replace(f'"format": "{converted_format}"', '"format": "x"'))
    with pytest.raises((DatasetError, UsageError), match="'x'"):
        open_dataset(path)


@pytest.mark.parametrize("how", ["removed", "emptied", "cut in half"])
def test_a_damaged_file_of_a_folder_is_an_image_error_that_names_it(
    how: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied("folder", uniform)
    with open_dataset(path) as dataset:
        cut(path / "bee" / "0.jpg", how)
        with pytest.raises(ImageError) as caught:
            dataset.decode(4)
        assert caught.value.path == str(path / "bee" / "0.jpg")
        assert caught.value.reason
        for index in (3, 5):
            np.testing.assert_array_equal(dataset.decode(index), uniform.pixels(index))
        if how != "cut in half":  # half a JPEG still has its header
            with pytest.raises(ImageError, match=r"bee/0\.jpg"):
                _ = dataset.sizes


def test_a_damaged_image_in_a_dataset_is_an_image_error_that_names_its_source(
    encoded_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    path = copied(encoded_format, uniform)
    overwrite(path, uniform.data(5))
    with open_dataset(path) as dataset:
        with pytest.raises(ImageError) as caught:
            dataset.decode(5)
        assert str(path) in caught.value.path
        assert "bee/1.jpg" in caught.value.path
        for index in (4, 6):
            np.testing.assert_array_equal(dataset.decode(index), uniform.pixels(index))


def overwrite(root: Path, data: bytes) -> None:
    """Overwrite the picture's data of a JPEG, wherever in a dataset's files it lies."""
    for path in root.rglob("*"):
        if path.is_file() and (at := path.read_bytes().find(data)) >= 0:
            with path.open("r+b") as file:
                file.seek(at + len(data) // 2)
                file.write(b"\xff\xd9" * 16)
            return
    raise AssertionError("no file of the dataset holds the image")


def test_a_file_that_was_overwritten_altogether_is_an_error_of_the_data(
    encoded_format: str, uniform: Any, copied: Callable[..., Path]
) -> None:
    """As a bad disk, or another program, leaves it: of the right size, and nothing in it is."""
    path = copied(encoded_format, uniform)
    dataset = open_dataset(path)
    if dataset.manifest is None:
        files = [os.path.join(os.fsencode(path), name) for name in uniform.paths]
    else:
        files = [os.fsencode(path / part.file) for part in dataset.manifest.parts if part.samples]
    dataset.close()
    for name in files:
        with open(name, "r+b") as file:
            size = len(file.read())
            kept = 2 * 4096 if size > 2 * 4096 else 0  # so that a database still opens
            file.seek(kept)
            file.write(b"\xff" * (size - kept))

    def last_sample() -> Any:
        return open_dataset(path).decode(10)

    # In a process of its own: a library may also crash on this.
    answer = Child(last_sample).answer()
    assert answer[0] == "error", answer
    assert issubclass(answer[1], DatasetError | ImageError), answer
    assert str(path) in answer[2]


# Replacement


@pytest.fixture(scope="session")
def twins(
    write_source: Callable[..., Any], picture: Callable[..., Any], jpeg: Callable[..., bytes]
) -> list[Any]:
    """Two sources whose datasets have files of the same names, sizes and structure, so that
    nothing but the contents tells one from the other: the worst case of a replacement."""
    encoded = [jpeg(picture(48, 40, 100 + i)) for i in range(4)]
    length = max(map(len, encoded))
    encoded = [data.ljust(length, b"\0") for data in encoded]  # behind the end of the picture
    names = [b"a/0.jpg", b"b/0.jpg"]
    return [write_source(dict(zip(names, encoded[i : i + 2], strict=True))) for i in (0, 2)]


@pytest.fixture
def replaceable(
    twins: list[Any], in_format: Callable[..., Path], tmp_path: Path
) -> tuple[Path, Callable[[str], Any], Callable[[str], Any]]:
    """A path, and two functions that put a dataset there, one after the other, as a conversion
    does: each file is another one, moved to its name."""
    path = tmp_path / "dataset"

    def put(name: str, source: Any) -> Any:
        path.mkdir(exist_ok=True)
        for file in in_format(name, source).iterdir():
            Path(shutil.copy(file, tmp_path / "file")).replace(path / file.name)
        return source

    return path, lambda name: put(name, twins[0]), lambda name: put(name, twins[1])


Replaceable = tuple[Path, Callable[[str], Any], Callable[[str], Any]]


def test_the_replacement_cannot_be_told_by_sizes(
    converted_format: str, replaceable: Replaceable
) -> None:
    """Else the tests below would show less than they say."""
    path, put_first, put_second = replaceable
    sizes = []
    for put in (put_first, put_second):
        put(converted_format)
        sizes.append({p.name: p.stat().st_size for p in path.iterdir()})
    assert sizes[0] == sizes[1]


def test_a_pickled_dataset_that_was_replaced_is_refused(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    with open_dataset(path) as dataset:
        pickled = pickle.dumps(dataset)
    put_second(converted_format)
    with pytest.raises(DatasetError, match=f"{path}.*replaced.*open it again"):
        pickle.loads(pickled)


def test_a_dataset_that_was_replaced_after_it_was_closed_is_refused(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    dataset = open_dataset(path)
    dataset.close()
    put_second(converted_format)
    with pytest.raises(DatasetError, match=str(path)):
        dataset.decode(0)


def test_a_forked_dataset_that_was_replaced_is_refused(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    with open_dataset(path) as dataset:
        dataset.decode(0)
        put_second(converted_format)
        answer = Child(lambda: digest(dataset.decode(0))).answer()
    assert answer[:2] == ("error", DatasetError), answer


def test_an_open_dataset_that_was_replaced_never_gives_the_others_data(
    converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    first = put_first(converted_format)
    with open_dataset(path) as dataset:
        put_second(converted_format)
        try:
            pixels = dataset.decode(1)
        except DataError:
            pass  # refusing is as good as keeping the files that were opened
        else:
            np.testing.assert_array_equal(pixels, first.pixels(1))


@pytest.mark.parametrize("how", ["closed", "still open", "forgotten"])
def test_opening_a_replaced_dataset_gives_the_new_one(
    how: str, converted_format: str, replaceable: Replaceable
) -> None:
    path, put_first, put_second = replaceable
    put_first(converted_format)
    old: Dataset | None = open_dataset(path)
    assert old is not None
    old.decode(0)
    if how == "closed":
        old.close()
    elif how == "forgotten":
        old = None
    second = put_second(converted_format)
    with open_dataset(path) as new:
        for index in range(2):
            np.testing.assert_array_equal(new.decode(index), second.pixels(index))
    if old is not None:
        old.close()
