"""Gradients that autograd writes into zeros in place, and only under a dispatch mode into a copy of them.

Every tensor counts as a subclass while a mode is active, which functional operators must serve. A call from autograd's
C++ on a gradient that it has just filled with zeros is answered with that gradient.
Source: torch/csrc/autograd/FunctionsManual.cpp and aten/src/ATen/native, `areAnyTensorSubclassLike` in
`gather_backward`, `index_select_backward_symint`, `value_selecting_reduction_backward_symint`, `cummaxmin_backward`,
`take_backward`, `index_backward`, and those below.

A module of its own: one rule of autograd, for operators of several modules.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.training.inplace_grad_accumulation import called_from_python

operators = OperatorTable()

_IN_PLACE = {
    "aten::index_fill.int_Tensor": ("Trace",),
    "aten::logical_and": ("Clamp", "Max", "Median", "Min", "Nanmedian"),
    "aten::logical_or": ("Clamp",),
    "aten::masked_fill.Scalar": ("Atan2",),
}
"""Operators that the gradients of these operators call in place on a result of their own."""
_OUT_OF_PLACE = ("IndexReduce", "ScatterReduce")
"""Operators whose gradient adds to what it needs again. Source: FunctionsManual.cpp, `scatter_reduce_backward`."""
_FRAMES_TO_MODE = 4
"""From the function that counts them to the dispatch mode: itself, a shape function, and two of the mode."""


def is_called_by_autograd(nested: int = 0) -> bool:
    """Whether a shape function answers autograd's C++ code; `nested`: functions between it and this call."""
    return not torch.is_grad_enabled() and not called_from_python(_FRAMES_TO_MODE + nested)


@operators.shape_of("aten::scatter_add", "aten::scatter.src", "aten::index_add", "aten::put")
def _written_gradient(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The zeros themselves."""
    if not isinstance(args[0], FakeTensor) or not is_called_by_autograd() or _differentiated() in _OUT_OF_PLACE:
        return NotImplemented
    return args[0]


@operators.shape_of(*_IN_PLACE)
def _written_temporary(ctx: OpContext, func: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The first operand.

    Source: torch/csrc/autograd/FunctionsManual.cpp, `atan2_backward`, `clamp_backward`, `clamp_backward_min_max`,
    `evenly_distribute_backward`, `trace_backward_symint`.
    """
    if not isinstance(args[0], FakeTensor) or not is_called_by_autograd():
        return NotImplemented
    return args[0] if _differentiated() in _IN_PLACE[func.name()] else NotImplemented


def _differentiated() -> str:
    """The operator whose gradient autograd computes now: `Clamp` in the node `ClampBackward1`; empty if none."""
    node = torch._C._current_autograd_node()
    return "" if node is None else node.name().partition("Backward")[0]
