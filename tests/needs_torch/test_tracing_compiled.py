"""`torch.compile` is ignored, with a warning if compiled code is called."""

from __future__ import annotations

import pytest

from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")


def trained(folder, lines):
    source = "import torch\nmodel = torch.nn.Linear(16, 16).cuda()\n"
    source += "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    loop = "for _ in range(4):\n    model(torch.ones(2, 16, device='cuda')).sum().backward()\n    optimizer.step()\n"
    return traced(folder, source + lines + loop, compiled_code="eager")


def test_compiled_code_is_traced_as_eager_with_a_warning(tmp_path):
    lines = (
        "model = torch.compile(model)\nassert '_orig_mod.weight' in model.state_dict() and model.in_features == 16\n"
    )
    trace = trained(tmp_path, lines)
    assert len(trace.warnings) == 1
    assert "torch.compile" in trace.warnings[0]


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        pytest.param("optimizer.step = torch.compile(optimizer.step)\n", ["upper bound"], id="a method"),
        pytest.param(
            "plain = optimizer.step\n@torch.compile(fullgraph=False)\ndef step(): plain()\noptimizer.step = step\n",
            ["upper bound", "the eager model"],
            id="a function",
        ),
        pytest.param(
            "model = torch.compile(model, mode='reduce-overhead')\n", ["the eager model", "pool"], id="graphs"
        ),
        pytest.param(
            "model.compile(options={'triton.cudagraphs': True})\n", ["the eager model", "pool"], id="in place"
        ),
    ],
)
def test_a_compiled_step_adds_an_upper_bound_warning(tmp_path, lines, messages):
    warnings = trained(tmp_path, lines).warnings
    assert len(warnings) == len(messages)
    assert all(words in warning for words, warning in zip(messages, warnings, strict=True))


def test_compiled_code_that_is_never_called_adds_no_warning(tmp_path):
    lines = "@torch.compile\ndef f(x):\n    return x * 2\n"
    assert trained(tmp_path, lines).warnings == ()
    called = trained(tmp_path, lines + "assert f(torch.ones(3).cuda()).shape == (3,) and f.__name__ == 'f'\n")
    assert "torch.compile" in called.warnings[0]
