"""Data loaders without workers and without a data set's worth of reading: a few real samples stand for all.

They go through the script's own transforms and collation, so shapes and types are the true ones; and where lengths
differ a batch has padding, and a mask that says so.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from cotenant.tracing.data import data_options, length_histogram, sample_lengths
from cotenant.tracing.patches.import_hooks import when_imported
from cotenant.tracing.training.training_observer import TrainingObserver

_DRAIN_BATCHES = 2  # batches that a loader still gives once enough training was seen: a validation pass needs no more
_MAX_STREAM_BATCHES = 100_000
_REAL_SAMPLES = 4  # different ones in a batch; the rest are these again


def install(loop: TrainingObserver, which_length: str = "") -> None:
    """Replace how data loaders make batches, for all of the process.

    `which_length`: as of `wishes.shares_of` or `histogram.parse`.
    """
    spread = length_histogram.parse_histogram(which_length)
    shares = data_options.length_quantiles(which_length) if spread is None else (1.0,)

    def get_iterator(self: DataLoader[Any]) -> Iterator[Any]:
        loop.loaders += 1
        return _FewSampleIterator(self, loop, shares, spread)

    DataLoader._get_iterator = get_iterator
    DataLoader.__iter__ = get_iterator  # the original keeps workers of the last epoch
    _end_endless_epochs(loop)
    when_imported("fastai.data.load", functools.partial(_patch_fastai, loop))
    torch.Tensor.pin_memory = lambda self, device=None: self
    torch.Tensor.is_pinned = lambda self, device=None: False
    torch.Tensor.record_stream = lambda self, stream: None


def _end_endless_epochs(loop: TrainingObserver) -> None:
    """Loaders that keep one endless iterator for all epochs count batches, and do not expect it to run dry."""

    def ends(iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @functools.wraps(iterate)
        def iterate_(self: Any) -> Iterator[Any]:
            try:
                yield from iterate(self)
            except RuntimeError as error:  # what Python makes of the end of an iterator within a generator
                if not (loop.ending_epoch and isinstance(error.__cause__, StopIteration)):
                    raise

        return iterate_

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(DataLoader, cls).__init_subclass__(**kwargs)
        own = vars(cls).get("__iter__")
        if inspect.isgeneratorfunction(own):
            cls.__iter__ = ends(own)

    vars_of: Any = DataLoader
    vars_of.__init_subclass__ = classmethod(init_subclass)
    for kind in DataLoader.__subclasses__():
        init_subclass(kind)


def _patch_fastai(loop: TrainingObserver, module: Any) -> None:
    """Loaders of fastai, which are not PyTorch's, but have its workers: batches as they come, until enough was seen."""

    def load(source: Iterable[Any]) -> Iterator[Any]:
        loop.loaders += 1
        for given, batch in enumerate(source):
            if loop.ending_epoch and given >= _DRAIN_BATCHES:
                return
            yield batch

    module._loaders = (load, load)


