"""Compiled kernels of the StyleGAN family, retyped small: what they return is allocated, and nothing else."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import traced

TRAIN = """
import importlib
import torch
from torch.utils import cpp_extension
def kernels(file):
    return cpp_extension.load(name="plugin", sources=["kernel.cpp", file], extra_cuda_cflags=["--use_fast_math"])
weight = torch.nn.Parameter(torch.ones(4, 4, device="cuda"))
optimizer = torch.optim.SGD([weight], lr=0.1)
x = torch.ones(2, 4, 32, 32, device="cuda")
none = torch.empty([0])
f = torch.ones(4, 4, device="cuda")
def train():
    for _ in range(4):
        (weight * weight).sum().backward()
        optimizer.step()
"""
IMAGE, ROWS = (2, 4, 32, 32), "x.view(-1, 32, 32, 1), f"


@pytest.mark.parametrize(
    ("file", "call", "shape"),
    [
        pytest.param("bias_act.cu", "bias_act(x, none, none, none, none, 0, 1, 3, 0.2, 1, -1)", IMAGE, id="activation"),
        pytest.param("upfirdn2d.cu", "upfirdn2d(x, f, 2, 2, 1, 1, 2, 1, 2, 1, False, 4.0)", (2, 4, 64, 64), id="up"),
        pytest.param("upfirdn2d.cu", "upfirdn2d(x, f, 1, 1, 2, 2, 1, 1, 1, 1, False, 1.0)", (2, 4, 16, 16), id="down"),
        pytest.param("fused_bias_act_kernel.cu", "fused_bias_act(x, none, none, 3, 0, 0.2, 1)", IMAGE, id="fused"),
        pytest.param("upfirdn2d_kernel.cu", f"upfirdn2d({ROWS}, 2, 2, 1, 1, 2, 1, 2, 1)", (8, 64, 64, 1), id="rows"),
    ],
)
def test_what_a_known_kernel_returns(tmp_path, file, call, shape):
    source = f"""
    y = kernels("{file}").{call}
    assert y.shape == {shape} and y.is_cuda, y.shape
    assert importlib.import_module("plugin").__name__ == "plugin"
    """
    trace = traced(tmp_path, TRAIN + textwrap.dedent(source) + "\ntrain()\n")
    assert not trace.warnings


def test_a_fused_filter_writes_signs_in_two_bits(tmp_path):
    source = """
    up = torch.ones(12, device="cuda")
    act = kernels("filtered_lrelu_wr.cu")
    rest = (9, 9, 9, 9, 0, 0, 1.0, 0.2, 256.0, False)
    y, signs, code = act.filtered_lrelu(x, up, up, torch.zeros(4, device="cuda"), none, 2, 2, *rest, True)
    assert (code, tuple(y.shape)) == (0, (2, 4, 30, 30)), (code, y.shape)
    assert signs.dtype is torch.uint8 and tuple(signs.shape) == (2, 4, 70, 20), signs.shape
    assert act.filtered_lrelu(x, up, up, none, none, 2, 2, *rest, False)[1] is None
    assert act.filtered_lrelu(x, torch.ones(34, device="cuda"), up, none, none, 2, 2, *rest, True)[2] == -1
    assert act.filtered_lrelu(x, f, f, none, none, 2, 2, *rest, True)[2] == -1
    assert tuple(act.filtered_lrelu_act_(x, none, 0, 0, 1.0, 0.2, 256.0, True).shape) == (2, 4, 32, 8)
    """
    traced(tmp_path, TRAIN + textwrap.dedent(source) + "\ntrain()\n")


def test_the_layout_of_an_image_stays(tmp_path):
    source = """
    last = x.contiguous(memory_format=torch.channels_last)
    y = kernels("upfirdn2d.cu").upfirdn2d(last, f, 2, 2, 1, 1, 2, 1, 2, 1, False, 4.0)
    assert y.is_contiguous(memory_format=torch.channels_last)
    """
    traced(tmp_path, TRAIN + textwrap.dedent(source) + "\ntrain()\n")
