"""Loops whose condition depends on unknown values, and comparisons of such values."""

from __future__ import annotations

import pytest

from traced_scripts import traced

torch = pytest.importorskip("torch", reason="tracing needs torch")

HEAD = "import torch\nfrom torch import nn\n"
WAITS = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
limit, loss = 1e-3, float("inf")
{loop}
print("rounds", rounds)
"""
TRAINS = "model(torch.ones(4, 64, device='cuda')).sum().backward(); optimizer.step()"


@pytest.mark.parametrize(
    ("loop", "rounds", "warning_count"),
    [
        pytest.param("while error > limit: x = step(x)", 20, True, id="until it is small"),
        pytest.param("while not error < limit: x = step(x)", 20, True, id="until it is small, said otherwise"),
        pytest.param("while error.item() > limit: x = step(x)", 20, True, id="a number"),
        pytest.param("while error > other: x = step(x)", 20, True, id="of two tensors"),
        pytest.param("while rounds < 50 and (error > limit): x = step(x)", 20, True, id="with a limit beside"),
        pytest.param("while True:\n  x = step(x)\n  if error < limit: break", 20, True, id="left by break"),
        pytest.param("for _ in range(30):\n  x = step(x)\n  if error < limit: break", 30, False, id="a loop that ends"),
        pytest.param("while rounds < 7:\n  x = step(x)\n  if error <= 1.0: x = x + 1", 7, True, id="a step accepted"),
    ],
)
def test_a_loop_on_unknown_values_runs_a_fixed_number_of_times(tmp_path, loop, rounds, warning_count):
    setup = """
rounds = 0
def step(x):
    global rounds, error
    rounds += 1
    y = torch.tanh(model(x))
    error = (y - x).norm()
    return y
x = torch.randn(4, 64, device="cuda")
error, other = x.sum(), x.mean()
"""
    trace = traced(tmp_path, HEAD + WAITS.format(loop=setup + loop) + f"for _ in range(3): {TRAINS}")
    found = (tmp_path / "log").read_text().split()[-1]
    assert abs(int(found) - rounds) <= 1
    assert [("values that are not known" in warning) for warning in trace.warnings] == [True] * warning_count


def test_a_loop_until_a_small_loss_continues(tmp_path):
    loop = "rounds = 0\nwhile loss > limit:\n  loss = model(torch.ones(4, 64, device='cuda')).sum()\n"
    loop += "  loss.backward(); optimizer.step(); optimizer.zero_grad()"
    trace = traced(tmp_path, HEAD + WAITS.format(loop=loop))
    assert (trace.header.steps, trace.warnings, trace.partial) == (3, (), False)


def test_unknown_numbers_compare_as_they_are_read(tmp_path):
    source = (
        HEAD
        + f"""
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = model(torch.ones(4, 64, device="cuda")).mean()
assert loss.item() == 1 and loss > 0.5 and not loss > 2 and loss < float("inf") and not loss.detach() < 0
assert ((loss > 0) & (loss < 2)).cpu() and not (loss > 2).cpu() and not (~(loss > 0)).any()
for _ in range(3): {TRAINS}
"""
    )
    assert not traced(tmp_path, source).partial


@pytest.mark.parametrize(
    ("solve", "calls"),
    [
        pytest.param("solver = Solver()\nfor at in range(30): solver.advance()", 20, id="one object, 30 times"),
        pytest.param("for at in range(3): Solver().advance()", 60, id="three objects"),
        pytest.param("for at in range(30): Solver().advance()", 8 * 20 + 22, id="many objects"),
        pytest.param("for at in range(3): advance()", 60, id="a function"),
    ],
)
def test_a_loop_that_an_object_continues_has_no_further_iterations(tmp_path, solve, calls):
    """An adaptive solver that gives its result at many times: its steps are few, however many times there are."""
    setup = """
rounds, passed = 0, torch.rand((), device="cuda")
def advance(self=None):
    global rounds, passed
    while passed < 2.0:
        rounds += 1
        passed = passed + model(torch.ones(4, 64, device="cuda")).mean().detach()
class Solver:
    advance = advance
"""
    trace = traced(tmp_path, HEAD + WAITS.format(loop=setup + solve) + f"for _ in range(3): {TRAINS}")
    assert int((tmp_path / "log").read_text().split()[-1]) == calls
    assert len(trace.warnings) == 1