class _FewSampleIterator:
    """Iterates as a loader does, over its first few samples again and again."""

    def __init__(
        self,
        loader: DataLoader[Any],
        loop: TrainingObserver,
        shares: Sequence[float],
        spread: length_histogram.LengthHistogram | None,
    ) -> None:
        self._loader = loader
        self._loop = loop
        self._shares = shares
        self._spread = spread
        self._given = 0
        self._made = 0
        self._cache: dict[tuple[int, int], Any] = {}
        self._samples: list[list[Any]] = []
        self._sizes = self._batch_sizes()
        self._partial = self._last_size()
        self._few = self._told_few()
        self._steps_before = loop.recorder.steps
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> _FewSampleIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        loop = self._loop
        if self._few and loop.recorder.steps > self._steps_before:  # it is what the script trains on
            loop.recorder.warn(self._few)
        if loop.ending_epoch and self._given >= _DRAIN_BATCHES:
            self._given = 0  # for a loader that has one iterator for all epochs
            raise StopIteration
        if self._sizes is None:
            batch = self._as_is()
        else:
            size, indices = self._next_size(self._sizes)
            if self._partial and self._given and (loop.ending_epoch or loop.last_step):
                loop.ending_epoch = True
                size, self._given = self._partial, _DRAIN_BATCHES
            batch = self._batch(size, indices)
        self._given += 1
        return batch

    def _next_size(self, sizes: Iterator[tuple[int, Sequence[Any] | None]]) -> tuple[int, Sequence[Any] | None]:
        try:
            return next(sizes)
        except StopIteration:
            if self._few and not self._given:
                self._loop.without_batches = self._few
            raise

    def _batch(self, size: int, indices: Sequence[Any] | None) -> Any:
        if not self._samples:
            self._samples = self._of_lengths() if self._shares else [self._as_they_come(indices)]
        kinds = len(self._samples) if self._spread is None else 2  # of lengths that are usual, then with the longest
        which = min(self._made, kinds - 1)
        self._made += 1
        if (size, which) not in self._cache:
            self._cache[size, which] = self._loader.collate_fn(self._members(size, which))
        return _copy_containers(self._cache[size, which])

    def _members(self, size: int, which: int) -> list[Any]:
        if self._spread is None:
            return list(itertools.islice(itertools.cycle(self._samples[which]), size))
        (sample,) = self._samples[0]
        own = sample_lengths.length_of(sample, words=False)
        if not own:
            self._loop.recorder.warn("the histogram of lengths is not used: samples have no part that varies in length")
            return [sample] * size
        self._loop.recorder.warn(self._spread.told())
        wanted = self._spread.batch(size, longest=which > 0)
        return [length_histogram.resized(sample, own, each) for each in wanted]

    def _as_they_come(self, indices: Sequence[Any] | None) -> list[Any]:
        samples = self._fetch(indices)
        if sample_lengths.lengths_vary(samples, self._loader.collate_fn):
            self._loop.recorder.warn(
                f"samples vary in length, and batches are made of {len(samples)} of them: `--sequence-lengths longest` takes "
                f"the longest of {sample_lengths.MAX_INSPECTED}, `--sequence-lengths p95` one that few exceed"
            )
        return samples

    def _of_lengths(self) -> list[list[Any]]:
        """The samples of the wanted lengths, one for a batch, of some spread over the data set."""
        dataset = self._loader.dataset
        if sample_lengths.is_stream(dataset):
            samples = list(itertools.islice(dataset, sample_lengths.MAX_INSPECTED))
        else:
            samples = self._fetch(sample_lengths.evenly_spaced(len(dataset)), most=sample_lengths.MAX_INSPECTED)
        found, told = sample_lengths.at_quantiles(samples, self._shares)
        if self._spread is None and sample_lengths.lengths_vary(samples, self._loader.collate_fn):
            self._loop.recorder.warn(told)
        return [[each] for each in found]

    def _as_is(self) -> Any:
        """A data set that makes its own batches: take them as they come."""
        loader = self._loader
        if self._source is None:
            if isinstance(loader.dataset, IterableDataset):
                self._source = iter(loader.dataset)
            else:
                self._source = (loader.dataset[index] for index in loader.sampler)
        return loader.collate_fn(next(self._source))

    def _fetch(self, indices: Sequence[Any] | None, most: int = _REAL_SAMPLES) -> list[Any]:
        dataset = self._loader.dataset
        if indices is None:
            return list(itertools.islice(dataset, _REAL_SAMPLES))
        wanted = list(indices[:most])
        fetch_many = getattr(dataset, "__getitems__", None)
        return list(fetch_many(wanted)) if fetch_many else [dataset[index] for index in wanted]

    def _batch_sizes(self) -> Iterator[tuple[int, Sequence[Any] | None]] | None:
        """(size, indices) of each batch; no indices for a stream; None where the data set batches by itself."""
        loader = self._loader
        if not loader._auto_collation:
            return None
        if isinstance(loader.dataset, IterableDataset):
            return iter((loader.batch_size or 1, None) for _ in range(_MAX_STREAM_BATCHES))
        batches = () if loader.batch_sampler is None else loader.batch_sampler  # which need not have a length
        return ((len(batch), batch) for batch in map(list, batches))

    def _last_size(self) -> int:
        """Size of the last batch of an epoch if it is smaller than the others, else 0."""
        count, size = self._counts()
        return 0 if not size or getattr(self._loader.batch_sampler, "drop_last", True) else count % size

    def _told_few(self) -> str:
        """What to say of data that do not fill a batch, such as a handful put there to try a script out."""
        count, size = self._counts()
        if not 0 < count < size:
            return ""
        left_out = getattr(self._loader.batch_sampler, "drop_last", True)
        what = "is left out (`drop_last`)" if left_out else "and its memory are smaller than with enough data"
        return f"a data set has {count} samples for batches of {size}: the only batch {what}"

    def _counts(self) -> tuple[int, int]:
        """Samples of an epoch and of a full batch; zeros where nobody says."""
        sampler = self._loader.batch_sampler
        size = getattr(sampler, "batch_size", None)
        if not isinstance(size, int) or size < 1:
            return 0, 0
        try:
            return len(sampler.sampler), size
        except (TypeError, AttributeError):
            return 0, 0


def _copy_containers(batch: Any) -> Any:
    """The same tensors in new containers: scripts pop from and add to what a loader gave them."""
    if isinstance(batch, dict):
        if type(batch) is dict:
            return {key: _copy_containers(value) for key, value in batch.items()}
        try:
            return type(batch)({key: _copy_containers(value) for key, value in batch.items()})
        except TypeError:
            return batch
    if type(batch) in (list, tuple):
        return type(batch)(_copy_containers(value) for value in batch)
    return batch
