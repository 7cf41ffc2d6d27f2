"""Attention and encoder layers in evaluation, which `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` compute in
one call: `_native_multi_head_attention` and `_transformer_encoder_layer_fwd`.

PyTorch's meta kernels know the shapes of the results and no temporary of the CUDA kernels, of which the projections are
the largest. Here the calls are the operators that those kernels call, in their order.
Source: aten/src/ATen/native/transformers/cuda/attention.cu, `native_multi_head_attention_cuda`, `masked_softmax`;
transformers/transformer.cpp, `transformer_encoder_layer_forward`. Not modeled: nested tensors, which arrive elsewhere.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from cotenant.tracing.operators import attention
from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_aten = torch.ops.aten
_FUSES_ANY_HEAD = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
"""By null GPUs of torch 2.13, whose fused kernels take heads of 12 values; the source of 2.8 wants multiples of 8."""


def patches(context: PatchContext) -> list[KernelPatch]:
    """Both operators as the calls that they consist of on a GPU."""
    attend = functools.partial(_attention, context.gpu.capability, context.options.cudnn_version)
    return [
        KernelPatch(
            target=f"aten::{name}", phase=Phase.OPERATORS, key="AutogradCUDA", kernel=kernel, divides=True,
            reason="The meta kernel makes the result alone, without the projections that the CUDA kernel holds.",
            source=source,
        )
        for name, kernel, source in (
            ("_native_multi_head_attention", attend, "ATen/native/transformers/cuda/attention.cu"),
            ("_transformer_encoder_layer_fwd", _encoder_layer, "ATen/native/transformers/transformer.cpp"),
        )
    ]  # fmt: skip


def _attention(
    capability: tuple[int, int],
    cudnn: int,
    query: Any,
    key: Any,
    value: Any,
    embed_dim: int,
    num_head: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    mask: Any = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[Any, Any]:
    """(result, weights or an empty tensor); Python calls it for queries that are the keys and the values only."""
    batch, length, _ = query.shape
    head = embed_dim // num_head
    is_usual = mask is None and not need_weights and (head % 8 == 0 or _FUSES_ANY_HEAD)
    if is_usual and _is_fused(query.view(batch, length, num_head, head).transpose(1, 2), capability, cudnn):
        heads = _aten.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
        q, k, v = (part.view(batch, -1, num_head, head).transpose(1, 2) for part in heads)
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
        out = out.transpose(1, 2).reshape(batch, -1, embed_dim)
        return _aten.linear(out, proj_weight, proj_bias), query.new_empty(0)
    projected = torch.matmul(query, qkv_weight.t())
    q_k_v = projected.new_empty(3, batch, num_head, length, head)  # with the bias, and the queries scaled
    del projected
    q, k, _ = (part.view(batch * num_head, length, head) for part in q_k_v)
    scores = torch.bmm(q, k.transpose(1, 2)).view(batch, num_head, length, length)
    if mask is not None:  # without one the softmax is in place
        scores = torch._masked_softmax(scores, mask if mask.dtype is torch.bool else mask.bool(), 3, mask_type)
    if not need_weights:
        scores = query.new_empty(0)
    # The result of attention takes the place of the queries.
    rows = q_k_v[0].permute(0, 2, 1, 3).contiguous().view(batch, length, embed_dim)
    out = _aten.linear(rows, proj_weight, proj_bias)
    del rows
    if need_weights and average_attn_weights:
        scores = scores.sum(1).div_(num_head)
    return out, scores


def _is_fused(x: Any, capability: tuple[int, int], cudnn: int) -> bool:
    """Whether a fused kernel takes `x`, (batch, heads, length, head size), as queries, keys and values."""
    return attention.choose(x, x, x, None, 0.0, False, False, capability=capability, cudnn=cudnn) != "math"


def _encoder_layer(
    src: Any,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Any,
    norm_bias_1: Any,
    norm_weight_2: Any,
    norm_bias_2: Any,
    ffn_weight_1: Any,
    ffn_bias_1: Any,
    ffn_weight_2: Any,
    ffn_bias_2: Any,
    mask: Any = None,
    mask_type: int | None = None,
) -> Any:
    """Attention and the two linear layers, with the results of each added in place."""

    def first(x: Any) -> Any:
        return torch.layer_norm(x, [embed_dim], norm_weight_1, norm_bias_1, eps)

    def second(x: Any) -> Any:
        return torch.layer_norm(x, [embed_dim], norm_weight_2, norm_bias_2, eps)

    x = first(src) if norm_first else src
    x, _ = _aten._native_multi_head_attention(
        x, x, x, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, False, True, mask_type
    )
    x.add_(src)
    x = x if norm_first else first(x)
    attended = x
    x = second(x) if norm_first else x
    rows = x.view(-1, embed_dim)
    hidden = _aten._addmm_activation(ffn_bias_1, rows, ffn_weight_1.t(), use_gelu=use_gelu)
    x = torch.addmm(ffn_bias_2, hidden, ffn_weight_2.t()).view(src.shape)
    del hidden, rows
    x.add_(attended)
    return x if norm_first else second(x)
