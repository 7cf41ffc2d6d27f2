"""Which kernel `scaled_dot_product_attention` selects on the simulated GPU, and how its operands are prepared.

PyTorch selects the kernel in the CUDA build, by the properties of the GPU. Here the same rules are applied to the
simulated GPU, and the selected kernel is called with operands prepared as PyTorch prepares them.
Source: aten/src/ATen/native/transformers/attention.cpp and .../cuda/sdp_utils.cpp, PyTorch 2.13. Not modeled:
a priority order set by the script.
"""

from __future__ import annotations

import math
import os
from typing import Any

import torch

from cotenant.tracing.operators.same_device import check_attention
from cotenant.tracing.patches.registry import KernelPatch, PatchContext, Phase

_aten = torch.ops.aten
_MASK_ALIGNMENT = 8


def patches(context: PatchContext) -> list[KernelPatch]:
    """The choice between attention kernels, for the GPU's compute capability and the cuDNN of the options."""
    capability, cudnn_version = context.gpu.capability, context.options.cudnn_version

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        check_attention(query, key, value)
        kernel = choose(
            query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, capability=capability, cudnn=cudnn_version
        )
        # attention.cpp, `_scaled_dot_product_attention_math`: the mask is added in place, except for subclasses of
        # tensors, which fake ones are.
        context.mode.adds_in_place = kernel == "math"
        try:
            return _run(kernel, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        finally:
            context.mode.adds_in_place = False

    return [
        KernelPatch(
            target="aten::scaled_dot_product_attention", phase=Phase.OPERATORS, key="AutogradCUDA", kernel=attention,
            divides=True,
            reason="A CPU build decomposes attention into products that hold all scores.",
            source="aten/src/ATen/native/transformers/attention.cpp, `scaled_dot_product_attention`",
        )
    ]  # fmt: skip


def choose(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
    *,
    capability: tuple[int, int],
    cudnn: int,
) -> str:
    """`cudnn`, `flash`, `efficient` or `math`. Queries are (batch, heads, length, head size)."""
    order = ["flash", "efficient"]
    # `check_prefer_cudnn_attention`: cuDNN comes first on Hopper and Blackwell, above 9.15.0, which computed lengths
    # that are not multiples of 128 wrong (pytorch issue 169849).
    prefers_cudnn = capability[0] in (9, 10) and cudnn > 91500
    prefers_cudnn = prefers_cudnn and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1"
    order.insert(0 if prefers_cudnn else len(order), "cudnn")
    fits = usable(query, key, value, mask, dropout_p, is_causal, enable_gqa, capability=capability, cudnn=cudnn)
    return next((kernel for kernel in order if fits[kernel]), "math")


def usable(
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    enable_gqa: bool,
    *,
    capability: tuple[int, int],
    cudnn: int,
) -> dict[str, bool]:
    """Whether each fused kernel takes the operands, by name."""
    if not _suit_fused_kernels(query, key, value, enable_gqa):
        return {"flash": False, "efficient": False, "cudnn": False}
    half = query.dtype in (torch.float16, torch.bfloat16)
    fits = usable_kernels(query, key, value, mask, dropout_p, enable_gqa, capability)
    # `check_flash_causal_non_square_seqlens` of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp: FlashAttention 2
    # aligns a causal mask to the lower right corner, PyTorch to the upper left; they agree where the lengths do.
    fits["flash"] = fits["flash"] and not (is_causal and query.shape[-2] != key.shape[-2])
    # `can_use_cudnn_attention`, `check_cudnn_tensor_shapes`, and `check_cudnn_dropout`: cuDNN draws dropout in steps of
    # 1/16. Not modeled: heads above 128, which newer cuDNN frontends take on Hopper and Blackwell.
    fits["cudnn"] = (
        torch._C._get_cudnn_sdp_enabled()
        and half
        and capability >= (8, 0)
        and cudnn >= 90000
        and max(query.shape[-1], value.shape[-1]) <= 128
        and query.shape[-1] % 8 == value.shape[-1] % 8 == 0
        and key.shape[-2] != 1
        and (dropout_p * 16).is_integer()
        and not (mask is not None and mask.requires_grad)
    )
    return fits


def _suit_fused_kernels(query: Any, key: Any, value: Any, enable_gqa: bool) -> bool:
    """Whether any fused kernel may take the operands, by their shapes and strides."""
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        return False
    if not (query.shape[0] == key.shape[0] == value.shape[0]):
        return False
    # `check_batch_size_and_num_heads_dense`: no fused kernel broadcasts heads, as multi-query attention has them.
    if not enable_gqa and not (query.shape[1] == key.shape[1] == value.shape[1]):
        return False
    # sdp_utils_cpp.h, `check_last_dim_stride_equals_1_dense` and `check_nonzero_sequence_lengths_dense`: no fused
    # kernel takes such operands, so all scores are materialized.
    if any(tensor.stride(-1) != 1 for tensor in (query, key, value)):
        return False
    return bool(query.shape[-2] and key.shape[-2])


def usable_kernels(
    query: Any, key: Any, value: Any, mask: Any, dropout_p: float, enable_gqa: bool, capability: tuple[int, int]
) -> dict[str, bool]:
    """Whether `flash` and `efficient` are usable, lengths aside."""
    half = query.dtype in (torch.float16, torch.bfloat16)
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    return {
        "flash": torch._C._get_flash_sdp_enabled()
        and half
        and mask is None
        and capability >= (8, 0)
        and query.shape[-1] == key.shape[-1] == value.shape[-1] <= 256
        and _flash_backward_fits(query.shape[-1], dropout_p, capability, training),
        "efficient": torch._C._get_mem_efficient_sdp_enabled()
        and _efficient_fits(query, key, value, mask, half, enable_gqa, capability),
    }


def _flash_backward_fits(head: int, dropout_p: float, capability: tuple[int, int], training: bool) -> bool:
    # `check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120`: the backward kernel of larger heads does
    # not fit into the 99 KiB of shared memory that a block gets on these GPUs.
    small_chip = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)
    if not (training and small_chip):
        return True
    return head <= 192 or (dropout_p == 0.0 and head > 224)


