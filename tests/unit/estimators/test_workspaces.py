"""What a convolution takes, by the rule read off cuDNN's heuristics."""

from __future__ import annotations

import pytest

from cotenant.core.trace import OpCall
from cotenant.estimators.workspaces import ConvRule, none

A100 = ConvRule(capability=(8, 0), sm_count=108)
H100 = ConvRule(capability=(9, 0), sm_count=132)
T4 = ConvRule(capability=(7, 5), sm_count=40)

X, W, Y = 2 * 256 * 64, 512 * 256 * 9, 2 * 512 * 64  # elements


def conv(kind="conv_forward", **changes):
    params = {
        "x": (2, 256, 8, 8),
        "w": (512, 256, 3, 3),
        "y": (2, 512, 8, 8),
        "stride": (1, 1),
        "padding": (9, 9),  # which no table knows: the rule must answer
        "dilation": (1, 1),
        "groups": 1,
        "dtype": "float32",
        "channels_last": False,
        "transposed": False,
        "enabled": True,
        "allow_tf32": True,
        **changes,
    }
    return OpCall(kind=kind, thread="main", params=params)


@pytest.mark.parametrize(
    ("rule", "call", "elements"),
    [
        pytest.param(A100, conv(), X + W, id="TF32 forward rounds its operands"),
        pytest.param(A100, conv("conv_dgrad"), X + W + Y, id="TF32 input gradient copies its result, too"),
        pytest.param(A100, conv("conv_dgrad", channels_last=True), W + Y, id="unless it lies as the kernel writes"),
        pytest.param(A100, conv("conv_wgrad"), X + Y + 2 * W, id="4 x 18 tiles on 108 SMs: 1.5 parts, rounded to 2"),
        pytest.param(H100, conv("conv_wgrad"), X + Y + 2 * W, id="72 tiles on 132 SMs: 2 parts"),
        pytest.param(H100, conv(), X + W + Y, id="Hopper copies the result as well"),
        pytest.param(H100, conv(channels_last=True), 0, id="Hopper takes channels-last as it is"),
        pytest.param(T4, conv(), 0, id="no TF32 before Ampere"),
        pytest.param(A100, conv(allow_tf32=False), 0, id="TF32 switched off"),
        pytest.param(A100, conv(groups=2), 0, id="grouped"),
        pytest.param(A100, conv(enabled=False), 0, id="cuDNN switched off"),
        pytest.param(A100, conv(dtype="float64"), 0, id="no tensor cores for double"),
        pytest.param(A100, conv(w=(512, 3, 3, 3)), 0, id="the first layer reads images itself"),
        pytest.param(A100, conv(w=(128, 256, 1, 1)), 0, id="narrow pointwise"),
        pytest.param(A100, conv(w=(132, 256, 1, 1)), X + 132 * 256, id="wide pointwise"),
        pytest.param(A100, conv(transposed=True), X + W + Y, id="a transposed forward is an input gradient"),
        pytest.param(A100, conv(x=(2, 253, 8, 8), w=(512, 253, 3, 3)), X + W, id="input channels are padded to four"),
        pytest.param(A100, conv(w=(509, 256, 3, 3), y=(2, 509, 8, 8)), X + W + Y, id="so is the result, then copied"),
    ],
)
def test_float32(rule, call, elements):
    assert rule(call) == 4 * elements


@pytest.mark.parametrize(
    ("rule", "call", "elements"),
    [
        pytest.param(A100, conv(), X + W + Y, id="all are copied"),
        pytest.param(T4, conv(), X + W + Y, id="on Turing, too"),
        pytest.param(A100, conv(channels_last=True), 0, id="nothing in channels-last"),
        pytest.param(A100, conv(x=(2, 249, 8, 8), w=(512, 249, 3, 3)), X + W + Y, id="channels are padded to eight"),
        pytest.param(A100, conv(w=(512, 256, 1, 1)), X + Y, id="a pointwise weight is the same in both layouts"),
        pytest.param(A100, conv(x=(2, 256, 1, 1), y=(2, 512, 1, 1)), W, id="so is an image of one pixel"),
    ],
)
def test_half_precision(rule, call, elements):
    call = OpCall(kind=call.kind, thread=call.thread, params={**call.params, "dtype": "bfloat16"})
    assert rule(call) == 2 * elements


def test_none_takes_nothing():
    assert none(conv()) == 0
