"""How `mode` answers an operator. A module of its own: a plan depends on the operator and the registry alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from cotenant.tracing.assumptions import chosen_elements
from cotenant.tracing.operators import fast_paths, same_device
from cotenant.tracing.operators.registry import Assumption, CallRecorder, OperatorTable, ShapeFunction

_COMPOSITE_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_COMPOSITE_KEYS = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)


class DispatchPlan(NamedTuple):
    """How one operator is answered.

    Attributes:
        is_composite: it calls other operators, and `torch.inference_mode` leaves the division to the mode.
        decomposed_by: the dispatch key of the implementation to run in its place, whose operators come to the mode.
        shape: its shape function.
        sparse_shape: the same, for calls with a sparse argument.
        is_factory: it makes a tensor without tensor arguments.
        assumptions: what is assumed about the values of its result.
        recorder: records the result and the library call; None: the result alone.
        check_devices: raises where PyTorch's CUDA build does for tensors of several devices; None: nowhere.
        chooses: it may change how many elements are not zero, for `chosen_elements`.
    """

    is_composite: bool
    decomposed_by: Any
    shape: ShapeFunction | None
    sparse_shape: ShapeFunction | None
    is_factory: bool
    assumptions: tuple[Assumption, ...]
    recorder: CallRecorder | None
    check_devices: same_device.DeviceCheck | None
    chooses: bool


@functools.cache
def decomposition_of(func: OpOverload) -> Callable[..., Any]:
    """What divides a composite operator, as on a GPU: its C++ implementation.

    `OpOverload.decompose` prefers PyTorch's functions in Python, which are meant for its compiler: that of `dropout`
    copies a tensor of which nothing is dropped. Source: torch/_ops.py, and torch/_decomp/decompositions.py, `dropout`.
    """
    return functools.partial(func._op_dk, _COMPOSITE_IMPLICIT)


def plan_of(func: OpOverload, operators: OperatorTable, *, replaced: bool) -> DispatchPlan:
    """The plan of an operator, of which a patch has an implementation if `replaced`; look it up once and keep it."""
    name = func.name()
    is_registered = name in operators.shapes or name in operators.assumptions
    has_parts = torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    decomposed_by = None
    if name in operators.decomposed:
        kernels = (key for key in _COMPOSITE_KEYS if torch._C._dispatch_has_kernel_for_dispatch_key(name, key.name))
        decomposed_by = next(kernels, None)
    return DispatchPlan(
        is_composite=(has_parts or replaced) and not is_registered,
        decomposed_by=decomposed_by,
        shape=operators.shape(func),
        sparse_shape=operators.sparse_shapes.get(name),
        is_factory=func._opname in fast_paths.FACTORIES and func.namespace == "aten",
        assumptions=operators.assumptions.get(name, ()),
        recorder=operators.recorders.get(name),
        check_devices=same_device.check_for(func),
        chooses=func._opname in chosen_elements.OPERATORS or chosen_elements.is_written(func),
    )
