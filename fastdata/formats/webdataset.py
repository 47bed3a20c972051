"""WebDataset: USTAR shards that webdataset, DALI, Hugging Face datasets and timm read as well.

A sample is three adjacent members with a common key: ``KEY.jpg``, ``KEY.cls`` (a class index in
ASCII; absent where there is none) and ``KEY.json`` (the source's path, and labels of other kinds).
``offsets.npy`` says where each image lies, so that any sample can be read at once and few shards
can feed many workers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable, Iterable
from typing import Any, BinaryIO

from numpy.typing import NDArray

from fastdata.files import write_whole
from fastdata.formats import OFFSETS, Label, Sample, ShardRecord, Writer
from fastdata.formats.spans import span_bytes
from fastdata.manifest import Part
from fastdata.paths import display

__all__ = ["WebDatasetWriter"]

_BLOCK = 512
_SEND_BYTES = 8 << 20


class WebDatasetWriter(Writer):
    """Writes shards and, from the same pass, the indices that other readers look for."""

    def write_shard(
        self, shard: int, start: int, samples: Iterable[Sample]
    ) -> tuple[list[tuple[int, int]], list[Part]]:
        name = f"{self.name}-{shard:06d}"
        spans: list[tuple[int, int]] = []
        lines: list[str] = []
        with write_whole(self.staging / f"{name}.tar") as file:
            tar = _TarWriter(file)
            for sample in samples:
                members = self._members(sample)
                places = [(tar.add(member, data), member, data) for member, data in members]
                spans.append((places[0][0], len(sample.data)))
                # DALI index v1.2: extension, data offset, size and name of each member.
                lines.append(
                    " ".join(
                        f"{member.partition('.')[2]} {offset} {len(data)} {member}"
                        for offset, member, data in places
                    )
                )
            tar.end()
        index = "".join(f"{line}\n" for line in [f"v1.2 {len(lines)}", *lines]).encode("ascii")
        with write_whole(self.staging / f"{name}.idx") as file:
            file.write(index)
        return spans, [
            Part(f"{name}.tar", 0, tar.size, tar.digest.hexdigest(), len(spans)),
            Part(f"{name}.idx", 0, len(index), hashlib.sha256(index).hexdigest()),
        ]

    def _members(self, sample: Sample) -> list[tuple[str, bytes]]:
        key = f"{sample.position:09d}"
        members = [(f"{key}.jpg", sample.data)]
        label, fields = sample.label, _path_fields(sample.path)
        if isinstance(label, int):
            members.append((f"{key}.cls", b"%d" % label))
        elif label is not None:  # .cls is an integer to everyone who reads it
            fields["label"] = label
        if self.copies:
            fields["copy"] = sample.copy
        members.append((f"{key}.json", json.dumps(fields).encode("ascii")))
        return members

    def finish(
        self, shards: list[ShardRecord], labels: NDArray[Any], note: Callable[[str], None]
    ) -> list[Part]:
        # A shard of which nothing survived is no shard: most readers refuse an empty tar.
        parts = [part for shard in shards if len(shard.positions) for part in shard.parts]
        tars = [part for part in parts if part.samples is not None]
        wids = {
            "__kind__": "wids-shard-index-v1",
            "wids_version": 1,
            "name": self.name,
            "shardlist": [
                {"url": tar.file, "nsamples": tar.samples, "filesize": tar.bytes} for tar in tars
            ],
        }
        timm = {
            "splits": {
                self.name: {
                    "name": self.name,
                    "num_samples": sum(tar.samples or 0 for tar in tars),
                    "filenames": [tar.file for tar in tars],
                    "shard_lengths": [tar.samples for tar in tars],
                }
            }
        }
        sidecars = {
            OFFSETS: span_bytes([shard.spans for shard in shards]),
            "wids.json": (json.dumps(wids, indent=1) + "\n").encode("ascii"),
            "_info.json": (json.dumps(timm, indent=1) + "\n").encode("ascii"),
        }
        for name, data in sidecars.items():
            with write_whole(self.staging / name) as file:
                file.write(data)
            parts.append(Part(name, 0, len(data), hashlib.sha256(data).hexdigest()))
        return parts


def _path_fields(path: bytes) -> dict[str, Label | str]:
    """Both fields always, of one type: readers take the schema from the first few samples."""
    try:
        return {"path": path.decode("utf-8"), "path_base64": ""}
    except UnicodeDecodeError:
        return {"path": display(path), "path_base64": base64.b64encode(path).decode("ascii")}


class _TarWriter:
    """USTAR archives (POSIX.1-1988) whose bytes depend on names and contents alone."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = self._sent = 0
        self.digest = hashlib.sha256()

    def add(self, name: str, data: bytes) -> int:
        """Append a regular file; return the offset of its data."""
        offset = self.size + _BLOCK
        padding = bytes(-len(data) % _BLOCK)
        self._write(_tar_header(name.encode("ascii"), len(data)))
        self._write(data)
        self._write(padding)
        return offset

    def end(self) -> None:
        """Write the two empty blocks that end an archive."""
        self._write(bytes(2 * _BLOCK))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.digest.update(data)
        self.size += len(data)
        if self.size - self._sent >= _SEND_BYTES:
            # Starts writing to the disk what is new, so that the final sync need not wait for
            # all of it; being dirty, these pages are not dropped.
            self._file.flush()
            span = self._sent, self.size - self._sent
            os.posix_fadvise(self._file.fileno(), *span, os.POSIX_FADV_DONTNEED)
            self._sent = self.size


# Mode 0644, owner 0:0, modification time 0, a regular file, USTAR version 00. The checksum counts
# its own field as blanks. NUL is written as one name here: an octal escape would swallow digits.
_NUL = bytes(1)
_HEAD = b"0000644" + _NUL + 2 * (b"0000000" + _NUL)
_TAIL = b"00000000000" + _NUL
_KIND = b"0" + bytes(100) + b"ustar" + _NUL + b"00"
_SUM = sum(_HEAD) + sum(_TAIL) + sum(_KIND) + 8 * ord(" ")


def _tar_header(name: bytes, size: int) -> bytes:
    octal = b"%011o" % size
    checksum = b"%06o" % (_SUM + sum(name) + sum(octal))
    used = name.ljust(100, _NUL) + _HEAD + octal + _NUL + _TAIL + checksum + _NUL + b" " + _KIND
    return used.ljust(_BLOCK, _NUL)
