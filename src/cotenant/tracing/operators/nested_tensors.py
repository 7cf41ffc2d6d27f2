"""Nested tensors of the jagged layout: their ragged length is a symbolic integer, one for each tensor of offsets.

For fake offsets PyTorch takes that symbol from the compiler's `ShapeEnv`, which a trace does not have, and a copy from
the CPU looks it up at the real offsets. Here both are registered where real tensors register theirs. The attention of
nested tensors selects its kernel by the simulated GPU, not by the CUDA build.
Source: torch/nested/_internal/nested_tensor.py, `get_tensor_symint`; ops.py, `to_copy_default`; sdpa.py,
`_select_sdp_backend`. Not modeled: cuDNN's attention, which has the lowest priority; strided nested tensors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.operators import attention
from cotenant.tracing.patches.import_hooks import when_imported


def install(capability: tuple[int, int]) -> None:
    """Replace where tensors find their symbol, and select attention kernels for this compute capability."""
    memo = property(_nested_int, _set_nested_int)
    torch.Tensor.nested_int_memo = memo
    FakeTensor.nested_int_memo = memo
    FakeTensor.get_nested_int = _get_or_make_nested_int

    def replace_selection(sdpa: Any) -> None:
        sdpa.can_use_flash_attention = _can_use("flash", capability)
        sdpa.can_use_efficient_attention = _can_use("efficient", capability)
        sdpa.can_use_cudnn_attention = lambda *_, **__: False

    when_imported("torch.nested._internal.sdpa", replace_selection)


def _can_use(kernel: str, capability: tuple[int, int]) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        fits = attention.usable_kernels(
            params.query, params.key, params.value, params.attn_mask, params.dropout, params.enable_gqa, capability
        )
        return fits[kernel]

    return can_use


def _nested_module() -> Any:
    """PyTorch's module, if it is imported: without it there are no jagged tensors."""
    return sys.modules.get("torch.nested._internal.nested_tensor")


def _nested_int(tensor: torch.Tensor) -> Any:
    nested = _nested_module()
    return None if nested is None else nested._tensor_symint_registry.get(tensor)


def _set_nested_int(tensor: torch.Tensor, symbol: Any) -> None:
    if symbol is not None:
        _nested_module()._tensor_symint_registry[tensor] = symbol


def _get_or_make_nested_int(tensor: FakeTensor, *, coeff: Any = 1) -> Any:
    symbol = _nested_int(tensor)
    if symbol is None:
        nested = _nested_module()
        symbol = torch.SymInt(nested.NestedIntNode(nested._tensor_id_counter, 1))
        nested._tensor_id_counter += 1
        _set_nested_int(tensor, symbol)
    return symbol if coeff == 1 else symbol * coeff
