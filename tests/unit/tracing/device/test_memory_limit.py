"""Out of memory is raised where the script catches it, and for GPUs that do not exist."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.trace import TraceHeader  # noqa: E402
from cotenant.tracing.device.memory_limit import MemoryLimit  # noqa: E402


def a_limit(live=0, fraction=None):
    header = TraceHeader(torch_version="2.13.0", memory_fraction=fraction)
    recorder = SimpleNamespace(live_bytes={0: live}, header=header, warnings=[])
    recorder.warn = recorder.warnings.append
    return MemoryLimit(recorder, 90, 1, 100), recorder


def test_an_error_that_nobody_catches_is_not_raised():
    limit, recorder = a_limit(live=80)
    limit(20, 0)
    assert recorder.warnings == []


def message_caught(limit, nbytes):
    """The message of the error that a script gets which waits for it; None without an error."""
    try:
        limit(nbytes, 0)
    except torch.cuda.OutOfMemoryError as error:
        return str(error)
    return None


def test_an_error_is_raised_within_a_block_that_catches_it():
    limit, recorder = a_limit(live=80)
    assert message_caught(limit, 10) is None
    assert message_caught(limit, 11) == (
        "CUDA out of memory. Tried to allocate 11 B. GPU 0 has a total capacity of 90 B of which 10 B is free."
    )
    assert recorder.header.oom_raised
    assert len(recorder.warnings) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="code has no exception table")
def test_a_call_outside_of_the_try_block_is_not_caught():
    limit, recorder = a_limit(live=80)
    try:
        pass
    except torch.cuda.OutOfMemoryError:
        raise AssertionError from None
    limit(20, 0)
    assert recorder.warnings == []


def test_a_memory_fraction_lowers_the_limit():
    limit, _ = a_limit(live=40, fraction=0.5)
    assert limit.capacity_bytes == 50
    assert message_caught(limit, 10) is None
    assert "out of memory" in message_caught(limit, 11)


def test_a_gpu_that_does_not_exist_is_refused_with_the_option_that_adds_it():
    limit, _ = a_limit()
    with pytest.raises(RuntimeError, match=r"invalid device ordinal.*`--gpus 3`"):
        limit(1, 2)
