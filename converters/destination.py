"""The destination of a conversion: what lies there, who may write, how it becomes a dataset.

Everything is written in the staging folder inside the destination. When all of it is whole, the
manifest is written there too; that is the point of no return. Publishing then moves the files to
their place, the manifest last, and can be repeated after any interruption.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from converters.options import Options
from converters.plan import PLAN, Plan
from converters.sources import Source
from fastdata.errors import DatasetError, DestinationError, StorageError, UsageError
from fastdata.files import storage_errors, sync_directory, write_whole
from fastdata.manifest import MANIFEST, STAGING, Manifest

__all__ = ["Destination"]

_LOCK = "lock"
_REPLACED = "replaced.txt"  # names of the files of a dataset that is being replaced


class Destination:
    """The folder that becomes a dataset.

    Attributes:
        root: its path.
        staging: the folder inside it that holds the unfinished conversion.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.staging = root / STAGING

    def check(self, src: Path, resume: bool | None) -> None:
        """Refuse a place that cannot be a destination, before the source is looked at.

        Args:
            src: the source.
            resume: True demands an unfinished conversion.

        Raises:
            DestinationError: something else lies there, or it lies inside the source.
            UsageError: there is nothing to resume.
            StorageError: the place cannot be looked into.
        """
        with storage_errors(self.root, "look into"):
            if resume and not (self.staging / PLAN).exists():
                raise UsageError(f"nothing to resume: no unfinished conversion lies in {self.root}")
            source, target = src.resolve(), self.root.resolve()
            if target == source or source in target.parents:
                raise DestinationError(
                    f"{self.root} lies inside the source {src}: it would become a part of the "
                    "source; choose another destination"
                )
            if self.root.exists() and not self.root.is_dir():
                raise DestinationError(
                    f"{self.root} exists and is no folder; choose another destination"
                )
            if self.root.is_dir() and not self._ours() and any(self.root.iterdir()):
                raise DestinationError(
                    f"{self.root} exists and is no dataset of fastdata's; nothing in it is "
                    "touched; choose another destination, or an empty folder"
                )

    def _ours(self) -> bool:
        return (self.root / MANIFEST).exists() or self.staging.is_dir()

    def finished(self) -> Manifest | None:
        """The manifest of the whole dataset that lies here, if one does."""
        if not (self.root / MANIFEST).exists():
            return None
        try:
            return Manifest.read(self.root)
        except DatasetError as error:
            raise DestinationError(
                f"{self.root} holds a damaged dataset ({error}); choose another destination, or "
                "remove it yourself"
            ) from error

    def check_replaceable(self, manifest: Manifest, options: Options, source: Source) -> None:
        """Refuse to do again, or to replace, another conversion's dataset.

        Raises:
            DestinationError: the dataset here was not made by this conversion.
        """
        difference = _difference(manifest, options, source)
        if difference is not None:
            raise DestinationError(
                f"{self.root} holds another conversion's dataset: {difference}; choose another "
                "destination, or replace it with --overwrite"
            )

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Be the only conversion into this destination.

        Raises:
            DestinationError: another one is running.
            StorageError: the place cannot be written.
        """
        with storage_errors(self.root):
            self.staging.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.staging / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise DestinationError(
                    f"another conversion into {self.root} is running; wait for it, or choose "
                    "another destination"
                ) from None
            try:
                current = os.path.samestat(os.fstat(descriptor), os.stat(self.staging / _LOCK))
            except FileNotFoundError:
                current = False
            if not current:  # it was removed by a conversion that ended just now
                raise DestinationError(
                    f"another conversion into {self.root} ended just now; run the command again"
                )
            yield
        finally:
            os.close(descriptor)

    def clean(self) -> None:
        """Remove what is left in the staging folder of a run that was killed after its last step,
        or before its first."""
        if self.staging.is_dir() and not self.ready_to_publish():
            with self.lock(), storage_errors(self.staging, "remove"):
                if not (self.staging / PLAN).exists():
                    shutil.rmtree(self.staging)

    def ready_to_publish(self) -> bool:
        """Whether an earlier run got as far as the manifest."""
        return (self.staging / MANIFEST).exists()

    def check_publishable(self, options: Options, source: Source) -> None:
        """Refuse to publish what another conversion has made.

        Raises:
            DestinationError: the finished files in the staging folder are not this conversion's.
        """
        if (self.staging / PLAN).exists():
            Plan.make(options, source).check_resumable(self.staging)
        difference = _difference(Manifest.read(self.staging), options, source)
        if difference is not None:
            raise DestinationError(
                f"{self.root} holds another conversion, interrupted at its last step: "
                f"{difference}; undo that, or start from the beginning with --no-resume"
            )

    def resumable(self, plan: Plan, resume: bool | None) -> bool:
        """Whether to go on with the conversion in the staging folder; clears it if not.

        Args:
            resume: False: start from the beginning.

        Raises:
            DestinationError: there is one, of another plan.
        """
        if (self.staging / PLAN).exists() and resume is not False:
            plan.check_resumable(self.staging)
            return True
        self._clear()
        return False

    def _clear(self) -> None:
        """Empty the staging folder; what was already moved out of it goes too."""
        with storage_errors(self.staging, "clear"):
            if self.ready_to_publish() and not (self.root / MANIFEST).exists():
                new = set(Manifest.read(self.staging).files)
                moved = {name for name in new if not (self.staging / name).exists()}
                for name in moved | set(self._old_files()):
                    (self.root / name).unlink(missing_ok=True)
            last = {MANIFEST: 1, _REPLACED: 2}  # they say what else is to go
            for path in sorted(self.staging.iterdir(), key=lambda path: last.get(path.name, 0)):
                if path.name != _LOCK:
                    path.unlink()

    def check_names(self, manifest: Manifest) -> None:
        """Refuse to publish over files that no manifest of ours names.

        Raises:
            DestinationError: such a file is in the way.
        """
        old = set(self._old_files())
        for name in manifest.files:
            path = self.root / name
            staged = (self.staging / name).exists()
            if staged and name not in old and path.exists():
                raise DestinationError(
                    f"{path} is in the way and no part of a dataset; move it elsewhere and run "
                    "the same command again"
                )

    def _old_files(self) -> list[str]:
        """The files of the dataset that is being replaced, also when its manifest has gone."""
        old = self.finished()
        if old is not None:
            return old.files
        replaced = self.staging / _REPLACED
        return replaced.read_text().split("\n") if replaced.exists() else []

    def publish(self) -> Manifest:
        """Move the finished files to their place, the manifest last.

        Raises:
            StorageError: the file system refused; running the same command again goes on.
        """
        new = Manifest.read(self.staging)
        self.check_names(new)
        with storage_errors(self.root):
            old = self._old_files()
            if (self.root / MANIFEST).exists():
                # From here on the old dataset is none any more, and a repeated run must still
                # know its files: those in the way, or no part of the new one, go.
                with write_whole(self.staging / _REPLACED) as file:
                    file.write("\n".join(old).encode())
                (self.root / MANIFEST).unlink()
                sync_directory(self.root)
            for name in old:
                if name not in new.files or (self.staging / name).exists():
                    (self.root / name).unlink(missing_ok=True)
            for name in new.files:
                if (self.staging / name).exists():
                    (self.staging / name).replace(self.root / name)
                elif not (self.root / name).exists():
                    raise StorageError(
                        f"{self.root / name} has gone while the dataset was put together; run "
                        "the same command with --no-resume"
                    )
            sync_directory(self.root)
            (self.staging / PLAN).unlink(missing_ok=True)  # without it the rest is litter
            (self.staging / MANIFEST).replace(self.root / MANIFEST)
            sync_directory(self.root)
            shutil.rmtree(self.staging)
        return new


def _difference(manifest: Manifest, options: Options, source: Source) -> str | None:
    """What distinguishes the conversion that made a dataset from this one, in words."""
    difference = options.difference(manifest.conversion)
    now, before = source.summary(), manifest.source
    if difference is None and now != before:
        difference = (
            f"its source had {before['files']} images of {before['bytes']} bytes, this one has "
            f"{now['files']} of {now['bytes']}, or other names"
        )
    return difference
