"""`TracedEstimator.version` changes when its numbers may: journals and reports of both rules name it.

The numbers that a version gives to a few traces are a golden. Who changes them raises the version and writes that
version's golden; older ones stay, as the record of what changed. A rule of the tracer changes the trace itself: the
cache of traces is keyed by the tracing code, and only the version tells estimates apart.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.core.trace import LibraryCall, NcclUsage
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from cotenant.tracing.process import serialization
from traces import a_trace, alloc, call, conv_call, steps

GOLDEN = Path(__file__).parents[2] / "golden"
GPUS = ("A100-40GB", "V100-32GB", "T4-16GB", "L40S-48GB")


MATRIX = {"shape": (8192, 256), "strides": (256, 1), "offset": 0, "dims": (0,), "item_bytes": 4, "sum_bytes": 4}
POINTWISE = {"x": (8, 64, 56, 56), "y": (8, 64, 56, 56), "w": (64, 64, 1, 1), "padding": (0, 0)}
CALLS = {
    "gemm": LibraryCall(kind="gemm", thread="main"),
    "gemm_lt": LibraryCall(kind="gemm_lt", thread="autograd"),
    "convolution": conv_call(batch=8),
    "pointwise convolution": conv_call("conv_dgrad", batch=8, **POINTWISE),
    "measured convolution": conv_call("conv_wgrad", batch=8, benchmark=True),
    "reduction": LibraryCall(kind="reduction", thread="autograd", params=MATRIX),
    "attention": LibraryCall(kind="flash_attention", thread="main", params={"query": (2, 4, 130, 80), "keys": 130}),
}


def a_cnn():
    """A traced script, without the folder of its torch, whose cuDNN may be here."""
    trace = serialization.trace_from_dict(json.loads((GOLDEN / "trace" / "schema_1.json").read_text()))
    return replace(trace, header=replace(trace.header, torch_folder=None))


TRACES = {
    "a CNN of schema 1": a_cnn(),
    "saved activations": steps(),
    "process groups": a_trace([alloc(0, 100)], nccl=NcclUsage(group_sizes=(4, 2))),
    **{name: a_trace([alloc(0, 30), call(0), call(0)], [op]) for name, op in CALLS.items()},
}


def numbers(trace, gpu):
    estimate = TracedEstimator().on(trace, gpu_spec(gpu)).estimate
    return {
        "peak_allocated_bytes": estimate.peak_allocated_bytes,
        "peak_reserved_bytes": estimate.peak_reserved_bytes,
        "context_bytes": estimate.context_bytes,
        "bound_bytes": estimate.bound_bytes,
    }


@pytest.mark.parametrize("name", TRACES)
def test_a_version_gives_the_numbers_that_it_gave(name):
    file = GOLDEN / "estimates" / f"traced_{TracedEstimator.version}.json"
    found = {gpu: numbers(TRACES[name], gpu) for gpu in GPUS}
    wanted = json.loads(file.read_text()) if file.exists() else {}
    assert found == wanted.get(name), (
        f"not the numbers of {file.name}: if a rule changed, raise `TracedEstimator.version` and write its golden"
    )
