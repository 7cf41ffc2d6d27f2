"""Evaluations whose model reads values from the GPU, or is given numbers: alike calls are replaced, others are not."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import allocations, traced

SCRIPT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.router = nn.Embedding(65, 32), nn.Linear(32, 4)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))

    def forward(self, tokens):
        {first}
        x = self.embedding(tokens).flatten(0, 1)
        chosen = self.router(x).topk(2, -1).indices
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            mask = (chosen == index).any(-1)
            if mask.any():
                out[mask] += expert(x[mask])
        return out.sum()

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.eval()
with torch.no_grad():
    for turn in range({turns}):
        tokens = torch.full((8, 16), {token}).cuda()
        model(tokens).item()
model.train()
for _ in range(4):
    model(torch.zeros(8, 16, dtype=torch.long).cuda()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(tmp_path, *, turns, token="turn % 65", first="pass"):
    return traced(tmp_path, SCRIPT.format(turns=turns, token=token, first=first))


def test_long_evaluations_of_experts_are_not_traced_to_their_end(tmp_path):
    short, long = run(tmp_path, turns=4), run(tmp_path, turns=60)
    assert not long.partial
    assert len(long.events) < 1.5 * len(short.events)
    assert max(allocations(long)) == max(allocations(short))


def test_values_that_a_call_assumes_do_not_tell_it_from_the_next_one(tmp_path):
    source = SCRIPT.replace("torch.full((8, 16), {token}).cuda()", "torch.randn(8, 16, 65, device='cuda').argmax(-1)")
    first = "nn.functional.one_hot(tokens, 65)"
    short, long = (traced(tmp_path, source.format(turns=turns, first=first)) for turns in (4, 60))
    assert len(long.events) < 2 * len(short.events)
    assert max(allocations(long)) == max(allocations(short))


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("64 * (turn == 9)", id="alike before"),
        pytest.param("min(turn, 9) + 55 * (turn == 9)", id="all differ"),
    ],
)
def test_a_size_that_is_read_from_the_inputs_is_traced(tmp_path, token):
    first = "torch.empty(1000 * (1 + int(tokens.max())), device='cuda')"
    assert 4 * 1000 * 65 in allocations(run(tmp_path, turns=12, token=token, first=first))


def test_a_loss_whose_forward_is_called_needs_no_parameters(tmp_path):
    source = """
    class Loss(nn.Module):
        def __init__(self):
            self.weight = 2.0  # without that of `Module`: a call of it would fail, its `forward` works

        def forward(self, x):
            return self.weight * nn.functional.relu(nn.Identity()(x)).sum()

    loss = Loss()
    with torch.no_grad():
        for _ in range(3):
            loss.forward(torch.zeros(8, 16).cuda())
    """
    first, rest = SCRIPT.split("model = Model()")
    script = first.format(first="pass") + textwrap.dedent(source) + "model = Model()" + rest.format(turns=1, token="0")
    assert not [warning for warning in traced(tmp_path, script).warnings if "not traced" in warning]


SAMPLER = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(*[nn.Linear(32, 32) for _ in range(8)])

    def forward(self, x, time, scale=1):
        y = self.parts(x) * time
        if {condition}:
            y = torch.cat([y] * 300)[:len(x)].clone()
        return y

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(8, 32).cuda(), 0.5).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        x = torch.randn(8, 32).cuda()
        for step in reversed(range({steps})):
            x = x - 0.1 * model(x, {time})
    model.train()
"""


@pytest.mark.parametrize("time", ["step / 400", "step"])
def test_steps_of_a_sampler_with_other_numbers_are_alike(tmp_path, time):
    short, long = (traced(tmp_path, SAMPLER.format(steps=steps, time=time, condition="False")) for steps in (20, 400))
    assert not long.partial
    per_step = 2  # the product and the difference of the loop itself
    assert len(long.events) - len(short.events) < 2 * (per_step + 2) * 380 * 3
    assert max(allocations(long)) == max(allocations(short))


@pytest.mark.parametrize(
    "condition", ["time == 0.02 and x is not None", "scale and time in (0.02, 0.01)", "time <= 0.05"]
)
def test_numbers_that_decide_a_size_among_the_first_steps_are_no_repetition(tmp_path, condition):
    trace = traced(tmp_path, SAMPLER.format(steps=10, time="step / 100", condition=condition))
    assert 300 * 8 * 32 * 4 in allocations(trace)


def test_two_numbers_in_turn_are_two_kinds_of_calls(tmp_path):
    trace = traced(tmp_path, SAMPLER.format(steps=100, time="float(step % 2)", condition="time == 0"))
    assert 300 * 8 * 32 * 4 in allocations(trace)
    assert len([size for size in allocations(trace) if size == 300 * 8 * 32 * 4]) < 20


def test_an_evaluation_keeps_no_variable_of_its_function_alive(tmp_path):
    """Before Python 3.13, reading the locals of a function keeps what they are until they are read again."""
    body = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.ones(9000, 64, device="cuda")).mean()
    loss.backward()
    optimizer.step()
batch = torch.ones(7000, 64, device="cuda")
with torch.no_grad():
    model(batch)
del batch
torch.ones(5000, 64, device="cuda")
"""
    inside = "def main():\n" + body.replace("\n", "\n    ") + "\nmain()\n"
    head = "import torch\nfrom torch import nn\n"
    # What is freed when: a function's variables live until it returns, those of a module until the end.
    frees, wanted = ([event.bytes for event in traced(tmp_path, head + source).events] for source in (inside, body))
    until = wanted.index(5000 * 64 * 4) + 1
    assert frees[:until] == wanted[:until]


def test_models_that_are_called_within_a_transform_are_traced_each_time(tmp_path):
    source = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
values = {name: value.detach() for name, value in model.named_parameters()}
x = torch.ones(4, 8).cuda()
for _ in range(12):
    torch.func.jvp(lambda now: torch.func.functional_call(model, now, (x,)), (values,), (values,))
for _ in range(3):
    model(x).sum().backward()
    optimizer.step()
"""
    trace = traced(tmp_path, source)
    assert (trace.partial, trace.warnings) == (False, ())
