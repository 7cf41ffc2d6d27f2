"""Kernels that a script brings along: Triton's, those of `torch.cuda._compile_kernel`, and those of the kernel hub.

A Triton kernel allocates nothing: it writes to tensors that Python made. FlashAttention from the hub is known by what
its Python interface saves and its kernels allocate. Any other kernel of the hub is named in an error.
Source: triton/runtime/jit.py, `JITFunction.run`; triton/runtime/autotuner.py; torch/cuda/__init__.py,
`_compile_kernel`; kernels/utils.py, `get_kernel`; Dao-AILab/flash-attention, hopper/flash_attn_interface.py,
`FlashAttnFunc`.
"""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from cotenant.tracing.assumptions.known_values import KnownValues
from cotenant.tracing.errors import Untraceable
from cotenant.tracing.patches.registry import Patch, PatchContext, Phase

_WARNING = "the script's own Triton kernels were not run: they allocate nothing, and what they compute is not known"
_ATTENTION = "flash"  # in the name of a repository of the kernel hub


def patches(context: PatchContext) -> list[Patch]:
    """Where kernels are launched, compiled and fetched."""
    common: dict[str, Any] = {"phase": Phase.LIBRARIES, "reason": "No kernel can run here."}
    launch = functools.partial(_launch_nothing, context.recorder, context.mode.known_values)
    return [
        *(
            Patch(
                target=f"triton.runtime.{target}.run", replacement=launch,
                source=f"triton/runtime/{target.partition(':')[0]}.py", **common,
            )
            for target in ("jit:JITFunction", "autotuner:Autotuner", "autotuner:Heuristics")
        ),
        Patch(
            target="torch.cuda:_compile_kernel", replacement=lambda *args, **kwargs: launch, missing="before 2.9",
            source="torch/cuda/__init__.py, `_compile_kernel`", **common,
        ),
        *(
            Patch(
                target=f"{module}:get_kernel", replacement=functools.partial(_named_kernel, context.recorder),
                source="kernels/utils.py, `get_kernel`", **common,
            )
            for module in ("kernels", "kernels.utils")
        ),
    ]  # fmt: skip


def _launch_nothing(recorder: Any, values: KnownValues, *args: Any, **kwargs: Any) -> None:
    recorder.warn(_WARNING)
    for value in (*args, *kwargs.values()):
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor):
                values.forget(tensor)  # the kernel may have written to it


def _named_kernel(recorder: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    if _ATTENTION not in name:
        raise Untraceable(
            f"the kernel `{name}` of the hub is compiled, and its memory is not known; estimate with "
            "`--backend null-gpu`, or let the script use PyTorch's own"
        )
    recorder.warn(f"the kernel `{name}` is traced as FlashAttention 3 by what that allocates")
    module = types.ModuleType(name)
    functions = {"flash_attn_func": _attention, "flash_attn_varlen_func": _varlen_attention}
    vars(module).update(functions)
    vars(module)["flash_attn_interface"] = types.SimpleNamespace(**functions)
    return module


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Shapes: (batch, length, heads, width)."""
    out, _ = _FlashAttention.apply(q, k, v)
    return out


def _varlen_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Shapes: (tokens, heads, width), of all sequences one after another."""
    out, _ = _FlashAttention.apply(q, k, v)
    return out


class _FlashAttention(torch.autograd.Function):
    """What its kernels allocate: the output, and a sum of exponentials in fp32 for each token and head."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = q.new_empty(*q.shape[:-1], v.shape[-1])
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, out, sums)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        q, k, v, _, sums = ctx.saved_tensors
        gradients = q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)
        # Gradients of q are accumulated in fp32; two more sums have the shape of the forward pass's.
        scratch = q.new_empty(q.shape, dtype=torch.float32), sums.new_empty(sums.shape), sums.new_empty(sums.shape)
        del scratch
        return gradients
