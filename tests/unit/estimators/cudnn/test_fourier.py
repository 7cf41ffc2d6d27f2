"""Weight gradients by transforms, beside what cuDNN 9.20 answers on null GPUs of compute capability 8.6.

The answers are of shapes that the tree was not fitted to.
"""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.estimators.cudnn import fourier
from cotenant.estimators.cudnn.query import query_of
from cotenant.estimators.cudnn.trees import read_trees
from cotenant.estimators.cudnn.workspaces import ConvRule
from cotenant.estimators.margin import FAMILIES, family_of
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, conv_call

AMPERE = ConvRule(capability=(8, 6), sm_count=28, version=92000, other_sizes=True)
SCRIPTS = Path(__file__).parents[4] / "scripts"
SITE = os.environ.get("COTENANT_CUDNN_SITE", "")
SQUARE = (2, 128, 128, 128), 32
"""Shape of the input, and output channels."""


def gradient(x, out_channels, kernel=3, **changes):
    padding = changes.pop("padding", (kernel // 2,) * 2)
    y = tuple(size + 2 * p - kernel + 1 for size, p in zip(x[2:], padding, strict=True))
    shapes = {"x": x, "w": (out_channels, x[1], kernel, kernel), "y": (x[0], out_channels, *y), "padding": padding}
    return conv_call("conv_wgrad", **{**shapes, **changes})


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        pytest.param(gradient(*SQUARE), 2_168_455_168, id="130 padded pixels in 256"),
        pytest.param(gradient((2, 376, 160, 160), 256), 50_912_559_104, id="two images, many channels"),
        pytest.param(gradient((128, 376, 20, 20), 256), 890_241_024, id="many small images"),
        pytest.param(gradient((8, 248, 85, 85), 152), 5_053_233_920, id="85 in 128"),
        pytest.param(gradient((4, 24, 220, 220), 96, 5), 1_291_739_136, id="5 x 5"),
        pytest.param(gradient((128, 184, 13, 13), 272, 5), 531_570_688, id="images times channels"),
        pytest.param(gradient((16, 48, 80, 80), 192, 7), 1_305_477_120, id="7 x 7"),
        pytest.param(gradient((32, 192, 32, 28), 48), 316_932_096, id="not square"),
        pytest.param(gradient((2, 64, 77, 77), 32, padding=(0, 0)), 274_069_760, id="not padded"),
    ],
)
def test_the_plan_holds_transforms_of_whole_images(call, answer):
    query = query_of(call, (8, 6))
    assert fourier.transform_bytes(query) == pytest.approx(answer, rel=1e-5)
    assert AMPERE(call) == pytest.approx(answer, rel=1e-5)
    assert AMPERE.source_of(call) == "trees"
    assert AMPERE.guesses(call)
    assert replace(AMPERE, capability=(8, 7))(call) == AMPERE(call)
    assert replace(AMPERE, version=91002)(call) == AMPERE(call)


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        pytest.param(gradient((32, 256, 56, 56), 416), 622_264_320, id="3 x 3"),
        pytest.param(gradient((2, 256, 332, 332), 408), 1_332_437_760, id="large images"),
        pytest.param(gradient((1, 400, 126, 126), 496, 5), 2_033_581_056, id="5 x 5, one image counts as sixteen"),
        pytest.param(gradient((16, 256, 128, 112), 512, 5), 1_708_408_832, id="5 x 5, not square"),
        pytest.param(gradient((4, 768, 63, 320), 384, 5, padding=(0, 0)), 3_339_288_576, id="not padded"),
    ],
)
def test_winograds_algorithm_holds_tiles_of_both_operands_and_the_weight(call, answer):
    assert AMPERE(call) == answer
    assert replace(AMPERE, version=91002)(call) == answer
    assert AMPERE.guesses(call)


@pytest.mark.parametrize(
    ("rule", "call"),
    [
        pytest.param(replace(AMPERE, capability=(8, 0)), gradient(*SQUARE), id="another capability"),
        pytest.param(replace(AMPERE, other_sizes=False), gradient(*SQUARE), id="a cuDNN that is not known"),
        pytest.param(AMPERE, gradient((2, 128, 254, 254), 16), id="few output channels"),
        pytest.param(AMPERE, gradient((2, 128, 255, 255), 32), id="more than 256 padded pixels"),
        pytest.param(AMPERE, gradient((2, 256, 128, 128), 160), id="tiles without a rest"),
        pytest.param(AMPERE, gradient(*SQUARE, dtype="float16"), id="half precision"),
        pytest.param(AMPERE, gradient(*SQUARE, channels_last=True), id="the other layout"),
        pytest.param(AMPERE, gradient(*SQUARE, allow_tf32=False), id="without tensor cores"),
        pytest.param(AMPERE, gradient(*SQUARE, dilation=(2, 2), padding=(2, 2)), id="dilated"),
    ],
)  # fmt: skip
def test_other_gradients_take_no_transforms(rule, call):
    assert rule(call) < 1 << 28
    assert rule.split_bytes(call) is None


def plant(monkeypatch, **leaves):
    """Trees of a single leaf each."""
    trees = read_trees("\n".join(["# source", *(f"{name} {leaf}" for name, leaf in leaves.items())]))
    monkeypatch.setattr(fourier, "trees_for", lambda *_: trees)


