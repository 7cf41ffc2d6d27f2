"""A process that loads all kernels at once: its context in estimates, bounds, verdicts, the text and the JSON."""

from __future__ import annotations

import pytest

from cotenant.cli.estimate import json_output as estimate_json
from cotenant.cli.estimate import text as estimate_text
from cotenant.core.units import MiB
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc

EAGER = {"CUDA_MODULE_LOADING": "EAGER"}
TRACE = a_trace([alloc(0, 10)], settings={}, settings_before={})


def estimated(gpu, env):
    return TracedEstimator().on(TRACE, gpu_spec(gpu), env=env)


@pytest.mark.parametrize(
    ("gpu", "low", "typical", "high"),
    [
        pytest.param("V100-32GB", 1005, 1822, 1822, id="bare measured"),
        pytest.param("RTX2080Ti-11GB", 877, 1358, 1822, id="bare measured, libraries assumed"),
        pytest.param("T4-16GB", 516, 1358, 1822, id="assumed"),
        pytest.param("A100-40GB", 1237, 1718, 1718, id="measured"),
        pytest.param("RTX3060-12GB", 319, 1358, 1822, id="rule, few SMs"),
        pytest.param("H100-80GB", 1505, 2099, 3010, id="rule, many SMs"),
        pytest.param("A100-40GB:3g.20gb", 479, 1358, 1822, id="rule, an instance"),
    ],
)
def test_the_bound_has_the_upper_end_of_the_context(gpu, low, typical, high):
    lazy, eager = estimated(gpu, {}), estimated(gpu, EAGER)
    context = eager.context
    found = (context.low_bytes, context.typical_bytes, context.high_bytes)
    assert found == (low * MiB, typical * MiB, high * MiB)
    assert eager.estimate.context_bytes == typical * MiB
    assert lazy.estimate.context_bytes < typical * MiB
    assert eager.estimate.bound_bytes - high * MiB == lazy.estimate.bound_bytes - lazy.context.high_bytes


def test_verdicts_for_all_gpus_have_it_too():
    lazy = {fit.gpu: fit for fit in estimated("A100-40GB", {}).fits_on()}
    eager = {fit.gpu: fit for fit in estimated("A100-40GB", EAGER).fits_on()}
    for name in ("T4-16GB", "H100-80GB", "A100-40GB:1g.5gb"):
        more = gpu_spec(name).with_eager_context().context.high_bytes - gpu_spec(name).context.high_bytes
        assert eager[name].bound_bytes - lazy[name].bound_bytes == more


def test_a_context_that_was_not_measured_is_a_warning():
    (warning,) = (text for text in estimated("T4-16GB", EAGER).estimate.warnings if "context" in text)
    assert warning.endswith("is assumed on T4-16GB: 516.0 MiB to 1.8 GiB")
    assert not any("context" in text for text in estimated("A100-40GB", EAGER).estimate.warnings)
    assert not any("context" in text for text in estimated("T4-16GB", {}).estimate.warnings)


def test_the_interval_is_printed_and_in_the_json(capsys):
    for env in ({}, EAGER):
        result = estimated("T4-16GB", env)
        estimate_text.print_estimate("train.py", result.estimate, result, 0.1)
        printed = capsys.readouterr().out
        fields = estimate_json.of_result(result)["context"]
        line = "1.3 GiB   context, kernels and libraries, 516.0 MiB to 1.8 GiB; all kernels loaded at once"
        assert (line in printed) is bool(env)
        assert ("in the CUDA context" in printed) is bool(env)
        assert fields["loads_eagerly"] is bool(env)
        assert fields["low_bytes"] == result.context.low_bytes < fields["typical_bytes"] < fields["high_bytes"]
        assert fields["derived"]
        assert fields["source"] == result.context.source
