"""What users import: the names, what importing costs them, and the tree of errors."""

from __future__ import annotations

import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fastdata
from fastdata import errors

ROOT = Path(__file__).parents[1]

ERRORS = [
    "DataError",
    "DatasetError",
    "DestinationError",
    "FastdataError",
    "ImageError",
    "MissingExtraError",
    "SourceError",
    "StorageError",
    "UnfinishedError",
    "UsageError",
    "WorkerError",
]
NAMES = [
    "Dataset",
    "Loader",
    "Profile",
    "Recipe",
    "__version__",
    "convert",
    "make_loader",
    "open_dataset",
    "tune",
    "tune_dataloader",
    *ERRORS,
]


def test_the_public_names_are_these() -> None:
    # A name that is added is promised to stay; one that goes breaks somebody's training script.
    assert sorted(fastdata.__all__) == sorted(NAMES)
    assert len(set(fastdata.__all__)) == len(fastdata.__all__)
    assert sorted(errors.__all__) == ERRORS


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there_and_documented(name: str) -> None:
    found = getattr(fastdata, name)
    if name == "__version__":
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", found)
        return
    assert callable(found)
    assert found.__name__ == name
    assert inspect.getdoc(found)
    assert getattr(fastdata, name) is found


def test_dir_lists_the_public_names() -> None:
    assert dir(fastdata) == sorted(NAMES)


def test_star_imports_everything() -> None:
    namespace: dict[str, object] = {}
    exec("from fastdata import *", namespace)
    assert set(NAMES) <= set(namespace)


@pytest.mark.parametrize("name", ["nothing", "make_loaders", "__wrapped__"])
def test_an_unknown_name_is_an_attribute_error(name: str) -> None:
    assert not hasattr(fastdata, name)
    with pytest.raises(AttributeError, match=f"module 'fastdata' has no attribute '{name}'"):
        getattr(fastdata, name)


def fresh(code: str) -> list[str]:
    """Run code in a new interpreter; returns the list of strings that it prints as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def test_importing_the_package_imports_neither_torch_nor_opencv() -> None:
    code = "import sys, json, fastdata; print(json.dumps(sorted(sys.modules)))"
    modules = fresh(code)
    assert "fastdata.recipe" in modules
    heavy = {"torch", "torchvision", "cv2", "lmdb", "PIL", "simplejpeg", "turbojpeg", "converters"}
    assert not heavy & {module.split(".")[0] for module in modules}


def test_converting_and_looking_at_datasets_need_no_optional_package() -> None:
    # None in sys.modules makes an import fail, as on a machine that installed no extra.
    code = """
import importlib, json, sys
extras = ["torch", "torchvision", "lmdb", "webdataset", "turbojpeg", "matplotlib", "nvidia"]
sys.modules.update(dict.fromkeys(extras))
from fastdata import convert, open_dataset
from fastdata import registry
import converters, fastdata.cli, fastdata.verify
done = []
for table in (registry.READERS, registry.WRITERS, registry.DECODERS):
    for name, entry in table.items():
        if entry.package is None:
            registry.load(table, name, "line")
            done.append(name)
print(json.dumps(done))
"""
    assert fresh(code) == [
        *("webdataset", "lmdb", "memmap", "webdataset", "memmap", "simplejpeg", "pillow"),
    ]


# --- errors ---------------------------------------------------------------------------------------

LINE = re.compile(
    r"^ {4}(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<also>\w+)\))?(?: {2,}(?P<text>.*))?$"
)


def drawn() -> dict[str, tuple[str | None, str | None, int | None]]:
    """The tree at the top of errors.py: name -> (parent, other base, exit code)."""
    tree: dict[str, tuple[str | None, str | None, int | None]] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = LINE.match(line)
        if match is None:
            continue
        depth = len(match["branch"]) // 4
        del above[depth:]
        code = re.search(r"exit code (\d)", match["text"] or "")
        parent = above[-1] if above else None
        tree[match["name"]] = (parent, match["also"], int(code[1]) if code else None)
        above.append(match["name"])
    return tree


def test_the_drawing_shows_every_error_and_no_other() -> None:
    classes = [name for name, found in vars(errors).items() if inspect.isclass(found)]
    assert list(drawn()) == classes  # in the order of the file
    assert sorted(classes) == ERRORS


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_stands_where_it_is_drawn(name: str) -> None:
    parent, also, _ = drawn()[name]
    bases = [base.__name__ for base in getattr(errors, name).__bases__]
    assert bases == [base for base in (parent or "Exception", also) if base]


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "FastdataError"])
def test_an_error_has_the_exit_code_that_is_drawn_above_it(name: str) -> None:
    tree, above, code = drawn(), name, None
    while code is None:
        parent, _, code = tree[above]
        above = parent or ""
    assert code in (1, 2)
    assert getattr(errors, name).exit_code == code


def test_only_calls_at_fault_exit_with_2() -> None:
    codes = {name: getattr(errors, name).exit_code for name in ERRORS}
    assert {name for name, code in codes.items() if code == 2} == {
        "UsageError",
        "MissingExtraError",
        "DestinationError",
    }
    assert set(codes.values()) == {1, 2}


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "ImageError"])
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_errors_come_back_from_another_process(name: str, protocol: int) -> None:
    error = getattr(errors, name)("what was expected; what to do")
    error.__cause__ = OSError("below")
    found = pickle.loads(pickle.dumps(error, protocol))
    assert type(found) is type(error)
    assert str(found) == "what was expected; what to do"
    assert found.args == error.args
    assert found.exit_code == error.exit_code


def test_an_image_error_names_the_file_and_keeps_its_attributes() -> None:
    error = errors.ImageError("ant/b\\xe4r.jpg", "truncated; remove it")
    assert str(error) == "ant/b\\xe4r.jpg: truncated; remove it"
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert type(found) is errors.ImageError
        assert (found.path, found.reason) == ("ant/b\\xe4r.jpg", "truncated; remove it")
        assert str(found) == str(error)


def test_errors_are_caught_as_pythons_own_where_that_is_drawn() -> None:
    assert issubclass(errors.UsageError, ValueError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert not issubclass(errors.DataError, ValueError)
