"""FlashAttention's compiled module, by what its functions allocate: flash-attn 2, and FlashAttention 3 from the hub.

flash-attn's Python code makes operators of its functions for `torch.compile`, whose fake kernels know the results and
not the scratch memory; here the functions themselves run.
Source: Dao-AILab/flash-attention 2.6 to 2.8, csrc/flash_attn/flash_api.cpp (`mha_fwd`, `mha_varlen_fwd`, `mha_bwd`,
`mha_varlen_bwd`, `mha_fwd_kvcache`), flash_attn/flash_attn_interface.py; hopper/flash_attn_interface.py,
`FlashAttnFunc`. Not modeled: splits of the keys of `varlen` functions, which only generation has.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

import torch

from cotenant.tracing.operators.registry import Args, Kwargs, OpContext, OperatorTable
from cotenant.tracing.patches.kernel_modules import Functions, provide
from cotenant.tracing.patches.registry import HookPatch, PatchContext, Phase

if TYPE_CHECKING:
    from cotenant.tracing.mode import TraceMode

operators = OperatorTable()

_TILE = 128
"""Rows that the kernels take at a time: lengths are rounded up to it."""


def patches(context: PatchContext) -> list[HookPatch]:
    """The module `flash_attn_2_cuda`."""
    functions: Functions = {
        "fwd": functools.partial(_forward, context.mode),
        "varlen_fwd": _varlen_forward,
        "bwd": _backward,
        "varlen_bwd": _varlen_backward,
        "fwd_kvcache": functools.partial(_forward_with_cache, context.mode),
    }
    return [
        HookPatch(
            target="flash_attn_2_cuda", phase=Phase.LIBRARIES,
            register=lambda: provide("flash_attn", {"flash_attn_2_cuda": functions}),
            reason="It is compiled for CUDA, and flash-attn imports it by name.",
            source="flash_attn/flash_attn_interface.py",
        )
    ]  # fmt: skip


@operators.shape_of("flash_attn::*", "xformers_flash::*")
def _by_the_function_for_cuda(ctx: OpContext, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """The Python function that `torch.library.custom_op` wraps, which calls the compiled module."""
    with ctx:
        return func._op_dk(torch._C.DispatchKey.CUDA, *args, **kwargs)


# -- flash-attn 2 ----------------------------------------------------------------------------------------------------


def _forward(mode: TraceMode, q: Any, k: Any, v: Any, out: Any, alibi: Any, dropout: float, *more: Any) -> Any:
    """Shapes: (batch, length, heads, width)."""
    unpadded, (q, k, v) = q.shape[-1], map(_padded, (q, k, v))
    batch, length, heads, width = q.shape
    result = _result(q, out)
    sums = q.new_empty((batch, heads, length), dtype=torch.float32)
    probabilities = _probabilities(q, batch, heads, length, k.shape[1], wanted=_last_bool(more))
    if not dropout:
        mode.record_call("flash_attention", q.device, query=(batch, heads, length, width), keys=int(k.shape[1]))
    return _forward_results((q, k, v), result, unpadded, sums, probabilities)


def _varlen_forward(q: Any, k: Any, v: Any, out: Any, offsets: Any, *more: Any) -> Any:
    """Shapes: (tokens, heads, width), of all sequences one after another."""
    unpadded, (q, k, v) = q.shape[-1], map(_padded, (q, k, v))
    tokens, heads, _ = q.shape
    max_queries, max_keys, *_ = (value for value in more if type(value) is int)
    result = _result(q, out)
    sums = q.new_empty((heads, tokens), dtype=torch.float32)
    batch = offsets.numel() - 1
    probabilities = _probabilities(q, batch, heads, max_queries, max_keys, wanted=_last_bool(more))
    return _forward_results((q, k, v), result, unpadded, sums, probabilities)


def _forward_with_cache(mode: TraceMode, q: Any, keys: Any, *args: Any) -> Any:
    """Generation: queries (batch, length, heads, width) and a cache, which new keys and values are written to."""
    batch, length, heads, width = q.shape
    out = torch.empty_like(_padded(q))
    sums = q.new_empty((batch, heads, length), dtype=torch.float32)
    mode.record_call("flash_attention", q.device, query=(batch, heads, length, width), keys=int(keys.shape[1]))
    return out[..., :width], sums


def _backward(grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dq: Any, dk: Any, dv: Any, *more: Any) -> Any:
    batch, length, heads, _ = q.shape
    return _gradients(
        grad, (q, k, v), (dq, dk, dv), deterministic=_last_bool(more), batch=batch,
        rows=(batch, heads, _rounded(length, _TILE)), accumulator=(batch, _rounded(length, _TILE), heads),
    )  # fmt: skip


def _varlen_backward(
    grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dq: Any, dk: Any, dv: Any, offsets: Any, *more: Any
) -> Any:
    tokens, heads, _ = q.shape
    batch = offsets.numel() - 1
    rows = tokens + _TILE * batch
    return _gradients(
        grad, (q, k, v), (dq, dk, dv), deterministic=_last_bool(more), batch=batch,
        rows=(heads, rows), accumulator=(rows, heads),
    )  # fmt: skip


def _gradients(
    grad: Any,
    inputs: tuple[Any, Any, Any],
    given: tuple[Any, Any, Any],
    *,
    deterministic: bool,
    batch: int,
    rows: tuple[int, ...],
    accumulator: tuple[int, ...],
) -> Any:
    """Gradients of `inputs`, in the tensors that are `given`, and sums in float32.

    `rows`: shape of the sums. `accumulator`: shape, without the width, in which the queries' gradient is added up.
    """
    grad = _padded(grad)
    dq, dk, dv = (torch.empty_like(of) if to is None else to for of, to in zip(inputs, given, strict=True))
    q, k, _ = inputs
    heads, width = q.shape[-2:]
    sums = q.new_empty(rows, dtype=torch.float32)
    if deterministic:  # one accumulator for each block that works at the same time
        blocks = -(-torch.cuda.get_device_properties(q.device).multi_processor_count // (batch * heads))
        accumulator = (blocks, *accumulator)
    # Referenced until the end: the kernels read it.
    _accumulated = q.new_empty((*accumulator, _rounded_width(width)), dtype=torch.float32)
    if k.shape[-2] != heads:  # grouped queries: each head's own gradients, added up over the group
        expanded = [k.new_empty((*k.shape[:-2], heads, width)) for _ in "kv"]
        for whole, part in zip(expanded, (dk, dv), strict=True):
            torch.sum(whole.view(*k.shape[:-1], heads // k.shape[-2], width), dim=-2, out=part)
    return dq, dk, dv, sums


def _result(q: Any, out: Any) -> Any:
    return torch.empty_like(q) if out is None else out


def _probabilities(q: Any, batch: int, heads: int, queries: int, keys: int, *, wanted: bool) -> Any:
    """Scores after the softmax, which a test requests."""
    return q.new_empty((batch, heads, _rounded(queries, _TILE), _rounded(keys, _TILE)) if wanted else (0,))


def _forward_results(operands: tuple[Any, Any, Any], out: Any, width: int, sums: Any, probabilities: Any) -> Any:
    """Before 2.7 the operands come back as well, since the compiled module pads them."""
    state = out.new_empty((2,), dtype=torch.int64)
    if _version() >= (2, 7):
        return out, sums, probabilities, state
    return out[..., :width], *operands, out, sums, probabilities, state


def _version() -> tuple[int, int]:
    """Of the imported flash-attn."""
    major, minor, *_ = str(getattr(sys.modules.get("flash_attn"), "__version__", "2.8")).split(".")
    return int(major), int(minor)


def _padded(tensor: Any) -> Any:
    """With a width that is a multiple of 8, as of `torch.nn.functional.pad`; from 2.7 on, Python code pads before."""
    missing = -tensor.shape[-1] % 8
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def _rounded_width(width: int) -> int:
    width = _rounded(width, 8)
    if _version() >= (2, 7):
        return _rounded(width, 32 if width <= 128 else 64)
    return _rounded(width, 32) if width <= 192 else 256


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _last_bool(values: tuple[Any, ...]) -> bool:
    """The last argument that is a bool: `return_softmax` or `deterministic`; later ones are a generator and counts."""
    return next((value for value in reversed(values) if isinstance(value, bool)), False)


# -- FlashAttention 3 ------------------------------------------------------------------------------------------------

# Operators, as FlashAttention 3's own are: `torch.compile` has them in its graphs.
_library = torch.library.Library("cotenant", "FRAGMENT")
_library.define("flash_attention_3(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor)")
_library.define(
    "flash_attention_3_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor sums) "
    "-> (Tensor, Tensor, Tensor)"
)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`flash_attn_func` of FlashAttention 3. Shapes: (batch, length, heads, width)."""
    out, _ = torch.ops.cotenant.flash_attention_3(q, k, v)
    return out


