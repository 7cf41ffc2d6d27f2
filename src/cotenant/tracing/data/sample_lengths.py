"""Samples of varying length: which of them a batch is made of, and how they are spread.

The length of a sample is the size of its longest one-dimensional part: the tokens of a text, the frames of a sound,
the words of a text that is made tokens only when a batch is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

MAX_INSPECTED = 256


def length_of(sample: Any, *, words: bool = True) -> int:
    """The length of a sample; 0 for one without a one-dimensional part. `words`: those of texts count as well."""
    return max(_lengths(sample, words=words), default=0)


def _lengths(sample: Any, *, words: bool = True) -> Iterator[int]:
    """The lengths of all parts of a sample."""
    if isinstance(sample, str):
        if words:
            yield len(sample.split())
    elif isinstance(sample, list) and not (sample and not isinstance(sample[0], (int, float))):
        yield len(sample)
    elif isinstance(sample, (Mapping, list, tuple)):
        for each in sample.values() if isinstance(sample, Mapping) else sample:
            yield from _lengths(each, words=words)
    else:
        shape: Sequence[int] = getattr(sample, "shape", None) or ()
        if len(shape) == 1:
            yield int(shape[0])


def _sort_key(sample: Any) -> tuple[int, int]:
    """By length, then by all parts: of sounds that are cut to one length, that with the longest text is the longest."""
    parts = list(_lengths(sample))
    return max(parts, default=0), sum(parts)


def evenly_spaced(count: int) -> list[int]:
    """Indices of samples spread over a data set of `count`."""
    if count <= MAX_INSPECTED:
        return list(range(count))
    return [index * count // MAX_INSPECTED for index in range(MAX_INSPECTED)]


def at_quantiles(samples: Sequence[Any], shares: Sequence[float]) -> tuple[list[Any], str]:
    """The samples at these shares of all when ordered by length, and a sentence on how they are spread."""
    ordered = sorted(samples, key=_sort_key)
    places = [min(len(ordered) - 1, max(0, -(-int(each * 1000) * len(ordered) // 1000) - 1)) for each in shares]
    sizes = [length_of(each) for each in ordered]
    middle, late = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, len(sizes) * 95 // 100)]
    lengths = ", then ".join(str(sizes[at]) for at in places)
    told = (
        f"batches are made of samples of length {lengths}; of {len(sizes)} samples looked at the shortest has "
        f"{sizes[0]}, half have up to {middle}, 95 % up to {late}, the longest has {sizes[-1]}"
    )
    return [ordered[at] for at in places], told


def lengths_vary(samples: Sequence[Any], collate: Callable[[list[Any]], Any]) -> bool:
    """Whether lengths differ: those of texts, and of parts beside a longer one, only where batches show it.

    Many texts are padded to one length, and many parts are never used.
    """
    if len({length_of(each, words=False) for each in samples}) > 1:
        return True
    ordered = sorted(samples, key=_sort_key)
    shortest, longest = ordered[0], ordered[-1]
    if _sort_key(shortest) == _sort_key(longest):
        return False
    try:
        made = [list(_shapes(collate([each] * len(samples)))) for each in (shortest, longest)]
    except Exception:  # noqa: BLE001 - a script's own code may want other batches than these
        return False
    return made[0] != made[1]


def _shapes(batch: Any) -> Iterator[tuple[int, ...]]:
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        if isinstance(batch, torch.Tensor):
            yield tuple(batch.shape)
        return
    for each in batch:
        yield from _shapes(each)


def is_stream(dataset: Any) -> bool:
    """Whether samples come in an order of their own."""
    return isinstance(dataset, torch.utils.data.IterableDataset)
