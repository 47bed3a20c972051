"""fastdata tune: the command line of the tuner."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from fastdata.errors import FastdataError, UsageError

__all__ = ["add_tune"]

_UNITS = {"": 1, "s": 1, "m": 60, "min": 60}


def add_tune(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    tune = commands.add_parser(
        "tune",
        help="find the setting that feeds a training, by measurement",
        description="Time the training step and each stage of loading, predict, try at most four "
        "settings beside each other, say what limits, and keep the result for make_loader.",
    )
    add = tune.add_argument
    add("path", metavar="PATH", nargs="?", help="a converted dataset, or an image folder")
    add("--dataset", metavar="MODULE:FACTORY", help="in place of PATH: gives any torch Dataset")
    add("--batch-size", type=int, required=True, metavar="B", help="samples of a batch")
    add("--recipe", metavar="R", help="preset of make_loader, such as imagenet-train")
    add("--step", metavar="MODULE:FUNCTION", help="the training step, on one batch")
    add("--target-rate", type=float, metavar="IMG_S", help="samples/s to reach, without a step")
    add("--device", help="of the batches, such as cuda; default: cpu")
    add("--dtype", help="of the images, as for make_loader")
    add("--budget", type=_seconds, default=60.0, metavar="60s", help="default: 60s")
    add(
        "--formats",
        type=lambda text: text.split(","),
        default=[],
        metavar="A,B",
        help="paths of the same data converted, or formats to convert some of the folder to, "
        "such as webdataset,memmap:256",
    )
    add("--engine", default="auto", help="the only one to look at; default: all that can run")
    add("--num-workers", type=int, metavar="N", help="in use now; default: the loader's own")
    add("--prefetch-factor", type=int, metavar="N", help="in use now")
    add("--plot", metavar="FILE", help=".png (needs matplotlib) or .html")
    add("--verify", action="store_true", help="only measure the kept profile again, for 3 s")
    add("--json", action="store_true", help="print one JSON object, and nothing else")
    tune.set_defaults(run=_tune)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(s|m|min)?", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"expected a time such as 60s or 2m, got {text!r}")
    return float(found[1]) * _UNITS[found[2] or ""]


def _tune(parsed: argparse.Namespace) -> int:
    from fastdata.tuning.plot import check_target, plot
    from fastdata.tuning.report import report

    if (parsed.path is None) == (parsed.dataset is None):
        raise UsageError("expected PATH or --dataset MODULE:FACTORY, and one of them only")
    if parsed.plot is not None:
        check_target(parsed.plot)
    if parsed.verify:
        words = _verify(parsed)
        sys.stdout.write((json.dumps({"verified": words}) if parsed.json else words) + "\n")
        return 0
    with _stdout_is_ours():
        profile = _profile(parsed)
        if parsed.plot is not None:
            plot(profile, parsed.plot)
    sys.stdout.write((profile.to_json() if parsed.json else report(profile)) + "\n")
    return 0


def _profile(parsed: argparse.Namespace) -> Any:
    from fastdata.tuning.dataloader import tune_dataloader
    from fastdata.tuning.tune import tune

    counts = {
        name: value
        for name in ("num_workers", "prefetch_factor")
        if (value := getattr(parsed, name)) is not None
    }
    common = {
        "step": None if parsed.step is None else _named("--step", parsed.step),
        "target_rate": parsed.target_rate,
        "device": parsed.device,
        "budget": parsed.budget,
        "report": _progress(time.monotonic()),
        **counts,
    }
    if parsed.dataset is not None:
        for name in ("recipe", "dtype", "formats"):
            if getattr(parsed, name):
                raise UsageError(f"--{name} is for data of ours; --dataset brings its own")
        return tune_dataloader(_named("--dataset", parsed.dataset)(), parsed.batch_size, **common)
    own = {name: getattr(parsed, name) for name in ("recipe", "dtype", "formats", "engine")}
    return tune(parsed.path, parsed.batch_size, **own, **common)


def _verify(parsed: argparse.Namespace) -> str:
    from fastdata.loader import make_loader

    if parsed.path is None:
        raise UsageError("--verify needs PATH: no profile is kept for --dataset")
    given = {name: getattr(parsed, name) for name in ("recipe", "dtype", "device", "engine")}
    with make_loader(parsed.path, parsed.batch_size, profile="verify", **given) as loader:
        return loader.explain()


def _progress(began: float) -> Callable[[str], None]:
    """Writes lines with the seconds since then."""

    def write(line: str) -> None:
        sys.stderr.write(f"fastdata tune, {time.monotonic() - began:.0f} s: {line}\n")
        sys.stderr.flush()

    return write


def _named(option: str, text: str) -> Callable[..., Any]:
    """What ``module:name`` means, with modules of the current folder, as for ``python -m``."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError(f"expected {option} MODULE:NAME, got {text!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(importlib.import_module(module), name)
    except FastdataError:
        raise
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{option} {text}: {error}") from error
    if not callable(found):
        raise UsageError(f"{option} {text}: expected something to call, found {found!r}")
    return found  # type: ignore[no-any-return]


@contextlib.contextmanager
def _stdout_is_ours() -> Iterator[None]:
    """Send what the user's step, dataset and their libraries print to stderr: stdout is for the
    result."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
