"""The scan against torchvision's ImageFolder, the file system and hand-made lists."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torchvision.datasets import ImageFolder

from converters.sources import scan_source
from fastdata import SourceError, open_dataset
from fastdata.formats.folder import scan_folder
from fastdata.paths import PathTable


def plant(root: Path, *names: str | bytes) -> Path:
    """Write one-byte files, and the folders above them."""
    for name in names:
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"x")
    return root


def image_folder(root: Path) -> tuple[list[str], list[tuple[bytes, int]]]:
    """Classes, and (relative path, label) of the samples, as torchvision lists them."""
    folder = ImageFolder(str(root))
    samples = [
        (os.path.relpath(os.fsencode(path), os.fsencode(root)), label)
        for path, label in folder.samples
    ]
    return folder.classes, samples


def scanned(root: Path) -> tuple[list[str], list[tuple[bytes, int]]]:
    scan = scan_folder(root)
    paths = [scan.paths[i] for i in range(len(scan.paths))]
    return scan.classes, list(zip(paths, scan.labels.tolist(), strict=True))


TREES = {
    "upper and lower case": ["Zebra/a.jpg", "ant/B.jpg", "ant/a.jpg", "ant/_.jpg", "bee/A.jpg"],
    "digits": ["10/2.jpg", "10/10.jpg", "9/1.jpg", "09/1.jpg", "1/01.jpg", "1/1.jpg"],
    "non-ASCII": ["ä/1.jpg", "a/é.jpg", "a/z.jpg", "日本/雪.jpg", "z/😀.jpg", "z/\ue000.jpg"],
    "nested": [
        "ant/z.jpg",
        "ant/a/1.jpg",
        "ant/a/b/2.jpg",
        "ant/a b/3.jpg",
        "ant/a-b/4.jpg",
        "ant/a.b/5.jpg",
        "ant/a0/6.jpg",
        "ant/B/c/7.jpg",
        "bee/only/below/1.jpg",
    ],
    "classes that begin alike": ["a/1.jpg", "a b/1.jpg", "a-b/1.jpg", "a.b/1.jpg", "ab/1.jpg"],
    "endings": [
        *(f"a/{n}{e}" for n, e in enumerate([".JPG", ".Jpeg", ".png", ".PPM", ".bmp", ".pgm"])),
        *("a/x.tif", "a/x.TIFF", "a/x.webp", "a/two.dots.jpg", "a/.b/1.txt", "a/no-image.txt"),
    ],
    "odd characters": ["a\nb/c\nd.jpg", "a\tb/1.jpg", "a\"b/'.jpg", "a\\b/*?.jpg", "a'/ .jpg"],
    # As text, byte 0x80 comes behind the letters of all living languages; as bytes, before them.
    "not UTF-8": [
        b"\x80/1.jpg",
        "日/\ufb01.jpg",
        "日/雪.jpg".encode(),
        "日/".encode() + b"\x80.jpg",
    ],
    "partly UTF-8": [b"a\xff/\xfe.jpg", b"a/\x80.jpg", b"a/z.jpg", b"a\xc3\xa4/1.jpg"],
}


@pytest.mark.parametrize("names", TREES.values(), ids=TREES.keys())
def test_classes_and_samples_come_in_the_order_of_image_folder(
    names: list[str | bytes], tmp_path: Path
) -> None:
    root = plant(tmp_path / "source", *names)
    assert scanned(root) == image_folder(root)


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_come_in_the_order_of_image_folder(seed: int, tmp_path: Path) -> None:
    generator = np.random.default_rng(seed)
    letters = [*"aAbZ09 _-.~é日", "ab", "Ab"]

    def name() -> str:
        text = "".join(generator.choice(letters, generator.integers(1, 4)).tolist())
        return "x" + text if text.startswith(".") else text  # hidden ones differ on purpose

    names = ["/".join(name() for _ in range(generator.integers(2, 5))) + ".jpg" for _ in range(80)]
    root = plant(tmp_path / "source", *names)
    assert scanned(root) == image_folder(root)


def test_names_that_are_no_utf8_keep_their_bytes(tmp_path: Path) -> None:
    names = [b"cl\xe4ss/\xff\xfe.jpg", b"cl\xe4ss/b.jpg"]
    root = plant(tmp_path / "source", *names)
    dataset = open_dataset(root)
    assert {dataset.path_of(i) for i in range(2)} == set(names)
    assert [os.fsencode(name) for name in dataset.classes] == [b"cl\xe4ss"]
    assert bytes(dataset.read(0)) == b"x"


def test_hidden_and_system_entries_are_ignored_and_counted(tmp_path: Path) -> None:
    root = plant(
        tmp_path / "source",
        *("a/1.jpg", "a/.2.jpg", "a/.sub/3.jpg", "a/__MACOSX/4.jpg", "a/@eaDir/5.jpg"),
        *(".hidden/6.jpg", "__MACOSX/7.jpg", "$RECYCLE.BIN/8.jpg"),
        *("a/Thumbs.db", "a/notes.txt", "a/jpg", "README.md", "beside.jpg"),
    )
    scan = scan_folder(root)
    assert [scan.paths[i] for i in range(len(scan.paths))] == [b"a/1.jpg"]
    assert scan.classes == ["a"]
    assert scan.ignored == {
        "hidden": 3,  # a/.2.jpg, a/.sub, .hidden
        "left behind by a system": 4,
        "not an image's name": 3,
        "beside the class folders": 2,
    }


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    elsewhere = plant(tmp_path / "elsewhere", "bee/1.jpg", "bee/deep/2.jpg", "more/3.jpg", "4.jpg")
    root = plant(tmp_path / "source", "ant/0.jpg")
    (root / "bee").symlink_to(elsewhere / "bee")
    (root / "ant" / "more").symlink_to(elsewhere / "more")
    (root / "ant" / "4.jpg").symlink_to(elsewhere / "4.jpg")
    expected = [b"ant/0.jpg", b"ant/4.jpg", b"ant/more/3.jpg", b"bee/1.jpg", b"bee/deep/2.jpg"]
    assert [path for path, _ in scanned(root)[1]] == expected
    assert scanned(root) == image_folder(root)


def test_a_link_into_its_own_folder_ends_and_is_counted(tmp_path: Path) -> None:
    root = plant(tmp_path / "source", "ant/1.jpg", "ant/deep/2.jpg", "bee/3.jpg")
    (root / "ant" / "deep" / "again").symlink_to(root / "ant")
    (root / "bee" / "self").symlink_to(".")
    scan = scan_folder(root)
    found = [scan.paths[i] for i in range(len(scan.paths))]
    assert found == [b"ant/1.jpg", b"ant/deep/2.jpg", b"bee/3.jpg"]
    assert scan.ignored == {"a link into itself": 2}


def test_a_link_to_the_source_itself_does_not_make_all_images_one_class(tmp_path: Path) -> None:
    root = plant(tmp_path / "source", "ant/1.jpg", "bee/2.jpg")
    (root / "ant" / "all").symlink_to(root)
    assert scanned(root)[1] == [(b"ant/1.jpg", 0), (b"bee/2.jpg", 1)]


def test_a_link_that_points_to_itself_does_not_stop_the_scan(tmp_path: Path) -> None:
    # The system answers "too many levels of symbolic links"; ImageFolder lists it as a file, and
    # reading it fails. It must not be called a folder without permissions.
    root = plant(tmp_path / "source", "ant/1.jpg")
    (root / "ant" / "2.jpg").symlink_to(root / "ant" / "2.jpg")
    assert scanned(root) == image_folder(root)


def test_a_link_to_nothing_is_left_to_the_reading_of_it(tmp_path: Path) -> None:
    root = plant(tmp_path / "source", "ant/1.jpg")
    (root / "ant" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    source = scan_source(root)
    assert source.bytes.tolist() == [1, -1]
    assert source.summary()["files"] == 2
    assert source.summary()["bytes"] == 1


def test_images_without_class_folders_have_no_labels(tmp_path: Path) -> None:
    root = plant(tmp_path / "source", "b.jpg", "a.PNG", "c.txt")
    scan = scan_folder(root)
    assert [scan.paths[i] for i in range(2)] == [b"a.PNG", b"b.jpg"]
    assert scan.labels.shape == (2, 0)
    assert scan.labels.dtype == np.int64
    assert scan.classes == []


def test_a_folder_that_cannot_be_listed_is_named(
    tmp_path: Path, python: Callable[..., object]
) -> None:
    root = plant(tmp_path / "source", "ant/1.jpg", "bee/sub/2.jpg")
    (root / "bee" / "sub").chmod(0)
    code = """
