"""Operators that scripts define by `torch.library.custom_op`: what their functions allocate inside is in the trace."""

from __future__ import annotations

import pytest

from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

MIB = 2**20
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
SCRIPT = """
import torch

@torch.library.custom_op("script::scaled", mutates_args=())
def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    BODY

@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)

def backward(ctx, gradient):
    return torch.ops.script.scaled(gradient, 2.0), None

scaled.register_autograd(backward)
function = scaled
LINES
layer = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
x = torch.ones(1024, 256, device="cuda")
for _ in range(4):
    function(layer(x), factor=2.0).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
WIDE = "return x.repeat(1, 3)[:, :256].mul(factor)"


def script(body, lines=""):
    return SCRIPT.replace("BODY", body).replace("LINES", lines)


def phases_of_wide(trace):
    """The phases in which three MiB, the copies inside of the function, were allocated, in order and once each."""
    return list(dict.fromkeys(event.phase for event in trace.events if event.bytes == 3 * MIB))


def test_function_of_an_operator_runs_forward_and_backward(tmp_path):
    trace = traced(tmp_path, script(WIDE))
    assert phases_of_wide(trace) == ["forward", "backward"]
    freed = {event.storage_id for event in trace.events if event.action == "free"}
    assert all(event.storage_id in freed for event in trace.events if event.bytes == 3 * MIB)
    assert not trace.warnings


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("return torch.from_numpy(x.cpu().numpy()).to('cuda').set_(None)", id="raises"),
        pytest.param("return torch.compile(lambda y: y.repeat(1, 3)[:, :256] * factor)(x)", id="compiles"),
    ],
)
def test_function_that_cannot_run_is_named_and_its_fake_implementation_answers(tmp_path, body):
    trace = traced(tmp_path, script(body), compiled_code="eager")
    assert not trace.partial
    assert any("`script::scaled` was not run (" in warning for warning in trace.warnings), trace.warnings
    assert phases_of_wide(trace) == []


@pytest.mark.skipif(VERSION != (2, 13), reason="Inductor's functions are those of torch 2.13")
def test_function_of_an_operator_runs_in_compiled_code(tmp_path):
    trace = traced(tmp_path, script(WIDE, "function = torch.compile(scaled)"), compiled_code="inductor")
    assert phases_of_wide(trace) == ["forward", "backward"]
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings


@pytest.mark.skipif(VERSION != (2, 13), reason="Inductor's functions are those of torch 2.13")
@pytest.mark.parametrize("lines", ["", "function = torch.compile(scaled)"])
def test_function_that_an_operator_compiles_is_compiled(tmp_path, lines):
    """What it makes inside is in the trace: the second factor of a product."""
    body = """@torch.compile
    def inside(y):
        return ((y * factor).relu() + torch.tensor(1.0, device="cuda")) @ y.new_ones(256, 256)
    return inside(x)"""
    trace = traced(tmp_path, script(body, lines), compiled_code="inductor")
    assert not any("was not run" in warning for warning in trace.warnings), trace.warnings
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings
    products = [event.phase for event in trace.events if event.bytes == 256 * 256 * 4 and event.action == "alloc"]
    assert {"forward", "backward"} <= set(products), "the second factor, which its fake implementation does not make"


@pytest.mark.skipif(VERSION != (2, 13), reason="Inductor's functions are those of torch 2.13")
def test_products_in_fp8_are_compiled_inside_of_an_operator(tmp_path):
    body = """@torch.compile
    def inside(y):
        small = (y * factor).to(torch.float8_e4m3fn)
        one = y.new_tensor(1.0, dtype=torch.float32)
        other = y.new_ones(256, 256).to(torch.float8_e4m3fn)
        return torch._scaled_mm(small, other.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16).float()
    return inside(x)"""
    trace = traced(tmp_path, script(body), compiled_code="inductor")
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings
    in_bfloat16 = [event.phase for event in trace.events if event.bytes == MIB // 2]
    assert list(dict.fromkeys(in_bfloat16)) == ["forward", "backward"]