def varlen_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """`flash_attn_varlen_func` of FlashAttention 3. Shapes: (tokens, heads, width)."""
    out, _ = torch.ops.cotenant.flash_attention_3(q, k, v)
    return out


@torch.library.register_fake("cotenant::flash_attention_3", lib=_library)
def _forward_3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and a sum of exponentials in fp32 for each token and head."""
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=torch.float32)


@torch.library.register_fake("cotenant::flash_attention_3_backward", lib=_library)
def _backward_3(grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *more: torch.Tensor) -> Any:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


@operators.recorder_of("cotenant::flash_attention_3_backward")
def _scratch_3(ctx: OpContext, func: Any, args: Args, kwargs: Kwargs, out: Any) -> None:
    """Gradients of q are accumulated in fp32; two more sums have the shape of the forward pass's."""
    ctx.record(out)
    _, q, _, _, _, sums = args
    ctx.keep_until_done(ctx.scratch(4 * size, q.device) for size in (q.numel(), sums.numel(), sums.numel()))


def _save_3(ctx: Any, inputs: tuple[torch.Tensor, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[1])


def _gradients_3(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
    return torch.ops.cotenant.flash_attention_3_backward(grad, *ctx.saved_tensors)


torch.library.register_autograd("cotenant::flash_attention_3", _gradients_3, setup_context=_save_3, lib=_library)
