"""The shipped table of cuDNN workspaces."""

from __future__ import annotations

import pytest

from cotenant.estimators.cudnn.table import CudnnTable, cudnn_of_torch, cudnn_table, is_cudnn_known
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
    assert cudnn_table((7, 0), 92000).version == 91002


def test_grouped_calls_have_rows_of_their_own():
    table, key = cudnn_table((8, 0)), {"x": (32, 128, 56, 56), "y": (32, 128, 56, 56)}
    grouped = conv_call("conv_wgrad", w=(128, 4, 3, 3), groups=32, **key)
    ungrouped = conv_call("conv_wgrad", w=(128, 128, 3, 3), **key)
    assert table(grouped) != table(ungrouped)
    assert table(grouped) > 0


def sized(channels, size):
    return ",".join(map(str, (channels, 64, size, size, 3, 3, 1, 1, 1, 1, 1, 1, size, size)))


@pytest.mark.parametrize(
    ("size", "elements"),
    [
        pytest.param(60, 8 * 64 * 60 * 60, id="as at 56: the input"),
        pytest.param(200, 2 * 8 * 64 * 200 * 200 + 3 * 64 * 64 * 9, id="as at 224: input, output and three weights"),
    ],
)
def test_another_size_of_images_takes_the_copies_of_the_nearest(size, elements):
    cells = {sized(64, 56): ("x", "?", "?"), sized(64, 224): ("xy3", "?", "?"), sized(32, size): ("w9", "?", "?")}
    table = CudnnTable(92000, (8,), cells)
    queried = conv_call(batch=8, x=(8, 64, size, size), y=(8, 64, size, size))
    assert table(queried) is None
    assert table.at_other_size(queried) == 4 * elements


def test_bytes_at_another_size_grow_with_the_images():
    table = CudnnTable(92000, (8,), {sized(64, 100): ("4000", "? ", "0")})
    half = conv_call(batch=16, x=(16, 64, 50, 50), y=(16, 64, 50, 50))
    assert table.at_other_size(half) == 4000 * 16 * 50 * 50 / (8 * 100 * 100)
    assert table.at_other_size(conv_call(batch=16, padding=(7, 7))) is None
    assert table.at_other_size(conv_call(batch=16, dtype="bfloat16")) is None


def test_another_size_comes_before_the_rule_where_the_table_is_of_the_jobs_cudnn():
    odd = conv_call(x=(32, 64, 86, 86), y=(32, 64, 86, 86))
    rtx3060 = {"capability": (8, 6), "sm_count": 28, "version": 91002}
    rule, near = ConvRule(**rtx3060), ConvRule(**rtx3060, other_sizes=True)
    table = cudnn_table((8, 6), 91002)
    assert near(odd) == table.at_other_size(odd) > 0
    assert (rule(odd), rule.source_of(odd), near.source_of(odd)) == (0, "rule", "other size")
    assert near.guesses(odd)
    v100 = conv_call(x=(32, 64, 86, 86), y=(32, 64, 86, 86))
    assert ConvRule(capability=(7, 0), sm_count=80, version=92000, other_sizes=True).source_of(v100) == "rule"


@pytest.mark.parametrize(
    ("torch", "known"), [("2.6.0", False), ("2.7.1+cu128", False), ("2.8.0", True), ("2.13.0+cpu", True), ("", False)]
)
def test_only_newer_torch_has_a_cudnn_that_was_queried(torch, known):
    assert is_cudnn_known(torch) == known


@pytest.mark.parametrize("capability", [(7, 0), (7, 5), (8, 0), (8, 6), (9, 0)])
def test_tables_have_grouped_convolutions(capability):
    # The second convolution of a RegNet: 32 channels in groups of four.
    grouped = conv_call(x=(32, 32, 112, 112), w=(32, 4, 3, 3), y=(32, 32, 56, 56), stride=(2, 2), groups=8)
    assert cudnn_table(capability)(grouped) is not None


def test_tables_of_both_heuristics_are_shipped_from_ampere_on():
    for capability in ((8, 0), (8, 6), (9, 0)):
        assert [cudnn_table(capability, version).version for version in (91002, 92000)] == [91002, 92000]


def test_ada_is_not_ampere():
    ampere, ada = (cudnn_table(capability, 92000)(conv_call(batch=8)) for capability in ((8, 6), (8, 9)))
    assert ampere > 90 * MiB > ada
