"""Decision trees for the workspaces of convolutions, the script that fits them, and their place among the sources."""

from __future__ import annotations

import importlib
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.estimators.cudnn import trees
from cotenant.estimators.cudnn.query import CudnnWorkspaces, query_of
from cotenant.estimators.cudnn.sources import workspace_sources
from cotenant.estimators.cudnn.table import cudnn_table
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.estimators.margin import FAMILIES, family_of
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, conv_call

MiB = 2**20
SCRIPTS = Path(__file__).parents[4] / "scripts"
SITE = os.environ.get("COTENANT_CUDNN_SITE", "")
FORMS = [name + layout for name in ("tf32", "float32", "half") for layout in ("", "_channels_last")]
OURS = {"sm_count": 108, "version": 92000, "other_sizes": True}
ODD = {"x": (24, 60, 50, 50), "w": (90, 60, 3, 3), "y": (24, 90, 50, 50)}
"""A convolution that is in no table."""

TEXT = """# source
conv_forward channels<=64 images<=8 x xy2 w3
conv_dgrad n
conv_wgrad images<=8 0 same<=0 r-12 xy
"""


@pytest.fixture
def script(monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("fit_cudnn_trees")


def queried(kind="conv_forward", **changes):
    return query_of(conv_call(kind, **changes), (8, 0))


@pytest.mark.parametrize(
    ("changes", "nbytes"),
    [
        pytest.param({"batch": 8}, 4 * 8 * 64 * 224 * 224, id="both conditions hold: the input"),
        pytest.param({}, 4 * (2 * 32 * 64 * 224 * 224 + 2 * 64 * 64 * 9), id="the second does not: all"),
        pytest.param({"x": (8, 65, 9, 9), "w": (64, 65, 3, 3)}, 4 * 3 * 64 * 68 * 9, id="the first does not: padded"),
        pytest.param({"kind": "conv_dgrad"}, 4 * 32 * 64 * 64 * 9, id="a single leaf: the weight for each image"),
        pytest.param({"kind": "conv_wgrad", "batch": 8}, 0, id="nothing"),
        pytest.param({"kind": "conv_wgrad"}, 4 * 2 * 32 * 64 * 224 * 224, id="the last leaf"),
        pytest.param(
            {"kind": "conv_wgrad", "padding": (0, 0), "y": (32, 64, 222, 222), "dtype": "float16"},
            round(math.exp(-1.2) * 2 * (32 * 64 * (224 * 224 + 222 * 222) + 64 * 64 * 9)),
            id="a share of all operands, in half precision",
        ),
    ],
)  # fmt: skip
def test_a_tree_is_followed_to_its_leaf(changes, nbytes):
    made = trees.read_trees(TEXT)
    assert made.source == "# source"
    assert made(queried(**changes)) == nbytes


def test_a_leaf_that_means_nothing_is_an_error():
    with pytest.raises(ValueError, match="`q7` is no leaf"):
        trees.leaf_bytes("q7", queried())


def test_channels_of_half_precision_are_padded_to_eight():
    query = queried(dtype="float16", x=(2, 3, 10, 10), w=(9, 3, 3, 3), y=(2, 9, 10, 10))
    assert trees.operand_bytes(query) == (2 * 2 * 8 * 100, 2 * 2 * 16 * 100, 2 * 16 * 8 * 9, 2)


def test_features_of_grouped_convolutions_count_the_channels_of_a_group():
    known = trees.features(queried(x=(8, 96, 20, 20), w=(192, 24, 3, 3), y=(8, 192, 20, 20), groups=4))
    assert (known["groups"], known["group_channels"], known["group_out"]) == (4, 24, 48)
    assert (known["summed"], known["summed_back"], known["weight"]) == (24 * 9, 48 * 9, 192 * 24 * 9)
    assert (known["min_channels"], known["max_channels"], known["weight_tiles"]) == (24, 48, 2 * 1 * 9)


@pytest.mark.parametrize(
    ("changes", "capability", "form"),
    [
        ({}, (8, 0), "tf32"),
        ({}, (7, 5), "float32"),
        ({"allow_tf32": False}, (9, 0), "float32"),
        ({"channels_last": True}, (8, 0), "tf32_channels_last"),
        ({"dtype": "bfloat16"}, (8, 6), "half"),
        ({"dtype": "float16", "channels_last": True}, (7, 5), "half_channels_last"),
    ],
)
def test_the_format_is_that_of_the_operands(changes, capability, form):
    assert trees.format_of(query_of(conv_call(**changes), capability), capability) == form


def test_trees_are_shipped_for_every_format_of_five_capabilities():
    for capability in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0)):
        for form in FORMS:
            found = trees.trees_for(capability, form)
            if capability < (8, 0) and form.startswith("tf32"):
                assert found is None
            else:
                assert found.source.startswith("# cuDNN 92000 on a null ")
                assert f", {form}; 17545 shapes" in found.source
    assert trees.trees_for((8, 7), "tf32") == trees.trees_for((8, 6), "tf32")
    assert trees.trees_for((7, 0), "half") is None


@pytest.mark.parametrize(
    ("kind", "nbytes"),
    [("conv_forward", 122_126_352), ("conv_dgrad", 365_789_200), ("conv_wgrad", 370_802_832)],
)
def test_a_convolution_of_common_shape_has_about_the_answer_of_cudnn(kind, nbytes):
    """VGG-16's third layer for images of 208 pixels and a batch of 11; cuDNN 9.20 on a null A100."""
    call = conv_call(kind, x=(11, 64, 208, 208), w=(128, 64, 3, 3), y=(11, 128, 208, 208))
    assert trees.trees_for((8, 0), "tf32")(query_of(call, (8, 0))) == pytest.approx(nbytes, rel=0.02)


