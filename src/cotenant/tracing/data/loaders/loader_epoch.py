"""One epoch of a data loader: which of its batches is the last, and how many samples that has.

The same for the few samples of a trace and for the real batches of a script on the null GPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree
from torch.utils.data import DataLoader

from cotenant.tracing.data.loaders.memory_growth import MemoryGrowth
from cotenant.tracing.training.optimizer_schedule import DRAIN_BATCHES
from cotenant.tracing.training.training_progress import TrainingProgress

_MAX_EMPTY_EPOCHS = 1000


class LoaderEpoch:
    """The present epoch of one loader; a loader may have one iterator for all its epochs."""

    def __init__(self, loader: DataLoader[Any], progress: TrainingProgress) -> None:
        self._loader = loader
        self._progress = progress
        self._position = 0  # in the epoch
        self._max_position = DRAIN_BATCHES  # after the wanted steps
        self._first_size = 0  # of the epoch
        self._is_extra = False  # the next batch is one more than an epoch has in a trace, of full size
        self._epoch: tuple[object, ...] = ()
        self._growth = MemoryGrowth(progress.log)
        self._last_size = last_size(loader)
        self._small_data_warning = _warning_of_small_data(loader)
        self._steps_before = progress.log.steps
        progress.loaders += 1

    @property
    def is_new(self) -> bool:
        """Whether no batch of the epoch was given yet."""
        return not self._position

    def begin_batch(self) -> None:
        """The script asks for a batch.

        Raises:
            StopIteration: the epoch has ended.
        """
        progress = self._progress
        if self._small_data_warning and progress.log.steps > self._steps_before:  # the script trains on it
            progress.log.warn(self._small_data_warning)
        if self.is_new:
            self._growth = MemoryGrowth(progress.log)
            self._epoch = progress.rounds.epoch(self._loader.dataset)
            progress.epoch_begins(self._epoch)
            is_short = progress.draining and progress.rounds.epoch_passes(self._epoch)
            if is_short and not progress.rounds.is_short_epoch:
                raise StopIteration
            self._max_position = 1 if is_short else DRAIN_BATCHES
        self._growth.before_batch()
        if progress.ending_epoch and self._position >= self._max_position:
            batches = _batch_count(self._loader)
            if self._growth.wants_another(batches):
                self._is_extra = True
                return
            self._growth.end(batches)
            self._position = 0
            progress.rounds.is_short_epoch = False
            raise StopIteration

    def size_of_batch(self, size: int) -> int:
        """Samples of the batch that is given now: `size`, or fewer for the last of an epoch, which ends behind it."""
        is_extra, self._is_extra = self._is_extra, False
        self._first_size = size if self.is_new else self._first_size
        if is_extra:  # the loader's last one may be the smaller batch, which the trace had before
            size = self._first_size
        elif self._last_size and self._position and (self._progress.ending_epoch or self._progress.last_step):
            self._progress.ending_epoch = True
            size, self._position = self._last_size, DRAIN_BATCHES
        self._growth.gives(size)
        return size

    def end_batch(self, batch: Any) -> None:
        """A batch is given."""
        self._position += 1
        self._progress.batch_given()
        tensors = (leaf for leaf in _pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))
        self._progress.rounds.batch_read(self._epoch, sum(tensor.numel() for tensor in tensors))

    def note_empty(self) -> None:
        """The loader has no batch: the reason goes to the user if the script never trains.

        Raises:
            SystemExit: the script asks again and again, as `while steps < limit` around the epochs does.
        """
        if self._small_data_warning and self.is_new:
            self._progress.empty_loader_reason = self._small_data_warning
            self._progress.empty_epochs += 1
            if self._progress.empty_epochs >= _MAX_EMPTY_EPOCHS and not self._progress.log.steps:
                raise SystemExit


def last_size(loader: DataLoader[Any]) -> int:
    """Size of the last batch of an epoch if it is smaller than the others, else 0."""
    count, size = counts(loader)
    return 0 if not size or getattr(loader.batch_sampler, "drop_last", True) else count % size


def counts(loader: DataLoader[Any]) -> tuple[int, int]:
    """Samples of an epoch and of a full batch; (0, 0) if they are not known."""
    sampler = loader.batch_sampler
    size = getattr(sampler, "batch_size", None)
    if not isinstance(size, int) or size < 1:
        return 0, 0
    try:
        return len(sampler.sampler), size
    except (TypeError, AttributeError):
        return 0, 0


def _warning_of_small_data(loader: DataLoader[Any]) -> str:
    """What to warn of where the data do not fill one batch, as in a quick test of a script; else empty."""
    count, size = counts(loader)
    if not 0 < count < size:
        return ""
    is_dropped = getattr(loader.batch_sampler, "drop_last", True)
    what = "is dropped (`drop_last`)" if is_dropped else "and its memory are smaller than with enough data"
    return f"a data set has {count} samples for batches of {size}: the only batch {what}"


def _batch_count(loader: DataLoader[Any]) -> int:
    """Batches of an epoch; 0 if they are not known."""
    try:
        return len(loader)
    except (TypeError, AttributeError, NotImplementedError):
        return 0