import sys
from fastdata.formats.folder import scan_folder
from fastdata.paths import PathTable
from fastdata import SourceError
try:
    scan_folder(sys.argv[1])
except SourceError as error:
    print(error)
"""
    result = python(code, root, unprivileged=True)
    (root / "bee" / "sub").chmod(0o755)
    assert f"{root}/bee/sub: cannot list the folder: Permission denied" in result.stdout


def test_a_class_folder_without_images_is_refused_by_name(tmp_path: Path) -> None:
    root = plant(tmp_path / "source", "ant/1.jpg", "bee/deep/notes.txt", "cat/2.jpg")
    with pytest.raises(SourceError, match=rf"{root}/bee: .*found none.*\.jpg"):
        scan_folder(root)
    with pytest.raises(FileNotFoundError, match="bee"):  # ImageFolder refuses it as well
        ImageFolder(str(root))


def test_a_source_that_is_absent_a_file_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=f"{tmp_path}/absent: .*found nothing"):
        scan_folder(tmp_path / "absent")
    file = plant(tmp_path, "file.jpg") / "file.jpg"
    with pytest.raises(SourceError, match=f"{file}: .*found a file"):
        scan_folder(file)
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=f"{tmp_path}/empty: .*found none"):
        scan_folder(tmp_path / "empty")
    plant(tmp_path / "text", "1.txt")
    with pytest.raises(SourceError, match=f"{tmp_path}/text: .*found none"):
        scan_folder(tmp_path / "text")


def test_progress_ends_at_the_number_of_images(tmp_path: Path) -> None:
    root = plant(tmp_path / "source", *(f"{c}/{i}.jpg" for c in "abc" for i in range(4)))
    told: list[int] = []
    scan_source(root, progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 12


def test_the_source_remembers_size_and_time_of_each_file(tmp_path: Path) -> None:
    root = tmp_path / "source"
    (root / "a").mkdir(parents=True)
    for number, size in enumerate([5, 0, 1234]):
        path = root / "a" / f"{number}.jpg"
        path.write_bytes(bytes(size))
        os.utime(path, ns=(0, 10**18 + number))
    source = scan_source(root)
    assert source.bytes.tolist() == [5, 0, 1234]
    assert source.stamps.tolist() == [10**18, 10**18 + 1, 10**18 + 2]
    summary = source.summary()
    assert (summary["files"], summary["bytes"]) == (3, 1239)
    # The fingerprint is of names, sizes and labels: a copy elsewhere, made later, has the same.
    later = replace(source, root=b"/elsewhere", stamps=source.stamps + 1)
    assert later.summary() == summary
    for other in (
        replace(source, bytes=np.array([5, 0, 1235])),
        replace(source, labels=source.labels + 1),
        replace(source, classes=["b"]),
        replace(source, paths=PathTable.of([b"a/0.jpg", b"a/1.jpg", b"b/2.jpg"])),
    ):
        assert other.summary()["fingerprint"] != summary["fingerprint"]
    json.dumps(source.summary())  # plain values
