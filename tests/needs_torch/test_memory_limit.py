"""What the check of a GPU's capacity leaves behind."""

import gc
import weakref
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch

from cotenant.core.trace import TraceHeader
from cotenant.tracing.device.memory_limit import MemoryLimit


class Tensor:
    pass


def test_a_request_above_the_capacity_holds_no_tensor_of_its_callers():
    limit = MemoryLimit(SimpleNamespace(live_bytes={0: 0}, header=SimpleNamespace(memory_fraction=None)), 10, 1, 10)
    found = []

    def step():
        gradient = Tensor()
        found.append(weakref.ref(gradient))
        limit(20, 0)

    gc.disable()  # a cycle would be freed by a collection only
    try:
        step()
        assert found[0]() is None
    finally:
        gc.enable()


def test_the_error_is_raised_only_below_a_handler_for_it():
    notes = []
    recorder = SimpleNamespace(live_bytes={0: 0}, header=TraceHeader(torch_version=""), warn=notes.append)
    limit = MemoryLimit(recorder, 10, 1, 10)

    def allocate():
        limit(20, 0)

    def halving():
        allocate()
        try:
            allocate()
        except torch.cuda.OutOfMemoryError:
            return "halved"
        return "not raised"

    allocate()
    assert not notes
    assert [halving(), halving()] == ["halved", "halved"]
    assert recorder.header.oom_raised
    assert len(set(notes)) == 1
    allocate()
