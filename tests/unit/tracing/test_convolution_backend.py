"""Which convolutions reach cuDNN; the cases were run on PyTorch 2.13's CUDA build."""

from __future__ import annotations

import pytest

from cotenant.tracing.convolution_backend import runs_on_cudnn


def depthwise(channels=64, kernel=3, **changes):
    return {
        "x": (32, channels, 56, 56),
        "w": (channels, 1, kernel, kernel),
        "stride": (1, 1),
        "dilation": (1, 1),
        "groups": channels,
        "dtype": "float32",
        "channels_last": False,
        **changes,
    }


@pytest.mark.parametrize(
    ("params", "capability", "expected"),
    [
        pytest.param(depthwise(), (8, 0), False, id="depthwise in float32: a kernel of PyTorch"),
        pytest.param(depthwise(dtype="bfloat16"), (8, 0), False, id="in bfloat16, too"),
        pytest.param(depthwise(channels_last=True), (8, 0), True, id="but not in channels-last"),
        pytest.param(depthwise(groups=1, w=(64, 64, 3, 3)), (8, 0), True, id="not grouped"),
        pytest.param(depthwise(groups=32, w=(64, 2, 3, 3)), (8, 0), True, id="two channels in a group"),
        pytest.param(depthwise(groups=64, w=(96, 1, 3, 3)), (8, 0), True, id="outputs are no multiple of the groups"),
        pytest.param(depthwise(transposed=True), (8, 0), True, id="transposed"),
        pytest.param(depthwise(groups=1, dtype="bfloat16"), (7, 5), False, id="no bfloat16 below 8.0"),
        pytest.param(depthwise(enabled=False, groups=1), (8, 0), False, id="switched off"),
        pytest.param(depthwise(dtype="float16"), (8, 0), True, id="float16, stride 1"),
        pytest.param(depthwise(dtype="float16", kernel=7), (8, 0), False, id="float16, a kernel of 7"),
        pytest.param(depthwise(dtype="float16", channels=16), (8, 0), False, id="float16, 16 channels"),
        pytest.param(depthwise(dtype="float16", stride=(2, 2)), (8, 0), False, id="float16, stride 2, 64 channels"),
        pytest.param(depthwise(256, dtype="float16", stride=(2, 2)), (8, 0), True, id="float16, stride 2, 256"),
        pytest.param(depthwise(dtype="float16", dilation=(2, 2)), (8, 0), False, id="float16, dilated"),
    ],
)
def test_cudnn_gets_what_pytorch_has_no_kernel_for(params, capability, expected):
    assert runs_on_cudnn(params, capability) is expected
