"""What NCCL allocates beside the caching allocator."""

from __future__ import annotations

import pytest

from cotenant.core.trace import NcclUsage, TraceHeader
from cotenant.core.units import MiB
from cotenant.estimators.nccl import nccl_bytes, nccl_warnings, with_nccl
from cotenant.gpu_specs import gpu_spec

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
        pytest.param(a_header(2), L40S, 45, id="two channels without NVLink"),
        pytest.param(a_header(4, max_channels=4), A100, 115, id="fewer channels"),
        pytest.param(a_header(2, buffer_bytes=MiB), A100, 366, id="smaller buffers"),
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
    assert "57.3 MiB to 917.3 MiB" in sentence
