"""The roofline of SM activity, and the interval of an estimate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.core.trace import KernelGroup, MemoryTrace, TraceHeader
from cotenant.estimators.roofline import REACH_ABOVE, REACH_BELOW, roofline_smact, with_activity
from cotenant.gpu_specs import gpu_spec
from cotenant.scheduling.prediction.interference import expected_smact
from tests.builders import an_estimate

LARGE = KernelGroup("product", "float32", 100, 1e11, 10**8, 10**7)
TINY = KernelGroup("memory", "float32", 1000, 0.0, 4096, 512)
A100 = gpu_spec("A100-40GB")


def a_trace(*kernels: KernelGroup, **header: object) -> MemoryTrace:
    return MemoryTrace(events=(), ops=(), header=TraceHeader(torch_version="2.13.0", kernels=kernels, **header))  # type: ignore[arg-type]


def test_large_kernels_keep_the_gpu_busy_and_tiny_ones_wait_for_python():
    heavy, light = roofline_smact([LARGE]), roofline_smact([TINY])
    assert heavy is not None
    assert light is not None
    assert heavy > 0.7
    assert light < 0.05


def test_tiny_kernels_beside_large_ones_take_little():
    both, heavy = roofline_smact([LARGE, TINY]), roofline_smact([LARGE])
    assert both is not None
    assert heavy is not None
    assert heavy - 0.1 < both < heavy


def test_a_product_on_few_sms_is_active_on_few():
    small = LARGE._replace(flops=1e8)
    smact = roofline_smact([small])
    assert smact is not None
    assert smact < 0.1


def test_without_kernels_nothing_is_known():
    assert roofline_smact([]) is None


def test_the_interval_reaches_beyond_all_that_is_known():
    """The trace has no layers, so the roofline and the memory remain."""
    found = with_activity(an_estimate(1), a_trace(LARGE), A100)
    roofline, by_memory = roofline_smact([LARGE]), expected_smact(found.bound_bytes)
    assert roofline is not None
    assert found.smact == pytest.approx((roofline + by_memory) / 2, abs=1e-3)
    assert found.smact_low == pytest.approx(by_memory - REACH_BELOW, abs=1e-3)
    assert found.smact_high == pytest.approx(roofline + REACH_ABOVE, abs=1e-3)


@pytest.mark.parametrize(
    ("trace", "gpu"),
    [
        pytest.param(a_trace(LARGE, compiled=True), "A100-40GB", id="compiled: fewer kernels than operators"),
        pytest.param(a_trace(LARGE, backend="null-gpu"), "A100-40GB", id="of the null GPU"),
        pytest.param(a_trace(LARGE), "H100-80GB", id="another GPU"),
        pytest.param(a_trace(), "A100-40GB", id="a trace from before kernels were counted"),
    ],
)
def test_no_activity_is_estimated(trace, gpu):
    found = with_activity(an_estimate(1), trace, gpu_spec(gpu))
    assert (found.smact, found.smact_low, found.smact_high) == (None, None, None)


def test_an_older_estimate_gets_the_interval_of_an_expectation_by_memory():
    old = replace(an_estimate(1), smact=0.5)
    assert old.smact_interval == pytest.approx((0.4, 0.5, 0.63))
