"""Tokens that a model generates: believed to be ordinary ones, so that every text has its largest length.

Nobody computes the scores that they are drawn from. A choice out of as many as a table of embeddings has rows is taken
to be of a token: one from the middle of the vocabulary, where none ends a text, and another for each place. What a
script computes or decodes of it is real then: lengths, masks and texts, of which rewards are made.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions import moe_routing
from cotenant.tracing.assumptions.known_values import GENERATED_TEXT
from cotenant.tracing.operators import dynamic_shapes, fast_paths

_MIN_VOCABULARY = 48  # tokens of a vocabulary: letters and signs
_CHOICES_ATTRIBUTE = "_cotenant_choices"
_aten = torch.ops.aten


class GeneratedTokens:
    """The vocabularies of a script's models, and how many tokens were made up."""

    def __init__(self) -> None:
        self._vocabularies: set[int] = set()
        self._made = 0
        self.warned = False

    def add_embedding(self, rows: int) -> None:
        """A table of so many rows was looked up."""
        if rows >= _MIN_VOCABULARY:
            self._vocabularies.add(rows)

    def is_vocabulary(self, choices: int) -> bool:
        """Whether a choice out of so many is of a token."""
        return choices in self._vocabularies

    def assume_tokens(self, mode: Any, chosen: FakeTensor, choices: int) -> None:
        """Believe `chosen`, drawn out of `choices`, to be tokens, if that is what it can be."""
        if not self.is_vocabulary(choices):
            return
        middle = choices // 3
        made = middle + (self._made + torch.arange(math.prod(chosen.shape))) % middle
        self._made += made.numel()
        mode.values.assume(chosen, made.reshape(chosen.shape), GENERATED_TEXT)


def _embedding(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    mode.tokens.add_embedding(args[0].shape[0])
    return fast_paths.SHAPE_FUNCTIONS[func](mode, func, args, kwargs)


def _multinomial(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`multinomial`: numbers of the last dimension, of each row."""
    out = mode.run_fake(func, args, kwargs, args[0].device)
    if args[0].dim():
        mode.tokens.assume_tokens(mode, out, args[0].shape[-1])
    return out


def _argmax(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`argmax` and `max` over the last dimension of one row for each text, as where the next token is chosen."""
    out = mode.run_fake(func, args, kwargs, args[0].device)
    chosen = out[1] if isinstance(out, (list, tuple)) else out
    if _chooses_next_token(args[0], _dim(args, kwargs, 1)):
        mode.tokens.assume_tokens(mode, chosen, args[0].shape[-1])
    return out


def _sort(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`sort` and `topk`: what is picked of the places that they give is a token."""
    out = NotImplemented
    if func in moe_routing.SHAPE_FUNCTIONS:
        out = moe_routing.SHAPE_FUNCTIONS[func](mode, func, args, kwargs)
    if out is NotImplemented:
        out = mode.run_fake(func, args, kwargs, args[0].device)
    position = next(i for i, each in enumerate(func._schema.arguments) if each.name == "dim")
    if _chooses_next_token(args[0], _dim(args, kwargs, position)) and mode.tokens.is_vocabulary(args[0].shape[-1]):
        setattr(out[1].untyped_storage(), _CHOICES_ATTRIBUTE, args[0].shape[-1])
    return out


def _gather(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`gather` and an index, of places in an order."""
    source, handler = args[0], dynamic_shapes.SHAPE_FUNCTIONS.get(func)
    out = handler(mode, func, args, kwargs) if handler is not None else NotImplemented
    choices = getattr(source.untyped_storage(), _CHOICES_ATTRIBUTE, 0) if _is_integer(source) else 0
    if choices:
        out = mode.run_fake(func, args, kwargs, source.device) if out is NotImplemented else out
        mode.tokens.assume_tokens(mode, out, choices)
    return out


def _dim(args: Any, kwargs: Any, position: int) -> int | None:
    """The dimension asked for; by default the last, but of `argmax` all."""
    given = args[position] if len(args) > position else kwargs.get("dim", None if position == 1 else -1)
    return int(given) if given is not None else None


def _chooses_next_token(scores: Any, dim: int | None) -> bool:
    if not isinstance(scores, FakeTensor) or not scores.dtype.is_floating_point or not scores.dim():
        return False
    if dim is None:
        return scores.shape[-1] == scores.numel()
    is_last = dim % scores.dim() == scores.dim() - 1
    return is_last and (scores.dim() < 3 or scores.shape[-2] == 1)


def _is_integer(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor) and tensor.dtype is torch.int64 and tensor.layout is torch.strided


SHAPE_FUNCTIONS: dict[Any, Any] = {
    _aten.embedding.default: _embedding,
    _aten.multinomial.default: _multinomial,
    _aten.argmax.default: _argmax,
    _aten.max.dim: _argmax,
    _aten.topk.default: _sort,
    _aten.sort.default: _sort,
    _aten.sort.stable: _sort,
    _aten.gather.default: _gather,
    _aten.index.Tensor: _gather,
}
