"""`linear` of a non-contiguous input: CUDA adds the bias to the product in place.

PyTorch adds it out of place where a tensor is a subclass, as fake tensors are, and the trace would hold the product
twice. Source: ATen/native/Linear.cpp, `linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_linear = torch.ops.aten.linear.default
_COMPOSITE_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_libraries: list[Any] = []


def install() -> dict[Any, Any]:
    """Decompose `linear` as a GPU does; returns the implementation by operator."""

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's own name
        if not isinstance(bias, FakeTensor) or input.dim() == 2 or input.is_contiguous():
            return _linear._op_dk(
                _COMPOSITE_IMPLICIT, input, weight, bias
            )  # `decompose` would find this function first
        return torch.matmul(input, weight.t()).add_(bias)

    library: Any = torch.library.Library("aten", "IMPL")
    library.impl("linear", linear, "AutogradCUDA")
    _libraries.append(library)
    return {_linear: linear}
