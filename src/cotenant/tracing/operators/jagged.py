"""Nested tensors of the jagged layout: parts of fake tensors whose uneven length is a symbol, one for each offsets.

PyTorch gives fake offsets such a symbol for its compiler's sake, from an environment of shapes that a trace does not
have; and a copy from the CPU looks for it at the real offsets. Here both keep it where real tensors do. Their
attention asks the CUDA build what the GPU can do; the simulated one answers.
Source: torch/nested/_internal/nested_tensor.py, `get_tensor_symint`; ops.py, `to_copy_default`; sdpa.py,
`_select_sdp_backend`. Not modeled: cuDNN's attention, which comes after all others; nested tensors that are strided.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.libraries.after_import import when_imported
from cotenant.tracing.operators import attention


def install(capability: tuple[int, int]) -> None:
    """Replace how tensors remember their symbol, and answer for a GPU of this compute capability."""
    remembered = property(_symbol, _remember)
    torch.Tensor.nested_int_memo = remembered
    FakeTensor.nested_int_memo = remembered
    FakeTensor.get_nested_int = _symbol_or_new

    def answer(sdpa: Any) -> None:
        sdpa.can_use_flash_attention = _asked("flash", capability)
        sdpa.can_use_efficient_attention = _asked("efficient", capability)
        sdpa.can_use_cudnn_attention = lambda *_, **__: False

    when_imported("torch.nested._internal.sdpa", answer)


def _asked(kernel: str, capability: tuple[int, int]) -> Callable[..., bool]:
    def can_use(params: Any, debug: bool = False) -> bool:
        fits = attention.fitting(
            params.query, params.key, params.value, params.attn_mask, params.dropout, params.enable_gqa, capability
        )
        return fits[kernel]

    return can_use


def _nested() -> Any:
    """Torch's module, if it is loaded: nothing is jagged without it."""
    return sys.modules.get("torch.nested._internal.nested_tensor")


def _symbol(tensor: torch.Tensor) -> Any:
    nested = _nested()
    return None if nested is None else nested._tensor_symint_registry.get(tensor)


def _remember(tensor: torch.Tensor, symbol: Any) -> None:
    if symbol is not None:
        _nested()._tensor_symint_registry[tensor] = symbol


def _symbol_or_new(tensor: FakeTensor, *, coeff: Any = 1) -> Any:
    symbol = _symbol(tensor)
    if symbol is None:
        nested = _nested()
        symbol = torch.SymInt(nested.NestedIntNode(nested._tensor_id_counter, 1))
        nested._tensor_id_counter += 1
        _remember(tensor, symbol)
    return symbol if coeff == 1 else symbol * coeff
