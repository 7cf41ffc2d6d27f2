"""Samplers that draw more indices than a trace can: semi-supervised training draws those of all its steps at once.

`RandomSampler(replacement=True, num_samples=...)` draws 32 at a time by an operator, which a trace slows down; some
wrap it in `list`. Beyond a number that is large for a data set, indices are drawn once and repeat.

A module of its own: the rules of one sampler.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import torch

from cotenant.tracing.patches.registry import Patch, Phase

_LONG = 500_000
_DRAWN = 4096


def patches() -> list[Patch]:
    """How the sampler draws."""
    return [
        Patch(
            target="torch.utils.data:RandomSampler.__iter__", phase=Phase.DATA, wraps=True, replacement=_repeating,
            reason="Tens of millions of indices take minutes in a trace.",
            source="torch/utils/data/sampler.py, `RandomSampler.__iter__`",
        )
    ]  # fmt: skip


def _repeating(original: Any) -> Any:
    @functools.wraps(original)
    def draw(self: Any) -> Iterator[int]:
        if not self.replacement or self.num_samples < _LONG:
            return original(self)
        drawn = torch.randint(len(self.data_source), (_DRAWN,), device="cpu").tolist()
        return itertools.islice(itertools.cycle(drawn), self.num_samples)

    return draw
