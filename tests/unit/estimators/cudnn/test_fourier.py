"""Weight gradients by Fourier transforms, beside what cuDNN 9.20 answers on a null RTX 3060."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.estimators.cudnn.workspaces import ConvRule
from traces import conv_call

AMPERE = ConvRule(capability=(8, 6), sm_count=28, version=92000, other_sizes=True)
SQUARE = (2, 128, 128, 128), 32
"""Shape of the input, and output channels."""


def gradient(x, out_channels, **changes):
    shapes = {"x": x, "w": (out_channels, x[1], 3, 3), "y": (x[0], out_channels, *x[2:])}
    return conv_call("conv_wgrad", **shapes, **changes)


@pytest.mark.parametrize(
    ("x", "out_channels", "answer"),
    [
        pytest.param(*SQUARE, 2_168_455_168, id="130 padded pixels in 256"),
        pytest.param((1, 128, 160, 160), 32, 2_167_537_664, id="one image"),
        pytest.param((3, 156, 99, 99), 43, 898_026_288, id="99 in 128"),
        pytest.param((16, 128, 40, 40), 32, 141_688_832, id="the most images"),
    ],
)
def test_a_transform_for_each_pair_of_channels_is_held(x, out_channels, answer):
    assert AMPERE(gradient(x, out_channels)) == pytest.approx(answer, rel=0.15)
    assert AMPERE.source_of(gradient(x, out_channels)) == "trees"
    assert AMPERE.guesses(gradient(x, out_channels))


@pytest.mark.parametrize(
    ("rule", "x", "out_channels", "changes"),
    [
        pytest.param(replace(AMPERE, capability=(8, 0)), *SQUARE, {}, id="another capability"),
        pytest.param(replace(AMPERE, version=91002), *SQUARE, {}, id="another cuDNN"),
        pytest.param(AMPERE, (1, 128, 128, 128), 32, {}, id="fewer pixels"),
        pytest.param(AMPERE, (2, 128, 160, 160), 32, {}, id="more pixels"),
        pytest.param(AMPERE, (2, 256, 128, 128), 32, {}, id="more input channels"),
        pytest.param(AMPERE, (2, 128, 128, 128), 16, {}, id="fewer output channels"),
        pytest.param(AMPERE, *SQUARE, {"dtype": "float16"}, id="half precision"),
        pytest.param(AMPERE, *SQUARE, {"channels_last": True}, id="the other layout"),
        pytest.param(AMPERE, *SQUARE, {"allow_tf32": False}, id="without tensor cores"),
        pytest.param(AMPERE, *SQUARE, {"dilation": (2, 2), "padding": (2, 2)}, id="dilated"),
    ],
)
def test_other_gradients_take_no_transforms(rule, x, out_channels, changes):
    call = gradient(x, out_channels, **changes)
    assert rule(call) < 1 << 28
