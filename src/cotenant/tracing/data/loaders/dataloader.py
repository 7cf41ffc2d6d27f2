"""Data loaders without workers, which read a few real samples: these represent the whole data set.

Samples go through the script's own transforms and collate function, so shapes and dtypes are real; where lengths
differ, a batch has padding and its mask.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from cotenant.tracing.data import data_options, length_histogram
from cotenant.tracing.data.loaders import drawn_sizes, long_samplers, sample_lengths
from cotenant.tracing.data.loaders.ending_loaders import ending_patches
from cotenant.tracing.data.loaders.loader_epoch import LoaderEpoch
from cotenant.tracing.patches.registry import Entry, PatchContext, Phase, patch_attributes
from cotenant.tracing.training.training_progress import TrainingProgress

_MAX_STREAM_BATCHES = 100_000
_REAL_SAMPLES = 4  # in a batch; the rest repeat them
_MAX_OWN_ELEMENTS = 1 << 14  # of the boxes or labels of a sample, which each repetition has for itself; not of an image


def patches(context: PatchContext) -> list[Entry]:
    """How data loaders make batches, and what pins or moves them beside operators."""
    progress, which = context.observer.progress, context.options.sequence_lengths
    histogram = length_histogram.parse_histogram(which)
    quantiles = data_options.length_quantiles(which) if histogram is None else (1.0,)

    def few_samples(self: DataLoader[Any]) -> Iterator[Any]:
        return _FewSampleIterator(self, progress, quantiles, histogram)

    return [
        *patch_attributes(
            "torch.utils.data:DataLoader", {"_get_iterator": few_samples, "__iter__": few_samples}, phase=Phase.DATA,
            reason="Worker processes would read the whole data set.",
            source="torch/utils/data/dataloader.py, `DataLoader._get_iterator`",
        ),
        *ending_patches(progress),
        *long_samplers.patches(),
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


class _FewSampleIterator:
    """Iterates as a loader does, over its first few samples again and again."""

    def __init__(
        self,
        loader: DataLoader[Any],
        progress: TrainingProgress,
        quantiles: Sequence[float],
        histogram: length_histogram.LengthHistogram | None,
    ) -> None:
        self._loader = loader
        self._log = progress.log
        self._epoch = LoaderEpoch(loader, progress)
        self._quantiles = quantiles
        self._histogram = histogram
        self._batches_made = 0
        self._cache: dict[tuple[int, int], Sequence[Any]] = {}
        self._samples: list[list[Any]] = []  # for each kind of batch
        self._makes_batches: bool | None = None
        self._on_gpu = False  # whether the data set puts its samples there
        self._sizes = self._batch_sizes()
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> _FewSampleIterator:
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        self._epoch.begin_batch()
        if self._sizes is None:
            batch = self._own_batch()
        else:
            size, indices = self._next_size(self._sizes)
            batch = self._batch(self._epoch.size_of_batch(size), indices)
        self._epoch.end_batch(batch)
        return batch

    def _next_size(self, sizes: Iterator[tuple[int, Sequence[Any] | None]]) -> tuple[int, Sequence[Any] | None]:
        try:
            return next(sizes)
        except StopIteration:
            self._epoch.note_empty()
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
        made = self._cache.get((size, kind))
        if made is not None:
            return _copy_containers(made[-1])
        samples = functools.partial(self._samples_of_batch, size, kind)
        made = self._cache[size, kind] = drawn_sizes.batches_of(self._loader.collate_fn, samples, self._log.warn)
        return _copy_containers(made[0])

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
            return [*map(_copy_sample, itertools.islice(itertools.cycle(self._samples[kind]), size))]
        (sample,) = self._samples[0]
        length = sample_lengths.length_of(sample, words=False)
        if not length:
            self._log.warn("the histogram of lengths is not used: no part of a sample varies in length")
            return [_copy_sample(sample) for _ in range(size)]
        self._log.warn(self._histogram.summary())
        wanted = self._histogram.batch(size, with_longest=kind > 0)
        return [length_histogram.resized(sample, length, target) for target in wanted]

    def _first_samples(self, indices: Sequence[Any] | None) -> list[Any]:
        samples = self._fetch(indices)
        if not samples:  # of a stream that has ended
            raise StopIteration
        if sample_lengths.lengths_vary([*samples, *self._more_samples(len(samples))], self._loader.collate_fn):
            self._log.warn(
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
            self._log.warn(summary)
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


_FewSampleIterator.__name__ = "_BaseDataLoaderIter"  # of torch: errors of a script name the class


def _has_gpu_tensor(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_gpu_tensor, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_has_gpu_tensor, value))
    return isinstance(value, torch.Tensor) and value.device.type == "cuda"


def _copy_sample(sample: Any) -> Any:
    """A sample for one place of a batch, with boxes and labels of its own.

    Collate functions of YOLO write the place in the batch to the boxes: those of a repeated sample would all be of one
    image. Sources: ultralytics/yolov5, utils/dataloaders.py, `collate_fn`; ultralytics/data/dataset.py, `collate_fn`.
    """
    return _copy_containers(sample, _own_if_small)


def _own_if_small(value: Any) -> Any:
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor):
        is_plain = value.device.type == "cpu" and value.layout is torch.strided and not value.requires_grad
        return value.clone() if is_plain and value.numel() <= _MAX_OWN_ELEMENTS else value
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size <= _MAX_OWN_ELEMENTS:
        return value.copy()
    return value


def _copy_containers(batch: Any, leaf: Callable[[Any], Any] = lambda value: value) -> Any:
    """The same values in new containers: scripts add to a batch and pop from it, and `collate_fn` to samples."""
    if isinstance(batch, dict):
        if type(batch) is dict:
            return {key: _copy_containers(value, leaf) for key, value in batch.items()}
        try:
            made = copy.copy(batch)  # with its other attributes
        except TypeError:
            return batch
        made.update({key: _copy_containers(value, leaf) for key, value in batch.items()})
        return made
    if type(batch) in (list, tuple):
        return type(batch)(_copy_containers(value, leaf) for value in batch)
    return leaf(batch)
