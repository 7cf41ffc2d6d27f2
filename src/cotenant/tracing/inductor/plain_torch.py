"""PyTorch as Dynamo must see it: without the tracer's functions and hooks, which it would read into the graph."""

from __future__ import annotations

import contextlib
import importlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch

OWN_PACKAGE = __name__.partition(".")[0]
_ABSENT: Any = object()
_HOOKS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called")
_TARGETS = (
    "torch.nn:Module.__call__",
    "torch.nn:Module._apply",
    "torch.nn:RNNBase.flatten_parameters",
    "torch.nn.functional:one_hot",
    "torch._C._nn:one_hot",
    "torch.nn.attention.flex_attention:flex_attention",
    "torch:Tensor.as_subclass",
    "torch:Tensor._make_subclass",
    "torch:Tensor.isclose",
    "torch:Tensor.type",
    "torch:Tensor.data",
    "torch:isclose",
    "torch:tensor",
    "torch.autograd:backward",
    "torch.autograd:grad",
)
"""Targets of patches that compiled functions call."""

Attribute = tuple[Any, str, Any]
"""An object, the name of an attribute, and its value."""


def read_attributes() -> list[Attribute]:
    """The targets as they are now: before the patches are applied, PyTorch's own. `flex_attention` is from 2.5."""
    found = []
    for target in _TARGETS:
        module, _, path = target.partition(":")
        try:
            owner: Any = importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        *outer, name = path.split(".")
        for part in outer:
            owner = getattr(owner, part)
        found.append((owner, name, vars(owner).get(name, _ABSENT)))
    return found


def name_originals(originals: Sequence[Attribute]) -> None:
    """Has Dynamo read the originals where scripts that ran `from torch... import f` hold the tracer's functions."""
    for owner, name, original in originals:
        value = vars(owner).get(name, _ABSENT)
        if isinstance(value, types.FunctionType) and value is not original:
            value._torchdynamo_inline = original  # type: ignore[attr-defined]


@contextlib.contextmanager
def plain_torch(originals: Sequence[Attribute]) -> Iterator[None]:
    """Puts `originals` back and removes the tracer's hooks of modules, for a while."""
    patched = [(owner, name, vars(owner).get(name, _ABSENT)) for owner, name, _ in originals]
    registries = [vars(torch.nn.modules.module)[name] for name in _HOOKS]
    hooks = [dict(registry) for registry in registries]
    _set_all(originals)
    for registry in registries:
        for key in [key for key, hook in registry.items() if _is_own(hook)]:
            del registry[key]
    try:
        yield
    finally:
        _set_all(patched)
        for registry, contents in zip(registries, hooks, strict=True):
            registry.clear()
            registry.update(contents)


def _is_own(hook: Any) -> bool:
    # In `_global_forward_hooks_always_called` are truth values, by the same keys.
    return hook is True or (getattr(hook, "__module__", None) or "").startswith(OWN_PACKAGE)


def _set_all(attributes: Sequence[Attribute]) -> None:
    for owner, name, value in attributes:
        if vars(owner).get(name, _ABSENT) is value:
            continue
        if value is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, value)
