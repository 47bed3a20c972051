"""The one-way rule of docs/architecture.md: imports run downwards only, and modules stay small.

All imports count, also those inside functions and under TYPE_CHECKING: a dependency is a dependency
whenever it is made.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from fastdata import registry

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("fastdata", "converters")
    for path in sorted((ROOT / package).rglob("*.py"))
}
LIBRARY = [name for name in MODULES if name.split(".")[0] == "fastdata"]

# From the top down; a part may import those of its own line and of lines below it. A new file or
# folder of fastdata/ gets its place here, which is a decision and not a formality.
LAYERS: list[set[str]] = [
    {"__init__", "__main__", "cli"},
    {"demo"},
    {"tuning", "verify"},
    {"loader"},
    {"state", "stream"},
    {"planner", "profile", "tuned"},
    {"plan_process"},
    {"engines"},
    {"kernels", "plan", "resample"},
    {"adjust"},
    {"dataset", "recipe", "sampling"},
    {"decode", "formats"},
    {"registry"},
    {
        *("_version", "arguments", "errors", "files", "garbage", "hashing", "header", "jpeg"),
        *("interrupts", "machine", "manifest", "nvjpeg", "paths", "png", "seeding", "threads"),
    },
]
RANK = {part: -number for number, layer in enumerate(LAYERS) for part in layer}
CONVERT = {"__init__", "cli", "demo"}  # the parts that may use converters


def imported(name: str, source: str, is_package: bool) -> Iterator[str]:
    """The modules of this project that the source of module ``name`` imports anywhere."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                kept = len(parts) - node.level + is_package
                base = ".".join([*parts[:kept], *([base] if base else [])])
            # ``from package import x`` is an import of the module x, if there is one.
            found = [
                f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base
                for alias in node.names
            ]
        else:
            continue
        yield from (
            module for module in found if module.split(".")[0] in ("fastdata", "converters")
        )


IMPORTS = {
    name: set(imported(name, path.read_text(), path.name == "__init__.py"))
    for name, path in MODULES.items()
}


def part(module: str) -> str:
    """The file or folder of fastdata/ that a module belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


def test_imports_are_found_wherever_they_stand() -> None:
    # The tests below see nothing that this function does not see.
    source = """
import fastdata.errors
import numpy, converters.plan as p
from fastdata import files, nothing
from fastdata.formats import Reader
from . import lmdb
from .lmdb import X
from .. import hashing
if TYPE_CHECKING:
    from fastdata.loader import Loader
def f():
    class A:
        import fastdata.plan
"""
    expected = {
        "fastdata.errors",
        "converters.plan",
        "fastdata.files",
        "fastdata",
        "fastdata.formats",
        "fastdata.formats.lmdb",
        "fastdata.hashing",
        "fastdata.loader",
        "fastdata.plan",
    }
    assert set(imported("fastdata.formats.memmap", source, False)) == expected
    assert set(imported("fastdata.formats", "from . import lmdb", True)) == {
        "fastdata.formats.lmdb"
    }
    assert "fastdata.decode.pillow" in IMPORTS["fastdata.decode"]  # inside a function
    assert "converters" in IMPORTS["fastdata"]  # under TYPE_CHECKING


def test_every_part_of_the_library_has_its_place() -> None:
    assert {part(name) for name in LIBRARY} <= set(RANK), (
        "give the new part its line in LAYERS above"
    )
    assert sum(len(layer) for layer in LAYERS) == len(RANK)  # and only one


@pytest.mark.parametrize("name", LIBRARY)
def test_imports_run_downwards(name: str) -> None:
    wrong = [
        module
        for module in IMPORTS[name]
        if module.split(".")[0] == "fastdata" and RANK[part(module)] > RANK[part(name)]
    ]
    assert not wrong, f"{name} imports from above itself: {wrong}"


def test_parts_do_not_import_each_other_in_a_circle() -> None:
    graph: dict[str, set[str]] = {}
    for name, modules in IMPORTS.items():
        below = {f"{module.split('.')[0]}.{part(module)}" for module in modules}
        here = f"{name.split('.')[0]}.{part(name)}"
        graph.setdefault(here, set()).update(below - {here})
    # converters/__init__.py and fastdata/__init__.py stand for their whole packages.
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("fastdata.errors") < order.index("fastdata.loader")


@pytest.mark.parametrize("name", [name for name in LIBRARY if part(name) not in CONVERT])
def test_the_library_does_not_import_the_converters(name: str) -> None:
    assert not [module for module in IMPORTS[name] if module.split(".")[0] == "converters"]


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(LIBRARY)))
def test_the_converters_import_nothing_that_loads(name: str) -> None:
    wrong = [
        module
        for module in IMPORTS[name]
        if module.split(".")[0] == "fastdata" and RANK[part(module)] > RANK["plan"]
    ]
    assert not wrong, f"{name} imports {wrong}"


def test_formats_and_engines_are_reached_by_the_registry_alone() -> None:
    tables = (registry.READERS, registry.WRITERS, registry.ENGINES)
    targets = {entry.target.split(":")[0] for table in tables for entry in table.values()}
    assert targets <= set(MODULES)
    wrong = [
        (name, module)
        for name, modules in IMPORTS.items()
        for module in modules & targets
        if part(name) != part(module)
    ]
    assert not wrong


@pytest.mark.parametrize("folder", ["fastdata", "converters", "bench"])
def test_no_module_is_longer_than_four_hundred_lines(folder: str) -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (ROOT / folder).rglob("*.py")
    }
    assert lengths
    assert {name: length for name, length in lengths.items() if length > 400} == {}
