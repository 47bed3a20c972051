"""The place that names formats, decoders and engines.

Adding one is a new file and one line here; the command line, the errors and the conformance suites
take their lists from these tables.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from fastdata.errors import MissingExtraError, UsageError

__all__ = [
    "DECODERS",
    "DEFAULT_DECODER",
    "DISTRIBUTION",
    "ENGINES",
    "READERS",
    "WRITERS",
    "Entry",
    "load",
    "require",
]

DISTRIBUTION = "fastdata-vision"


@dataclass(frozen=True)
class Entry:
    """Where an implementation lives.

    Attributes:
        target: ``"module:attribute"`` to import.
        package: the import name of the third-party package that it needs, or None.
        extra: this distribution's extra that installs that package.
        device: the kind of torch device that an engine needs, or None: where nobody has asked for
            it and there is another device, its package is not even imported.
    """

    target: str
    package: str | None = None
    extra: str | None = None
    device: str | None = None


READERS = {
    "webdataset": Entry("fastdata.formats.spans:SpanReader"),
    "lmdb": Entry("fastdata.formats.spans:SpanReader"),
    "memmap": Entry("fastdata.formats.memmap:MemmapReader"),
}
WRITERS = {
    "webdataset": Entry("fastdata.formats.webdataset:WebDatasetWriter"),
    "lmdb": Entry("fastdata.formats.lmdb:LmdbWriter", "lmdb", "lmdb"),
    "memmap": Entry("fastdata.formats.memmap:MemmapWriter"),
}
DECODERS = {
    "simplejpeg": Entry("fastdata.decode.simplejpeg:decode"),
    "turbojpeg": Entry("fastdata.decode.turbojpeg:decode", "turbojpeg", "turbojpeg"),
    "pillow": Entry("fastdata.decode.pillow:decode"),
}
DEFAULT_DECODER = "simplejpeg"
ENGINES = {  # the order in which engine="auto" tries them
    "direct": Entry("fastdata.engines.direct:DirectEngine", "torch", "torch", "cuda"),
    "gather": Entry("fastdata.engines.gather:GatherEngine", "torch", "torch"),
    "dali": Entry("fastdata.engines.dali.gpu:DaliEngine", "nvidia.dali", "dali", "cuda"),
    "workers": Entry("fastdata.engines.workers:WorkersEngine", "torch", "torch"),
    "dali-cpu": Entry("fastdata.engines.dali.cpu:DaliCpuEngine", "nvidia.dali", "dali"),
}


def load(table: dict[str, Entry], name: str, what: str) -> Any:
    """Import the implementation that ``table`` lists under ``name``.

    Args:
        table: one of this module's tables.
        name: a key of it.
        what: the kind of thing, for the error message, such as ``"format"``.

    Raises:
        UsageError: the table has no such name.
        MissingExtraError: the package that it needs is not installed.
    """
    if name not in table:
        raise UsageError(f"no {what} is named {name!r}; expected one of {', '.join(table)}")
    entry = table[name]
    if entry.package is not None and entry.extra is not None:
        require(entry.package, entry.extra, f"{what} {name!r}")
    module, _, attribute = entry.target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def require(package: str, extra: str, purpose: str) -> Any:
    """Import an optional package, or say how to install it.

    Raises:
        MissingExtraError: the package is not installed, or does not import.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"{purpose} needs the package {package!r}, which cannot be imported ({error}); "
            f'install it with: pip install "{DISTRIBUTION}[{extra}]"'
        ) from error
