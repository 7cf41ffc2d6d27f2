"""Views that are written in place and used afterwards: their gradient is copied into a tensor of the base's size.

After the write, autograd makes a view's node anew: `AsStridedBackward`, which takes that tensor. Below a dispatch mode
it repeats the view's own operator instead, whose gradient is a view. A hook before that node takes the tensor in its
place. Written are, for one, results of `nn.InstanceNorm2d`, which are views, by activations in place.
Source: torch/csrc/autograd/variable.cpp, `VariableHooks::grad_fn`; VariableTypeUtils.h, `as_view`;
FunctionsManual.cpp, `as_strided_backward`.

A module of its own: the dispatch mode sees the writes, the observer of modules has the places for hooks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_Gradients = tuple[Any, ...]


class WrittenViews:
    """The views of one script that operators have written since their nodes were looked at."""

    def __init__(self) -> None:
        self._written: list[weakref.ref[FakeTensor]] = []

    def note(self, args: Any, out: Any) -> None:
        """An operator returns `out`, which it has written if it is the first of `args`."""
        if not args or out is not args[0] or not isinstance(out, FakeTensor):
            return
        if torch.is_grad_enabled() and out._is_view() and out.requires_grad:
            self._written.append(weakref.ref(out))

    def add_hooks(self) -> None:
        """Give the nodes of the views their hooks; call it outside of operators, where autograd works."""
        if not self._written:
            return
        written, self._written = self._written, []
        for tensor in {id(view): view for reference in written if (view := reference()) is not None}.values():
            base = tensor._base
            # The gradient of a piece, such as a slice, takes a tensor of the base's size in both cases.
            if base is None or base.dtype is not tensor.dtype or base.numel() != tensor.numel():
                continue
            with torch.enable_grad():
                node = tensor.grad_fn
            if node is not None and node.name() != "AsStridedBackward0":
                place = tensor.shape, tensor.stride(), tensor.storage_offset() - base.storage_offset()
                node.register_prehook(_copying(base.numel(), place))


def _copying(numel: int, place: Any) -> Callable[[_Gradients], _Gradients | None]:
    def copy(gradients: _Gradients) -> _Gradients | None:
        gradient = gradients[0]
        if len(gradients) != 1 or not isinstance(gradient, FakeTensor):
            return None
        return (gradient.new_empty(numel).as_strided(*place),)

    return copy
