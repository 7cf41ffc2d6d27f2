"""Batches whose size a collate function draws, as detectors do that train on images of several sizes.

Its samples are collated again where it drew random numbers, and where the sizes differ, the largest batch of some is
taken after the first. Not seen: random numbers of a generator of the script's own.

A module of its own: it is about chance, and the loader's iterator about the order of batches.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from cotenant.tracing.data.loaders.sample_lengths import shapes

_DRAWS, _BATCHES = 7, 33  # until a size differs, and in all


def batches_of(
    collate: Callable[[list[Any]], Any], samples: Callable[[], list[Any]], warn: Callable[[str], None]
) -> Sequence[Any]:
    """The first batch, and the largest of some where sizes are drawn. `samples`: makes them anew."""
    before = _random_state()
    first = collate(samples())
    state = _random_state()
    if state == before:
        return [first]
    sizes, largest, draws = [_elements(first)], first, 1
    while len(sizes) < _BATCHES and (draws < _DRAWS or len(set(sizes)) > 1):
        made = collate(samples())
        if _elements(made) > max(sizes):
            largest = made
        sizes.append(_elements(made))
        before, state = state, _random_state()
        draws += state != before  # some draw for every tenth batch only
    if len(set(sizes)) == 1:
        return [first]
    warn(f"the collate function draws the size of batches: after the first, the largest of {len(sizes)} is traced")
    return [first, largest]


def _elements(batch: Any) -> int:
    return sum(math.prod(shape) for shape in shapes(batch))


def _random_state() -> tuple[Any, ...]:
    """Of the generators of Python, PyTorch and, where a script has imported it, NumPy."""
    of_torch = bytes(torch.default_generator.get_state().tolist())
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return random.getstate(), of_torch
    _, keys, position, *_ = numpy_random.get_state()
    return random.getstate(), of_torch, keys.tobytes(), position