def suspecting(monkeypatch, leaf, call):
    """`call`, which a tree of a single leaf suspects, or does not."""
    plant(monkeypatch, assumed=fourier.NO, suspected=leaf, winograd=fourier.NO)
    return call


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(gradient((2, 128, 255, 128), 32), id="more than 256 padded pixels"),
        pytest.param(gradient(*SQUARE, kernel=1), id="pointwise"),
        pytest.param(gradient(*SQUARE, w=(32, 64, 3, 3), groups=2), id="grouped"),
        pytest.param(gradient(*SQUARE, stride=(2, 2), y=(2, 32, 64, 64)), id="a stride"),
        pytest.param(gradient(*SQUARE, dtype="float16"), id="half precision"),
        pytest.param(gradient(*SQUARE, channels_last=True), id="the other layout"),
        pytest.param(replace(gradient(*SQUARE), kind="conv_dgrad"), id="another operation"),
    ],
)
def test_cudnn_has_no_such_plan_for_some_calls_whatever_the_trees_say(monkeypatch, call):
    plant(monkeypatch, assumed=fourier.YES, suspected=fourier.YES, winograd=fourier.YES)
    query = query_of(call, (8, 6))
    assert fourier.fourier_bytes(query, (8, 6)) is None
    assert fourier.suspected_bytes(query, (8, 6)) is None
    assert max(call.params["x"][2:]) > 254 or fourier.winograd_bytes(query, (8, 6)) is None
    assert fourier.fourier_bytes(query_of(gradient(*SQUARE), (8, 6)), (8, 6)) is not None


def test_where_the_workspace_is_suspected_the_bound_has_it(monkeypatch):
    call = suspecting(monkeypatch, fourier.YES, gradient((8, 100, 60, 60), 60))
    assert AMPERE(call) < 1 << 28
    assert AMPERE.split_bytes(call) == fourier.transform_bytes(query_of(call, (8, 6)))
    assert family_of(a_trace([], [call]), gpu_spec("RTX3060-12GB"), torch_version="2.13.0") == FAMILIES[2]


def test_a_first_layer_may_be_suspected(monkeypatch):
    """Of a first layer the rule is sure otherwise."""
    rule = replace(AMPERE, version=91002)
    call = suspecting(monkeypatch, fourier.YES, gradient((8, 3, 240, 240), 95, 7))
    assert rule.guesses(call)
    assert not rule.guesses(suspecting(monkeypatch, fourier.NO, call))


def test_nothing_else_is_suspected(monkeypatch):
    assert AMPERE.split_bytes(suspecting(monkeypatch, fourier.NO, gradient((8, 100, 60, 60), 60))) is None


@pytest.fixture
def script(monkeypatch):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("fit_fourier_tree")


def test_trees_assume_and_suspect_by_the_share_of_a_leaf(script, monkeypatch):
    """All of the shapes with 32 output channels, a fifth of those with 64, none of those with 128."""
    rows = []
    for out_channels, every in ((32, 1), (64, 5), (128, 1000)):
        for number in range(1, 101):
            shape = (number, 100, 60, 60, out_channels, 3, 3, 1, 1)
            true = number % every == 0
            rows.append((*shape, fourier.transform_bytes(script.query_of(shape)) if true else 0))
    monkeypatch.setattr(script, "MIN_LEAF", 100)
    monkeypatch.setattr(script, "MIN_SUSPECTED_LEAF", 100)
    trees = read_trees(script.text_of("# cuDNN 92000", rows, (300, 0)))
    shapes = [(7, 100, 60, 60, out_channels, 3, 3, 1, 1) for out_channels in (32, 64, 128)]
    known = [fourier.fourier_features(script.query_of(shape)) for shape in shapes]
    assert [trees.leaf(fourier.ASSUMED, sizes) for sizes in known] == [fourier.YES, fourier.NO, fourier.NO]
    assert [trees.leaf(fourier.SUSPECTED, sizes) for sizes in known] == [fourier.YES, fourier.YES, fourier.NO]


def test_a_tree_knows_which_shapes_are_tiled(script):
    """Those with 64 output channels and more, but not those with kernels that have no tiles."""
    shapes = [
        (images, 100, 60, 60, out_channels, kernel, kernel, kernel // 2, kernel // 2)
        for images in range(1, 60)
        for out_channels in (32, 64)
        for kernel in (5, 7)
    ]
    rows = [
        (*shape, fourier.tile_bytes(script.query_of(shape)) if shape[4] == 64 and shape[5] == 5 else 0)
        for shape in shapes
    ]
    trees = read_trees(script.text_of("# cuDNN 92000", rows, (len(rows), 0)))
    known = [fourier.fourier_features(script.query_of((7, 100, 60, 60, out, 5, 5, 2, 2))) for out in (32, 64)]
    assert [trees.leaf(fourier.WINOGRAD, sizes) for sizes in known] == [fourier.NO, fourier.YES]


@pytest.mark.skipif(not SITE, reason="set COTENANT_CUDNN_SITE to a folder with a CUDA build of torch")
def test_fresh_shapes_are_guessed_or_suspected(script, tmp_path):
    """As `fit_fourier_tree.py judge`, of 3,000 shapes: half a minute."""
    script.measure("RTX3090-24GB", Path(SITE), tmp_path / "fresh.csv.gz", 7, (3000, 0))
    shapes = [row for row in script.read(tmp_path / "fresh.csv.gz")[1] if script.is_transformed(row)]
    calls = [
        conv_call("conv_wgrad", **{name: tuple(value) for name, value in sizes(script, row).items()}) for row in shapes
    ]
    missed = [call for call in calls if AMPERE(call) < 1 << 22 and AMPERE.split_bytes(call) is None]
    assert len(shapes) > 20
    assert len(missed) <= 0.1 * len(shapes)


def sizes(script, row):
    query = script.query_of(row)
    return {name: query[name] for name in ("x", "w", "y", "padding")}
