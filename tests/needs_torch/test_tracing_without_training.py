"""Scripts that end without an optimizer step: evaluations have an answer, a training that was ended has none."""

from __future__ import annotations

import pytest

from traced_scripts import failing, live_bytes, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

MODEL = """
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
image = torch.zeros(64, 1024).cuda()
"""
EVALUATION = "\nmodel.eval()\nwith torch.no_grad():\n    [model(image) for _ in range(2)]\n"
ATTACK = "\nimage.requires_grad_()\nmodel(image).sum().backward()\n"
ENDED = "\ntry: model(image).sum().backward(torch.zeros(3))\nexcept RuntimeError: pass\n"
WARNING = "the script ended without an optimizer step: the answer is for all that it ran, not for training"


def test_an_evaluation_is_answered_for_all_that_it_ran(tmp_path):
    trace = traced(tmp_path, MODEL + EVALUATION)
    assert (trace.header.steps, trace.partial, trace.warnings) == (0, False, (WARNING,))
    peak = max(total for _, total in live_bytes(trace))
    results = peak - 4 * (1024 * 1024 + 1024 + 64 * 1024)  # without weights, biases and images
    assert results == 2 * 4 * 64 * 1024


def test_gradients_of_an_input_alone_are_answered(tmp_path):
    trace = traced(tmp_path, MODEL.replace("optimizer =", "# ") + ATTACK)
    assert (trace.header.steps, trace.partial, trace.warnings) == (0, False, (WARNING,))


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(MODEL + ENDED, id="in its backward pass"),
        pytest.param(MODEL + "\nmodel(image)\n", id="after its forward pass"),
        pytest.param(MODEL + "\nmodel.weight.mm(model.weight).sum().backward()\n", id="without a call of the model"),
        pytest.param(MODEL.replace("optimizer =", "# "), id="before it computed"),
    ],
)
def test_a_training_that_was_ended_is_an_error(tmp_path, source):
    with failing("no-step", "without an optimizer step"):
        traced(tmp_path, source)