def test_trees_come_after_the_table_and_before_the_rule():
    rule, odd = ConvRule(capability=(8, 0), **OURS), conv_call("conv_wgrad", **ODD)
    found = trees.trees_for((8, 0), "tf32")(query_of(odd, (8, 0)))
    assert (rule.source_of(odd), rule(odd)) == ("trees", found)
    listed = conv_call(x=(8, 128, 28, 28), w=(128, 128, 3, 3), y=(8, 128, 28, 28))
    assert (rule.source_of(listed), rule(listed)) == ("table", cudnn_table((8, 0), 92000)(listed))
    assert rule(listed) > 1.5 * trees.trees_for((8, 0), "tf32")(query_of(listed, (8, 0)))
    near = conv_call(x=(32, 64, 86, 86), y=(32, 64, 86, 86))
    assert rule.source_of(near) == "trees"
    key = CudnnWorkspaces(version=92000, capability=(8, 0), found={})
    assert replace(rule, cudnn_workspaces=key).source_of(odd) == "trees"


@pytest.mark.parametrize(
    ("options", "call"),
    [
        pytest.param({"version": 91002}, conv_call(**ODD), id="an older cuDNN"),
        pytest.param({"other_sizes": False}, conv_call(**ODD), id="an unknown cuDNN"),
        pytest.param({"capability": (7, 0)}, conv_call(**ODD), id="a GPU that was not queried"),
        pytest.param({}, conv_call(**{**ODD, "dtype": "float64"}), id="a format that cuDNN is not queried for"),
    ],
)
def test_without_trees_for_it_a_call_is_left_to_the_rule(options, call):
    assert ConvRule(**{"capability": (8, 0), **OURS, **options}).source_of(call) == "rule"


def test_what_trees_answer_is_a_guess():
    """Also a pointwise product of matrices, for which the rule is sure that there is no workspace."""
    rule = ConvRule(capability=(8, 0), **OURS)
    assert rule.guesses(conv_call("conv_wgrad", **ODD))
    product = conv_call("conv_wgrad", x=(24, 60, 50, 50), w=(90, 60, 1, 1), y=(24, 90, 50, 50), padding=(0, 0))
    assert rule(product) > 0
    assert rule.guesses(product)
    assert not replace(rule, other_sizes=False).guesses(product)
    trace = a_trace([], (product,), torch_version="2.13.0")
    assert family_of(trace, gpu_spec("A100-40GB")) == FAMILIES[2]
    assert family_of(trace, gpu_spec("A100-40GB"), torch_version="2.10.0") == FAMILIES[1]


def test_an_estimate_names_trees_as_a_source():
    trace = a_trace([], (conv_call(**ODD), conv_call()), torch_version="2.13.0")
    assert workspace_sources(trace, gpu_spec("A100-40GB"), None).startswith(
        "workspaces of 2 calls to cuDNN: shipped answers of cuDNN 9.20.0 for 1, trees fitted to cuDNN 9.20.0 for 1"
    )


def test_the_script_draws_the_same_valid_shapes_each_time(script):
    shapes = script.shapes()
    assert shapes == script.shapes()
    assert len(shapes) == 17545
    for shape in shapes:
        for size, extent, k, s, p, d in zip(
            shape["x"][2:], shape["y"][2:], shape["w"][2:], shape["stride"], shape["padding"], shape["dilation"],
            strict=True,
        ):  # fmt: skip
            assert extent == (size + 2 * p - d * (k - 1) - 1) // s + 1 > 0
        assert shape["x"][1] % shape["w"][1] == 0


@pytest.mark.parametrize("code", ["0", "n", "x", "y3", "xy", "xy12", "w2", "r-12", "r9"])
def test_a_code_of_the_script_is_read_as_its_bytes(script, code):
    query = queried(x=(5, 90, 70, 70), w=(70, 90, 3, 3), y=(5, 70, 70, 70))
    nbytes = trees.leaf_bytes(code, query)
    assert script.code_of(nbytes, query) == code


def test_the_script_fits_trees_that_give_what_they_were_fitted_to(script):
    """Where a leaf has only shapes of one code. The answer changes at 64 channels and, below, at 16 images."""
    queries = [queried(x=(n, c, 9, 9), w=(64, c, 3, 3), y=(n, 64, 9, 9)) for n in range(1, 33) for c in range(49, 80)]
    codes = ["w2" if q["x"][1] > 64 else "x" if q["x"][0] <= 16 else "xy" for q in queries]
    text = script.fitted([trees.features(query) for query in queries], codes)
    made = trees.read_trees(f"# made\nconv_forward {text}\n")
    assert [made(query) for query in queries] == [
        trees.leaf_bytes(code, query) for code, query in zip(codes, queries, strict=True)
    ]
    assert text.count("<=") == 2


def test_nodes_with_equal_leaves_become_one_leaf(script):
    assert script.joined(["a<=1", "b<=2", "x", "x", "c<=3", "x", "y"]) == "a<=1 x c<=3 x y"
    assert script.joined(["a<=1", "b<=2", "x", "x", "c<=3", "x", "x"]) == "x"


@pytest.mark.skipif(not SITE, reason="COTENANT_CUDNN_SITE names no folder with cuDNN 9.8 or later")
def test_the_script_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.syspath_prepend(str(SCRIPTS))
    ask_cudnn = importlib.import_module("ask_cudnn")
    cudnn = ask_cudnn.library("A100-40GB", Path(SITE))
    pointwise = (64, 256, 56, 56, 1, 1, 1, 1, 0, 0, 1, 1, 56, 56)
    assert ask_cudnn.query(cudnn, "conv_wgrad", 48, pointwise) == 4 * 48 * 256 * 64
    assert not list(tmp_path.iterdir())
