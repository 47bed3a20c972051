"""The command line: fastdata convert | info | verify | tune | demo."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastdata._version import __version__
from fastdata.errors import FastdataError
from fastdata.registry import WRITERS
from fastdata.tuning.command import add_tune

__all__ = ["main"]

_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code.

    0: done; 1: the data is at fault; 2: the call is at fault; 130: interrupted.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files need not be UTF-8
        sys.stdout.reconfigure(errors="backslashreplace")
    parsed = _parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        return code
    except FastdataError as error:
        print(f"fastdata {parsed.command}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        hint = "; run the same command again to resume" if parsed.command == "convert" else ""
        print(f"fastdata {parsed.command}: interrupted{hint}", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, such as head(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fastdata",
        description="Convert image folders once, load them at the hardware's limit, know why.",
    )
    parser.add_argument("--version", action="version", version=f"fastdata {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_convert(commands)
    info = commands.add_parser("info", help="say what a dataset or an image folder holds")
    info.add_argument("dst", metavar="DST", help="a converted dataset, or an image folder")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    info.set_defaults(run=_info)
    check = commands.add_parser("verify", help="compare a dataset with its checksums")
    check.add_argument("dst", metavar="DST", help="a converted dataset")
    check.add_argument("--decode", action="store_true", help="also decode every image")
    check.add_argument("--json", action="store_true", help="print one JSON object")
    check.set_defaults(run=_verify)
    add_tune(commands)
    demo = commands.add_parser(
        "demo", help="draw images, convert, load and train on them, and report"
    )
    demo.add_argument("dir", metavar="DIR", nargs="?", default="demo", help="default: ./demo")
    demo.add_argument("--images", type=int, default=3000, help="to draw; default: %(default)s")
    demo.add_argument("--epochs", type=int, default=8, help="to train; default: %(default)s")
    demo.set_defaults(run=_demo)
    return parser


def _add_convert(commands: Any) -> None:
    from converters.augment import OPERATIONS
    from converters.options import CHECKS, EXIF, parse_bytes, parse_size

    convert = commands.add_parser(
        "convert",
        help="convert an image folder into a dataset",
        description="Convert a folder with a folder of images per class, a dataset, or WebDataset "
        "shards into a dataset. A baseline JPEG whose pixels need no change passes through byte "
        "for byte.",
    )
    add = convert.add_argument
    add("src", metavar="SRC", help="folder of images, dataset, or WebDataset shards")
    add("dst", metavar="DST", help="folder of the dataset; absent or empty")
    add("--to", required=True, choices=list(WRITERS), help="format of the dataset")
    add(
        "--resize",
        type=int,
        metavar="SHORT",
        help="scale the short side down to this many pixels; never enlarges",
    )
    add(
        "--size",
        type=_argument(parse_size),
        metavar="H[xW]",
        help="exact size: scale the short side, cut out the centre; memmap requires it",
    )
    add(
        "--quality",
        type=int,
        default=90,
        metavar="Q",
        help="JPEG quality of what is encoded anew; default: %(default)s",
    )
    add(
        "--shuffle",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="mix the samples once, so that sequential readers see mixed classes; default: yes",
    )
    add("--seed", type=int, default=0, help="of the shuffle; default: %(default)s")
    add(
        "--shard-size",
        type=_argument(parse_bytes),
        metavar="BYTES",
        help="source bytes of a shard, such as 256MB; default: 4MB to 256MB, by the source",
    )
    add("--name", default="shard", help="prefix of the shards' names; default: %(default)s")
    add("--workers", type=int, metavar="N", help="processes; default: one for each CPU")
    add(
        "--check",
        choices=CHECKS,
        default="decode",
        help="decode: decode every image once, so that damage is found now; structure: only walk "
        "the JPEG's markers; default: %(default)s",
    )
    add(
        "--exif",
        choices=EXIF,
        default="apply",
        help="turn the pixels as the EXIF orientation says, or leave them as they are stored; "
        "default: %(default)s",
    )
    add("--strict", action="store_true", help="refuse images that need repair")
    add("--labels", metavar="FILE", help=".csv, .tsv or .jsonl of paths and labels")
    add("--path-column", default="path", metavar="NAME", help="default: %(default)s")
    add(
        "--label-column",
        nargs="+",
        default=["label"],
        metavar="NAME",
        help="several give several labels for each image; default: label",
    )
    add(
        "--classes",
        metavar="DATASET|FILE",
        help="count labels by another dataset's classes, or by those in a text file",
    )
    add(
        "--augment",
        metavar="OPS|MODULE:FUNCTION",
        help=f"make variants by operations ({', '.join(OPERATIONS)}) joined by +, or by a "
        "function on a PIL image",
    )
    add("--copies", type=int, default=1, metavar="K", help="variants of each image; default: 1")
    add(
        "--on-error",
        choices=("raise", "skip"),
        default="raise",
        help="at a damaged image, stop, or leave it out and list it; default: %(default)s",
    )
    add(
        "--max-errors",
        metavar="N|P%",
        help="with --on-error skip: the most images to leave out; default: any number",
    )
    add(
        "--overwrite",
        action="store_true",
        help="replace the dataset at DST; removes only files that its manifest names",
    )
    add(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="go on with an interrupted conversion; default: where one lies at DST",
    )
    add("--json", action="store_true", help="print one JSON object")
    convert.set_defaults(run=_convert)


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type whose error is the parser's own message."""

    def checked(text: str) -> Any:
        try:
            return parse(text)
        except FastdataError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked


