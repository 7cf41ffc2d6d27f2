"""Buffers of CUDA kernels that depend on the compute capability, as PyTorch's CUDA build makes them on null GPUs."""

from __future__ import annotations

import pytest

from traced_calls import requests_of_calls

torch = pytest.importorskip("torch", reason="tracing needs torch")

SORTS = {
    "integers": ("i = torch.zeros(100_000, dtype=torch.long, device='cuda')", "i.sort()"),
    "numbers": ("x = torch.randn(100_000, device='cuda')", "x.sort()"),
    "different integers": ("", "torch.unique(i)"),
    "different numbers": ("", "torch.unique(x)"),
    "without emulation": ("", "torch.cuda.is_bf16_supported(including_emulation=False)"),
    "bfloat16": ("", "torch.cuda.is_bf16_supported()"),
    "bfloat16 again": ("", "torch.cuda.is_bf16_supported()"),
}


@pytest.mark.parametrize(
    ("capability", "integers", "numbers", "different_integers", "different_numbers", "bfloat16"),
    [
        ((7, 5), 1_653_759, 1_245_695, 853_759, 426_239, [2]),
        ((8, 6), 1_644_543, 1_242_623, 844_543, 422_143, []),
        ((9, 0), 1_639_423, 1_228_287, 835_327, 424_191, []),
    ],
)
def test_buffers_of_sorts_are_those_of_the_capability(
    tmp_path, capability, integers, numbers, different_integers, different_numbers, bfloat16
):
    """On null GPUs T4, RTX 3060 and H100; bfloat16 is tried once where it is emulated."""
    found = requests_of_calls(tmp_path, SORTS, capability)
    assert (found["integers"][-1], found["numbers"][-1]) == (integers, numbers)
    assert (found["different integers"][1], found["different numbers"][1]) == (different_integers, different_numbers)
    assert (found["bfloat16"], found["bfloat16 again"], found["without emulation"]) == (bfloat16, [], [])


CUDNN = {
    "forward": (
        "q, k, v = (made(2, 4, 256, 64, dtype=torch.bfloat16) for _ in range(3))",
        "F.scaled_dot_product_attention(q, k, v, is_causal=True)",
    ),
    "backward": (
        "y = F.scaled_dot_product_attention(q, k, v); g = torch.ones_like(y)", "torch.autograd.grad(y, (q, k, v), g)",
    ),
    "without gradients": ("q = q.detach()", "F.scaled_dot_product_attention(q, q, q)"),
    "longer keys": (
        ("q = made(2, 4, 256, 128, dtype=torch.bfloat16); k = made(2, 4, 512, 128, dtype=torch.bfloat16)\n"
         "y = F.scaled_dot_product_attention(q, k, k); g = torch.ones_like(y)"),
        "torch.autograd.grad(y, (q, k), g)",
    ),
    "grouped": (
        ("q = made(2, 8, 256, 64, dtype=torch.bfloat16); k, v = (made(2, 2, 256, 64, dtype=torch.bfloat16)\n"
         " for _ in range(2))\n"
         "y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True); g = torch.ones_like(y)"),
        "torch.autograd.grad(y, (q, k, v), g)",
    ),
}  # fmt: skip


def test_attention_of_cudnn_has_its_workspaces(tmp_path):
    """What a null H100 requested with cuDNN 9.20."""
    found = requests_of_calls(tmp_path, CUDNN, (9, 0))
    assert found["forward"] == [8, 8, 262_144, 8192, 256]
    assert found["backward"] == [262_144, 262_144, 262_144, 532_736]
    assert found["without gradients"] == [8, 8, 262_144, 256]
    assert found["longer keys"][:4] == [524_288, 1_048_576, 1_048_576, 1_057_024]
    assert found["grouped"] == [524_288, 131_072, 131_072, 2_113_792]