def _efficient_fits(
    query: Any, key: Any, value: Any, mask: Any, half: bool, enable_gqa: bool, capability: tuple[int, int]
) -> bool:
    if query.dtype not in (torch.float32, torch.float16, torch.bfloat16) or capability < (5, 0):
        return False
    # `can_use_mem_efficient_attention`, `less_than_sm80_mem_efficient_dtypes`.
    if query.dtype is torch.bfloat16 and capability < (8, 0):
        return False
    if enable_gqa and query.shape[1] != key.shape[1]:
        return False
    # `minimum_gemm_alignment`: tensor cores read 128 bits at once; from sm_80 on they serve float32, too.
    alignment = 4 if capability >= (8, 0) else 1
    if capability >= (8, 0) or (capability >= (7, 0) and half):
        alignment = max(alignment, 128 // (16 if half else 32))
    return not (query.shape[-1] != key.shape[-1] or query.shape[-1] % alignment or value.shape[-1] % alignment)


def _run(
    kernel: str,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Any:
    training = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
    # attention.cpp, `convert_boolean_attn_mask`: a copy of the mask in the dtype of the query, on every call.
    if mask is not None and mask.dtype is torch.bool:
        # `convert_boolean_attn_mask`: two scalars and the result.
        zero, infinite = (torch.full((), number, dtype=query.dtype, device=mask.device) for number in (0.0, -math.inf))
        mask = torch.where(mask, zero, infinite)
    if kernel == "flash":
        head = query.shape[-1]
        # attention.cpp, `pad_last_dim`: the flash kernel is compiled for heads that are multiples of 8.
        extra = -head % 8
        if extra:
            query, key, value = (torch.nn.functional.pad(tensor, (0, extra)) for tensor in (query, key, value))
        # The default scale is that of the head before it was padded.
        scale = scale if scale is not None else head**-0.5
        out = _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        return out[..., :head] if extra else out
    if kernel == "efficient":
        if mask is not None:
            mask = _aligned_mask(mask, query, key)
        return _aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, training, dropout_p, is_causal, scale=scale
        )[0]
    if kernel == "cudnn":
        return _aten._scaled_dot_product_cudnn_attention(
            query, key, value, mask, training, dropout_p, is_causal, False, scale=scale
        )[0]
    return _aten._scaled_dot_product_attention_math(
        query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _aligned_mask(mask: Any, query: Any, key: Any) -> Any:
    """The mask with four dimensions, and rows whose starts are multiples of 8 elements apart.

    Source: attention.cpp, `preprocess_mask`, `pad_bias`: a row of 8 elements' multiple grows by 8 all the same, if what
    is misaligned is another dimension.
    """
    length = key.shape[2]
    if mask.stride(-1) != 1 or any(stride % _MASK_ALIGNMENT for stride in mask.stride()[:-1]):
        padding = _MASK_ALIGNMENT - length % _MASK_ALIGNMENT
        mask = torch.nn.functional.pad(mask, (0, padding))[..., :length]
    return mask.expand((query.shape[0], query.shape[1], query.shape[2], length))
