"""`linear` of an input that is not contiguous: CUDA adds the bias to the product, in place.

PyTorch adds it out of place where a tensor is of a subclass, which fake ones are: a second product would live beside
the first. Source: ATen/native/Linear.cpp, `linear`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_linear = torch.ops.aten.linear.default
_COMPOSITE_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd
_libraries: list[Any] = []


def install() -> dict[Any, Any]:
    """Divide `linear` as it is divided on a GPU; gives operator and answer."""

    def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's own name
        if not isinstance(bias, FakeTensor) or input.dim() == 2 or input.is_contiguous():
            return _linear._op_dk(_COMPOSITE_IMPLICIT, input, weight, bias)  # as `decompose`, which looks for it first
        return torch.matmul(input, weight.t()).add_(bias)

    library: Any = torch.library.Library("aten", "IMPL")
    library.impl("linear", linear, "AutogradCUDA")
    _libraries.append(library)
    return {_linear: linear}
