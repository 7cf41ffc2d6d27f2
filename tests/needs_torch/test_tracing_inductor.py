"""Code of `torch.compile`, traced as Inductor compiles it for the simulated GPU."""

from __future__ import annotations

import pytest

from traced_scripts import live_bytes, peak, traced

torch = pytest.importorskip("torch", reason="tracing needs torch")
VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
pytestmark = pytest.mark.skipif(VERSION != (2, 13), reason="Inductor's functions are those of torch 2.13")

MIB = 2**20
CHAIN = """
    import torch

    class Chain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(1024, 1024))
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            x = x * self.w
            for _ in range(6):
                x = x.sin()
            return x

    model = Chain().cuda()
    x = torch.ones(1024, 1024, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model)
    for _ in range(4):
        compiled(x).backward(x)
        optimizer.step()
        optimizer.zero_grad()
    assert model.state_dict()
"""


def test_a_pointwise_chain_is_one_kernel_that_saves_its_inputs(tmp_path):
    """Eagerly all seven inputs of 4 MiB are saved for backward; compiled, `x` and `w` are, which exist anyway."""
    eager = traced(tmp_path, CHAIN)
    trace = traced(tmp_path, CHAIN, compiled_code="inductor")
    inputs, result, gradient = 8 * MIB, 4 * MIB, 4 * MIB
    assert inputs + 7 * 4 * MIB <= peak(eager) < inputs + 10 * 4 * MIB
    assert inputs + result + gradient <= peak(trace) < inputs + result + gradient + MIB
    assert [warning for warning in trace.warnings if "experimental" in warning] == list(trace.warnings)
    assert "compiled" in eager.header.runs_otherwise
    assert "compiled" not in trace.header.runs_otherwise


# What must run eagerly: each would otherwise be traced wrongly in silence, or end the script.
EAGER = """
    import torch
    from torch.utils.checkpoint import checkpoint

    class Base(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)

    class Stores(Base):
        def forward(self, x):
            self.seen = [self.layer(x)]
            return self.seen[0] * 2

    class Decides(Base):
        def forward(self, x):
            return self.layer(x) if self.layer.weight.sum().item() < 1e9 else x

    class Checkpoints(Base):
        def forward(self, x):
            return checkpoint(self.layer, x, use_reentrant=False)

    class Answer:
        def __init__(self, logits):
            self.logits = logits

    class Wraps(Base):
        def forward(self, x):
            return Answer(self.layer(x))

    models = torch.nn.ModuleList([Stores(), Decides(), Checkpoints(), Wraps()]).cuda()
    stores, decides, checkpoints, wraps = models
    optimizer = torch.optim.SGD(models.parameters(), lr=0.1)

    @torch.compile
    def uses_a_global(x):
        return stores.layer(x)

    @torch.compile
    def double(x):
        return x * 2

    compiled = [torch.compile(model) for model in models]
    sizes = iter(range(64, 64 + 20))
    for _ in range(4):
        x = torch.ones(8, 256, device="cuda")
        loss = sum(getattr(out, "logits", out).sum() for out in (model(x) for model in compiled))
        loss = loss + stores.seen[0].sum() + uses_a_global(x).sum()
        for _ in range(3):
            double(torch.ones(next(sizes), device="cuda"))
        loss.backward()
        for model in models:
            assert model.layer.weight.grad is not None and model.layer.bias.grad is not None
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_cannot_be_compiled_runs_eagerly_and_says_why(tmp_path):
    trace = traced(tmp_path, EAGER, compiled_code="inductor")
    assert "compiled" in trace.header.runs_otherwise
    found = {warning.split("`")[3]: warning for warning in trace.warnings if "was ignored for" in warning}
    reasons = {
        "Stores": "it stores tensors in `seen`",
        "Decides": "",
        "Checkpoints": "it checkpoints activations",
        "Wraps": "its result has a Answer",
        "uses_a_global": "it uses a Stores that is not among its arguments",
        "double": "more than 8 kinds of arguments",
    }
    assert set(found) == set(reasons), trace.warnings
    assert all(words in found[name] for name, words in reasons.items()), found
    *_, (_, left) = live_bytes(trace)
    assert left < 4 * 4 * 256 * 257 + 3 * MIB, "nothing of a failed compilation stays"


ATTRIBUTES = """
    import torch

    class Cached(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(256, 256)
            self.cos = self.aux = None

        def forward(self, x):
            if self.cos is None:
                self.cos = torch.arange(256, device=x.device).float().cos()
            x = self.layer(x * self.cos)
            self.aux = x.square().mean()
            return x.sin()

    model = Cached().cuda()
    model.compile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        out = model(torch.ones(8, 256, device="cuda"))
        assert type(model.cos) is type(out) and model.cos.shape == (256,)
        (out.sum() + model.aux).backward()
        assert model.layer.weight.grad.shape == (256, 256)
        optimizer.step()
        optimizer.zero_grad()
"""


def test_tensors_in_attributes_are_inputs_and_outputs_of_the_graph(tmp_path):
    """A cache that the first call makes, and a loss that every call leaves behind; the module is compiled in place."""
    trace = traced(tmp_path, ATTRIBUTES, compiled_code="inductor")
    assert not trace.partial
    assert "compiled" not in trace.header.runs_otherwise, trace.warnings
