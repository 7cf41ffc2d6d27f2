"""Published estimators: their own examples, and small calculations by hand."""

from __future__ import annotations

import csv

import pytest

from cotenant.allocator import parse_options, replay, rules_for
from cotenant.core.errors import UsageError
from cotenant.core.trace import MemoryEvent, MemoryTrace, TraceHeader
from cotenant.core.units import GiB, MiB
from cotenant.estimators import ESTIMATORS, create
from cotenant.estimators.base import POINT
from cotenant.estimators.compare import compare_estimators
from cotenant.estimators.published.dnnmem import graph_events
from cotenant.estimators.published.llmem import find_decoder
from cotenant.estimators.published.parameter_rules import HORUS_CONSTANT_BYTES, zero2_bytes, zero3_bytes
from cotenant.estimators.trace_features import Features, ModuleShape
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from shared_data import SHARED_DATA

A100 = gpu_spec("A100-40GB")
DATA = SHARED_DATA / "gpumemnet"


def a_layer(module, *saved, item=4, leaf=True):
    return ModuleShape(module=module, saved_bytes=saved, item_bytes=item, leaf=leaf)


def some_features(**changes):
    fields = {
        "parameter_bytes": (4 * MiB, 2 * MiB),
        "gradient_bytes": (2 * MiB, 4 * MiB),
        "state_bytes": (4 * MiB, 2 * MiB) * 2,
        "buffer_bytes": MiB,
        "item_bytes": 4,
        "input_bytes": 0,
        "layers": (a_layer("a", 3 * MiB), a_layer("b", 5 * MiB), a_layer("", MiB, leaf=False)),
        "batch": 8,
        "devices": 1,
    }
    return Features(**{**fields, **changes})


def a_trace(*events, **changes):
    return MemoryTrace(**{"events": tuple(events), "ops": (), "header": TraceHeader(torch_version="2.13.0"), **changes})


def says(name, features=None, trace=None):
    return create(name).on(trace or a_trace(), features or some_features(), A100)


# -- all -------------------------------------------------------------------------------------------------------


def test_a_rule_claims_no_margin():
    estimate = says("params16")
    assert (estimate.margin_bytes, estimate.coverage, estimate.gpu) == (0, POINT, "A100-40GB")


def test_warnings_of_the_trace_are_in_the_estimate():
    estimate = says("params16", trace=a_trace(warnings=("the loader was guessed",), partial=True))
    assert (estimate.warnings, estimate.partial) == (("the loader was guessed",), True)


# -- rules of thumb --------------------------------------------------------------------------------------------


def test_params16_takes_sixteen_bytes_a_parameter():
    assert says("params16").device_bytes == 4 * 6 * MiB
    assert says("params16", some_features(item_bytes=2)).device_bytes == 8 * 6 * MiB


def test_accelerate_takes_four_times_the_model_in_its_dtype():
    assert says("accelerate").device_bytes == 4 * 7 * MiB
    assert says("accelerate", some_features(item_bytes=2)).device_bytes == 4 * 7 * MiB


# The examples of DeepSpeed's page on memory requirements: t5-3b, 2851e6 parameters, 8 GPUs.
def test_zero2_as_documented():
    assert f"{zero2_bytes(int(2851e6), 8) / GiB:.2f}" == "15.93"


def test_zero3_as_documented():
    assert f"{zero3_bytes(int(2851e6), int(32e6), 8) / GiB:.2f}" == "6.09"


def test_zero_estimates_read_the_parameters_of_a_trace():
    count = 6 * MiB // 4
    assert says("deepspeed-zero2").device_bytes == 20 * count
    assert says("deepspeed-zero2", some_features(devices=4)).device_bytes == 8 * count
    assert says("deepspeed-zero3").device_bytes == 18 * count + 4 * MiB


# -- Horus -----------------------------------------------------------------------------------------------------


def test_horus_counts_weights_once_a_sample_and_leaves_only():
    assert says("horus").device_bytes == HORUS_CONSTANT_BYTES + 6 * MiB * 9 + 8 * MiB


def test_horus_without_a_batch_is_a_lower_bound():
    estimate = says("horus", some_features(batch=None))
    assert estimate.device_bytes == HORUS_CONSTANT_BYTES + 6 * MiB * 2 + 8 * MiB
    assert estimate.partial
    assert "batch size" in estimate.warnings[-1]


@pytest.mark.skipif(not DATA.is_dir(), reason="the published estimates are not beside the checkout")
@pytest.mark.parametrize(
    ("model", "parameters"),
    [("vgg16", 138357544), ("resnet50", 25557032), ("Xception", 22855952), ("mobilenetV2", 3504872)],
)
def test_published_estimates_begin_at_the_constant_and_the_weights(model, parameters):
    with (DATA / "paper_results.csv").open(encoding="utf-8") as file:
        by_batch = {
            int(row["batch"]): float(row["horus_mib"]) * MiB
            for row in csv.DictReader(file)
            if row["model"] == model and row["table"].startswith("2025-05")
        }
    a_sample = (by_batch[128] - by_batch[32]) / 96
    outputs = 32 * (a_sample - 4 * parameters)
    made = some_features(parameter_bytes=(4 * parameters,), layers=(a_layer("all", int(outputs)),), batch=32)
    assert says("horus", made).device_bytes == pytest.approx(by_batch[32], abs=0.001 * MiB)


# -- live tensors ----------------------------------------------------------------------------------------------


def event(action, number=-1, nbytes=0, phase="forward", category="activation"):
    return MemoryEvent(action, number, nbytes, category if action == "alloc" else "", phase, "", 0, 0)


