"""Workspaces of weight gradients of depthwise convolutions, against answers of cuDNN 9.20 on null GPUs."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from cotenant.core.trace import LibraryCall
from cotenant.core.units import MiB
from cotenant.estimators.cudnn.query import query_of
from cotenant.estimators.cudnn.trees import leaf_bytes, read_trees, vector_bytes
from cotenant.estimators.cudnn.workspaces import ConvRule

SCRIPTS = Path(__file__).parents[4] / "scripts"
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


def test_the_rule_is_for_8_0_alone():
    assert ConvRule(capability=(9, 0), sm_count=132)(wgrad(32, 192, 80)) == 0


def newest(*capability):
    return ConvRule(capability=capability, sm_count=100, version=92000, other_sizes=True)


@pytest.mark.parametrize(
    ("rule", "call", "answer"),
    [
        pytest.param(newest(9, 0), wgrad(32, 192, 32), 201 * MiB, id="9.0, parts of the weight"),
        pytest.param(newest(9, 0), wgrad(16, 1536, 48), 0, id="9.0, many channels of few pixels"),
        pytest.param(newest(9, 0), wgrad(8, 256, 80), 0, id="9.0, few images"),
        pytest.param(newest(9, 0), wgrad(64, 256, 40), 813 * MiB, id="9.0, many images"),
        pytest.param(newest(8, 9), wgrad(16, 768, 48), 903 * MiB, id="8.9, parts of the weight"),
        pytest.param(newest(8, 9), wgrad(64, 96, 28), 147 * MiB, id="8.9, one part"),
        pytest.param(newest(8, 9), wgrad(16, 64, 56), 0, id="8.9, few channels"),
        pytest.param(newest(8, 0), wgrad(32, 192, 80), 1_201 * MiB, id="8.0"),
        pytest.param(newest(8, 6), wgrad(64, 768, 64), 16 * MiB, id="8.6"),
    ],
)
def test_with_the_newest_cudnn_trees_know_which_calls_are_padded(rule, call, answer):
    """Answers of 9.20 on null GPUs."""
    assert rule(call) == pytest.approx(answer, rel=0.05)
    assert rule.guesses(call) or answer == 0


def test_trees_of_padded_calls_come_before_those_of_all():
    """A leaf of those is a number of copies without padding: 0.42 of the answer's 1.26 GB."""
    assert newest(8, 0)(wgrad(32, 192, 80)) > 1_100 * MiB


def test_without_the_newest_cudnn_nothing_is_known_of_other_capabilities():
    rule = ConvRule(capability=(9, 0), sm_count=132, version=91002, other_sizes=True)
    assert rule(wgrad(32, 192, 32)) < 50 * MiB


@pytest.fixture
def script(monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("fit_depthwise_trees")


@pytest.mark.parametrize("leaf", ["v1", "v33", "xy4", "0"])
def test_a_leaf_is_found_from_its_bytes(script, leaf):
    query = script.shapes()[1]
    assert script.leaf_of(leaf_bytes(leaf, query), query) == leaf


def test_operands_of_a_group_fill_a_vector(script):
    """Four channels for each of the input's, and of the output's two."""
    query = query_of(wgrad(2, 64, 10, multiple=2), (8, 0))
    assert vector_bytes(query) == (4 * 2 * 4 * 64 * 100 * 2, 4 * 4 * 4 * 64 * 49)


def test_fitted_trees_answer_as_cudnn_did(script):
    queries = script.shapes()[:200]
    answers = [vector_bytes(q)[0] + vector_bytes(q)[1] if q["x"][1] > 128 else 0 for q in queries]
    tree = read_trees(script.text_of("# cuDNN 92000", queries, answers))
    assert sum(tree(query) == nbytes for query, nbytes in zip(queries, answers, strict=True)) > 190
