"""Loaders that are not iterated as PyTorch's own, and must end their epoch all the same.

A module of its own: a trace and the null GPU patch them alike, and other loaders each in its way.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, Phase
from cotenant.tracing.training.optimizer_schedule import DRAIN_BATCHES
from cotenant.tracing.training.training_progress import TrainingProgress


def ending_patches(progress: TrainingProgress) -> list[Entry]:
    """Subclasses whose `__iter__` is a generator, and fastai's loaders."""
    return [
        HookPatch(
            target="torch.utils.data:DataLoader.__init_subclass__", phase=Phase.DATA,
            register=functools.partial(_end_endless_epochs, progress),
            reason="A subclass with one endless iterator for all epochs does not expect it to end.",
            source="timm/data/loader.py, `MultiEpochsDataLoader`",
        ),
        Patch(
            target="fastai.data.load:_loaders", phase=Phase.DATA, replacement=(_fastai_batches(progress),) * 2,
            reason="Worker processes would read the whole data set.",
            source="fastai/data/load.py, `DataLoader.__iter__`",
        ),
    ]  # fmt: skip


def _end_endless_epochs(progress: TrainingProgress) -> Callable[[], None]:
    """Let subclasses of DataLoader whose `__iter__` is a generator end their epoch where their iterator ends."""

    def ending(iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @functools.wraps(iterate)
        def iterate_(self: Any) -> Iterator[Any]:
            try:
                yield from iterate(self)
            except RuntimeError as error:  # PEP 479: the end of an iterator inside a generator
                if not (progress.ending_epoch and isinstance(error.__cause__, StopIteration)):
                    raise

        return iterate_

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(DataLoader, cls).__init_subclass__(**kwargs)
        own = vars(cls).get("__iter__")
        if inspect.isgeneratorfunction(own):
            cls.__iter__ = ending(own)

    loader_class: Any = DataLoader
    loader_class.__init_subclass__ = classmethod(init_subclass)
    for subclass in DataLoader.__subclasses__():
        init_subclass(subclass)
    return lambda: delattr(loader_class, "__init_subclass__")


def _fastai_batches(progress: TrainingProgress) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """In place of fastai's two classes of loaders, which are not PyTorch's but start its workers."""

    def batches(source: Iterable[Any]) -> Iterator[Any]:
        progress.loaders += 1
        progress.epoch_begins(progress.rounds.epoch(source))
        for count, batch in enumerate(source):
            if progress.ending_epoch and count >= DRAIN_BATCHES:
                return
            yield batch

    return batches
