"""xFormers: its attention chooses a kernel as with a CUDA build, among those that PyTorch and flash-attn bring.

xFormers selects its kernels by `torch.version.cuda`, and a CPU build has none; its own compiled library
does not load there either, which it takes as an answer.
Source: xformers/ops/fmha/dispatch.py, `_dispatch_fw_priority_list`, `_dispatch_bw`; xformers/ops/fmha/flash.py,
`_TRY_PT_FLASH_ATTN`; xformers/ops/fmha/common.py, `not_supported_reasons` (0.0.30 to 0.0.35).

A module of its own: patches of one library.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_CUDA = "12.8"
"""Any version: xFormers compares it with nothing, it checks whether there is one."""


def patches(context: PatchContext) -> list[Patch]:
    """What two modules take for `torch`, and whether PyTorch brings FlashAttention."""
    return [
        Patch(
            target="torch.backends.cuda:is_flash_attention_available", phase=Phase.LIBRARIES,
            replacement=lambda: True, reason="A CPU build has none; a simulated GPU does.",
            source="torch/backends/cuda/__init__.py, `is_flash_attention_available`",
        ),
        Patch(
            target="xformers.ops.fmha.dispatch:torch", phase=Phase.LIBRARIES, replacement=_CudaBuild("torch"),
            reason="It chooses among kernels for CUDA if `torch.version.cuda` is set.",
            source="xformers/ops/fmha/dispatch.py, `_dispatch_fw_priority_list`",
        ),
        Patch(
            target="xformers.ops.fmha.common:_built_with_cuda", phase=Phase.LIBRARIES, replacement=True,
            reason="It says whether the compiled library was loaded, which a CPU build of torch refuses.",
            source="xformers/ops/fmha/common.py, `AttentionOpBase.not_supported_reasons`",
        ),
        *(
            Patch(
                target=f"xformers.ops.fmha.cutlass:{name}.SUPPORTED_ATTN_BIAS_TYPES", phase=Phase.LIBRARIES, wraps=True,
                replacement=lambda present: (*present, FakeTensor),
                reason="A mask is compared by its exact class.", source="xformers/ops/fmha/cutlass.py",
            )
            for name in ("FwOp", "BwOp")
        ),
    ]  # fmt: skip


class _CudaBuild(types.ModuleType):
    """PyTorch with a version of CUDA."""

    version = types.SimpleNamespace(cuda=_CUDA, hip=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
