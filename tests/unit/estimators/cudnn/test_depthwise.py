"""Workspaces of weight gradients of depthwise convolutions, against answers of cuDNN 9.20 on a null A100."""

from __future__ import annotations

import pytest

from cotenant.core.trace import LibraryCall
from cotenant.estimators.cudnn.workspaces import ConvRule

A100 = ConvRule(capability=(8, 0), sm_count=108)


def wgrad(images, channels, side, *, kernel=7, stride=1, multiple=1, **changes):
    outputs, out = channels * multiple, (side - 1) // stride + 1
    params = {
        "x": (images, channels, side, side),
        "w": (outputs, 1, kernel, kernel),
        "y": (images, outputs, out, out),
        "stride": (stride, stride),
        "padding": (kernel // 2, kernel // 2),
        "dilation": (1, 1),
        "groups": channels,
        "dtype": "float32",
        "channels_last": True,
        "transposed": False,
        "enabled": True,
        "allow_tf32": True,
        **changes,
    }
    return LibraryCall(kind="conv_wgrad", thread="autograd", params=params)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        pytest.param(wgrad(32, 192, 80), 1_258_893_328, id="one part: many pixels"),
        pytest.param(wgrad(8, 512, 28), 104_366_096, id="one part: few images"),
        pytest.param(wgrad(32, 768, 20), 394_079_983, id="33 parts"),
        pytest.param(wgrad(32, 1536, 10), 239_211_439, id="17 parts"),
        pytest.param(wgrad(64, 320, 56, kernel=9), 2_056_867_856, id="a larger kernel"),
        pytest.param(wgrad(128, 96, 24, stride=2), 151_496_311, id="a stride"),
        pytest.param(wgrad(16, 768, 10), 0, id="few pixels"),
        pytest.param(wgrad(32, 512, 20, stride=2), 0, id="few pixels with a stride"),
        pytest.param(wgrad(128, 16, 112), 0, id="few channels"),
    ],
)
def test_operands_and_weights_are_padded_to_vectors(call, answer):
    assert A100(call) == pytest.approx(answer, rel=1e-3)


def test_two_results_of_a_group_share_a_vector():
    """The answer has one part, the rule 33: 4 % more."""
    assert A100(wgrad(32, 96, 64, stride=2, multiple=2)) == pytest.approx(251_959_312, rel=0.05)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(wgrad(32, 192, 80, channels_last=False), id="PyTorch's own kernel"),
        pytest.param(wgrad(32, 192, 80, kernel=5), id="a small kernel"),
        pytest.param(wgrad(32, 192, 80, allow_tf32=False), id="no tensor cores"),
    ],
)
def test_other_gradients_are_not_padded(call):
    assert A100(call) == 0


def test_only_8_0_has_the_kernel():
    assert ConvRule(capability=(9, 0), sm_count=132)(wgrad(32, 192, 80)) == 0


def test_the_rule_comes_before_trees():
    """A leaf is a number of copies without padding: 0.42 of the answer's 1.26 GB."""
    rule = ConvRule(capability=(8, 0), sm_count=108, version=92000, other_sizes=True)
    assert rule(wgrad(32, 192, 80)) == A100(wgrad(32, 192, 80))
    assert rule.guesses(wgrad(32, 192, 80))
