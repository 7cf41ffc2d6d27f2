"""What decides the events of a model's call: shapes and types of its inputs, numbers among them, and settings.

A module of its own: one rule, apart from `repeated_evaluation`, which records and replays the events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree

_MAX_INPUTS = 64
_PLAIN = (bool, int, float, str, torch.dtype, torch.device)
_WITH_PARTS = (FakeTensor, tuple)  # named tuples, too, of which `_pytree` has no list


def signature(module: torch.nn.Module, args: Any, kwargs: Any) -> object | None:
    """What inputs and settings are, without values of tensors; None where they are too many, or of other types."""
    leaves, structure = _pytree.tree_flatten((args, kwargs))
    if len(leaves) > _MAX_INPUTS or not any(isinstance(leaf, FakeTensor) for leaf in leaves):
        return None
    parts = list(_parts(leaves))
    if None in parts:
        return None
    dtype = next((parameter.dtype for parameter in module.parameters()), None)
    autocast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
    return (_hashable(structure), dtype, autocast, torch.is_inference_mode_enabled(), *parts)


def may_have_gpu_tensors(inputs: Iterable[Any]) -> bool:
    """Whether one of these is a fake tensor, or contains others; if not, there is no signature."""
    return any(isinstance(value, _WITH_PARTS) or type(value) in _pytree.SUPPORTED_NODES for value in inputs)


def _hashable(structure: Any) -> object:
    """A specification of `_pytree`: torch 2.4 holds its children in a list, which has no hash."""
    try:
        hash(structure)
    except TypeError:
        return repr(structure)
    return structure


def _parts(leaves: list[Any]) -> Iterator[object]:
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            yield (tuple(leaf.shape), leaf.stride(), leaf.dtype, leaf.device) if leaf.layout is torch.strided else None
        elif leaf is None or isinstance(leaf, _PLAIN):
            yield type(leaf), leaf
        else:
            yield None


def numbers_apart(key: object) -> tuple[object, tuple[object, ...]] | None:
    """A signature without the numbers among the inputs, such as the time of a sampler's step, and these numbers.

    None where there are none.
    """
    assert isinstance(key, tuple)
    is_number = [isinstance(part, tuple) and len(part) == 2 and part[0] in (int, float) for part in key]
    if not any(is_number):
        return None
    rest = tuple(part[0] if number else part for part, number in zip(key, is_number, strict=True))
    return rest, tuple(part[1] for part, number in zip(key, is_number, strict=True) if number)
