"""Reductions that a GPU splits over blocks are recorded with the parameters of their buffers."""

from __future__ import annotations

import pytest

from cotenant.core.units import MiB
from cotenant.estimators.replay_input import make_replay_input, software_stack
from cotenant.gpu_specs import gpu_spec
from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

HEAD = """
import torch
from torch import nn
one = torch.ones(1, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([one], lr=0.1)
def made(*shape, **kind):
    return torch.randn(*shape, device="cuda", **kind)
"""
STEP = "one.sum().backward()\noptimizer.step()\n"


def reductions(tmp_path, lines):
    """The parameters of each such call."""
    trace = traced(tmp_path, HEAD + lines + "\n" + STEP)
    return [op.params for op in trace.ops if op.kind == "reduction"]


def one_reduction(tmp_path, lines):
    (found,) = reductions(tmp_path, lines)
    shape, strides, dims = (tuple(found[name]) for name in ("shape", "strides", "dims"))
    return shape, strides, dims, found["offset"], found["item_bytes"], found["sum_bytes"]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("made(300, 8).sum(0)", ((300, 8), (8, 1), (0,), 0, 4, 4)),
        ("made(300, 8).sum(0, keepdim=True)", ((300, 8), (8, 1), (0,), 0, 4, 4)),
        ("made(8, 300).mean(dim=-1)", ((8, 300), (300, 1), (1,), 0, 4, 4)),
        ("made(20, 5, 20).sum((0, -1))", ((20, 5, 20), (100, 20, 1), (0, 2), 0, 4, 4)),
        ("made(30, 10).sum()", ((30, 10), (10, 1), (0, 1), 0, 4, 4)),
        ("made(8, 300).t().sum(0)", ((300, 8), (1, 300), (0,), 0, 4, 4)),
        ("made(301, 8)[1:, 1:].sum(0)", ((300, 7), (8, 1), (0,), 1, 4, 4)),
        ("made(300, 8, dtype=torch.bfloat16).sum(0)", ((300, 8), (8, 1), (0,), 0, 2, 4)),
        ("made(300, 8, dtype=torch.float16).sum(0, dtype=torch.float32)", ((300, 8), (8, 1), (0,), 0, 2, 4)),
        ("made(300, 8, dtype=torch.float64).prod(0)", ((300, 8), (8, 1), (0,), 0, 8, 8)),
        ("made(300, 8, dtype=torch.float16).amax(0)", ((300, 8), (8, 1), (0,), 0, 2, 2)),
        ("made(300, 8).max(0)", ((300, 8), (8, 1), (0,), 0, 4, 16)),
        ("made(300, 8).argmin(0)", ((300, 8), (8, 1), (0,), 0, 4, 16)),
        ("made(300, 8).var(0)", ((300, 8), (8, 1), (0,), 0, 4, 16)),
        ("torch.var_mean(made(300, 8, dtype=torch.float64), 0)", ((300, 8), (8, 1), (0,), 0, 8, 32)),
        ("torch.linalg.vector_norm(made(300, 8))", ((300, 8), (8, 1), (0, 1), 0, 4, 4)),
        ("torch.linalg.vector_norm(made(300, 8), dim=())", ((300, 8), (8, 1), (0, 1), 0, 4, 4)),
        ("made(300, 8, dtype=torch.complex64).norm(dim=0)", ((300, 8), (8, 1), (0,), 0, 8, 4)),
        ("made(300, 8).norm(dim=0)", ((300, 8), (8, 1), (0,), 0, 4, 4)),
    ],
)
def test_the_parameters_of_a_reduction_are_recorded(tmp_path, line, wanted):
    assert one_reduction(tmp_path, line) == wanted


@pytest.mark.parametrize(
    "line", ["made(255, 8).sum(0)", "made(300, 8).sum(1)", "made(0, 8).sum(0)", "made(300).cumsum(0)"]
)
def test_reductions_that_are_never_split_are_not_recorded(tmp_path, line):
    assert reductions(tmp_path, line) == []


@pytest.mark.parametrize(
    ("layer", "shape", "wanted"),
    [
        pytest.param("nn.Linear(16, 8)", "(5, 60, 16)", ((300, 8), (0,)), id="rows of a linear layer"),
        pytest.param("nn.Conv2d(3, 8, 1)", "(2, 3, 16, 16)", ((2, 8, 16, 16), (0, 2, 3)), id="pixels of a convolution"),
        pytest.param("nn.Linear(16, 8, bias=False)", "(300, 16)", None, id="no bias"),
    ],
)
def test_bias_gradients_are_recorded_as_sums(tmp_path, layer, shape, wanted):
    lines = f"layer = {layer}.cuda()\nx = made(*{shape})\ny = layer(x)\ny.backward(torch.ones_like(y))"
    found = [(tuple(reduction["shape"]), tuple(reduction["dims"])) for reduction in reductions(tmp_path, lines)]
    assert found == ([] if wanted is None else [wanted])


def test_inputs_of_another_dtype_are_converted_first(tmp_path):
    trace = traced(tmp_path, HEAD + "mask = made(300, 7) > 0\ncount = mask.sum(0)\n" + STEP)
    sizes = [event.bytes for event in trace.events if event.action == "alloc"]
    at = sizes.index(300 * 7 * 8)
    assert sizes[at - 1 : at + 1] == [7 * 8, 300 * 7 * 8]
    (call,) = (op.params for op in trace.ops if op.kind == "reduction")
    assert (call["item_bytes"], call["sum_bytes"]) == (8, 8)


def test_half_precision_is_not_converted_for_a_float32_result(tmp_path):
    lines = "x = made(300, 8, dtype=torch.float16)\ny = x.sum(0, dtype=torch.float32)\n"
    trace = traced(tmp_path, HEAD + lines + STEP)
    assert 300 * 8 * 4 not in [event.bytes for event in trace.events if event.action == "alloc"]


def test_the_buffer_is_allocated_while_the_bias_gets_its_gradient(tmp_path):
    lines = "layer = nn.Linear(512, 512).cuda()\ny = layer(made(64 * 512, 512))\ny.backward(torch.ones_like(y))"
    trace = traced(tmp_path, HEAD + lines + "\n" + STEP)
    big = {}
    for name in ("A100-40GB", "A10G-24GB"):
        gpu = gpu_spec(name)
        events = make_replay_input(trace, gpu, software_stack(trace.header)).events
        big[name] = [event for event in events if event.category == "workspace" and event.bytes > 40 * MiB]
    assert [(event.bytes, event.phase) for event in big["A100-40GB"]] == [(108 * MiB, "backward")]
    assert [(event.bytes, event.phase) for event in big["A10G-24GB"]] == [(60 * MiB, "backward")]


def test_a_result_that_an_operator_makes_room_for_is_counted(tmp_path):
    """`logsumexp` makes its result without elements, and its sum resizes it.

    Source: ATen/native/ReduceOps.cpp, `logsumexp_out_impl`.
    """
    trace = traced(tmp_path, HEAD + "found = torch.logsumexp(made(300, 7), 1)\n" + STEP)
    made = [event.storage_id for event in trace.events if event.action == "alloc" and event.bytes == 4 * 300]
    freed = {event.storage_id for event in trace.events if event.action == "free"}
    assert len([number for number in made if number not in freed]) == 1
