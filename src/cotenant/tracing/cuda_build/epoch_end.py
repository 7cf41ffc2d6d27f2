"""Ends the epoch behind the wanted steps on a null GPU, so that a validation that follows it runs, too.

Data loaders read what they read on a GPU, and run dry after the steps. The same rules as for a trace
(`training.training_observer`): the run is complete when the script trains again, or ends.

A module of its own: the observer counts steps, and knows no loaders.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from cotenant.tracing.patches.registry import Patch, Phase
from cotenant.tracing.training.later_training import TrainedLines
from cotenant.tracing.training.loop_exit import LoopExit
from cotenant.tracing.training.optimizer_schedule import BATCHES_AHEAD, DRAIN_BATCHES


class EpochEnd:
    """Whether the wanted steps are done, and what the script may still do.

    Attributes:
        has_begun: the wanted steps are done, and the epoch ends.
        trained: where backward passes ran.
    """

    def __init__(self, warn: Callable[[str], object], trained: TrainedLines) -> None:
        self.trained = trained
        self._loop_exit = LoopExit(warn, trained)
        self._loaders = 0
        self._batches_ahead = 0
        self.has_begun = False

    def patches(self) -> list[Patch]:
        """Data loaders that run dry."""
        return [
            Patch(
                target="torch.utils.data:DataLoader.__iter__", phase=Phase.DATA, replacement=self._ending, wraps=True,
                reason="An epoch ends after the wanted steps, and a validation follows.",
                source="torch/utils/data/dataloader.py, `DataLoader.__iter__`",
            )
        ]  # fmt: skip

    def begin(self) -> bool:
        """The wanted steps are done: whether there is more to run."""
        goes_on = self._loop_exit.leave(with_loaders=bool(self._loaders)) or bool(self._loaders)
        self.has_begun, self._batches_ahead = goes_on, BATCHES_AHEAD
        return goes_on

    def warn_unreached(self) -> None:
        """The script trains again: name the work that it has not got to."""
        self._loop_exit.warn_unreached()

    def begin_anew(self) -> None:
        """Another stage of the training begins: its epochs last until its wanted steps are done, too."""
        self.has_begun = False
        self._loop_exit.give_up()

    def may_step(self) -> bool:
        """Whether one more step, which begins now, belongs to the epoch that ends."""
        self._batches_ahead -= 1
        return self._batches_ahead >= 0

    def _ending(self, original: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @functools.wraps(original)
        def iterate(loader: Any) -> Iterator[Any]:
            self._loaders += 1
            return _EndingIterator(original(loader), self)

        return iterate

    def epoch_begins(self) -> None:
        """A loader is about to give its first batch: those of the epoch before are used up."""
        self._batches_ahead = 0


class _EndingIterator:
    """Iterates as a loader does, and ends once the wanted steps are done."""

    def __init__(self, batches: Iterator[Any], epoch_end: EpochEnd) -> None:
        self._batches, self._epoch_end, self._given = batches, epoch_end, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __iter__(self) -> _EndingIterator:
        return self

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        if not self._given:
            self._epoch_end.epoch_begins()
        if self._epoch_end.has_begun and self._given >= DRAIN_BATCHES:
            self._given = 0  # for a loader that has one iterator for all epochs
            raise StopIteration
        batch = next(self._batches)
        self._given += 1
        return batch
