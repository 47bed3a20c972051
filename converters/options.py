"""The arguments of a conversion, checked before any work starts."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from fastdata.errors import UsageError
from fastdata.registry import WRITERS, load

__all__ = ["CHECKS", "EXIF", "Options", "parse_bytes", "parse_size"]

CHECKS = ("decode", "structure")
EXIF = ("apply", "ignore")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "KI": 2**10, "MI": 2**20, "GI": 2**30}
_MOST_COPIES = 1000
_MAX_SIDE = 65_535  # of a JPEG, and more than anyone trains on


@dataclass(frozen=True)
class Options:
    """The arguments that decide a dataset's bytes.

    Attributes:
        to: format, a name in the registry.
        resize: short side in pixels, never enlarged; None keeps it.
        size: exact (height, width): the image is scaled to cover it, the centre is cut out.
        quality: JPEG quality 1..100 of what is encoded anew.
        shuffle, seed: whether, and by which key, the samples are shuffled once.
        shard_size: source bytes of a shard; None chooses by the source's size.
        name: prefix of the shards' names, and of the split in their indices.
        check: ``"decode"``: every image is decoded once; ``"structure"``: bytes that pass
            through are only walked marker by marker.
        exif: ``"apply"``: pixels are turned as the EXIF orientation says; ``"ignore"``: they stay
            as they are stored, and the tag goes.
        strict: refuse images that need repair, though their pixels are whole.
        augment: preset or ``"module:function"`` of the variants; None makes none.
        copies: variants of each source image.
        augment_code: fingerprint of the user's module.

    Raises:
        UsageError: a value, or a combination, cannot be carried out.
        MissingExtraError: the format needs a package that is not installed.
    """

    to: str
    resize: int | None = None
    size: tuple[int, int] | None = None
    quality: int = 90
    shuffle: bool = True
    seed: int = 0
    shard_size: int | None = None
    name: str = "shard"
    check: str = "decode"
    exif: str = "apply"
    strict: bool = False
    augment: str | None = None
    copies: int = 1
    augment_code: str = ""

    def __post_init__(self) -> None:
        encoded = load(WRITERS, self.to, "format").encoded
        if not encoded and self.size is None:
            raise UsageError(
                f"{self.to} stores pixels of one size: give it with --size H or HxW, such as "
                "--size 256 (the short side is scaled to it, the centre is cut out)"
            )
        if self.resize is not None and self.size is not None:
            raise UsageError("--resize and --size exclude each other: give one of them")
        for side in (self.resize, *(self.size or ())):
            if side is not None and not 1 <= side <= _MAX_SIDE:
                raise UsageError(f"expected a size of 1 to {_MAX_SIDE} pixels, got {side}")
        if not 1 <= self.quality <= 100:
            raise UsageError(f"expected --quality from 1 to 100, got {self.quality}")
        if self.shard_size is not None and self.shard_size < 1:
            raise UsageError(f"expected --shard-size of at least 1 byte, got {self.shard_size}")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", self.name):
            raise UsageError(
                f"--name: expected up to 64 ASCII letters, digits, - and _, got {self.name!r}"
            )
        if self.check not in CHECKS:
            raise UsageError(f"expected --check {' or '.join(CHECKS)}, got {self.check!r}")
        if self.exif not in EXIF:
            raise UsageError(f"expected --exif {' or '.join(EXIF)}, got {self.exif!r}")
        if not 1 <= self.copies <= _MOST_COPIES:
            raise UsageError(f"expected --copies from 1 to {_MOST_COPIES}, got {self.copies}")
        if self.copies > 1 and self.augment is None:
            raise UsageError("--copies without --augment would store each image several times over")

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, equal for equal options."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    def difference(self, other: dict[str, Any]) -> str | None:
        """The first option in which ``other`` (an earlier :meth:`as_json`) differs, in words."""
        mine = self.as_json()
        # The format first: it often is why another option differs.
        for key in sorted(mine.keys() | other.keys(), key=lambda key: (key != "to", key)):
            before, now = other.get(key), mine.get(key)
            if before != now and key == "augment_code":
                return "the module of --augment was changed"
            if before != now:
                return f"--{key.replace('_', '-')} was {before!r} and is now {now!r}"
        return None


def parse_bytes(text: str) -> int:
    """``"256MB"``, ``"1GiB"`` or ``"1000000"`` as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?I?)B?", text.strip().upper())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"expected a size such as 256MB or 1GiB, got {text!r}")
    return int(float(match[1]) * _UNITS[match[2]])


def parse_size(text: str) -> tuple[int, int]:
    """``"224"`` or ``"256x320"`` (height x width) as (height, width) in pixels."""
    match = re.fullmatch(r"(\d+)(?:[xX](\d+))?", text.strip())
    if match is None:
        raise UsageError(
            f"expected a size H or HxW in pixels, such as 256 or 256x320, got {text!r}"
        )
    return int(match[1]), int(match[2] or match[1])
