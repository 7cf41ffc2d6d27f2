"""Ends the epoch behind the wanted steps on a null GPU, so that a validation that follows it runs, too.

Data loaders read what they read on a GPU, but for the last batch of an epoch, which comes early
(`data.loaders.loader_epoch`), and run dry after the wanted steps.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from cotenant.tracing.data.loaders.ending_loaders import ending_patches
from cotenant.tracing.data.loaders.loader_epoch import LoaderEpoch, counts
from cotenant.tracing.patches.registry import Entry, Patch, Phase
from cotenant.tracing.training.training_progress import TrainingProgress


def epoch_patches(progress: TrainingProgress) -> list[Entry]:
    """Data loaders that run dry."""

    def ending(original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @functools.wraps(original)
        def iterate(loader: Any) -> Iterator[Any]:
            if loader.num_workers:  # one that is spawned is a new Python, without the sandbox and its files
                loader.multiprocessing_context = "fork"
            return _EndingIterator(original(loader), loader, progress)

        return iterate

    return [
        Patch(
            target="torch.utils.data:DataLoader.__iter__", phase=Phase.DATA, replacement=ending, wraps=True,
            reason="An epoch ends after the wanted steps, and a validation follows.",
            source="torch/utils/data/dataloader.py, `DataLoader.__iter__`",
        ),
        *ending_patches(progress),
    ]  # fmt: skip


class _EndingIterator:
    """Iterates as a loader does, and ends once the wanted steps are done."""

    def __init__(self, batches: Iterator[Any], loader: DataLoader[Any], progress: TrainingProgress) -> None:
        self._batches, self._loader, self._log = batches, loader, progress.log
        self._epoch = LoaderEpoch(loader, progress)
        self._full_size = counts(loader)[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __iter__(self) -> _EndingIterator:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        self._epoch.begin_batch()
        size = self._epoch.size_of_batch(self._full_size)
        batch = self._next() if size == self._full_size else self._smaller(size)
        self._epoch.end_batch(batch)
        return batch

    def _next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._epoch.note_empty()
            raise

    def _smaller(self, size: int) -> Any:
        """A batch of so many samples, read in this process, since workers have read ahead; not pinned."""
        loader: Any = self._loader
        try:
            indices = list(itertools.islice(loader.batch_sampler.sampler, size))
            fetch_many = getattr(loader.dataset, "__getitems__", None)
            return loader.collate_fn(fetch_many(indices) if fetch_many else [loader.dataset[at] for at in indices])
        except Exception as error:  # noqa: BLE001 - a data set may be readable in a worker only, and raises anything
            self._log.warn(
                f"the last batch of an epoch, of {size} samples, is not included: reading it raised "
                f"{type(error).__name__}: {error}"
            )
            return self._next()
