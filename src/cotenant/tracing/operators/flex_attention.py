"""`flex_attention` with the allocations of its compiled kernel: logsumexp and largest score per row, output, gradients.

Scripts compile it: uncompiled it materializes all scores, which are quadratic in the length. Block masks are ordinary
tensors, made as the script makes them.
Source: torch/nn/attention/flex_attention.py, torch/_inductor/kernel/flex (PyTorch 2.13). Not modeled: gradients of
tensors that a `score_mod` captures; the inputs of the first call, which Dynamo keeps, and the measurements of kernels.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_COMPILED_WARNING = "`flex_attention` is assumed to be compiled; without `torch.compile` it needs far more memory"


def patches(context: PatchContext) -> list[Patch]:
    """The function, once a script imports it."""
    return [
        Patch(
            target="torch.nn.attention.flex_attention:flex_attention", phase=Phase.OPERATORS,
            replacement=functools.partial(_patched, context.recorder), wraps=True,
            reason="Without its compiled kernel it holds all scores, which are quadratic in the length.",
            source="torch/nn/attention/flex_attention.py, `flex_attention`", missing="before 2.5",
        )
    ]  # fmt: skip


def _patched(recorder: Any, original: Any) -> Any:
    def flex_attention(
        query: Any, key: Any, value: Any, score_mod: Any = None, block_mask: Any = None, scale: Any = None,
        enable_gqa: bool = False, return_lse: bool = False, kernel_options: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        if not isinstance(query, FakeTensor):
            return original(
                query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, kernel_options, **more
            )
        recorder.warn(_COMPILED_WARNING)
        out, lse = _CompiledKernel.apply(query, key, value)
        requested = more.get("return_aux")
        if requested is not None:
            module = sys.modules["torch.nn.attention.flex_attention"]
            return out, module.AuxOutput(
                lse=lse if requested.lse else None, max_scores=torch.empty_like(lse) if requested.max_scores else None
            )
        return (out, lse) if return_lse else out

    return flex_attention


class _CompiledKernel(torch.autograd.Function):
    """Shapes: query (B, H, L, D), key and value (B, heads, S, D or V)."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        """(output in the layout of the query, logsumexp of each row)."""
        shape = (*query.shape[:-1], value.shape[-1])
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        has_largest = hasattr(sys.modules["torch.nn.attention.flex_attention"], "AuxOutput")
        largest = torch.empty_like(lse) if has_largest else None  # scores, which are returned to who wants them
        out = torch.empty_like(query) if shape == tuple(query.shape) else query.new_empty(shape)
        del largest
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> Any:
        """Gradients of query, key and value; the kernel allocates a sum per row."""
        query, key, value, _, lse = ctx.saved_tensors
        delta = torch.empty_like(lse)
        grads = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
        del delta
        return grads
