"""Kernels that a CPU build of PyTorch lacks, and without which CUDA tensors would take another path.

Some operators have a CUDA kernel and a decomposition. Where the kernel is not registered, autograd runs the
decomposition, which has other temporaries. So a kernel is registered that is never called.
Source: aten/src/ATen/native/native_functions.yaml, entries with both CUDA and CompositeImplicitAutograd.

`linear` has one implementation for all devices, which takes another path for tensor subclasses, as fake tensors are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_COMPOSITE_WITH_CUDA_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Not `value_selecting_reduction_backward`: its CUDA entry is the decomposition itself."""
_linear = torch.ops.aten.linear.default
_COMPOSITE_IMPLICIT = torch._C.DispatchKey.CompositeImplicitAutograd


def patches(context: PatchContext) -> list[KernelPatch]:
    """Kernels that are missing in this build, reads of values while modes are off, and `linear`."""
    mode, read = context.mode, torch.ops.aten._local_scalar_dense.default
    missing = [
        KernelPatch(
            target=f"aten::{name}", phase=Phase.OPERATORS, key="CUDA", kernel=_unreachable,
            reason="Without a CUDA kernel autograd takes the decomposition, with other temporaries.",
            source="aten/src/ATen/native/native_functions.yaml",
        )
        for name in _COMPOSITE_WITH_CUDA_KERNEL
        if hasattr(torch.ops.aten, name) and not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "CUDA")
    ]  # fmt: skip
    scalar_reads = KernelPatch(
        target="aten::_local_scalar_dense", phase=Phase.OPERATORS, key="CUDA",
        kernel=lambda tensor: mode.__torch_dispatch__(read, (), (tensor,)),
        reason="`torch.tensor([loss, 3])` reads its elements while modes are off.",
        source="torch/csrc/utils/tensor_new.cpp, `internal_new_from_data`",
    )  # fmt: skip
    linear = KernelPatch(
        target="aten::linear", phase=Phase.OPERATORS, key="AutogradCUDA", kernel=_linear_in_place, divides=True,
        reason="For a tensor subclass PyTorch adds the bias out of place, which takes a second product.",
        source="aten/src/ATen/native/Linear.cpp, `linear`",
    )  # fmt: skip
    return [*missing, scalar_reads, linear]


def _linear_in_place(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002 - torch's own name
    """`linear`, with the bias of a non-contiguous input added to the product in place, as CUDA does."""
    # Linear.cpp adds the bias out of place where `isTensorSubclassLike(*bias)`, which is true of a fake tensor.
    # Contiguous inputs take the fused `addmm` before that test.
    if not isinstance(bias, FakeTensor) or input.dim() == 2 or input.is_contiguous():
        # Not by `decompose`, which would find this function first.
        return _linear._op_dk(_COMPOSITE_IMPLICIT, input, weight, bias)
    return torch.matmul(input, weight.t()).add_(bias)


def _unreachable(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a fake tensor reached a CUDA kernel")
