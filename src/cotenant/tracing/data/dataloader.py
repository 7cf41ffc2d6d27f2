"""Data loaders without workers, which read a few real samples: these represent the whole data set.

Samples go through the script's own transforms and collate function, so shapes and dtypes are real; where lengths
differ, a batch has padding and its mask.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from cotenant.tracing.data import data_options, length_histogram, sample_lengths
from cotenant.tracing.data.memory_growth import MemoryGrowth
from cotenant.tracing.patches.registry import Entry, HookPatch, Patch, PatchContext, Phase, patch_attributes
from cotenant.tracing.training.optimizer_schedule import DRAIN_BATCHES
from cotenant.tracing.training.training_observer import TrainingObserver

_MAX_STREAM_BATCHES = 100_000
_REAL_SAMPLES = 4  # in a batch; the rest repeat them


def patches(context: PatchContext) -> list[Entry]:
    """How data loaders make batches, and what pins or moves them beside operators."""
    observer, which = context.observer, context.options.sequence_lengths
    histogram = length_histogram.parse_histogram(which)
    quantiles = data_options.length_quantiles(which) if histogram is None else (1.0,)

    def few_samples(self: DataLoader[Any]) -> Iterator[Any]:
        observer.loaders += 1
        return _FewSampleIterator(self, observer, quantiles, histogram)

    workers = "Worker processes would read the whole data set."
    return [
        *patch_attributes(
            "torch.utils.data:DataLoader", {"_get_iterator": few_samples, "__iter__": few_samples}, phase=Phase.DATA,
            reason=workers, source="torch/utils/data/dataloader.py, `DataLoader._get_iterator`",
        ),
        HookPatch(
            target="torch.utils.data:DataLoader.__init_subclass__", phase=Phase.DATA,
            register=functools.partial(_end_endless_epochs, observer),
            reason="A subclass with one endless iterator for all epochs does not expect it to end.",
            source="timm/data/loader.py, `MultiEpochsDataLoader`",
        ),
        Patch(
            target="fastai.data.load:_loaders", phase=Phase.DATA, replacement=(_fastai_batches(observer),) * 2,
            reason=workers, source="fastai/data/load.py, `DataLoader.__iter__`",
        ),
        *patch_attributes(
            "torch:Tensor",
            {
                "pin_memory": lambda self, device=None: self,
                "is_pinned": lambda self, device=None: False,
                "record_stream": lambda self, stream: None,
            },
            phase=Phase.DATA, reason="They call the driver.", source="aten/src/ATen/native/Memory.cpp, `pin_memory`",
        ),
    ]  # fmt: skip


def _end_endless_epochs(observer: TrainingObserver) -> Callable[[], None]:
    """Let subclasses of DataLoader whose `__iter__` is a generator end their epoch where their iterator ends."""

    def ending(iterate: Callable[[Any], Iterator[Any]]) -> Callable[[Any], Iterator[Any]]:
        @functools.wraps(iterate)
        def iterate_(self: Any) -> Iterator[Any]:
            try:
                yield from iterate(self)
            except RuntimeError as error:  # PEP 479: the end of an iterator inside a generator
                if not (observer.ending_epoch and isinstance(error.__cause__, StopIteration)):
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


def _fastai_batches(observer: TrainingObserver) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """In place of fastai's two classes of loaders, which are not PyTorch's but start its workers."""

    def batches(source: Iterable[Any]) -> Iterator[Any]:
        observer.loaders += 1
        observer.epoch_begins()
        for count, batch in enumerate(source):
            if observer.ending_epoch and count >= DRAIN_BATCHES:
                return
            yield batch

    return batches


class _FewSampleIterator:
    """Iterates as a loader does, over its first few samples again and again."""

    def __init__(
        self,
        loader: DataLoader[Any],
        observer: TrainingObserver,
        quantiles: Sequence[float],
        histogram: length_histogram.LengthHistogram | None,
    ) -> None:
        self._loader = loader
        self._observer = observer
        self._quantiles = quantiles
        self._histogram = histogram
        self._position = 0  # in the epoch
        self._max_position = DRAIN_BATCHES  # after the traced steps
        self._epoch: tuple[object, ...] = ()
        self._growth = MemoryGrowth(observer.recorder)
        self._batches_made = 0
        self._cache: dict[tuple[int, int], Any] = {}
        self._samples: list[list[Any]] = []  # for each kind of batch
        self._makes_batches: bool | None = None
        self._on_gpu = False  # whether the data set puts its samples there
        self._sizes = self._batch_sizes()
        self._partial_size = self._last_size()
        self._small_data_warning = self._warning_of_small_data()
        self._steps_before = observer.recorder.steps
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> _FewSampleIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        observer = self._observer
        if self._small_data_warning and observer.recorder.steps > self._steps_before:  # the script trains on it
            observer.recorder.warn(self._small_data_warning)
        if not self._position:
            observer.epoch_begins()
            self._growth = MemoryGrowth(observer.recorder)
            self._epoch = observer.rounds.epoch(self._loader.dataset)
            is_short = observer.draining and observer.rounds.epoch_passes(self._epoch)
            if is_short and not observer.rounds.is_short_epoch:
                raise StopIteration
            self._max_position = 1 if is_short else DRAIN_BATCHES
        self._growth.before_batch()
        if observer.ending_epoch and self._position >= self._max_position:
            self._growth.end(self._batch_count())
            self._position = 0  # for a loader that has one iterator for all epochs
            observer.rounds.is_short_epoch = False
            raise StopIteration
        if self._sizes is None:
            batch = self._own_batch()
        else:
            size, indices = self._next_size(self._sizes)
            if self._partial_size and self._position and (observer.ending_epoch or observer.last_step):
                observer.ending_epoch = True
                size, self._position = self._partial_size, DRAIN_BATCHES
            batch = self._batch(size, indices)
            self._growth.gives(size)
        self._position += 1
        observer.rounds.batch_read(self._epoch)
        return batch

    def _next_size(self, sizes: Iterator[tuple[int, Sequence[Any] | None]]) -> tuple[int, Sequence[Any] | None]:
        try:
            return next(sizes)
        except StopIteration:
            if self._small_data_warning and not self._position:
                self._observer.empty_loader_reason = self._small_data_warning
            raise

    def _batch(self, size: int, indices: Sequence[Any] | None) -> Any:
        if self._makes_batches is None:
            self._makes_batches = indices is not None and self._dataset_makes_batches(indices)
        if self._makes_batches and indices is not None:
            return self._loader.collate_fn(self._loader.dataset.__getitems__(list(indices[:size])))
        if self._on_gpu:
            return self._loader.collate_fn(self._fetch(indices, most=size))
        if not self._samples:
            self._samples = self._samples_at_quantiles() if self._quantiles else [self._first_samples(indices)]
            if not self._quantiles and self._histogram is None and _has_gpu_tensor(self._samples):
                # Kept samples would stay in the GPU's memory, and fewer would be there while the batch is made.
                self._on_gpu, self._samples = True, []
                return self._batch(size, indices)
        kinds = len(self._samples) if self._histogram is None else 2  # of usual lengths, then with the longest
        kind = min(self._batches_made, kinds - 1)
        self._batches_made += 1
        if (size, kind) not in self._cache:
            self._cache[size, kind] = self._loader.collate_fn(self._samples_of_batch(size, kind))
        return _copy_containers(self._cache[size, kind])

    def _dataset_makes_batches(self, indices: Sequence[Any]) -> bool:
        """Whether `__getitems__` gives a whole batch in place of a list of samples, as that of Keras's arrays."""
        fetch_many = getattr(self._loader.dataset, "__getitems__", None)
        if fetch_many is None:
            return False
        wanted = list(indices[:_REAL_SAMPLES])
        samples = fetch_many(wanted)
        return not (isinstance(samples, list) and len(samples) == len(wanted))

    def _samples_of_batch(self, size: int, kind: int) -> list[Any]:
        if self._histogram is None:
            return [*map(_copy_containers, itertools.islice(itertools.cycle(self._samples[kind]), size))]
        (sample,) = self._samples[0]
        length = sample_lengths.length_of(sample, words=False)
        if not length:
            self._observer.recorder.warn("the histogram of lengths is not used: no part of a sample varies in length")
            return [_copy_containers(sample) for _ in range(size)]
        self._observer.recorder.warn(self._histogram.summary())
        wanted = self._histogram.batch(size, with_longest=kind > 0)
        return [length_histogram.resized(sample, length, target) for target in wanted]

    def _first_samples(self, indices: Sequence[Any] | None) -> list[Any]:
        samples = self._fetch(indices)
        if not samples:  # of a stream that has ended
            raise StopIteration
        if sample_lengths.lengths_vary([*samples, *self._more_samples(len(samples))], self._loader.collate_fn):
            self._observer.recorder.warn(
                f"samples vary in length, and batches are made of {len(samples)} of them: `--sequence-lengths longest` "
                f"takes the longest of {sample_lengths.MAX_INSPECTED}, `--sequence-lengths p95` one that few exceed"
            )
        return samples

    def _more_samples(self, count: int) -> list[Any]:
        """Samples beside those of a small batch, for comparison: from all over the data set."""
        dataset = self._loader.dataset
        try:
            size = 0 if sample_lengths.is_stream(dataset) else len(dataset)
            return self._fetch([place * size // _REAL_SAMPLES for place in range(count, _REAL_SAMPLES)]) if size else []
        except Exception:  # noqa: BLE001 - a data set need have no length, and take no indices but its sampler's
            return []

    def _samples_at_quantiles(self) -> list[list[Any]]:
        """For each quantile of length one sample, among samples from all over the data set."""
        dataset = self._loader.dataset
        if sample_lengths.is_stream(dataset):
            samples = list(itertools.islice(dataset, sample_lengths.MAX_INSPECTED))
        else:
            samples = self._fetch(sample_lengths.evenly_spaced(len(dataset)), most=sample_lengths.MAX_INSPECTED)
        if not samples:
            raise StopIteration
        chosen, summary = sample_lengths.at_quantiles(samples, self._quantiles)
        if self._histogram is None and sample_lengths.lengths_vary(samples, self._loader.collate_fn):
            self._observer.recorder.warn(summary)
        return [[sample] for sample in chosen]

    def _own_batch(self) -> Any:
        """The next batch of a data set that makes batches itself."""
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
            return list(itertools.islice(dataset, most))
        wanted = list(indices[:most])
        fetch_many = getattr(dataset, "__getitems__", None)
        return list(fetch_many(wanted)) if fetch_many else [dataset[index] for index in wanted]

    def _batch_sizes(self) -> Iterator[tuple[int, Sequence[Any] | None]] | None:
        """(size, indices) of the batches; no indices for a stream; None where the data set makes batches itself."""
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

    def _warning_of_small_data(self) -> str:
        """What to warn of where the data do not fill one batch, as in a quick test of a script; else empty."""
        count, size = self._counts()
        if not 0 < count < size:
            return ""
        is_dropped = getattr(self._loader.batch_sampler, "drop_last", True)
        what = "is dropped (`drop_last`)" if is_dropped else "and its memory are smaller than with enough data"
        return f"a data set has {count} samples for batches of {size}: the only batch {what}"

    def _batch_count(self) -> int:
        """Batches of an epoch; 0 if they are not known."""
        try:
            return len(self._loader)
        except (TypeError, AttributeError, NotImplementedError):
            return 0

    def _counts(self) -> tuple[int, int]:
        """Samples of an epoch and of a full batch; (0, 0) if they are not known."""
        sampler = self._loader.batch_sampler
        size = getattr(sampler, "batch_size", None)
        if not isinstance(size, int) or size < 1:
            return 0, 0
        try:
            return len(sampler.sampler), size
        except (TypeError, AttributeError):
            return 0, 0


def _has_gpu_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_gpu_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_gpu_tensor, value))
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _copy_containers(batch: Any) -> Any:
    """The same tensors in new containers: scripts add to a batch and pop from it, and `collate_fn` to samples."""
    if isinstance(batch, dict):
        if type(batch) is dict:
            return {key: _copy_containers(value) for key, value in batch.items()}
        try:
            made = copy.copy(batch)  # with its other attributes
        except TypeError:
            return batch
        made.update({key: _copy_containers(value) for key, value in batch.items()})
        return made
    if type(batch) in (list, tuple):
        return type(batch)(_copy_containers(value) for value in batch)
    return batch
