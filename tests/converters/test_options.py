"""Arguments are checked before any work, and each refusal says what was expected."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from converters.options import Options, parse_bytes, parse_size
from fastdata import UsageError

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"to": "tfrecord"}, "tfrecord.*webdataset, lmdb, memmap"),
    ({"to": "memmap"}, "--size"),
    ({"to": "memmap", "resize": 32}, "--size"),
    ({"resize": 32, "size": (32, 32)}, "--resize and --size"),
    ({"resize": 0}, "got 0"),
    ({"resize": -5}, "got -5"),
    ({"resize": 65_536}, "got 65536"),
    ({"size": (0, 32)}, "got 0"),
    ({"size": (32, 0)}, "got 0"),
    ({"size": (32, 70_000)}, "got 70000"),
    ({"quality": 0}, "1 to 100, got 0"),
    ({"quality": 101}, "1 to 100, got 101"),
    ({"shard_size": 0}, "--shard-size.*got 0"),
    ({"name": ""}, "--name"),
    ({"name": "a/b"}, "--name.*'a/b'"),
    ({"name": "../b"}, "--name"),
    ({"name": ".b"}, "--name"),
    ({"name": "-b"}, "--name"),
    ({"name": "a.b"}, "--name"),
    ({"name": "ä"}, "--name"),
    ({"name": "a\n"}, "--name"),
    ({"name": "a" * 65}, "--name"),
    ({"check": "none"}, "decode or structure, got 'none'"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=[str(a) for a, _ in REFUSED])
def test_an_argument_out_of_range_is_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**{"to": "webdataset", **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"resize": 1},
        {"resize": 65_535},
        {"size": (1, 65_535)},
        {"quality": 1},
        {"quality": 100},
        {"shard_size": 1},
        {"name": "a" * 64},
        {"name": "Train_2-b"},
        {"check": "structure"},
        {"seed": -1},
        {"to": "lmdb"},
        {"to": "memmap", "size": (3, 5)},
    ],
    ids=str,
)
def test_the_ends_of_each_range_are_accepted(arguments: dict[str, Any]) -> None:
    options = Options(**{"to": "webdataset", **arguments})
    for key, value in arguments.items():
        assert getattr(options, key) == value


CHANGES: dict[str, tuple[Any, Any]] = {
    "to": ("lmdb", "'lmdb'"),
    "resize": (64, "64"),
    "size": ((32, 48), "[32, 48]"),
    "quality": (80, "80"),
    "shuffle": (False, "False"),
    "seed": (7, "7"),
    "shard_size": (1000, "1000"),
    "name": ("train", "'train'"),
    "check": ("structure", "'structure'"),
    "exif": ("ignore", "'ignore'"),
    "strict": (True, "True"),
    "augment": ("flip", "'flip'"),
    "copies": (3, "3"),
}


def test_every_option_is_compared() -> None:
    # A new option that is left out here would be left out of the next test as well.
    assert CHANGES.keys() | {"augment_code"} == {f.name for f in dataclasses.fields(Options)}


def test_another_module_behind_the_same_name_is_a_difference() -> None:
    before, now = (Options("webdataset", augment="a:b", augment_code=code) for code in "12")
    difference = now.difference(before.as_json())
    assert difference == "the module of --augment was changed"


@pytest.mark.parametrize("key", CHANGES)
def test_a_difference_names_the_option_and_both_values(key: str) -> None:
    value, shown = CHANGES[key]
    augmented = {"to": "webdataset", "augment": "crop"}
    before, now = Options(**augmented), Options(**{**augmented, key: value})
    stored = json.loads(json.dumps(before.as_json()))
    difference = now.difference(stored)
    assert difference is not None
    assert difference.startswith(f"--{key.replace('_', '-')} was ")
    assert difference.endswith(f" and is now {shown}")


def test_equal_options_have_no_difference_after_json() -> None:
    options = Options("memmap", size=(32, 48), seed=3)
    assert Options("memmap", size=(32, 48), seed=3).difference(options.as_json()) is None
    assert options.difference(json.loads(json.dumps(options.as_json()))) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("256MB", 256_000_000),
        ("256M", 256_000_000),
        ("256 mb", 256_000_000),
        ("1GiB", 1_073_741_824),
        ("2Gi", 2_147_483_648),
        ("4KiB", 4096),
        ("4kb", 4000),
        ("1.5K", 1500),
        ("12B", 12),
        (" 3M ", 3_000_000),
    ],
)
def test_byte_sizes_are_read(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1TB", "1IB", "1e6", "1,5MB", "ten", "1 2"])
def test_other_byte_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="such as 256MB or 1GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("224", (224, 224)), ("256x320", (256, 320)), ("8X9", (8, 9)), (" 32 ", (32, 32))],
)
def test_sizes_are_height_by_width(text: str, expected: tuple[int, int]) -> None:
    assert parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "x", "32x", "x32", "-1", "3.5", "32x32x3", "32,32"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="H or HxW"):
        parse_size(text)
