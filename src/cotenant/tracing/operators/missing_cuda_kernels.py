"""Kernels that a CPU build of PyTorch lacks, and without which CUDA tensors would take another path.

Some operators have a CUDA kernel and a decomposition. Where the kernel is not registered, autograd runs the
decomposition, which has other temporaries. So a kernel is registered that is never called.
Source: aten/src/ATen/native/native_functions.yaml, entries with both CUDA and CompositeImplicitAutograd.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_COMPOSITE_WITH_CUDA_KERNEL = (
    "silu_backward",
    "mish_backward",
    "_fused_rms_norm",
    "value_selecting_reduction_backward",
)
_libraries: list[Any] = []


def install() -> None:
    """Register the kernels that this build lacks."""
    library = torch.library.Library("aten", "IMPL")
    for name in _COMPOSITE_WITH_CUDA_KERNEL:
        full = f"aten::{name}"
        packet = getattr(torch.ops.aten, name, None)
        if packet is None or torch._C._dispatch_has_kernel_for_dispatch_key(full, "CUDA"):
            continue
        if name == "value_selecting_reduction_backward":
            continue  # the CUDA key holds the decomposition itself
        library.impl(name, _unreachable, "CUDA")
    _libraries.append(library)


def route_scalar_reads(mode: TorchDispatchMode) -> None:
    """Send scalar reads to `mode` that bypass dispatch modes, such as those of `torch.tensor([loss, 3])`.

    Source: torch/csrc/utils/tensor_new.cpp, `internal_new_from_data`, which excludes the Python dispatch keys.
    """
    read = torch.ops.aten._local_scalar_dense.default
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a CUDA build warns that its own kernel, which would read memory, is replaced
        library.impl("_local_scalar_dense", lambda tensor: mode.__torch_dispatch__(read, (), (tensor,)), "CUDA")
    _libraries.append(library)


def _unreachable(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a fake tensor reached a CUDA kernel")
