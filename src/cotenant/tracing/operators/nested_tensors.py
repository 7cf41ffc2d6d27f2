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
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase, patch_attributes


def patches(context: PatchContext) -> list[Patch]:
    """How tensors remember the symbol of their uneven length, and which kernels their attention may take."""
    capability, memo = context.gpu.capability, property(_nested_int, _set_nested_int)
    fake = "torch._subclasses.fake_tensor:FakeTensor"
    reason = "PyTorch keeps the symbol of fake offsets in a shape environment, which a trace does not have."
    return [
        Patch(
            target="torch:Tensor.nested_int_memo", phase=Phase.OPERATORS, replacement=memo, create=True, reason=reason,
            source="torch/nested/_internal/nested_tensor.py, `get_tensor_symint`", missing="every version: a new name",
        ),
        Patch(
            target=f"{fake}.nested_int_memo", phase=Phase.OPERATORS, replacement=memo, create=True, reason=reason,
            source="torch/_subclasses/fake_tensor.py, `FakeTensor`", missing="before 2.5",
        ),
        Patch(
            target=f"{fake}.get_nested_int", phase=Phase.OPERATORS, replacement=_get_or_make_nested_int, create=True,
            reason=reason, source="torch/_subclasses/fake_tensor.py, `FakeTensor.get_nested_int`", missing="before 2.5",
        ),
        *patch_attributes(
            "torch.nested._internal.sdpa",
            {
                "can_use_flash_attention": _can_use("flash", capability),
                "can_use_efficient_attention": _can_use("efficient", capability),
                "can_use_cudnn_attention": lambda *_, **__: False,
            },
            phase=Phase.OPERATORS, reason="The kernels that they ask about are of the real GPU.",
            source="torch/nested/_internal/sdpa.py, `_select_sdp_backend`", create=True,
            missing="before 2.5: `can_use_cudnn_attention`",
        ),
    ]  # fmt: skip


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
