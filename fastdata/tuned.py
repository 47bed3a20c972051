"""Where a loader's settings come from: the call, a profile, or the engines' own defaults."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from fastdata.arguments import parse_count
from fastdata.engines import Settings
from fastdata.engines.choice import Choice, choose
from fastdata.errors import FastdataError, UsageError
from fastdata.profile import Profile, environment, profile_path

__all__ = ["Settled", "choose_settled", "settle", "verify", "work_of"]

_AUTO, _VERIFY = "auto", "verify"
_CHOICES = ("engine", "num_workers", "prefetch_factor")
_VERIFY_SECONDS = 3.0
_ENOUGH = 0.8  # of the tuned rate; a shared machine's own noise is below that
_log = logging.getLogger("fastdata")


@dataclass(frozen=True)
class Settled:
    """The settings that a loader is made with.

    Attributes:
        engine, num_workers, prefetch_factor, engine_options: as for :func:`make_loader`.
        tuned: names of those that a profile has set.
        notes: where they come from, in sentences.
        profile: the one that was used, or None.
        named: whether the user named it, so that it must not be passed over.
    """

    engine: str
    num_workers: int | str
    prefetch_factor: int | str
    engine_options: dict[str, Any]
    tuned: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    named: bool = False

    def over(self, settings: Settings) -> Settings:
        """``settings`` with these put in.

        Raises:
            UsageError: a count is neither ``"auto"`` nor a number in range.
        """
        return replace(
            settings,
            num_workers=parse_count("num_workers", self.num_workers, 0),
            prefetch_factor=parse_count("prefetch_factor", self.prefetch_factor, 1),
            options=self.engine_options,
            tuned="num_workers" in self.tuned,
        )


def work_of(settings: Settings) -> dict[str, Any]:
    """What a profile belongs to: the dataset and what is done to it, as plain JSON values."""
    steps, transform = f"{settings.recipe!r}, {settings.dtype}", settings.transform
    if transform is not None:
        name = getattr(transform, "__qualname__", None)
        steps += f", {transform.__module__}.{name}" if name else f", {transform!r}"
    return {
        "path": os.fspath(settings.dataset.path),
        "identity": settings.dataset.identity,
        "recipe": steps,
        "batch_size": settings.batch_size,
        "device": str(settings.device),
    }


def settle(
    profile: str | os.PathLike[str] | Profile | None, asked: Settled, settings: Settings
) -> Settled:
    """Fill in what was left ``"auto"`` from a profile.

    Args:
        profile: ``"auto"`` or ``"verify"``: the one that is kept for this work, if there is one
            that holds; None: none; a :class:`Profile`, or the path of one: that one.
        asked: the call's own arguments, which always win.
        settings: what is loaded.

    Raises:
        UsageError: a profile that was named cannot be read, or belongs to something else. One that
            is merely kept never raises: it is not used, and the notes say why.
    """
    if profile is None:
        return asked
    if isinstance(profile, Profile) or profile not in (_AUTO, _VERIFY):
        found, what = _named(profile), work_of(settings)
        problem = found.mismatch(what, environment(what["device"]))
        if problem is not None:
            raise UsageError(
                f"the profile that was given does not hold here: {problem}; run fastdata tune "
                'again, or leave profile="auto"'
            )
        return replace(_filled(asked, found), named=True)
    if not _open(asked):
        return asked
    try:
        what = work_of(settings)
        path = profile_path(what)
        if not path.exists():
            return replace(
                asked, notes=("No tuned settings are kept for this work: see fastdata tune.",)
            )
        found = Profile.load(path)
        problem = found.mismatch(what, environment(what["device"]))
    except (FastdataError, OSError, RuntimeError) as error:
        return _not_used(asked, str(error))
    if problem is not None:
        return _not_used(asked, f"{problem} ({path}); run fastdata tune again")
    return _filled(asked, found)


def _named(profile: str | os.PathLike[str] | Profile) -> Profile:
    if isinstance(profile, Profile):
        return profile
    try:
        return Profile.load(profile)
    except UsageError as error:
        raise UsageError(
            f"expected profile to be 'auto', 'verify', None, a Profile, or the path of one, got "
            f"{os.fspath(profile)!r}: {error}"
        ) from None


def _open(asked: Settled) -> list[str]:
    return [name for name in _CHOICES if getattr(asked, name) == _AUTO]


def _filled(asked: Settled, profile: Profile) -> Settled:
    setting = profile.setting
    if asked.engine not in (_AUTO, setting.get("engine")):
        why = f"it is for engine {setting.get('engine')}, and engine {asked.engine} was asked for"
        return replace(asked, notes=(f"Not used: {profile.words()}: {why}.",))
    taken = [name for name in _open(asked) if setting.get(name) is not None]
    given = [name for name in _CHOICES if name not in taken]
    note = f"{', '.join(taken) or 'nothing'}: from {profile.words()}"
    if given:
        note += f"; {', '.join(given)}: as asked"
    values: dict[str, Any] = {name: setting[name] for name in taken}
    options = {**setting.get("engine_options", {}), **asked.engine_options}
    return replace(
        asked,
        **values,
        engine_options=options,
        tuned=tuple(taken),
        notes=(f"Settings: {note}.",),
        profile=profile,
    )


def _not_used(asked: Settled, why: str) -> Settled:
    """A profile is kept and must not be used: said aloud, because somebody tuned."""
    note = f"The tuned settings that are kept are not used: {why}."
    _log.warning("%s", note)
    return replace(asked, notes=(note,))


def choose_settled(settled: Settled, asked: Settled, settings: Settings) -> tuple[Choice, Settled]:
    """The engine for settled settings; for those that were asked for where a kept profile names an
    engine that cannot do the work any more.

    Raises:
        UsageError: as :func:`fastdata.engines.choice.choose` does.
    """
    if not settled.tuned or settled.named:
        return choose(settled.engine, settled.over(settings)), settled
    try:
        choice = choose(settled.engine, settled.over(settings))
        if choice.name == settled.engine:
            return choice, settled
        choice.engine.close()
        why = f"engine {settled.engine}: {choice.passed_over[settled.engine]}"
    except UsageError as error:
        why = str(error)
    plain = _not_used(asked, why)
    return choose(plain.engine, plain.over(settings)), plain


def verify(loader: Iterable[Any], profile: Profile | None, batch_size: int) -> str:
    """Load for a few seconds and compare with what was measured when the profile was made.

    Returns:
        A sentence for :meth:`Loader.explain`. The loader stands somewhere else afterwards.
    """
    if profile is None or profile.loader_rate is None:
        return "Not verified: there is no profile with a rate of the loader alone."
    batches, started, first = 0, time.perf_counter(), 0.0
    while (now := time.perf_counter()) - started < _VERIFY_SECONDS:
        for _ in loader:
            now = time.perf_counter()
            batches, first = (batches + 1, first) if first else (0, now)
            if now - started >= _VERIFY_SECONDS:
                break
    if not batches:
        return f"Not verified: less than two batches came in {_VERIFY_SECONDS:.0f} s."
    rate = batches * batch_size / (now - first)
    note = (
        f"Verified in {now - started:.0f} s: the loader alone gives {rate:,.0f} samples/s, "
        f"{rate / profile.loader_rate:.0%} of the {profile.loader_rate:,.0f} when it was tuned."
    )
    if rate < _ENOUGH * profile.loader_rate:
        note += " Run fastdata tune again."
        _log.warning("%s", note)
    return note
