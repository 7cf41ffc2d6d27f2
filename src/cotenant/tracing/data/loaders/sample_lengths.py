"""Samples of varying length: which of them batches are made of, and how their lengths are distributed.

The length of a sample is the size of its longest one-dimensional part: the tokens of a text, the frames of a sound, or
the words of a text that is tokenized in the collate function. Where it has parts of more dimensions, such as an image
or the features of a graph's nodes, their elements count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

MAX_INSPECTED = 256
"""Samples of a data set whose lengths are compared."""


def length_of(sample: Any, *, words: bool = True) -> int:
    """The length of a sample; 0 for one without a one-dimensional part. `words`: whether words of texts count."""
    return max(_lengths(sample, words=words), default=0)


def elements_of(sample: Any) -> int:
    """Elements of the parts of two dimensions or more; 0 for a sample without one."""
    if isinstance(sample, (Mapping, list, tuple)):
        return sum(map(elements_of, sample.values() if isinstance(sample, Mapping) else sample))
    if hasattr(sample, "to_dict") and not hasattr(sample, "shape"):  # a graph of PyG
        return elements_of(sample.to_dict())
    shape = getattr(sample, "shape", ()) or (getattr(sample, "size", ()) if hasattr(sample, "mode") else ())  # or PIL's
    return math.prod(shape) if isinstance(shape, tuple) and len(shape) > 1 else 0


def _lengths(sample: Any, *, words: bool = True) -> Iterator[int]:
    """The lengths of all parts of a sample."""
    if isinstance(sample, str):
        if words:
            yield len(sample.split())
    elif isinstance(sample, list) and not (sample and not isinstance(sample[0], (int, float))):
        yield len(sample)
    elif isinstance(sample, (Mapping, list, tuple)):
        for part in sample.values() if isinstance(sample, Mapping) else sample:
            yield from _lengths(part, words=words)
    else:
        shape: Sequence[int] = getattr(sample, "shape", None) or ()
        if len(shape) == 1:
            yield int(shape[0])


def _sort_key(sample: Any) -> tuple[int, int, int]:
    """Elements, length, and the sum over all parts: among sounds cut to one length, the longest text decides."""
    parts = list(_lengths(sample))
    return elements_of(sample), max(parts, default=0), sum(parts)


def evenly_spaced(count: int) -> list[int]:
    """Indices of at most `MAX_INSPECTED` samples, evenly spaced over a data set of `count`."""
    if count <= MAX_INSPECTED:
        return list(range(count))
    return [index * count // MAX_INSPECTED for index in range(MAX_INSPECTED)]


def at_quantiles(samples: Sequence[Any], shares: Sequence[float]) -> tuple[list[Any], str]:
    """The samples at these quantiles of length, and a sentence on the distribution."""
    ordered = sorted(samples, key=_sort_key)
    indices = [min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)) for share in shares]
    elements = [elements_of(sample) for sample in ordered]
    by_elements = elements[0] < elements[-1]
    sizes = elements if by_elements else [length_of(sample) for sample in ordered]
    median, p95 = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, len(sizes) * 95 // 100)]
    lengths = ", then ".join(str(sizes[index]) for index in indices)
    what = f"{lengths} elements" if by_elements else f"length {lengths}"
    summary = (
        f"batches are made of samples of {what}; of {len(sizes)} "
        f"samples inspected: shortest {sizes[0]}, median {median}, P95 {p95}, longest {sizes[-1]}"
    )
    return [ordered[index] for index in indices], summary


def lengths_vary(samples: Sequence[Any], collate: Callable[[list[Any]], Any]) -> bool:
    """Whether lengths differ. Other differences of parts count only where the shapes of batches differ.

    Many texts are padded to one length, images resized in the collate function, and many parts are never used.
    """
    if len({length_of(sample, words=False) for sample in samples}) > 1:
        return True
    ordered = sorted(samples, key=_sort_key)
    shortest, longest = ordered[0], ordered[-1]
    if _sort_key(shortest) == _sort_key(longest):
        return False
    try:
        found = [list(shapes(collate([sample] * len(samples)))) for sample in (shortest, longest)]
    except Exception:  # noqa: BLE001 - the script's collate function raises anything for batches it never gets
        # The result decides a warning only.
        return False
    return found[0] != found[1]


def shapes(batch: Any) -> Iterator[tuple[int, ...]]:
    """Of the tensors in a batch."""
    if isinstance(batch, Mapping):
        batch = batch.values()
    elif not isinstance(batch, (list, tuple)):
        if isinstance(batch, torch.Tensor):
            yield tuple(batch.shape)
        return
    for part in batch:
        yield from shapes(part)


def is_stream(dataset: Any) -> bool:
    """Whether a data set can only be iterated."""
    return isinstance(dataset, torch.utils.data.IterableDataset)
