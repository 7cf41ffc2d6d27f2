"""Samples of varying length: which of them a batch is made of, and how they are spread.

The length of a sample is the size of its longest one-dimensional part: the tokens of a text, the frames of a sound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cotenant.core.errors import UsageError

LOOKED_AT = 256
_GROWING = (0.8, 0.9, 1.0)
"""Shares of the first batches and all later ones where lengths grow."""
_HINT = "write `longest`, `growing`, a percentile such as `p95`, or a file of lengths, e.g. `lengths.csv`"
_FORM = re.compile(r"longest|p(\d{1,2}(?:\.\d+)?)")


def shares_of(which: str) -> tuple[float, ...]:
    """Shares of the first batches, of which the last holds for all later ones: `longest` is 1, `p95` 0.95.

    `growing` begins with shorter ones: blocks of each batch are then too small for the next, and the allocator keeps
    them. Empty for the empty text: samples as they come.

    Raises:
        UsageError: it is none of these.
    """
    if not which:
        return ()
    if which == "growing":
        return _GROWING
    match = _FORM.fullmatch(which)
    if match is None:
        raise UsageError(f"`{which}` names no length", hint=_HINT)
    return (float(match.group(1)) / 100 if match.group(1) else 1.0,)


def length_of(sample: Any) -> int:
    """The length of a sample; 0 for one without a one-dimensional part."""
    if isinstance(sample, Mapping):
        return max((length_of(each) for each in sample.values()), default=0)
    if isinstance(sample, tuple) or (isinstance(sample, list) and sample and not isinstance(sample[0], (int, float))):
        return max((length_of(each) for each in sample), default=0)
    shape = getattr(sample, "shape", None)
    if isinstance(sample, list):
        return len(sample)
    return int(shape[0]) if shape is not None and len(shape) == 1 else 0


def spread_to_look_at(count: int) -> list[int]:
    """Indices of samples spread over a data set of `count`."""
    if count <= LOOKED_AT:
        return list(range(count))
    return [index * count // LOOKED_AT for index in range(LOOKED_AT)]


def chosen(samples: Sequence[Any], shares: Sequence[float]) -> tuple[list[Any], str]:
    """The samples at these shares of all when ordered by length, and a sentence on how they are spread."""
    ordered = sorted(samples, key=length_of)
    places = [min(len(ordered) - 1, max(0, -(-int(each * 1000) * len(ordered) // 1000) - 1)) for each in shares]
    sizes = [length_of(each) for each in ordered]
    middle, late = sizes[len(sizes) // 2], sizes[min(len(sizes) - 1, len(sizes) * 95 // 100)]
    lengths = ", then ".join(str(sizes[at]) for at in places)
    told = (
        f"batches are made of samples of length {lengths}; of {len(sizes)} samples looked at the shortest has "
        f"{sizes[0]}, half have up to {middle}, 95 % up to {late}, the longest has {sizes[-1]}"
    )
    return [ordered[at] for at in places], told


def varies(samples: Sequence[Any]) -> bool:
    """Whether lengths differ."""
    return len({length_of(each) for each in samples}) > 1


def is_stream(dataset: Any) -> bool:
    """Whether samples come in an order of their own."""
    return isinstance(dataset, torch.utils.data.IterableDataset)
