"""fastdata.json: its exact bytes, and the errors of whatever is not such a file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converters.plan import PLAN
from converters.write import record_path
from fastdata.errors import DatasetError, UnfinishedError
from fastdata.manifest import MANIFEST, STAGING, Manifest, Part

EXAMPLE = Manifest(
    format="webdataset",
    samples=3,
    classes=["ant", "bär"],
    image_size=None,
    conversion={"resize": 256, "to": "webdataset"},
    source={"bytes": 1000, "files": 4, "fingerprint": "ab12"},
    skipped=1,
    created_by="fastdata 1.2",
    treated={"scaled": 2, "PNG": 1},
    repaired={"the end marker is missing": 1},
    parts=[
        Part("shard-000000.tar", 0, 2048, "00cd", 2),
        Part("labels.npy", 0, 152, "11cd"),
        Part("shard-000000.tar", 2048, 1024, "22cd", 1),
    ],
)
# Written out by hand: other people's tools read this file, and identities are made of its bytes.
EXAMPLE_TEXT = """{
 "fastdata": 1,
 "identity": "IDENTITY",
 "format": "webdataset",
 "samples": 3,
 "classes": [
  "ant",
  "b\\u00e4r"
 ],
 "image_size": null,
 "conversion": {
  "resize": 256,
  "to": "webdataset"
 },
 "source": {
  "bytes": 1000,
  "files": 4,
  "fingerprint": "ab12"
 },
 "skipped": 1,
 "created_by": "fastdata 1.2",
 "label_dtype": "int64",
 "columns": null,
 "treated": {
  "PNG": 1,
  "scaled": 2
 },
 "repaired": {
  "the end marker is missing": 1
 },
 "parts": [
  {
   "file": "shard-000000.tar",
   "offset": 0,
   "bytes": 2048,
   "sha256": "00cd",
   "samples": 2
  },
  {
   "file": "labels.npy",
   "offset": 0,
   "bytes": 152,
   "sha256": "11cd",
   "samples": null
  },
  {
   "file": "shard-000000.tar",
   "offset": 2048,
   "bytes": 1024,
   "sha256": "22cd",
   "samples": 1
  }
 ]
}
"""
# The identity is the checksum of all that is not the layout's version or the identity itself.
_REST = EXAMPLE_TEXT.replace(' "fastdata": 1,\n "identity": "IDENTITY",\n', "")
IDENTITY = hashlib.sha256(_REST.encode("ascii")).hexdigest()
EXAMPLE_TEXT = EXAMPLE_TEXT.replace("IDENTITY", IDENTITY)


def test_the_files_bytes_are_frozen() -> None:
    assert EXAMPLE.to_bytes() == EXAMPLE_TEXT.encode("ascii")
    assert EXAMPLE.identity == IDENTITY


def test_a_manifest_comes_back_from_its_file(tmp_path: Path) -> None:
    for manifest in (
        EXAMPLE,
        replace(EXAMPLE, image_size=(32, 48), classes=[], parts=[]),
        # Folder names that are no UTF-8 arrive as surrogates from os.fsdecode.
        replace(EXAMPLE, classes=["b\udce4r", "two\nlines", '"', "\0"]),
    ):
        manifest.write(tmp_path)
        found = Manifest.read(tmp_path)
        assert found == manifest
        assert found.to_bytes() == (tmp_path / MANIFEST).read_bytes()
        assert found.identity == manifest.identity
        assert [path.name for path in tmp_path.iterdir()] == [MANIFEST]
    assert isinstance(found.parts[0], Part)


def test_image_sizes_come_back_as_they_were(tmp_path: Path) -> None:
    replace(EXAMPLE, image_size=(32, 48)).write(tmp_path)
    assert Manifest.read(tmp_path).image_size == (32, 48)  # a tuple, height first


def test_any_difference_changes_the_identity() -> None:
    others = [
        replace(EXAMPLE, samples=4),
        replace(EXAMPLE, classes=["ant", "bee"]),
        replace(EXAMPLE, parts=EXAMPLE.parts[::-1]),
        replace(EXAMPLE, created_by="fastdata 1.3"),
        replace(EXAMPLE, conversion={**EXAMPLE.conversion, "resize": 257}),
    ]
    assert len({EXAMPLE.identity, *(other.identity for other in others)}) == 6


def test_equal_manifests_have_equal_bytes() -> None:
    turned = dict(reversed(EXAMPLE.conversion.items()))
    other = replace(EXAMPLE, conversion=turned)
    assert other == EXAMPLE
    assert other.to_bytes() == EXAMPLE.to_bytes()


def test_files_are_listed_once_each() -> None:
    assert EXAMPLE.files == ["labels.npy", "shard-000000.tar"]
    assert replace(EXAMPLE, parts=[]).files == []


def test_a_folder_without_a_manifest_says_how_to_make_one(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DatasetError, match=r"fastdata convert SRC DST --to FORMAT") as caught:
            Manifest.read(root)
        assert type(caught.value) is DatasetError
        assert str(root) in str(caught.value)
        assert MANIFEST in str(caught.value)


@pytest.mark.parametrize("layout", [0, 2, 99, "1", None])
def test_another_layout_says_what_was_expected_and_what_to_do(
    tmp_path: Path, layout: object
) -> None:
    document = {**json.loads(EXAMPLE_TEXT), "fastdata": layout}
    # Whatever else a later version writes, its number is what the message is about.
    document["something"] = "new"
    (tmp_path / MANIFEST).write_text(json.dumps(document))
    with pytest.raises(DatasetError) as caught:
        Manifest.read(tmp_path)
    message = str(caught.value)
    assert f"layout version {layout!r}" in message
    assert str(tmp_path / MANIFEST) in message
    assert "reads 1" in message
    assert "convert the source again" in message


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in json.loads(EXAMPLE_TEXT).items() if key != name}


DAMAGED = {
    "empty": b"",
    "cut": EXAMPLE_TEXT.encode()[:-3],
    "half": EXAMPLE_TEXT.encode()[: len(EXAMPLE_TEXT) // 2],
    "zeros": bytes(500),
    "no utf-8": EXAMPLE_TEXT.encode().replace(b"\\u00e4", b"\xe4"),
    "a list": b"[1, 2]",
    "a number": b"1",
    "null": b"null",
    "no layout": json.dumps(without("fastdata")).encode(),
    "no parts": json.dumps(without("parts")).encode(),
    "no size": json.dumps(without("image_size")).encode(),
    "no samples": json.dumps(without("samples")).encode(),
    "an unknown key": json.dumps({**json.loads(EXAMPLE_TEXT), "extra": 1}).encode(),
    "parts of strings": json.dumps({**json.loads(EXAMPLE_TEXT), "parts": ["a"]}).encode(),
    "an odd part": json.dumps({**json.loads(EXAMPLE_TEXT), "parts": [{"file": "a"}]}).encode(),
    "another class": EXAMPLE_TEXT.encode().replace(b'"ant"', b'"bnt"'),
    "another identity": EXAMPLE_TEXT.encode().replace(IDENTITY.encode(), b"0" * 64),
    "a line twice": EXAMPLE_TEXT.encode().replace(b' "samples": 3,\n', b' "samples": 3,\n' * 2),
    "no identity": json.dumps(without("identity")).encode(),
    "an odd size": json.dumps({**json.loads(EXAMPLE_TEXT), "image_size": 32}).encode(),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_manifest_says_so_and_what_to_do(tmp_path: Path, name: str) -> None:
    (tmp_path / MANIFEST).write_bytes(DAMAGED[name])
    with pytest.raises(DatasetError, match=r"damaged .*restore it, or convert") as caught:
        Manifest.read(tmp_path)
    assert type(caught.value) is DatasetError
    assert str(tmp_path / MANIFEST) in str(caught.value)


def test_a_manifest_that_cannot_be_read_says_why_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(DatasetError, match="Permission denied") as caught:
        Manifest.read(tmp_path)
    assert str(tmp_path / MANIFEST) in str(caught.value)
    assert "check" in str(caught.value)  # every message says what to do


@pytest.mark.parametrize("done", [0, 2])
def test_an_interrupted_conversion_says_how_far_it_came_and_how_to_go_on(
    tmp_path: Path, done: int
) -> None:
    staging = tmp_path / STAGING
    staging.mkdir()
    # The converter's own names, so that the two cannot drift apart.
    (staging / PLAN).write_text(json.dumps({"shards": 5}))
    for shard in range(done):
        record_path(staging, shard).write_bytes(b"")
    (staging / "shard-000004.tar").write_bytes(b"")
    with pytest.raises(UnfinishedError) as caught:
        Manifest.read(tmp_path)
    assert str(caught.value) == (
        f"conversion of {tmp_path} unfinished: {done} of 5 shards; "
        "run the same fastdata convert again to resume"
    )


@pytest.mark.parametrize("plan", [None, "", "[]", '{"other": 1}', "null"])
def test_a_conversion_interrupted_before_its_plan_is_unfinished_too(
    tmp_path: Path, plan: str | None
) -> None:
    staging = tmp_path / STAGING
    staging.mkdir()
    if plan is not None:
        (staging / PLAN).write_text(plan)
    with pytest.raises(UnfinishedError, match=r"0 of an unknown number of shards; run the same"):
        Manifest.read(tmp_path)


def test_a_finished_dataset_is_read_whatever_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / STAGING).mkdir()
    EXAMPLE.write(tmp_path)
    assert Manifest.read(tmp_path) == EXAMPLE


def test_missing_and_resized_files_are_listed(tmp_path: Path) -> None:
    tar, labels = tmp_path / "shard-000000.tar", tmp_path / "labels.npy"
    tar.write_bytes(bytes(3072))  # the end of its last range: 2048 + 1024
    labels.write_bytes(bytes(152))
    (tmp_path / "notes.txt").write_text("a file of the user's own does not matter")
    assert EXAMPLE.missing_or_resized(tmp_path) == []
    tar.write_bytes(bytes(3071))
    assert EXAMPLE.missing_or_resized(tmp_path) == [f"{tar}: expected 3072 bytes, found 3071"]
    labels.unlink()
    tar.write_bytes(bytes(3073))
    assert EXAMPLE.missing_or_resized(tmp_path) == [
        f"{labels}: No such file or directory",
        f"{tar}: expected 3072 bytes, found 3073",
    ]
