"""Evaluations without `no_grad`: alike calls whose graph no backward pass uses are replaced, the memory is the same."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.trace import MemoryTrace
from traced_scripts import allocations, traced

SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

class Net(nn.Module):
    def __init__(self, inside):
        super().__init__()
        self.first, self.tanh, self.last = nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 10)
        self.inside, self.calls, self.state, self.found = inside, 0, None, []
    def forward(self, x, mask=None):
        self.calls += 1
        x = x if mask is None else x * (mask > 0)
        return self.inside(self, x, self.last(self.tanh(self.first(x)).exp()))

def train(steps):
    for _ in range(steps):
        trained(other(torch.zeros(8, 64).cuda())).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

trained, other = Net(lambda net, x, y: y).cuda(), nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW([*trained.parameters(), *other.parameters()])
train(1)
report = {}

def case(name, *, inside=lambda net, x, y: y, extra=lambda net, turn, output: None, size=lambda turn: 8,
         given=lambda x: x, mask=False, mode="eval", begin=lambda net: None,
         end=lambda net: None):
    net = Net(inside).cuda()
    if "hooked" in sys.argv:  # so nothing is replaced
        net.register_forward_hook(lambda *unused: None)
    getattr(net, mode)()
    begin(net)
    live = []
    torch.cuda.reset_peak_memory_stats()
    turns = 20 if mode == "train" else 8
    for turn in range(turns):
        inputs = [given(torch.zeros(size(turn), 64).cuda())]
        output = net(*inputs, *([torch.zeros(size(turn), 1).cuda()] if mask else []))
        del inputs
        live.append(torch.cuda.memory_allocated())
        probabilities = output.softmax(-1)
        extra(net, turn, output)
        live.append(torch.cuda.memory_allocated())
    end(net)
    gradients = sum(parameter.grad is not None for parameter in net.parameters())
    report[name] = net.calls, [torch.cuda.max_memory_allocated(), *live, gradients]

def store(net, turn, output):
    net.found.append(output)
def store_part(net, turn, output):
    net.found.append(output[0, 0])
def average(net, turn, output):
    net.state = output.mean() if net.state is None else 0.9 * net.state + 0.1 * output.mean()
def keep_inside(net, x, y):
    net.found.append(y * 2)
    return y
def keep_part_inside(net, x, y):
    net.found.append(y.detach() * 2)
    return y
def beside(net, x, y):
    net.state = net.first(x).sum()
    return y
def checkpointed(net, x, y):
    with set_checkpoint_early_stop(False):
        for _ in range(5):
            y = checkpoint(net.tanh, y, use_reentrant=False)
    return y

def backward(net, turn, output):
    output.sum().backward()
    net.zero_grad()

def backward_beside(net, turn, output):
    net.state.backward()
    net.state = None

case("plain")
case("given by another", given=other)
case("graph behind", given=other, inside=lambda net, x, y: net.first(x * 2))
case("not held", mask=True)
case("view", inside=lambda net, x, y: y[:, 1:])
case("no graph", inside=lambda net, x, y: y.detach())
case("training mode", mode="train")
case("larger at the end", size=lambda turn: 8 + 2 * (turn == 7))
case("used elsewhere", begin=lambda net: net(torch.zeros(8, 64).cuda()).sum().backward())
case("more around", extra=lambda net, turn, output: net.found.append(output.detach()))
case("stored", extra=store)
case("stored inside", inside=keep_inside)
case("a part stored inside", inside=keep_part_inside)
case("in turn", inside=lambda net, x, y: y * 2 if net.calls % 2 else y)
case("reads", inside=lambda net, x, y: y + y[0].sum().item())
case("used", extra=backward)
case("used by grad", extra=lambda net, turn, output: torch.autograd.grad(output.sum(), net.last.bias))
case("used beside the result", inside=beside, extra=backward_beside)
case("computed again in the backward pass", inside=checkpointed, extra=backward)
case("accumulated", inside=lambda net, x, y: net.first(x), extra=store_part, end=lambda net: sum(net.found).backward())
case("averaged", extra=average, end=lambda net: net.state.backward())
case("other sizes", size=lambda turn: 8 + turn * turn)
for mode, last in ("eval", 3), ("train", 16):
    case(f"used later, {mode}", mode=mode, extra=lambda net, turn, output: turn == last and backward(net, turn, output))

print("report", json.dumps(report), flush=True)
train(3)
"""
ALL = 8
CALLS = {
    "plain": 3,
    "given by another": 3,
    "graph behind": 3,
    "not held": 3,
    "view": 3,
    "no graph": 3,
    "training mode": 16,
    "larger at the end": 4,
    "used elsewhere": 4,
    "more around": 3,
    "stored": ALL,
    "stored inside": ALL,
    "a part stored inside": ALL,
    "in turn": ALL,
    "reads": ALL,
    "used": ALL,
    "used by grad": ALL,
    "used beside the result": ALL,
    "computed again in the backward pass": ALL,
    "accumulated": ALL,
    "averaged": ALL,
    "other sizes": ALL,
}
LATER = {"used later, eval": 7, "used later, train": 19}


class Run(NamedTuple):
    trace: MemoryTrace
    cases: dict[str, list]


def run(folder, *args):
    trace = traced(folder, SCRIPT, *args)
    line = next(line for line in (folder / "log").read_text().splitlines() if line.startswith("report "))
    return Run(trace, json.loads(line.removeprefix("report ")))


@pytest.fixture(scope="module")
def replaced(tmp_path_factory):
    return run(tmp_path_factory.mktemp("replaced"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"), "hooked")


@pytest.mark.parametrize(("name", "calls"), CALLS.items())
def test_memory_is_the_same_without_computing_calls_that_repeat(replaced, whole, name, calls):
    assert replaced.cases[name] == [calls, whole.cases[name][1]]
    assert whole.cases[name][0] == {"training mode": 20, "used elsewhere": 9}.get(name, ALL)


def test_a_backward_pass_through_a_replaced_call_is_the_last_one_without_gradients(replaced, whole):
    assert {name: replaced.cases[name][0] for name in LATER} == LATER
    of_replaced = [warning for warning in replaced.trace.warnings if warning not in whole.trace.warnings]
    assert of_replaced == ["a call was taken for one without a backward pass: its gradients were not traced"]


def test_the_trace_has_the_same_largest_blocks(replaced, whole):
    assert len(replaced.trace.events) < len(whole.trace.events)
    assert max(allocations(replaced.trace)) == max(allocations(whole.trace))
    assert replaced.trace.ops == whole.trace.ops
