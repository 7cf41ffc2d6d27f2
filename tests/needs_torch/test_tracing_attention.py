"""Which attention kernel is selected on which GPU, by PyTorch 2.13 with cuDNN 9.19."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")
choose = pytest.importorskip("cotenant.tracing.operators.attention").choose


T4, A100, RTX4090, H100 = (7, 5), (8, 0), (8, 9), (9, 0)
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32


def chosen(
    gpu, dtype, *, head=64, mask=None, dropout=0.0, causal=False, heads=8, groups=8, length=16, keys=16, grad=True
):
    query = torch.empty(2, heads, length, head, dtype=dtype, requires_grad=grad)
    key = torch.empty(2, groups, keys, head, dtype=dtype, requires_grad=grad)
    value = torch.empty_like(key).requires_grad_(grad)
    return choose(query, key, value, mask, dropout, causal, groups != heads, capability=gpu, cudnn=91900)


@pytest.mark.parametrize(
    ("gpu", "dtype", "options", "kernel"),
    [
        pytest.param(A100, BRAIN, {}, "flash", id="A100, half"),
        pytest.param(A100, FULL, {}, "efficient", id="A100, fp32"),
        pytest.param(H100, BRAIN, {}, "cudnn", id="H100, half"),
        pytest.param(H100, FULL, {}, "efficient", id="H100, fp32"),
        pytest.param(T4, HALF, {}, "efficient", id="T4, fp16: no flash before Ampere"),
        pytest.param(T4, BRAIN, {}, "math", id="T4, bf16: nothing has it"),
        pytest.param(A100, BRAIN, {"mask": torch.zeros(16, 16)}, "efficient", id="flash takes no mask"),
        pytest.param(H100, BRAIN, {"mask": torch.zeros(16, 16)}, "cudnn", id="cuDNN takes one"),
        pytest.param(A100, BRAIN, {"mask": torch.zeros(16, 16, requires_grad=True)}, "efficient", id="a trained mask"),
        pytest.param(A100, BRAIN, {"dropout": 0.1}, "flash", id="dropout"),
        pytest.param(H100, BRAIN, {"dropout": 0.1}, "flash", id="cuDNN: dropout in sixteenths only"),
        pytest.param(H100, BRAIN, {"dropout": 0.125}, "cudnn", id="two sixteenths"),
        pytest.param(A100, BRAIN, {"groups": 2}, "flash", id="grouped queries"),
        pytest.param(A100, FULL, {"groups": 2}, "math", id="grouped queries in fp32"),
        pytest.param(A100, BRAIN, {"head": 256}, "flash", id="head 256"),
        pytest.param(A100, BRAIN, {"head": 264}, "efficient", id="head 264"),
        pytest.param(RTX4090, BRAIN, {"head": 256}, "flash", id="small chip: backward of head 256 without dropout"),
        pytest.param(RTX4090, BRAIN, {"head": 256, "dropout": 0.1}, "efficient", id="the same with dropout"),
        pytest.param(RTX4090, BRAIN, {"head": 200}, "efficient", id="small chip: backward of head 200"),
        pytest.param(RTX4090, BRAIN, {"head": 200, "grad": False}, "flash", id="the same without backward"),
        pytest.param(A100, FULL, {"head": 66}, "math", id="fp32 head not in steps of four"),
        pytest.param(A100, BRAIN, {"head": 66}, "flash", id="half head is padded for flash"),
        pytest.param(A100, BRAIN, {"causal": True, "keys": 32}, "efficient", id="causal, not square"),
        pytest.param(H100, BRAIN, {"length": 1, "keys": 1}, "flash", id="one key"),
        pytest.param(A100, BRAIN, {"length": 0}, "math", id="no query"),
        pytest.param(A100, torch.float64, {}, "math", id="fp64"),
    ],
)
def test_the_attention_kernel_depends_on_shapes_dtype_and_gpu(gpu, dtype, options, kernel):
    assert chosen(gpu, dtype, **options) == kernel


@pytest.mark.parametrize(
    ("allowed", "kernel"),
    [
        (["FLASH_ATTENTION"], "flash"),
        (["EFFICIENT_ATTENTION"], "efficient"),
        (["CUDNN_ATTENTION"], "cudnn"),
        (["MATH"], "math"),
        (["EFFICIENT_ATTENTION", "MATH"], "efficient"),
    ],
)
def test_disabled_kernels_are_not_selected(allowed, kernel):
    backends = [getattr(torch.nn.attention.SDPBackend, name) for name in allowed]
    with torch.nn.attention.sdpa_kernel(backends):
        assert chosen(H100, BRAIN) == kernel


@pytest.mark.parametrize(("heads", "keys", "values"), [(8, 1, 1), (8, 8, 1), (1, 8, 8)])
def test_heads_that_broadcast_use_the_math_kernel(heads, keys, values):
    query, key, value = (torch.empty(2, count, 16, 64, dtype=BRAIN) for count in (heads, keys, values))
    assert choose(query, key, value, None, 0.0, False, False, capability=A100, cudnn=91900) == "math"


def test_inputs_without_four_dimensions_use_the_math_kernel():
    three = torch.empty(2, 16, 64, dtype=BRAIN)
    assert choose(three, three, three, None, 0.0, False, False, capability=A100, cudnn=91900) == "math"


def test_flash_attention_is_preferred_to_cudnn_9_10():
    query = torch.empty(2, 8, 16, 64, dtype=BRAIN)
    assert choose(query, query, query, None, 0.0, False, False, capability=H100, cudnn=91000) == "flash"
