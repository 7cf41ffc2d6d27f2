"""The shipped table of cuDNN workspaces."""

from __future__ import annotations

import pytest

from cotenant.estimators.cudnn.table import CudnnTable, cudnn_of_torch, cudnn_table
from cotenant.estimators.cudnn.workspaces import ConvRule
from traces import conv_call

MiB = 2**20


def test_the_table_has_the_answers_of_cudnn():
    # Asked directly, cuDNN 9.10.2 said 411,188,000 bytes for an A100: the input and the weight.
    table = cudnn_table((8, 0), 91002)
    assert table is not None
    assert table(conv_call()) == pytest.approx(392.14 * MiB, rel=1e-3)
    assert table.version == 91002


def test_workspaces_scale_with_the_batch():
    table = cudnn_table((8, 0))
    assert table(conv_call(batch=40)) == pytest.approx(392.14 * 40 / 32 * MiB, rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"dtype": "bfloat16"}, id="another type"),
        pytest.param({"channels_last": True}, id="another layout"),
        pytest.param({"groups": 2, "w": (64, 32, 3, 3)}, id="groups outside the table"),
        pytest.param({"transposed": True}, id="transposed"),
        pytest.param({"padding": (7, 7)}, id="a geometry outside the table"),
        pytest.param({"x": (32, 64, 224), "w": (64, 64, 3), "y": (32, 64, 224)}, id="one dimension"),
    ],
)
def test_calls_that_are_not_in_the_table_give_none(changes):
    assert cudnn_table((8, 0))(conv_call(**changes)) is None


def test_no_table_for_other_capabilities():
    assert cudnn_table((6, 0)) is None


@pytest.mark.parametrize(
    ("cell", "batch", "elements"),
    [
        pytest.param("xy3", 8, 2 * 8 * 64 * 224 * 224 + 3 * 64 * 64 * 9, id="input, output and three weights"),
        pytest.param("x", 8, 8 * 64 * 224 * 224, id="input alone"),
        pytest.param("w2", 8, 2 * 64 * 64 * 9, id="weights alone"),
        pytest.param("400", 8, 100, id="bytes"),
        pytest.param("400", 16, 200, id="bytes, for twice the batch"),
        pytest.param("0", 8, 0, id="nothing"),
    ],
)
def test_a_cell_is_a_sum_of_operands(cell, batch, elements):
    key = "64,64,224,224,3,3,1,1,1,1,1,1,224,224"
    table = CudnnTable(91002, (8,), {key: (cell, "?", "?")})
    assert table(conv_call(batch=batch)) == 4 * elements


def test_the_nearest_batch_size_is_used():
    key = "64,64,224,224,3,3,1,1,1,1,1,1,224,224"
    table = CudnnTable(91002, (8, 32), {key: ("100 900", "? 0", "0 0")})
    assert [table(conv_call(batch=n)) for n in (8, 15, 17, 64)] == [100, 188, 478, 1800]
    assert table(conv_call("conv_dgrad", batch=8)) is None


def test_the_table_comes_before_the_rule():
    rule = ConvRule(capability=(8, 0), sm_count=108)
    assert rule(conv_call("conv_wgrad")) == cudnn_table((8, 0))(conv_call("conv_wgrad"))


def test_a_pointwise_weight_gradient_is_summed_over_images():
    """cuDNN 9.10.2 and 9.20 leave it to cublasLt: a gradient for each image."""
    pointwise = conv_call("conv_wgrad", x=(48, 64, 56, 56), w=(256, 64, 1, 1), y=(48, 256, 56, 56), padding=(0, 0))
    for version in (91002, 92000):
        assert cudnn_table((8, 0), version)(pointwise) == 4 * 48 * 256 * 64


@pytest.mark.parametrize(
    ("torch_version", "version"), [("2.4.1", 91002), ("2.10.0+cu128", 91002), ("2.11.0", 92000), ("2.13.0+cpu", 92000)]
)
def test_the_table_is_that_of_the_cudnn_of_torch(torch_version, version):
    assert cudnn_of_torch(torch_version) == version
    assert cudnn_table((8, 0), version).version == version


def test_another_version_is_better_than_none():
    assert cudnn_table((9, 0), 91002).version == 92000


def test_grouped_calls_have_rows_of_their_own():
    table, key = cudnn_table((8, 0)), {"x": (32, 128, 56, 56), "y": (32, 128, 56, 56)}
    grouped = conv_call("conv_wgrad", w=(128, 4, 3, 3), groups=32, **key)
    ungrouped = conv_call("conv_wgrad", w=(128, 128, 3, 3), **key)
    assert table(grouped) != table(ungrouped)
    assert table(grouped) > 0