STEP = (
    event("alloc", 0, 1000, "load", "parameter"),
    event("phase"),
    event("alloc", 1, 700),
    event("phase", phase="backward"),
    event("alloc", 2, 600, "backward", "gradient"),
    event("free", 1, phase="backward"),
    event("phase", phase="step"),
    event("alloc", 3, 2000, "step", "optimizer state"),
)


def test_faketensor_ends_before_the_optimizer():
    estimate = says("faketensor", trace=a_trace(*STEP))
    assert estimate.device_bytes == 2300
    assert estimate.breakdown_bytes == {"parameter": 1000, "activation": 700, "gradient": 600}


def test_memtracker_rounds_and_includes_the_optimizer_step():
    estimate = says("memtracker", trace=a_trace(*STEP))
    assert estimate.device_bytes == 1024 + 1024 + 2048
    assert estimate.peak_allocated_bytes == sum(estimate.breakdown_bytes.values())


# -- DNNMem ----------------------------------------------------------------------------------------------------


def dnnmem_replay(features):
    version = "2.13.0"
    return replay(graph_events(features), options=parse_options("", version), rules=rules_for(version))


def test_graph_holds_outputs_until_their_backward():
    loaded, outputs = 7, 3 + 5 + 1
    # The peak is in the backward of `b`: the loss (1) has gone, its gradient (1) is there yet, with the gradient of the
    # output of `b` (5) and those of the weights (2 and 4).
    wanted = loaded + (outputs - 1) + 1 + 5 + 2 + 4
    assert dnnmem_replay(some_features(state_bytes=())).peak_requested_bytes == wanted * MiB


def test_graph_has_the_optimizer_beside_the_second_pass():
    stateless, adam = some_features(state_bytes=()), some_features()
    assert dnnmem_replay(adam).peak_requested_bytes == dnnmem_replay(stateless).peak_requested_bytes + 12 * MiB


def test_graph_makes_every_gradient_in_every_step():
    made = [made_event.bytes for made_event in graph_events(some_features()) if made_event.category == "gradient"]
    assert made == [2 * MiB, 4 * MiB] * 2


def test_a_graph_without_layers_has_parameters_only():
    assert dnnmem_replay(some_features(layers=())).peak_requested_bytes > 0


def test_dnnmem_adds_the_context_and_rounds_to_segments():
    estimate = says("dnnmem")
    assert estimate.context_bytes == A100.context.typical_bytes
    assert estimate.peak_reserved_bytes % (2 * MiB) == 0


# -- LLMem -----------------------------------------------------------------------------------------------------


def a_decoder(**changes):
    blocks = [a_layer(f"model.layers.{i}.mlp.down", 8 * MiB) for i in range(3)]
    layers = (a_layer("model.embed", 8 * MiB, item=None), *blocks, a_layer("lm_head", 64 * MiB))
    return some_features(**{"layers": layers, **changes})


def test_a_decoder_is_found():
    found = find_decoder(a_decoder())
    assert (found.blocks, found.hidden, found.logits, found.head) == (3, 2 * MiB, 16 * MiB, MiB)


def test_the_longest_stack_is_the_decoder():
    tower = tuple(a_layer(f"tower.{i}.fc", 4 * MiB) for i in range(2))
    assert find_decoder(a_decoder(layers=(*tower, *a_decoder().layers))).blocks == 3


def test_llmem_matches_a_hand_calculation():
    # 6 bytes a parameter of chunks and the head's 2 MiB; states 2 x (4 + 2) MiB; (3 + 2) x 4 MiB; 3 x 32 MiB.
    wanted = 9 * MiB + 2 * MiB + 12 * MiB + 20 * MiB + 96 * MiB
    assert says("llmem", a_decoder()).peak_reserved_bytes == wanted


def test_llmem_counts_in_pages():
    layers = (a_layer("h.0.fc", 4), a_layer("lm_head", 4))
    small = some_features(layers=layers, parameter_bytes=(4,))
    assert says("llmem", small).peak_reserved_bytes == 6 + 2 + 2 * 2 * MiB + 3 * 2 * MiB + 3 * 2 * MiB


@pytest.mark.parametrize(
    "layers",
    [
        pytest.param((a_layer("layers.0.fc", 4), a_layer("classifier", 4)), id="no head"),
        pytest.param((a_layer("fc", 4), a_layer("lm_head", 4)), id="no blocks"),
        pytest.param((a_layer("layers.0.fc", 4), a_layer("lm_head", 4), a_layer("extra", 4)), id="head not last"),
        pytest.param((a_layer("encoder.block.0.fc", 4), a_layer("lm_head", 4)), id="an encoder"),
        pytest.param((), id="nothing"),
    ],
)
def test_llmem_refuses_other_models(layers):
    with pytest.raises(UsageError, match="no decoder-only language model"):
        says("llmem", some_features(layers=layers))


# -- side by side ----------------------------------------------------------------------------------------------


def results_of(trace, *command):
    return {result.name: result for result in compare_estimators(TracedEstimator().on(trace, A100), A100, command)}


def test_all_trace_based_estimators_answer_from_one_trace():
    found = results_of(a_trace(*STEP))
    assert next(iter(found)) == "traced"
    assert set(found) == set(ESTIMATORS) - {"declared", "summary"}
    assert all(result.leaves_out for result in found.values())
    assert found["llmem"].estimate is None
    assert "no decoder-only" in str(found["llmem"].problem)
    assert found["faketensor"].estimate.device_bytes == 2300


def test_the_batch_size_comes_from_the_command():
    silent, with_batch = (results_of(a_trace(*STEP), *command)["horus"] for command in ((), ("t.py", "-b", "3")))
    assert with_batch.estimate.device_bytes - silent.estimate.device_bytes == 2 * 1000
