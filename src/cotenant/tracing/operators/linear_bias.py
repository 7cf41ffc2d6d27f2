"""`linear` of a non-contiguous input: CUDA adds the bias to the product in place.

PyTorch adds it out of place where a tensor is a subclass, as fake tensors are, and the trace would hold the product
twice. Source: ATen/native/Linear.cpp, `linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_linear = torch.ops.aten.linear.default
_COMPOSITE_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd


def patches(context: PatchContext) -> list[KernelPatch]:
    """`linear`, divided as on a GPU."""

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's own name
        if not isinstance(bias, FakeTensor) or input.dim() == 2 or input.is_contiguous():
            return _linear._op_dk(
                _COMPOSITE_IMPLICIT, input, weight, bias
            )  # `decompose` would find this function first
        return torch.matmul(input, weight.t()).add_(bias)

    return [
        KernelPatch(
            target="aten::linear", phase=Phase.OPERATORS, key="AutogradCUDA", kernel=linear, divides=True,
            reason="For a tensor subclass PyTorch adds the bias out of place, which takes a second product.",
            source="aten/src/ATen/native/Linear.cpp, `linear`",
        )
    ]  # fmt: skip
