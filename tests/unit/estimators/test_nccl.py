"""What NCCL takes beside the allocator."""

from __future__ import annotations

import pytest

from cotenant.core.units import MiB
from cotenant.estimators.nccl import nccl_bytes, nccl_warnings, with_nccl
from cotenant.gpu_specs import gpu_spec

A100, L40S = gpu_spec("A100-40GB"), gpu_spec("L40S-48GB")


def typical(header, gpu=A100):
    return round(nccl_bytes({"nccl": header}, gpu).typical_bytes / MiB)


@pytest.mark.parametrize(
    ("header", "gpu", "mib"),
    [
        pytest.param({"groups": [2]}, A100, 544, id="two joined by NVLink, as measured"),
        pytest.param({"groups": [4]}, A100, 688, id="four, as measured"),
        pytest.param({"groups": [8]}, A100, 688, id="a ring has two neighbors however long it is"),
        pytest.param({"groups": [4, 2]}, A100, 1232, id="each communicator has its own"),
        pytest.param({"groups": [2]}, L40S, 45, id="two channels without NVLink"),
        pytest.param({"groups": [4], "max_channels": "4"}, A100, 115, id="fewer channels"),
        pytest.param({"groups": [4], "max_channels": "many"}, A100, 688, id="no number"),
        pytest.param({"groups": [2], "buffer_bytes": "1048576"}, A100, 366, id="smaller buffers"),
    ],
)
def test_what_is_expected(header, gpu, mib):
    assert typical(header, gpu) == mib


@pytest.mark.parametrize("header", [{}, {"nccl": {"groups": []}}, {"nccl": {"groups": [1]}}, {"nccl": None}])
def test_nothing_without_others(header):
    assert nccl_bytes(header, A100) is None
    assert with_nccl(A100, header) is A100
    assert nccl_warnings(header, A100) == ()


def test_it_is_part_of_the_context():
    header = {"nccl": {"groups": [4]}}
    found = with_nccl(A100, header)
    more = nccl_bytes(header, A100)
    assert more.low_bytes < more.typical_bytes < more.high_bytes
    for name in ("low_bytes", "typical_bytes", "high_bytes"):
        assert getattr(found.context, name) - getattr(A100.context, name) == getattr(more, name)
    (sentence,) = nccl_warnings(header, A100)
    assert "688.0 MiB for NCCL" in sentence
    assert "57.3 MiB to 917.3 MiB" in sentence
