"""`flex_attention` as its compiled kernel allocates: the output, a number for each row, and gradients in backward.

Scripts compile it, since it has no kernel of its own otherwise; run as written it would hold all scores, which are
quadratic in the length. Masks of blocks are ordinary tensors and are made as the script makes them.
Source: torch/nn/attention/flex_attention.py, torch/_inductor/kernel/flex (PyTorch 2.13). Not modeled: gradients of
what a `score_mod` reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from cotenant.tracing.patches.import_hooks import when_imported

_COMPILED_WARNING = "`flex_attention` was taken for its compiled kernel; without `torch.compile` it needs far more"


def install(recorder: Any) -> None:
    """Replace the function once a script imports it."""
    when_imported("torch.nn.attention.flex_attention", lambda module: _patch(module, recorder))


def _patch(module: Any, recorder: Any) -> None:
    original = module.flex_attention

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
        wanted = more.get("return_aux")
        if wanted is not None:
            return out, module.AuxOutput(
                lse=lse if wanted.lse else None, max_scores=torch.empty_like(lse) if wanted.max_scores else None
            )
        return (out, lse) if return_lse else out

    module.flex_attention = flex_attention


class _CompiledKernel(torch.autograd.Function):
    """Shapes: query (B, H, L, D), key and value (B, heads, S, D or V)."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        """(output in the layout of the query, logarithm of the sum of each row)."""
        shape = (*query.shape[:-1], value.shape[-1])
        out = torch.empty_like(query) if shape == tuple(query.shape) else query.new_empty(shape)
        lse = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Any, grad_lse: Any) -> Any:
        """Gradients of query, key and value, beside a sum for each row."""
        query, key, value, _, lse = ctx.saved_tensors
        delta = torch.empty_like(lse)
        grads = tuple(torch.empty_like(each) for each in (query, key, value))
        del delta
        return grads
