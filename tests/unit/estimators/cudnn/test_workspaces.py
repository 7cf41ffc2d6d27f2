"""Workspaces of convolutions, by the rule derived from cuDNN's heuristics."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from cotenant.core.trace import LibraryCall, MemoryTrace, TraceHeader
from cotenant.estimators.cudnn.query import CudnnWorkspaces, query_of
from cotenant.estimators.cudnn.sources import benchmark_warnings, workspace_sources
from cotenant.estimators.cudnn.workspaces import ConvRule, none
from cotenant.gpu_specs import gpu_spec

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
    return LibraryCall(kind=kind, thread="main", params=params)


POINTWISE = conv(w=(128, 256, 1, 1), y=(2, 128, 8, 8), padding=(0, 0))


def large(kind, **changes):
    """100 times as many images."""
    return conv(kind, **{"x": (200, 256, 8, 8), "y": (200, 512, 8, 8), **changes})


@pytest.mark.parametrize(
    ("rule", "call", "elements"),
    [
        pytest.param(A100, conv(), X + W, id="TF32 forward rounds its operands"),
        pytest.param(A100, conv("conv_dgrad"), X + W + Y, id="TF32 input gradient copies its result, too"),
        pytest.param(A100, conv("conv_dgrad", channels_last=True), W + Y, id="unless it lies as the kernel writes"),
        pytest.param(
            A100,
            large("conv_wgrad"),
            100 * (X + Y) + 2 * W,
            id="4 x 18 tiles on 108 SMs: 1.5 parts, rounded to 2",
        ),
        pytest.param(A100, conv("conv_wgrad"), 0, id="a weight gradient over 128 pixels copies nothing"),
        pytest.param(
            A100, conv("conv_wgrad", x=(1, 256, 112, 112), y=(1, 512, 112, 112)), 0, id="nor does one over 12,544"
        ),
        pytest.param(
            A100,
            conv("conv_wgrad", x=(5, 256, 13, 193), y=(5, 512, 13, 193)),
            12_545 * (256 + 512) + 2 * W,
            id="over one more it copies all",
        ),
        pytest.param(
            A100,
            conv("conv_wgrad", x=(2, 3, 8, 8), w=(128, 3, 3, 3), y=(2, 128, 8, 8)),
            2 * 64 * (4 + 128) + 9 * 4 * 128,
            id="a wide first layer's weight gradient",
        ),
        pytest.param(
            A100, conv("conv_wgrad", x=(2, 3, 8, 8), w=(96, 3, 3, 3), y=(2, 96, 8, 8)), 0, id="a narrow first layer"
        ),
        pytest.param(
            A100, conv(x=(2, 32, 8, 8), w=(512, 32, 3, 3)), 0, id="few channels to sum over are read as they are"
        ),
        pytest.param(
            A100, conv("conv_dgrad", w=(42, 256, 3, 3), y=(2, 42, 8, 8)), 0, id="so are the output's in its gradient"
        ),
        pytest.param(H100, conv("conv_wgrad"), X + Y + 2 * W, id="72 tiles on 132 SMs: 2 parts"),
        pytest.param(H100, conv(), X + W + Y, id="Hopper copies the result as well"),
        pytest.param(H100, conv(channels_last=True), 0, id="Hopper takes channels-last as it is"),
        pytest.param(T4, conv(), 0, id="no TF32 before Ampere"),
        pytest.param(A100, conv(allow_tf32=False), 0, id="TF32 switched off"),
        pytest.param(A100, conv(groups=2), 0, id="grouped"),
        pytest.param(A100, conv(enabled=False), 0, id="cuDNN switched off"),
        pytest.param(A100, conv(dtype="float64"), 0, id="no tensor cores for double"),
        pytest.param(A100, conv(w=(512, 3, 3, 3)), 0, id="the first layer reads images itself"),
        pytest.param(A100, POINTWISE, 0, id="narrow pointwise: a product of matrices"),
        pytest.param(H100, POINTWISE, 0, id="on Hopper, too"),
        pytest.param(A100, replace(POINTWISE, kind="conv_dgrad"), 0, id="and in the gradient of the input"),
        pytest.param(
            A100, replace(POINTWISE, kind="conv_wgrad"), 2 * 128 * 256, id="that of the weight: one for each image"
        ),
        pytest.param(
            A100,
            conv(w=(132, 256, 1, 1), x=(2, 256, 28, 28), y=(2, 132, 28, 28), padding=(0, 0)),
            0,
            id="wide pointwise over 784 pixels",
        ),
        pytest.param(A100, conv(w=(132, 256, 1, 1), padding=(0, 0)), X + 132 * 256, id="over few it is copied"),
        pytest.param(A100, conv(w=(128, 256, 1, 1), stride=(2, 2)), X + 128 * 256, id="so is one with a stride"),
        pytest.param(A100, conv(transposed=True), X + W + Y, id="a transposed forward is an input gradient"),
        pytest.param(A100, conv(x=(2, 253, 8, 8), w=(512, 253, 3, 3)), X + W, id="input channels are padded to four"),
        pytest.param(A100, conv(w=(509, 256, 3, 3), y=(2, 509, 8, 8)), X + W + Y, id="so is the result, then copied"),
    ],
)
def test_workspaces_in_float32_match_cudnn(rule, call, elements):
    assert rule(call) == 4 * elements


def wgrad(out_channels, in_channels, images, kernel=3):
    """The gradient of a weight over so many pixels that it is left to tensor cores."""
    w = (out_channels, in_channels, kernel, kernel)
    return conv("conv_wgrad", x=(images, in_channels, 80, 80), w=w, y=(images, out_channels, 80, 80))


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        pytest.param(wgrad(128, 1024, 2), 2, id="72 tiles of 108 SMs: enough parts for all"),
        pytest.param(wgrad(352, 300, 2), 1, id="81 tiles fill three quarters"),
        pytest.param(wgrad(448, 384, 2), 1, id="448 output channels"),
        pytest.param(wgrad(452, 384, 2), 4, id="more output and few input channels: split"),
        pytest.param(wgrad(1024, 576, 42), 4, id="576 input channels are few"),
        pytest.param(wgrad(1024, 580, 42), 1, id="more of them: one part for 42 images"),
        pytest.param(wgrad(1024, 580, 44), 4, id="and split for 44"),
        pytest.param(wgrad(448, 580, 44), 1, id="not with few output channels"),
        pytest.param(wgrad(1408, 1024, 44), 4, id="7.3 waves of tiles"),
        pytest.param(wgrad(1536, 1024, 44), 3, id="8 waves: three parts"),
        pytest.param(wgrad(1024, 1024, 2, kernel=1), 2, id="64 tiles of a pointwise weight"),
        pytest.param(wgrad(2048, 1024, 2, kernel=1), 1, id="128 tiles of a pointwise weight: 1024 are not few"),
    ],
)
def test_ampere_sums_a_weight_gradient_in_as_many_parts_as_measured(call, parts):
    """Channels are multiples of four, so that operands are copied as they are."""
    operands = math.prod(call.params["x"]) + math.prod(call.params["y"])
    assert A100(call) == 4 * (operands + parts * math.prod(call.params["w"]))


@pytest.mark.parametrize(
    ("rule", "call", "elements"),
    [
        pytest.param(A100, conv(), X + W + Y, id="all are copied"),
        pytest.param(T4, conv(), X + W + Y, id="on Turing, too"),
        pytest.param(A100, conv(channels_last=True), 0, id="nothing in channels-last"),
        pytest.param(
            A100,
            conv(channels_last=True, x=(2, 249, 8, 8), w=(512, 249, 3, 3)),
            X + W,
            id="but what must be padded to eight channels, and the weight",
        ),
        pytest.param(A100, conv(channels_last=True, w=(505, 256, 3, 3), y=(2, 505, 8, 8)), W + Y, id="on either side"),
        pytest.param(
            A100,
            conv("conv_wgrad", x=(2, 3, 8, 8), w=(512, 3, 3, 3), channels_last=True),
            2 * 8 * 64 + Y,
            id="a first layer's images are padded for its weight gradient",
        ),
        pytest.param(A100, conv(x=(2, 3, 8, 8), w=(512, 3, 3, 3)), 0, id="and read as they are going forward"),
        pytest.param(A100, conv(x=(2, 249, 8, 8), w=(512, 249, 3, 3)), X + W + Y, id="channels are padded to eight"),
        pytest.param(A100, conv(w=(512, 256, 1, 1)), X + Y, id="a pointwise weight is the same in both layouts"),
        pytest.param(A100, conv(x=(2, 256, 1, 1), y=(2, 512, 1, 1)), W, id="so is an image of one pixel"),
        pytest.param(A100, conv(x=(2, 256, 1, 2), y=(2, 512, 1, 1)), 4 * 256 + W, id="not one of two"),
        pytest.param(A100, conv(x=(2, 256, 1, 1), y=(2, 512, 1, 2)), W + 4 * 512, id="nor a result of two"),
    ],
)
def test_workspaces_in_half_precision_match_cudnn(rule, call, elements):
    call = LibraryCall(kind=call.kind, thread=call.thread, params={**call.params, "dtype": "float16"})
    assert rule(call) == 2 * elements


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        pytest.param(wgrad(384, 384, 2), 3, id="one part becomes four"),
        pytest.param(wgrad(128, 1024, 2), 3, id="two become five"),
        pytest.param(wgrad(1536, 1024, 44), -2, id="three become one"),
        pytest.param(wgrad(1024, 256, 2), -3, id="four become one"),
        pytest.param(wgrad(128, 256, 2), -3, id="six become three"),
        pytest.param(large("conv_forward"), 0, id="no weight gradient"),
        pytest.param(conv("conv_wgrad"), 0, id="nothing is no workspace either way"),
    ],
)
def test_the_second_guess_changes_the_parts_of_a_weight_gradient(call, parts):
    weight = 4 * math.prod(call.params["w"])
    assert replace(A100, second_guess=True)(call) - A100(call) == parts * weight


@pytest.mark.parametrize("capability", [(8, 6), (8, 9)])
def test_float32_workspaces_of_small_ampere_and_ada_are_0_or_those_of_8_0(capability):
    rule = replace(A100, capability=capability)
    assert rule(conv()) == 0
    assert replace(rule, second_guess=True)(conv()) == A100(conv()) == 4 * (X + W)
    assert rule.guesses(conv())
    assert rule(conv(channels_last=True)) == 4 * (X + W)


def cudnn_workspaces(call, *plans, capability=(8, 0)):
    key = json.dumps(query_of(call, capability), sort_keys=True, separators=(",", ":"))
    return CudnnWorkspaces(version=91002, capability=capability, found={key: plans})


@pytest.mark.parametrize(
    ("call", "capability", "nbytes", "source"),
    [
        pytest.param(conv(), (8, 0), 77, "cudnn", id="the job's own cuDNN is right"),
        pytest.param(conv(allow_tf32=False), (8, 0), 77, "cudnn", id="also where the rule knows of nothing"),
        pytest.param(conv(), (8, 6), 4 * (X + W), "rule", id="but not about another GPU"),
        pytest.param(conv(x=(2, 64, 8, 8), w=(512, 64, 1, 1)), (8, 0), 77, "cudnn", id="also for narrow 1x1"),
        pytest.param(conv(groups=2, w=(512, 128, 3, 3)), (8, 0), 77, "cudnn", id="and for grouped ones"),
    ],
)
def test_answers_of_the_jobs_own_cudnn_override_table_and_rule(call, capability, nbytes, source):
    rule = replace(A100, cudnn_workspaces=cudnn_workspaces(call, 77, capability=capability))
    assert (rule(call), rule.source_of(call)) == (nbytes, source)


def test_with_benchmark_torch_takes_the_largest_plan_that_fits_and_any_of_the_first_ten():
    call = conv(benchmark=True)
    plans = [5, 0, *range(10, 18), 90]
    rule = replace(A100, cudnn_workspaces=cudnn_workspaces(call, *plans))
    assert [rule.trial_bytes(call, free) for free in (100, 90, 89, 4)] == [90, 90, 17, 0]
    assert (rule(call), replace(rule, second_guess=True)(call)) == (5, 17)
    assert rule.guesses(call)


def test_without_benchmark_or_cudnn_no_plan_is_measured():
    without = replace(A100, cudnn_workspaces=cudnn_workspaces(conv(), 5))
    assert without.trial_bytes(conv(), 100) is None
    assert A100.trial_bytes(conv(benchmark=True, enabled=False), 100) is None


_POINTWISE = {"w": (512, 256, 1, 1)}
_PAIRS = 512 * 256


@pytest.mark.parametrize(
    ("kind", "capability", "changes", "copies", "transformed"),
    [
        pytest.param("conv_forward", (8, 0), {}, 6.5, 2 * 4352, id="tiles of 32 by 32"),
        pytest.param("conv_forward", (8, 0), _POINTWISE, 3.0, 2 * 1152, id="tiles of 16 by 16 for pointwise ones"),
        pytest.param("conv_forward", (8, 0), {"stride": (2, 2)}, 6.5, 0, id="no transforms with a stride"),
        pytest.param("conv_forward", (8, 0), {"dilation": (2, 2)}, 6.5, 0, id="none with a dilation"),
        pytest.param("conv_dgrad", (8, 0), {}, 6.5, 0, id="none of input gradients on 8.0"),
        pytest.param("conv_dgrad", (9, 0), {}, 6.5, 4 * 4352, id="twice for input gradients elsewhere"),
        pytest.param("conv_dgrad", (9, 0), _POINTWISE, 3.0, 0, id="not for pointwise ones"),
        pytest.param("conv_dgrad", (7, 5), _POINTWISE, 3.0, 2 * 1152, id="but on 7.5"),
        pytest.param("conv_wgrad", (8, 0), {"dtype": "float16"}, 6.5, 0, id="none in half precision"),
        pytest.param("conv_wgrad", (7, 5), {"dtype": "float16"}, 6.5, 2 * 4352, id="but weight gradients on 7.5"),
    ],
)
def test_the_largest_plan_of_a_cudnn_that_is_not_queried(kind, capability, changes, copies, transformed):
    rule, call = replace(A100, capability=capability), replace(conv(benchmark=True, **changes), kind=kind)
    item = 2 if changes.get("dtype") == "float16" else 4
    values = sum(math.prod(call.params[name]) for name in "xwy")
    assert rule.trial_bytes(call, 1 << 40) == int(copies * item * values) + transformed * _PAIRS


def test_a_plan_that_is_not_queried_and_does_not_fit_is_left_out():
    assert A100.trial_bytes(conv(benchmark=True), 1 << 20) == 0


def test_a_job_with_benchmark_gets_a_warning_of_what_is_not_known():
    known, other = conv(benchmark=True), conv(benchmark=True, groups=2, w=(512, 128, 3, 3))
    found = cudnn_workspaces(known, 5)

    def warned(*ops):
        trace = MemoryTrace(events=(), ops=ops, header=TraceHeader(torch_version="2.13.0"))
        return benchmark_warnings(trace, gpu_spec("A100-40GB"), found)

    assert warned(conv()) == ()
    [text] = warned(known)
    assert text.endswith("the fastest is not known")
    [text] = warned(known, other)
    assert text.endswith("by a rule")


def test_a_call_that_needs_no_tensor_cores_is_not_looked_up():
    known = conv(x=(64, 64, 56, 56), w=(64, 64, 3, 3), y=(64, 64, 56, 56), padding=(1, 1))
    assert A100.source_of(known) == "table"
    trace = MemoryTrace(events=(), ops=(known,), header=TraceHeader(torch_version="2.13.0"))
    sources = workspace_sources(trace, gpu_spec("A100-40GB"), None)
    assert sources == "workspaces of 1 calls to cuDNN: shipped answers of cuDNN 9.20.0 for 1"
    assert A100.source_of(replace(known, params={**known.params, "allow_tf32": False})) == "rule"


def test_in_channels_last_only_what_is_copied_is_a_guess():
    half = {"dtype": "bfloat16", "channels_last": True}
    assert not A100.guesses(conv(**half))
    assert A100.guesses(conv(**half, x=(2, 249, 8, 8), w=(512, 249, 3, 3)))


def test_a_grouped_call_is_a_guess_unless_pytorch_has_a_kernel():
    grouped = conv(groups=2, w=(512, 128, 3, 3))
    assert A100.guesses(grouped)
    assert not A100.guesses(conv(groups=256, w=(512, 1, 3, 3)))
    assert not replace(A100, cudnn_workspaces=cudnn_workspaces(grouped, 0)).guesses(grouped)


def test_a_queried_call_is_not_guessed():
    assert A100.guesses(conv())
    assert not replace(A100, cudnn_workspaces=cudnn_workspaces(conv(), 0)).guesses(conv())


WIDE = {"x": (200, 1500, 8, 8), "w": (512, 1500, 3, 3), "y": (200, 512, 8, 8)}
PATCHES = {
    "x": (8, 3, 224, 224),
    "w": (768, 3, 16, 16),
    "y": (8, 768, 14, 14),
    "stride": (16, 16),
    "padding": (0, 0),
    "allow_tf32": False,
}
XP, YP, WP = 8 * 4 * 224 * 224, 8 * 768 * 196, 768 * 4 * 256
SIX_TILES = 200 * 6 * 256 * 64  # elements of the result


@pytest.mark.parametrize(
    ("call", "elements"),
    [
        pytest.param(
            conv("conv_dgrad", **WIDE), 9 * SIX_TILES + 200 * 512 * 64 + 512 * 1500 * 9, id="once for each element"
        ),
        pytest.param(
            conv(
                transposed=True, x=(200, 512, 8, 8), w=(512, 1500, 3, 3), y=(200, 1500, 8, 8)
            ),  # runs as an input gradient
            9 * SIX_TILES + 200 * 512 * 64 + 512 * 1500 * 9,
            id="as an input gradient",
        ),
        pytest.param(conv("conv_wgrad"), X + Y + 9 * W, id="few pixels"),
        pytest.param(conv("conv_wgrad", **PATCHES), XP + YP + 4 * WP, id="patches"),
        pytest.param(
            conv("conv_wgrad", **{**PATCHES, "padding": (1, 1)}), XP + YP + 256 * WP, id="patches with an edge"
        ),
        pytest.param(
            conv("conv_wgrad", **{**PATCHES, "stride": (8, 8)}), XP + YP + 256 * WP, id="patches that overlap"
        ),
        pytest.param(
            conv("conv_wgrad", **{**PATCHES, "dilation": (2, 2)}), XP + YP + 256 * WP, id="patches with holes"
        ),
        pytest.param(large("conv_wgrad"), None, id="more pixels"),
        pytest.param(large("conv_dgrad"), None, id="fewer channels"),
        pytest.param(conv("conv_dgrad", **{**WIDE, "w": (512, 1280, 3, 3)}), None, id="five tiles"),
        pytest.param(conv("conv_dgrad", **{**WIDE, "w": (512, 1537, 3, 3)}), None, id="seven tiles"),
        pytest.param(conv(**WIDE), None, id="forward"),
        pytest.param(conv("conv_dgrad", **{**WIDE, "w": (512, 1500, 1, 1)}), None, id="a kernel of one element"),
    ],
)
def test_suspected_calls_have_a_split_workspace(call, elements):
    assert A100.split_bytes(call) == (None if elements is None else 4 * elements)


def test_a_queried_call_is_not_suspected():
    call = conv("conv_wgrad")
    assert replace(A100, cudnn_workspaces=cudnn_workspaces(call, 0)).split_bytes(call) is None


def test_the_sources_of_workspaces_are_listed():
    calls = (conv(), conv("conv_dgrad"), conv(enabled=False), LibraryCall(kind="gemm", thread="main", params={}))
    trace = MemoryTrace(events=(), ops=calls, header=TraceHeader(torch_version="2.13.0"))
    sources = workspace_sources(trace, gpu_spec("A100-40GB"), cudnn_workspaces(conv(), 5))
    assert (
        sources
        == "workspaces of 2 calls to cuDNN: cuDNN 9.10.2 of its environment for 1, trees fitted to cuDNN 9.20.0 for 1"
    )
    alone = workspace_sources(trace, gpu_spec("A100-40GB"), None)
    assert alone == (
        "workspaces of 2 calls to cuDNN: trees fitted to cuDNN 9.20.0 for 2; `cotenant doctor` shows how to query cuDNN"
    )
    older = replace(trace, header=TraceHeader(torch_version="2.10.0"))
    assert workspace_sources(older, gpu_spec("A100-40GB"), None).startswith(
        "workspaces of 2 calls to cuDNN: rule for 2;"
    )
    assert workspace_sources(replace(trace, ops=calls[2:]), gpu_spec("A100-40GB"), None) is None


def test_the_rule_none_gives_0():
    assert none(conv()) == 0
