"""Loader and make_loader: epochs, state, and the choice of an engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastdata.arguments import (
    expect,
    expect_type,
    parse_device,
    parse_dtype,
    parse_ranks,
)
from fastdata.dataset import Dataset, open_dataset
from fastdata.engines import Engine, Settings, Skipped
from fastdata.engines.choice import Choice
from fastdata.errors import UsageError
from fastdata.planner import EpochPlanner
from fastdata.profile import Profile
from fastdata.recipe import Recipe
from fastdata.sampling import BatchSampler, Blocks, CopyChoice
from fastdata.state import STATE_VERSION, read_state
from fastdata.stream import BatchStream
from fastdata.tuned import Settled, choose_settled, settle, verify

__all__ = ["Loader", "make_loader"]


def make_loader(
    path: str | os.PathLike[str] | Dataset,
    batch_size: int,
    *,
    recipe: str | Recipe | None = None,
    transform: Callable[[NDArray[np.uint8]], Any] | None = None,
    engine: str = "auto",
    device: str | torch.device | None = None,
    shuffle: bool | None = None,
    drop_last: bool | None = None,
    num_workers: int | str = "auto",
    prefetch_factor: int | str = "auto",
    order: str = "global",
    copies: str = "all",
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    dtype: str | torch.dtype | None = None,
    with_index: bool = False,
    on_error: str = "raise",
    profile: str | os.PathLike[str] | Profile | None = "auto",
    engine_options: dict[str, Any] | None = None,
) -> Loader:
    """Make a loader of batches ``(images, labels)``.

    Images are [B, 3, H, W] in channels_last memory on ``device``. Labels are int64 [B] class
    indices; float32 [B] targets; [B, K] where the dataset has several; [B, 0] where it has none.

    Args:
        path: a converted dataset, or a plain image folder.
        batch_size: samples of this process's batches.
        recipe: a :class:`Recipe` or the name of a preset; None is ``"raw"``: the images' own
            pixels as uint8.
        transform: a callable on a uint8 [H, W, 3] array, such as a torchvision.transforms.v2
            pipeline that begins with ToImage. It gets what the recipe makes (with None: the whole
            image) and its results are stacked and handed out as they are. Python's, numpy's and
            torch's random generators are seeded for each sample before it is called.
        engine: ``"auto"`` or a name in :data:`fastdata.registry.ENGINES`.
        device: None is the CPU.
        shuffle: None: where the recipe is random.
        drop_last: None: the same as ``shuffle``.
        num_workers: processes (engine workers) or threads; 0 works in this process; ``"auto"``: as
            many as CPUs, or as the engine can use.
        prefetch_factor: batches that each worker prepares ahead, of small ones several times as
            many; of other engines than workers, all of them together.
        order: of a shuffled epoch. ``"global"``: a permutation of the whole dataset; ``"blocks"``:
            blocks of about 4 MB are shuffled, then the samples within windows of 64 blocks: for
            disks and network file systems where random reads are slow.
        copies: of a dataset of augmented copies: ``"all"``: every sample; ``"one-per-epoch"``: one
            copy of each source, another one in the next epoch.
        seed: of the order and of all draws.
        rank, world_size: None: from torch.distributed, else from RANK and WORLD_SIZE, else 0, 1.
        dtype: of the images; None: the recipe's, else float16 on CUDA and float32 on the CPU.
            uint8 is never normalised.
        with_index: also hand out the samples' dataset indices, int64 [B] on the CPU.
        on_error: ``"raise"``, or ``"skip"``: a sample at fault is missing from the batch in
            evaluation; in training its slot is filled with the batch's first good sample.
            Both are listed in :attr:`Loader.skipped`.
        profile: where settings come from that are left ``"auto"``. ``"auto"``: from the profile
            that ``fastdata tune`` has kept for this work on this machine, if there is one that
            holds; ``"verify"``: the same, measured again for 3 s; None: from nowhere; a
            :class:`Profile`, or the path of one.
        engine_options: the engine's own options, see its class.

    Raises:
        UsageError: an argument is at fault, or a profile that was named does not hold.
        SourceError, DatasetError: nothing that can be loaded lies at ``path``.
    """
    dataset = path if isinstance(path, Dataset) else open_dataset(path)
    steps = Recipe.preset(recipe)
    expect("order", order, ("global", "blocks"))
    expect("copies", copies, ("all", "one-per-epoch"))
    expect("on_error", on_error, ("raise", "skip"))
    if profile is not None:
        expect_type("profile", profile, str, os.PathLike, Profile)
    expect_type("batch_size", batch_size, int)
    expect_type("seed", seed, int)
    if transform is not None and not callable(transform):
        raise UsageError(f"expected transform to be callable, got {transform!r}")
    where = parse_device(device)
    if transform is not None and dtype is not None:
        raise UsageError("transform= decides what it hands out: leave dtype=None")
    shuffle = steps.random if shuffle is None else shuffle
    rank, world_size = parse_ranks(rank, world_size)
    choice = None
    if copies == "one-per-epoch":
        if not len(dataset.copies):
            raise UsageError(
                f'copies="one-per-epoch": {dataset.path} has no copies; make some with: fastdata '
                "convert --augment OPS --copies K"
            )
        choice = CopyChoice(dataset.copies)
    blocks = None
    if order == "blocks" and shuffle:
        blocks = Blocks.for_disk(None if dataset.manifest is None else dataset.reader.lengths)
    sampler = BatchSampler(
        n=len(dataset) if choice is None else choice.n,
        batch_size=batch_size,
        shuffle=shuffle,
        drop_last=shuffle if drop_last is None else drop_last,
        rank=rank,
        world_size=world_size,
        blocks=blocks,
        choice=choice,
    )
    asked = Settled(engine, num_workers, prefetch_factor, dict(engine_options or {}))
    settings = asked.over(
        Settings(
            dataset=dataset,
            batch_size=batch_size,
            recipe=steps,
            transform=transform,
            device=where,
            dtype=parse_dtype(dtype if dtype is not None else steps.dtype, where),
            training=shuffle,
            skip_errors=on_error == "skip",
            num_workers=None,
            prefetch_factor=None,
        )
    )
    settled = settle(profile, asked, settings)
    chosen, settled = choose_settled(settled, asked, settings)
    owner = not isinstance(path, Dataset)
    loader = Loader(
        sampler, chosen, seed=seed, with_index=with_index, owner=owner, notes=settled.notes
    )
    if profile == "verify":
        loader.verify(settled.profile)
    return loader


class Loader:
    """Batches of a dataset, epoch after epoch; made by :func:`make_loader`.

    Iterating goes through one epoch, or what is left of it after :meth:`load_state_dict`;
    iterating again goes on to the next. A batch that was handed out is the caller's.

    Attributes:
        dataset: the :class:`fastdata.Dataset`.
        batch_size: samples of this process's batches.
        engine: name of the engine.
    """

    def __init__(
        self,
        sampler: BatchSampler,
        choice: Choice,
        *,
        seed: int,
        with_index: bool,
        owner: bool,
        notes: tuple[str, ...],
    ) -> None:
        self._sampler = sampler
        self._engine = choice.engine
        settings = choice.engine.settings
        sizes = settings.dataset.sizes if settings.dataset.plain else None
        where = choice.engine.planning
        self._planner = EpochPlanner(sampler, settings.recipe, sizes, where=where)
        self._stream = BatchStream(choice.engine, self._planner, sampler)
        self._passed_over = choice.passed_over
        self._notes = notes
        self._seed = seed
        self._with_index = with_index
        self._owner = owner  # of the dataset: it was opened for this loader
        self.dataset = choice.engine.settings.dataset
        self.batch_size = sampler.batch_size
        self.engine = choice.name
        self._epoch, self._position = 0, 0  # where the current or the next iteration stands
        self._begun = False  # whether the next iteration starts a new epoch
        self._iteration = 0
        self._skipped: dict[int, Skipped] = {}

    def __len__(self) -> int:
        """Batches of a whole epoch on this rank."""
        return self._sampler.steps()

    def __iter__(self) -> Iterator[Any]:
        epoch, position = (self._epoch + 1, 0) if self._begun else (self._epoch, self._position)
        self._iteration += 1
        return self._iterate(self._iteration, epoch, position)

    def _iterate(self, iteration: int, epoch: int, position: int) -> Iterator[Any]:
        self._check_current(iteration)
        # Only now: an iterator that is never asked for a batch, as frameworks make one to see
        # whether a loader can be iterated, begins no epoch.
        self._epoch, self._position, self._begun = epoch, position, True
        with closing(self._stream.batches(self._seed, epoch, position)) as batches:
            for batch in batches:
                self._check_current(iteration)
                position = self._sampler.next_position(position)
                self._position = position
                for skip in batch.skipped:
                    before = self._skipped.get(skip.index)
                    count = skip.count + (before.count if before else 0)
                    self._skipped[skip.index] = replace(skip, count=count)
                if batch.indices.numel():
                    yield tuple(batch)[: 3 if self._with_index else 2]
                    self._check_current(iteration)
        self._epoch, self._position, self._begun = epoch + 1, 0, False

    def _check_current(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise UsageError(
                "this iterator ended when the loader was iterated again, or given another state; "
                "use one iterator of a loader at a time"
            )

    @property
    def _copies(self) -> str:
        return "all" if self._sampler.choice is None else "one-per-epoch"

    @property
    def _order(self) -> str:
        return "global" if self._sampler.blocks is None else "blocks"

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that the next iteration goes through, from its beginning.

        Right after :meth:`load_state_dict`, naming the loaded epoch keeps the loaded position.
        """
        expect_type("epoch", epoch, int)
        if self._begun or epoch != self._epoch:
            self._move(epoch, 0)

    def _move(self, epoch: int, position: int) -> None:
        self._iteration += 1
        self._epoch, self._position, self._begun = epoch, position, False

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, as plain JSON values.

        The position counts samples over all ranks up to the batch that was handed out last, so
        the state is the same on every rank.
        """
        return {
            "version": STATE_VERSION,
            "seed": self._seed,
            "epoch": self._epoch,
            "position": self._position,
            "shuffle": self._sampler.shuffle,
            "copies": self._copies,
            "order": self._order,
            "dataset": self.dataset.identity,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken: with exactly the samples that were left.

        The seed is taken over. The batches are the same where batch_size x world_size is.

        Raises:
            UsageError: no state of a loader, or one of a loader with another ``shuffle``.
            DatasetError: the state belongs to another dataset.
        """
        own = self.state_dict()
        seed, epoch, position = read_state(state, own, self._sampler.n, self.dataset.path)
        self._seed = seed
        self._move(epoch, position)

    @property
    def skipped(self) -> list[Skipped]:
        """The samples that ``on_error="skip"`` has left out so far."""
        return list(self._skipped.values())

    @property
    def pipeline(self) -> Any:
        """The ``nvidia.dali.Pipeline`` of the engines ``dali`` and ``dali-cpu``, to look at; None
        before the first iteration, and for other engines."""
        return self._engine.pipeline

    def explain(self) -> str:
        """What was chosen, and why, in words."""
        sampler, recipe = self._sampler, self._engine.settings.recipe
        kind = "training" if sampler.shuffle else "evaluation"
        lines = [
            f"{len(self.dataset)} samples of {self.dataset.path} ({self.dataset.format}), "
            f"{len(self)} batches of {self.batch_size} an epoch on rank {sampler.rank} of "
            f"{sampler.world_size}, {kind} order.",
            *self._engine.explain(),
            *self._notes,
            *(f"engine {name} was passed over: {why}." for name, why in self._passed_over.items()),
        ]
        if self.dataset.format == "folder":
            lines.append(
                "A plain folder is read file by file; convert it with: "
                "fastdata convert SRC DST --to webdataset."
            )
        settings = self._engine.settings
        if settings.transform is not None and recipe.mean is not None:
            lines.append("Images are what transform= makes; mean and std are not applied.")
        elif settings.transform is None and settings.dtype is torch.uint8:
            lines.append("Images are uint8 and not normalised.")
        return "\n".join(lines)

    @property
    def carrier(self) -> Engine:
        """The engine itself: what it was told, and what it has chosen."""
        return self._engine

    def use_workers(self, count: int) -> bool:
        """Leave all but ``count`` workers without work from the next iteration on; whether the
        engine can do that. An iteration that goes on is ended by it."""
        self._iteration += 1
        self._stream.close()
        return self._engine.use_workers(count)

    def verify(self, profile: Profile | None) -> None:
        """Load for 3 s, compare with ``profile``, tell in :meth:`explain`, and go back."""
        state = self.state_dict()
        self._notes += (verify(self, profile, self.batch_size),)
        self.load_state_dict(state)
        self._skipped.clear()

    def close(self) -> None:
        """End the engine's processes. A closed loader starts them again when it is iterated."""
        self._iteration += 1
        self._stream.close()
        self._planner.close()
        self._engine.close()
        if self._owner:
            self.dataset.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