def _convert(parsed: argparse.Namespace) -> int:
    from converters import convert

    keep = [
        *("to", "resize", "size", "quality", "shuffle", "seed", "shard_size", "name"),
        *("check", "exif", "strict", "labels", "path_column", "label_column", "classes"),
        *("augment", "copies", "workers", "on_error", "max_errors", "overwrite", "resume"),
    ]
    if parsed.augment is not None and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where a user's module lies, as for python -m
    options = {name: getattr(parsed, name) for name in keep}
    done = convert(parsed.src, parsed.dst, progress=_Bar(), **options)
    if parsed.json:
        print(json.dumps(asdict(done)))
        return 0
    what = f"{done.samples} images, {done.classes} classes, {_size(done.bytes)}"
    if done.already_done:
        print(f"{done.path}: already converted ({what}); nothing to do")
    else:
        rate = done.samples / done.seconds
        print(
            f"{done.path}: {what} as {done.format} in {done.seconds:.1f} s ({rate:,.0f} images/s)"
        )
    if done.resumed and not done.already_done:
        print(f"  {done.resumed} shards were there from an earlier run")
    for reason, count in sorted(done.treated.items()):
        print(f"  {count} images converted: {reason}")
    for reason, count in sorted(done.repaired.items()):
        print(f"  {count} images repaired: {reason}: see {Path(done.path) / 'repaired.jsonl'}")
    if done.skipped:
        print(f"  {done.skipped} images left out: see {Path(done.path) / 'skipped.jsonl'}")
    for reason, count in sorted(done.ignored.items()):
        print(f"  {count} files or folders ignored: {reason}")
    return 0


def _info(parsed: argparse.Namespace) -> int:
    from fastdata.dataset import open_dataset
    from fastdata.manifest import MANIFEST

    with open_dataset(parsed.dst) as dataset:
        manifest = dataset.manifest
        facts: dict[str, Any] = {
            "path": os.fspath(dataset.path),
            "format": dataset.format,
            "samples": len(dataset),
            "classes": dataset.classes,
            "identity": dataset.identity,
        }
        if manifest is not None and len(dataset):
            short, long = dataset.sizes.min(axis=1), dataset.sizes.max(axis=1)
            facts |= {
                "short_side": [int(short.min()), int(short.max())],
                "long_side": [int(long.min()), int(long.max())],
                "bytes": sum(part.bytes for part in manifest.parts)
                + (dataset.path / MANIFEST).stat().st_size,
                "files": len(manifest.files) + 1,
                "skipped": manifest.skipped,
                "treated": manifest.treated,
                "repaired": manifest.repaired,
                "conversion": manifest.conversion,
                "source": manifest.source,
                "created_by": manifest.created_by,
            }
    if parsed.json:
        print(json.dumps(facts))
        return 0
    names = dataset.classes
    shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    print(f"{facts['path']}: {facts['samples']} images as {facts['format']}")
    columns = [] if manifest is None else manifest.columns
    if columns is None and not names:
        print(f"  targets     {dataset.labels.dtype}")
    elif columns:
        print(f"  labels      {dataset.labels.dtype}: {', '.join(columns)}")
    else:
        print(f"  classes     {len(names)}" + (f": {shown}" if names else " (no labels)"))
    if manifest is not None:
        low, high = facts["short_side"]
        print(f"  short side  {low} to {high} pixels; long side up to {facts['long_side'][1]}")
        print(f"  on disk     {_size(facts['bytes'])} in {facts['files']} files")
        source = manifest.source
        print(f"  source      {source['files']} files, {_size(source['bytes'])}")
        print(f"  left out    {manifest.skipped}")
        for name, counts in (("converted", manifest.treated), ("repaired", manifest.repaired)):
            words = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items()))
            print(f"  {name:11} {words or 0}")
        options = (f"{key}={value}" for key, value in manifest.conversion.items())
        print(f"  conversion  {', '.join(options)}")
        print(f"  written by  {manifest.created_by}")
    print(f"  identity    {facts['identity']}")
    return 0


def _verify(parsed: argparse.Namespace) -> int:
    from fastdata.verify import verify

    result = verify(parsed.dst, decode=parsed.decode)
    if parsed.json:
        print(json.dumps(asdict(result)))
    elif not result.problems:
        decoded = f", {result.decoded} images decoded" if parsed.decode else ""
        print(
            f"{result.path}: whole: {result.samples} samples, {result.files} files, "
            f"{_size(result.bytes)}, checksums right{decoded}"
        )
    for problem in result.problems:
        print(f"fastdata verify: {problem}", file=sys.stderr)
    if result.problems:
        print(
            f"fastdata verify: {len(result.problems)} problems; restore the files named, or "
            "convert the source again",
            file=sys.stderr,
        )
    return 1 if result.problems else 0


def _demo(parsed: argparse.Namespace) -> int:
    from fastdata.demo.story import tell

    tell(Path(parsed.dir), images=parsed.images, epochs=parsed.epochs)
    return 0


class _Bar:
    """A progress bar on stderr; none where that is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._bar: Any = None

    def _start(self, total: int | None, done: int, what: str) -> Any:
        from tqdm import tqdm

        self.close()
        self._bar = tqdm(
            total=total,
            initial=done,
            desc=what,
            unit=" images",
            file=sys.stderr,
            disable=not self._shown,
            dynamic_ncols=True,
        )
        return self._bar

    def scanned(self, images: int) -> None:
        bar = self._start(None, 0, "looking") if self._bar is None else self._bar
        bar.update(images - bar.n)

    def planned(self, images: int, done: int) -> None:
        self._start(images, done, "converting")

    def converted(self, images: int) -> None:
        self._bar.update(images)

    def note(self, line: str) -> None:
        if self._shown:
            self._bar.write(line, file=sys.stderr)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _size(count: int) -> str:
    """A number of bytes for people."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.4g} {unit}"
        value /= 1000
    return f"{value:.4g} TB"
