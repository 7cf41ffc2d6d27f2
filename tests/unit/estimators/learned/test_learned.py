"""Learned estimators: networks from traces, the context, warnings, the margin."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from cotenant.core.errors import UsageError
from cotenant.core.trace import LayerCall, LibraryCall, MemoryEvent, MemoryTrace, TraceHeader
from cotenant.core.units import MiB
from cotenant.estimators import create
from cotenant.estimators.layer_kinds import layer_kind
from cotenant.estimators.learned.hybrid import FLOOR_BYTES, correct, kind_of_trace
from cotenant.estimators.learned.network_features import (
    Network,
    NetworkLayer,
    Replays,
    activation_of,
    byte_features,
    conv_features,
    network_in_training,
    network_of,
    paper_features,
    training_features,
    work_features,
)
from cotenant.estimators.learned.weights import Weights
from cotenant.estimators.trace_features import ModuleShape, features_of
from cotenant.gpu_specs import gpu_spec

A100 = gpu_spec("A100-40GB")
MLP_LAYERS = [
    ["Flatten", 0, [32, 1000]],
    ["Linear", 500500, [32, 500]],
    ["BatchNorm1d", 1000, [32, 500]],
    ["GELU", 0, [32, 500]],
    ["Dropout", 0, [32, 500]],
    ["Linear", 5010, [32, 10]],
    ["CrossEntropyLoss", 0, []],
]
needs_numpy = pytest.mark.skipif(importlib.util.find_spec("numpy") is None, reason="numpy is not installed")


def a_trace(layers=MLP_LAYERS, *, ops=(), sizes=(2_000_000, 20_040)) -> MemoryTrace:
    """Weights, one step, and what it calls."""
    events = [MemoryEvent("alloc", i, size, "parameter", "load", "", 0, 0) for i, size in enumerate(sizes)]
    for phase in ("forward", "backward", "step"):
        events.append(MemoryEvent("phase", -1, 0, "", phase, "", 0, 0))
        if phase == "forward":
            events += [MemoryEvent("op", -1, 0, "", phase, "", 0, 0, i) for i in range(len(ops))]
        number = len(events)
        events.append(MemoryEvent("alloc", number, 8 * MiB, "activation", phase, "", 0, 0))
        events.append(MemoryEvent("free", number, 0, "", phase, "", 0, 0))
    calls = tuple(LayerCall(kind, parameters, tuple(shape)) for kind, parameters, shape in layers)
    header = TraceHeader(torch_version="2.7.0", layers=calls, capability=(8, 0))
    return MemoryTrace(events=tuple(events), ops=tuple(ops), header=header)


def a_layer() -> ModuleShape:
    return ModuleShape(module="0", saved_bytes=(64,), item_bytes=4, leaf=True)


def conv(channels: int, out: int, side: int, batch: int = 4) -> LibraryCall:
    params = {
        "x": (batch, channels, side, side),
        "w": (out, channels, 3, 3),
        "y": (batch, out, side, side),
        "stride": (1, 1),
        "padding": (1, 1),
        "dilation": (1, 1),
        "groups": 1,
        "dtype": "float32",
        "channels_last": False,
    }
    return LibraryCall(kind="conv_forward", thread="main", params=params)


def test_network_is_read_from_the_layers_of_a_trace():
    network = network_of(a_trace(), None)
    assert [layer.kind for layer in network.layers] == ["linear", "batchnorm", "activation", "dropout", "linear"]
    assert [layer.outputs for layer in network.layers] == [500, 500, 500, 500, 10]
    assert (network.batch, network.activation, network.family) == (32, "gelu", "mlp")


def test_a_batch_size_in_the_command_overrides_shapes():
    assert network_of(a_trace(), 16).batch == 16


def test_a_trace_without_layers_is_refused():
    with pytest.raises(UsageError, match="the trace has no layers"):
        network_of(a_trace(layers=[]), None)


@pytest.mark.parametrize(
    ("name", "activation"),
    [
        ("GELUActivation", "gelu"),
        ("NewGELUActivation", "gelu"),
        ("SiLU", "swish"),
        ("Hardtanh", "relu"),
        ("PReLU", "prelu"),
    ],
)
def test_activations_follow_from_class_names(name, activation):
    assert layer_kind(name) == "activation"
    assert activation_of(name) == activation


def test_paper_features_of_a_network():
    found = paper_features(network_of(a_trace(), None))
    assert (found["linears"], found["batch"], found["batchnorms"], found["dropouts"]) == (2, 32, 1, 1)
    assert (found["parameters"], found["activations"]) == (506_510, 2010)
    assert found["activation_sin"] ** 2 + found["activation_cos"] ** 2 == pytest.approx(1)
    conv_layers = [*MLP_LAYERS[:2], ["Conv2d", 100, [32, 4, 8, 8]]]
    assert len(paper_features(network_of(a_trace(conv_layers), None))) == 10
    assert len(paper_features(network_of(a_trace([*MLP_LAYERS, ["MultiheadAttention", 9, [32, 4, 8]]]), None))) == 9


def test_bytes_are_by_kind_and_batch():
    found = byte_features(network_of(a_trace(), None))
    assert found["linear_weights_mib"] == pytest.approx(505_510 * 4 / MiB)
    assert found["activation_outputs_mib"] == pytest.approx(500 * 32 * 4 / MiB)
    assert found["largest_mib"] == pytest.approx(500 * 32 * 4 / MiB)
    assert found["heaviest_mib"] == pytest.approx(500_500 * 4 / MiB)


def test_work_counts_each_use_of_a_weight():
    layer = NetworkLayer(kind="conv", outputs=8 * 100, parameters=1000, positions=100)
    found = work_features(Network(batch=2, layers=(layer,)))
    assert found["gflop"] == pytest.approx(2 * 2 * 1000 * 100 / 1e9)
    assert found["inputs"] == 1000 / 8 * 100


def test_conv_features_count_one_forward_pass():
    replays = Replays(
        reserved_bytes=100 * MiB,
        allocated_bytes=80 * MiB,
        bare_reserved_bytes=60 * MiB,
        bare_allocated_bytes=50 * MiB,
    )
    found = conv_features(a_trace(ops=(conv(3, 8, 64), conv(8, 16, 64))), replays)
    assert found is not None
    assert (found["convolutions"], found["batch"], found["widest_channels"], found["largest_place"]) == (2, 4, 16, 0.5)
    assert found["largest_mib"] == pytest.approx(4 * 24 * 64 * 64 * 4 / MiB)
    assert (found["bare_to_reserved"], found["allocated_to_reserved"]) == (0.6, 0.8)
    assert conv_features(a_trace(), replays) is None


@needs_numpy
def test_context_of_the_training_data_is_replaced_by_that_of_the_gpu():
    trace = a_trace()
    ours = create("extra-trees").on(trace, features_of(trace), A100)
    other = create("extra-trees").on(trace, features_of(trace), gpu_spec("RTX3060-12GB"))
    assert ours.peak_reserved_bytes == other.peak_reserved_bytes < 1000 * MiB
    assert ours.context_bytes == A100.context.typical_bytes != other.context_bytes


@needs_numpy
@pytest.mark.parametrize("name", ["extra-trees", "boosting"])
def test_an_input_outside_the_training_data_adds_a_warning(name):
    huge = [["Linear", 10**10, [32, 10**5]], ["ReLU", 0, [32, 10**5]]]
    trace = a_trace(huge)
    found = create(name).on(trace, features_of(trace), A100)
    assert any("beyond what it was trained on: linear_weights_mib" in warning for warning in found.warnings)


@needs_numpy
def test_schedtune_reads_three_sizes_and_no_order():
    layers = [["Linear", 10**6, [32, 1000]], ["ReLU", 0, [32, 1000]], ["Linear", 10**5, [32, 100]]]
    traces = [a_trace(layers), a_trace(layers[::-1]), a_trace([["Linear", 5 * 10**6, [32, 1000]], *layers[1:]])]
    one, turned, larger = (create("schedtune").on(trace, features_of(trace), A100) for trace in traces)
    assert one.device_bytes == turned.device_bytes < larger.device_bytes


def calibrated(**quantiles) -> Weights:
    np = pytest.importorskip("numpy")
    from cotenant.estimators.learned.network_features import CONV_FEATURES

    meta = {
        "features": list(CONV_FEATURES),
        "low": [0.0] * len(CONV_FEATURES),
        "high": [1e6] * len(CONV_FEATURES),
        "scale": 1.0,
        "base": 0.1,
        "calibration": {kind: {"quantile": value, "coverage": 0.95, "rows": 99} for kind, value in quantiles.items()},
    }
    leaf = {"feature": np.array([-1], np.int8), "threshold": np.array([0.05], np.float32)}
    none = np.array([0], np.uint16)
    return Weights(meta, {**leaf, "left": none, "right": none, "roots": np.array([0], np.int32)})


@pytest.mark.parametrize(
    ("layers", "ops", "kind"),
    [
        pytest.param(MLP_LAYERS, (), "dense", id="dense"),
        pytest.param([["Embedding", 10, [4, 8, 2]], *MLP_LAYERS], (), "attention", id="attention"),
        pytest.param(MLP_LAYERS, (conv(3, 8, 64),), "conv", id="conv"),
    ],
)
def test_the_margin_depends_on_the_kind_of_network(layers, ops, kind):
    trace = a_trace(layers, ops=ops)
    assert kind_of_trace(trace) == kind
    weights = calibrated(dense=0.01, attention=0.02, conv=0.03, **{"conv-uncorrected": 0.04})
    replays = Replays(
        reserved_bytes=100 * MiB,
        allocated_bytes=80 * MiB,
        bare_reserved_bytes=60 * MiB,
        bare_allocated_bytes=50 * MiB,
    )
    found = correct(weights, trace, replays)
    scale = 100 * MiB + FLOOR_BYTES
    assert found.margin_bytes == round({"dense": 0.01, "attention": 0.02, "conv": 0.03}[kind] * scale)
    assert found.shift_bytes == (pytest.approx(0.15 * scale, abs=2) if kind == "conv" else 0)


def test_outside_the_training_data_the_residual_is_0_with_its_own_margin():
    weights = calibrated(dense=0.01, attention=0.02, conv=0.03, **{"conv-uncorrected": 0.04})
    weights.meta["high"][0] = 1.0
    replays = Replays(
        reserved_bytes=100 * MiB,
        allocated_bytes=80 * MiB,
        bare_reserved_bytes=60 * MiB,
        bare_allocated_bytes=50 * MiB,
    )
    found = correct(weights, a_trace(ops=(conv(3, 8, 64), conv(8, 8, 64))), replays)
    assert found.shift_bytes == 0
    assert found.margin_bytes == round(0.04 * (100 * MiB + FLOOR_BYTES))
    assert found.beyond[0].startswith("convolutions 2")


@needs_numpy
def test_hybrid_is_the_replay_without_convolutions():
    trace = a_trace()
    features = features_of(trace)
    found = create("hybrid").on(trace, features, A100)
    traced = create("traced").on(trace, A100).estimate
    assert found.peak_reserved_bytes == traced.peak_reserved_bytes
    assert found.margin_bytes > 0
    assert found.coverage >= 0.95


@needs_numpy
@pytest.mark.parametrize("name", ["hybrid", "extra-trees"])
def test_estimates_have_utilization_on_gpus_like_that_of_the_data(name):
    large = a_trace([["Linear", 1000 * 1001, [512, 1000]], ["ReLU", 0, [512, 1000]]] * 8)
    features = features_of(large)
    found = create(name).on(large, features, A100)
    assert found.smact is not None
    assert found.smocc is not None
    assert 0 < found.smocc < found.smact <= 1
    for gpu in ("H100-80GB", "A100-40GB:3g.20gb"):
        assert create(name).on(large, features, gpu_spec(gpu)).smact is None
    traced = create("traced").on(large, A100).estimate
    assert traced.smact_low < traced.smact < traced.smact_high
    attention = a_trace([["MultiheadAttention", 100, [4, 8, 16]], *MLP_LAYERS])
    assert create("hybrid").on(attention, features_of(attention), A100).smact is None


def test_optimizer_and_precision_are_read_from_the_trace():
    trace = a_trace()
    sizes = (("parameter", 2_000_000), ("optimizer state", 4_000_000))
    events = [MemoryEvent("alloc", i, size, kind, "load", "", 0, 0) for i, (kind, size) in enumerate(sizes)]
    features = features_of(MemoryTrace(events=(*events, *trace.events[2:]), ops=(), header=trace.header))
    assert features.state_bytes == (4_000_000,)
    network = network_in_training(trace, features)
    assert training_features(network) == {"state_copies": 2.0, "half": 0.0}
    halved = replace(features, layers=(replace(a_layer(), item_bytes=2),))
    assert training_features(network_in_training(trace, halved))["half"] == 1.0


@needs_numpy
def test_utilization_is_a_ratio_and_unknown_for_transformers():
    from cotenant.estimators.learned.utilization import utilization_of

    gpu = gpu_spec("A100-40GB")
    small = a_trace()
    found = utilization_of(small, features_of(small), gpu)
    large_layers = [["Linear", 4000 * 4001, [1000, 4000]], ["ReLU", 0, [1000, 4000]]] * 8
    large = a_trace(large_layers)
    more = utilization_of(large, features_of(large), gpu)
    assert 0 <= found.smact < more.smact <= 1
    assert 0 <= found.smocc < more.smocc <= 1
    attention = a_trace([["MultiheadAttention", 100, [4, 8, 16]]])
    with pytest.raises(UsageError, match="known of seven jobs only"):
        utilization_of(attention, features_of(attention), gpu)


@pytest.mark.parametrize("name", ["H100-80GB", "V100-16GB", "A100-40GB:3g.20gb"])
def test_utilization_is_refused_on_other_gpus_than_that_of_its_data(name):
    from cotenant.estimators.learned.utilization import utilization_of

    small = a_trace()
    with pytest.raises(UsageError, match=f"learned on an A100-40GB, and no measurement says how that of a {name}"):
        utilization_of(small, features_of(small), gpu_spec(name))
