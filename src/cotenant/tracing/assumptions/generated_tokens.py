"""Tokens that a model generates: assumed to be ordinary ones, so that every text reaches its maximum length.

The scores from which a token is drawn are not computed. A choice among as many candidates as an embedding table has
rows is taken for the choice of a token: the value comes from the middle third of the vocabulary, where no special token
ends a text, and differs from position to position. What the script computes or decodes from it is then real: lengths,
masks, texts, and the rewards made of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.assumptions.known_values import GENERATED_TEXT, KnownValues
from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable

operators = OperatorTable()

_MIN_VOCABULARY = 48  # tokens: letters and punctuation, of the smallest character models
_CHOICES_ATTRIBUTE = "_cotenant_choices"


class GeneratedTokens:
    """The vocabulary sizes of a script's models, and tokens assumed so far.

    Attributes:
        warned: whether the user has been warned of the assumption.
    """

    def __init__(self) -> None:
        self._vocabularies: set[int] = set()
        self._made = 0
        self.warned = False

    def add_embedding(self, rows: int) -> None:
        """Note that an embedding table of so many rows is used."""
        if rows >= _MIN_VOCABULARY:
            self._vocabularies.add(rows)

    def is_vocabulary(self, choices: int) -> bool:
        """Whether a choice among so many candidates is the choice of a token."""
        return choices in self._vocabularies

    def assume_tokens(self, values: KnownValues, chosen: FakeTensor, choices: int) -> None:
        """Assume tokens for the values of `chosen`, drawn among `choices`, if that is the size of a vocabulary."""
        if not self.is_vocabulary(choices):
            return
        middle = choices // 3
        made = middle + (self._made + torch.arange(math.prod(chosen.shape))) % middle
        self._made += made.numel()
        values.assume(chosen, made.reshape(chosen.shape), GENERATED_TEXT)


@operators.assumption_for("aten::embedding")
def _embedding(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    ctx.generated_tokens.add_embedding(args[0].shape[0])


@operators.assumption_for("aten::multinomial")
def _multinomial(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Indices into the last dimension, of each row."""
    if args[0].dim():
        ctx.generated_tokens.assume_tokens(ctx.known_values, out, args[0].shape[-1])


@operators.assumption_for("aten::argmax", "aten::max.dim")
def _argmax(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Greedy decoding: the maximum over the last dimension, with one row for each text."""
    chosen = out[1] if isinstance(out, (list, tuple)) else out
    if _chooses_next_token(args[0], _dim(args, kwargs, 1)):
        ctx.generated_tokens.assume_tokens(ctx.known_values, chosen, args[0].shape[-1])


@operators.assumption_for("aten::topk", "aten::sort", "aten::sort.stable")
def _sort(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Top-k and top-p sampling: an element picked out of the indices that a sort returns is a token."""
    position = next(i for i, argument in enumerate(func._schema.arguments) if argument.name == "dim")
    if not _chooses_next_token(args[0], _dim(args, kwargs, position)):
        return
    choices = args[0].shape[-1]
    if ctx.generated_tokens.is_vocabulary(choices):
        setattr(out[1].untyped_storage(), _CHOICES_ATTRIBUTE, choices)


@operators.assumption_for("aten::gather", "aten::index.Tensor")
def _gather(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Picks elements out of sorted indices: see `_sort`."""
    source = args[0]
    choices = getattr(source.untyped_storage(), _CHOICES_ATTRIBUTE, 0) if _is_integer(source) else 0
    if choices:
        ctx.generated_tokens.assume_tokens(ctx.known_values, out, choices)


def _dim(args: Args, kwargs: Kwargs, position: int) -> int | None:
    """The `dim` of a call; the default is the last one, but all of them (None) for `argmax`."""
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
