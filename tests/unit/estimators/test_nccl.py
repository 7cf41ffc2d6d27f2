"""What NCCL allocates beside the caching allocator."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cotenant.cli.estimate import json_output as estimate_json
from cotenant.cli.estimate import text as estimate_text
from cotenant.core.trace import NcclUsage, TraceHeader
from cotenant.core.units import MiB, format_bytes
from cotenant.estimators.nccl import nccl_bytes, nccl_warnings, with_nccl
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc

A100, L40S = gpu_spec("A100-40GB"), gpu_spec("L40S-48GB")


def a_header(*group_sizes, **settings):
    return TraceHeader(torch_version="2.13.0", nccl=NcclUsage(group_sizes=group_sizes, **settings))


@pytest.mark.parametrize(
    ("header", "gpu", "mib"),
    [
        pytest.param(a_header(2), A100, 544, id="two joined by NVLink, as measured"),
        pytest.param(a_header(4), A100, 688, id="four, as measured"),
        pytest.param(a_header(8), A100, 688, id="a ring has two neighbors however long it is"),
        pytest.param(a_header(4, 2), A100, 1232, id="each communicator has its own"),
        pytest.param(a_header(2), L40S, 28, id="two channels without NVLink"),
        pytest.param(a_header(4, max_channels=4), A100, 104, id="fewer channels"),
        pytest.param(a_header(2, buffer_bytes=MiB), A100, 256, id="smaller buffers"),
        pytest.param(a_header(2, buffer_bytes=16 * MiB), A100, 24 * 24 + 256, id="larger ones, but not larger chunks"),
    ],
)
def test_typical_bytes_of_process_groups(header, gpu, mib):
    assert round(nccl_bytes(header, gpu).typical_bytes / MiB) == mib


@pytest.mark.parametrize("header", [TraceHeader(torch_version="2.13.0"), a_header()])
def test_a_script_without_process_groups_needs_nothing(header):
    assert nccl_bytes(header, A100) is None
    assert with_nccl(A100, header) is A100
    assert nccl_warnings(header, A100) == ()


def test_nccl_is_part_of_the_context():
    header = a_header(4)
    found = with_nccl(A100, header)
    more = nccl_bytes(header, A100)
    assert more.low_bytes < more.typical_bytes < more.high_bytes
    for name in ("low_bytes", "typical_bytes", "high_bytes"):
        assert getattr(found.context, name) - getattr(A100.context, name) == getattr(more, name)
    (sentence,) = nccl_warnings(header, A100)
    assert "688.0 MiB for NCCL" in sentence
    assert "24.0 MiB to 1.0 GiB" in sentence


@pytest.mark.parametrize(
    ("size", "buffers", "shared"),
    [(2, (2 * 12, 24 * 12, 32 * 12), (0, 256, 256)), (4, (2 * 12, 24 * 18, 32 * 24), (0, 256, 256))],
)
def test_parts_are_buffers_of_neighbors_and_a_shared_one(size, buffers, shared):
    found = nccl_bytes(a_header(size), A100)
    for part, mib in zip(found.parts, (buffers, shared), strict=True):
        sizes = (part.low_bytes, part.typical_bytes, part.high_bytes)
        assert [value / MiB for value in sizes] == pytest.approx(mib, abs=0.01)
    assert "src/transport/p2p.cc" in found.parts[0].source
    assert "src/transport/net.cc" in found.parts[1].source
    assert (found.low_channels, found.typical_channels, found.high_channels) == (2, 24, 32)


@pytest.mark.parametrize(("channels", "mib"), [(1, 12 + 8), (3, 3 * 12 + 32), (None, 8 * 12 + 64)])
def test_the_bound_without_nvlink_has_the_larger_chunk_since_a_bridge_may_join_all(channels, mib):
    """The shared buffer has as many parts as the next power of two of channels."""
    assert nccl_bytes(a_header(2, max_channels=channels), L40S).high_bytes == mib * MiB


def an_estimate(*group_sizes):
    trace = a_trace([alloc(0, 10)])
    if group_sizes:
        trace = replace(trace, header=replace(trace.header, nccl=NcclUsage(group_sizes=group_sizes)))
    return TracedEstimator().on(trace, A100)


def test_the_context_is_printed_in_its_parts(capsys):
    alone, result = an_estimate(), an_estimate(4)
    estimate_text.print_estimate("train.py", alone.estimate, alone, 0.1)
    assert "NCCL" not in capsys.readouterr().out
    estimate_text.print_estimate("train.py", result.estimate, result, 0.1)
    printed = capsys.readouterr()
    cuda = format_bytes(alone.estimate.context_bytes)
    assert f"in the CUDA context\n  CUDA{cuda:>22}   context, kernels" in printed.out
    assert "688.0 MiB   24.0 MiB to 1.0 GiB by the links between the GPUs; 24 channels; group of 4 GPUs" in printed.out
    assert "432.0 MiB   `computeBuffSizes` in src/init.cc" in printed.out
    assert "256.0 MiB   `sharedNetBuffersInit` in src/transport/net.cc" in printed.out
    assert "NCCL" not in printed.err
    assert result.nccl.sentence in result.estimate.warnings  # for those who have no trace, such as the daemon


def test_json_has_nccl_by_itself():
    assert estimate_json.of_result(an_estimate())["nccl"] is None
    found = estimate_json.of_result(an_estimate(4, 2))["nccl"]
    assert found["group_sizes"] == [4, 2]
    assert found["typical_bytes"] == sum(part["typical_bytes"] for part in found["parts"]) == 1232 * MiB
    assert found["low_bytes"] < found["typical_bytes"] < found["high_bytes"]
    assert [part["name"] for part in found["parts"]] == ["buffers", "shared buffer"]
    assert (found["low_channels"], found["typical_channels"], found["high_channels"]) == (2, 24, 32)
