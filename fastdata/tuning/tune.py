"""tune: which setting of make_loader feeds a training, by measurement."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.dataset import Dataset, open_dataset
from fastdata.errors import UsageError
from fastdata.profile import Profile
from fastdata.recipe import Recipe
from fastdata.tuned import work_of
from fastdata.tuning.conversion import make_format
from fastdata.tuning.datasets import LoaderSubject
from fastdata.tuning.evidence import profile_of
from fastdata.tuning.search import Search

__all__ = ["check_goal", "tune"]


def tune(
    path: str | os.PathLike[str],
    batch_size: int,
    *,
    recipe: str | Recipe | None = None,
    step: Callable[[Any], Any] | None = None,
    target_rate: float | None = None,
    device: str | torch.device | None = None,
    budget: float = 60.0,
    formats: Sequence[str | os.PathLike[str]] = (),
    engine: str = "auto",
    num_workers: int | str = "auto",
    prefetch_factor: int | str = "auto",
    transform: Callable[[NDArray[np.uint8]], Any] | None = None,
    dtype: str | torch.dtype | None = None,
    order: str = "global",
    on_error: str = "raise",
    engine_options: dict[str, Any] | None = None,
    save: bool = True,
    report: Callable[[str], None] | None = None,
) -> Profile:
    """Find the setting of :func:`make_loader` that feeds a training, by measurement.

    It looks at what the machine allows, times the step and each stage of loading, predicts the rate
    of every setting, and tries at most four of them beside each other, the current one among them.
    Where nothing is faster beyond doubt the answer is to keep the current setting.

    Args:
        path: a converted dataset, or a plain image folder.
        batch_size: samples of a batch.
        recipe, device, transform, dtype, order, on_error, engine_options: as for
            :func:`make_loader`, and as the training will give them.
        step: the training step: called with what iterating the loader gives, such as
            ``(images, labels)``. It is timed on a cached batch, which is the ceiling, and beside
            the loader. It trains whatever model it closes over.
        target_rate: samples a second to reach, in place of a step.
        budget: seconds to spend; starting processes and converting come on top.
        formats: the same data otherwise: paths of converted datasets, or formats to convert some
            of the folder ``path`` to for the purpose: ``"webdataset"``, ``"lmdb"``, ``"memmap"``,
            each with ``":SIZE"`` behind it for another size. Whether converting is worth it, and
            after how many epochs, is part of the verdict.
        engine: the only one to look at; ``"auto"``: all that can run here.
        num_workers, prefetch_factor: those in use now; ``"auto"``: what make_loader chooses.
        save: keep the profile, for ``make_loader(profile="auto")``.
        report: told what is going on, a line at a time.

    Returns:
        The profile: the setting, its rate in samples a second, and the evidence.

    Raises:
        UsageError: an argument is at fault, or no setting fits this machine.
        SourceError, DatasetError: nothing that can be loaded lies at ``path``.
        StorageError: the profile cannot be written.
        Exception: whatever the step raises. Then no profile is written and no process is left.
    """
    check_goal(step, target_rate, budget)
    say = report or (lambda line: None)
    options = {
        "recipe": recipe,
        "device": device,
        "transform": transform,
        "dtype": dtype,
        "order": order,
        "on_error": on_error,
        "engine_options": engine_options,
    }
    counts = {"num_workers": num_workers, "prefetch_factor": prefetch_factor}
    with ExitStack() as stack:
        dataset = stack.enter_context(open_dataset(path))
        name = Path(path).name or os.fspath(path)
        subjects = [LoaderSubject(name, dataset, batch_size, options, engine, counts)]
        scratch = ""
        if formats:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="fastdata-tune-"))
        for each in formats:
            subject = _other(each, dataset, batch_size, options, Path(scratch), say)
            stack.callback(subject.close)
            subjects.append(subject)
        names = [subject.name for subject in subjects]
        if len(set(names)) < len(names):
            raise UsageError(f"expected different names of path and formats, found {names}")
        search = Search(subjects, step=step, target_rate=target_rate, budget=budget, report=say)
        found = search.run()
        profile = profile_of(
            found,
            subjects[0].arguments(found.chosen),
            work_of(subjects[0].settings),
            [os.fspath(each) for each in formats],
        )
    if save:
        say(f"kept in {profile.save()}")
    return profile


def check_goal(step: Callable[[Any], Any] | None, target_rate: float | None, budget: float) -> None:
    """
    Raises:
        UsageError: step, target rate and budget are not what a search can start with.
    """
    if step is not None and not callable(step):
        raise UsageError(f"expected step to be callable, got {step!r}")
    if step is not None and target_rate is not None:
        raise UsageError("expected step or target_rate, got both: the step's own rate is a target")
    for name, value in (("target_rate", target_rate), ("budget", budget)):
        if value is not None and not (isinstance(value, int | float) and value > 0):
            raise UsageError(f"expected {name} to be a number above 0, got {value!r}")


def _other(
    each: str | os.PathLike[str],
    dataset: Dataset,
    batch_size: int,
    options: dict[str, Any],
    scratch: Path,
    say: Callable[[str], None],
) -> LoaderSubject:
    """Another format of the data as a subject: one that is there, or a part that is converted."""
    if os.path.exists(each):
        name = Path(each).name
        return LoaderSubject(name, open_dataset(each), batch_size, options)
    made = make_format(
        os.fspath(each), dataset, Recipe.preset(options["recipe"]), batch_size, scratch, say
    )
    return LoaderSubject(
        made.name, open_dataset(made.path), batch_size, options, convert_seconds=made.seconds
    )
