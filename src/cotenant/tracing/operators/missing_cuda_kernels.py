"""Kernels that a CPU build of PyTorch lacks, and without which CUDA tensors would take another path.

Some operators have a CUDA kernel and a decomposition. Where the kernel is not registered, autograd runs the
decomposition, which has other temporaries. So a kernel is registered that is never called.
Source: aten/src/ATen/native/native_functions.yaml, entries with both CUDA and CompositeImplicitAutograd.
"""

from __future__ import annotations

from typing import Any

import torch

from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_COMPOSITE_WITH_CUDA_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")
"""Not `value_selecting_reduction_backward`: its CUDA entry is the decomposition itself."""


def patches(context: PatchContext) -> list[KernelPatch]:
    """Kernels that are missing in this build, and reads of values while modes are off."""
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
    return [*missing, scalar_reads]


def _unreachable(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a fake tensor reached a CUDA kernel")
