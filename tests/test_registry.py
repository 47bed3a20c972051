"""The tables of formats, decoders and engines: every line imports, and every error helps."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import types
from pathlib import Path

import pytest

from fastdata.engines import Engine
from fastdata.errors import MissingExtraError, UsageError
from fastdata.formats import Reader, Writer
from fastdata.registry import (
    DECODERS,
    DEFAULT_DECODER,
    DISTRIBUTION,
    ENGINES,
    READERS,
    WRITERS,
    Entry,
    load,
    require,
)

PYPROJECT = (Path(__file__).parents[1] / "pyproject.toml").read_text()
TABLES = {"reader": READERS, "writer": WRITERS, "decoder": DECODERS, "engine": ENGINES}
LINES = [(kind, name) for kind, table in TABLES.items() for name in table]
OPTIONAL = [(kind, name) for kind, name in LINES if TABLES[kind][name].package is not None]


@pytest.mark.parametrize(("kind", "name"), LINES)
def test_every_line_imports_and_is_of_its_kind(kind: str, name: str) -> None:
    found = load(TABLES[kind], name, kind)
    if kind == "decoder":
        assert list(inspect.signature(found).parameters) == [
            "data",
            "size",
            "reduction",
            "out",
            "rows",
        ]
        return
    assert issubclass(found, {"reader": Reader, "writer": Writer, "engine": Engine}[kind])
    assert not inspect.isabstract(found)


def test_the_names_are_those_of_the_design() -> None:
    # Users write these names; one that goes is a change of the public interface.
    assert set(READERS) >= {"webdataset", "lmdb", "memmap"}
    assert set(DECODERS) >= {"simplejpeg", "turbojpeg", "pillow"}
    assert set(ENGINES) >= {"workers"}
    assert DEFAULT_DECODER == "simplejpeg"
    assert DECODERS[DEFAULT_DECODER].package is None  # it comes with every installation


def test_whatever_is_written_can_be_read_and_the_other_way_round() -> None:
    assert list(READERS) == list(WRITERS)
    for name in READERS:
        reader, writer = load(READERS, name, "format"), load(WRITERS, name, "format")
        assert reader.encoded == writer.encoded


@pytest.mark.parametrize("kind", TABLES)
def test_an_unknown_name_lists_the_names(kind: str) -> None:
    names = ", ".join(TABLES[kind])
    expected = re.escape(f"no {kind} is named 'nothing'; expected one of {names}")
    with pytest.raises(UsageError, match=expected):
        load(TABLES[kind], "nothing", kind)


@pytest.mark.parametrize(("kind", "name"), OPTIONAL)
def test_a_missing_package_gives_the_exact_install_line(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = TABLES[kind][name]
    assert entry.package is not None
    monkeypatch.setitem(sys.modules, entry.package, None)  # what makes ``import`` raise
    with pytest.raises(MissingExtraError) as caught:
        load(TABLES[kind], name, kind)
    message = str(caught.value)
    assert f'pip install "fastdata-vision[{entry.extra}]"' in message
    assert f"{kind} {name!r} needs the package {entry.package!r}" in message
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value.__cause__, ImportError)


def test_the_install_line_of_lmdb_is_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingExtraError, match=re.escape('pip install "fastdata-vision[lmdb]"')):
        load(WRITERS, "lmdb", "format")


def test_a_package_that_breaks_while_importing_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> types.ModuleType:
        raise ImportError("libodd.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(MissingExtraError, match=r"a plot needs .*libodd\.so\.1.*\[plot\]"):
        require("matplotlib", "plot", "a plot")


def test_an_installed_package_is_returned() -> None:
    assert require("json", "none", "this") is importlib.import_module("json")


def extras() -> set[str]:
    """The names of pyproject's extras; by hand, for Python 3.10 has no tomllib."""
    section = PYPROJECT.split("[project.optional-dependencies]")[1].split("\n[")[0]
    return set(re.findall(r"^([\w-]+) = \[", section, re.MULTILINE))


def test_every_extra_exists_and_installs_the_package() -> None:
    assert f'\nname = "{DISTRIBUTION}"\n' in PYPROJECT
    known = extras()
    assert {"torch", "webdataset", "lmdb", "turbojpeg", "dali", "plot", "all", "dev"} <= known
    for kind, name in LINES:
        entry = TABLES[kind][name]
        assert (entry.package is None) == (entry.extra is None)
        assert entry.extra is None or entry.extra in known


def test_every_package_that_the_code_asks_for_has_its_extra() -> None:
    root = Path(__file__).parents[1]
    sources = [*root.glob("fastdata/**/*.py"), *root.glob("converters/**/*.py")]
    asked = [
        match
        for source in sources
        for match in re.findall(r'\brequire\(\s*"(\w+)",\s*"([\w-]+)"', source.read_text())
    ]
    assert ("matplotlib", "plot") in asked
    assert {extra for _, extra in asked} <= extras()


def test_a_new_line_is_found_under_its_name() -> None:
    table = {"decoder": Entry("json:loads")}
    assert load(table, "decoder", "thing")("[1]") == [1]
