"""Calls of models that cannot repeat."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training import repeated_evaluation  # noqa: E402


def test_a_call_without_gpu_tensors_is_made_without_a_look_at_the_stack(monkeypatch):
    def call_stack():
        pytest.fail("environments call models of the CPU thousands of times, and a stack takes long to describe")

    monkeypatch.setattr(repeated_evaluation.script_location, "call_stack", call_stack)
    batches = SimpleNamespace(depth=0, call=lambda original, module, args, kwargs: original(module, *args, **kwargs))
    calls = repeated_evaluation.RepeatedCalls(SimpleNamespace(is_paused=False), None, None, batches)
    model = torch.nn.Linear(2, 3)
    made = calls._with_graph(torch.nn.Linear.forward, model, (torch.ones(1, 2),), {})
    assert made.shape == (1, 3)
