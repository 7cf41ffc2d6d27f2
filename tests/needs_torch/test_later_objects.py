"""Work of objects that the script makes behind its training: found in the source before they exist."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch", reason="tracing needs torch")


class Net(torch.nn.Module):
    def forward(self, x):
        return x


class Evaluation:
    """Evaluates a model without gradients."""

    def __init__(self, model, rows=3):
        self.model, self.rows = model, rows

    def run(self):
        with torch.no_grad():
            return self.model(torch.ones(self.rows))


class Sampler:
    """Calls its model in a method, or when it is called itself."""

    def __init__(self, model):
        self.net = model.eval()

    def draw(self):
        return self.net(torch.ones(1))

    def __call__(self):
        return self.draw()


class Table:
    """Holds a model, and writes text."""

    def __init__(self, model):
        self.model = model

    def show(self):
        print("model", self.model)


def check(tester):
    return tester.run()


def names():
    model = Net()
    return {**globals(), "model": model, "made": Sampler(model)}


@pytest.mark.parametrize(
    "source",
    [
        "Sampler(model).draw()",
        "sampler = Sampler(model)\nsampler.draw()",
        "sampler = Sampler(model=model)\nsampler()",
        "Sampler(model)()",
        "made()",
        "made.draw()",
        "later = Net()\nlater(torch.ones(1))",
        "later = Net()\nlater.cuda().forward(torch.ones(1))",
    ],
)
def test_its_methods_run_a_model(source):
    from cotenant.tracing.training.model_calls import runs_model

    assert runs_model(ast.parse(source).body, names())


@pytest.mark.parametrize(
    "source", ["check(Evaluation(model))", "check(tester=Evaluation(model))", "t = Evaluation(model)\nt.run()"]
)
def test_its_methods_infer(source):
    from cotenant.tracing.training.model_calls import infers

    assert infers(ast.parse(source).body, names())


@pytest.mark.parametrize(
    "source",
    [
        "Sampler(model)",
        "table = Table(model)\ntable.show()",
        "print(Sampler(model))",
        "Unknown(model).draw()",
        "loss = torch.nn.MSELoss()\nloss(1, 2)",
    ],
)
def test_other_statements_run_none(source):
    from cotenant.tracing.training.model_calls import infers, runs_model

    statements = ast.parse(source).body
    assert not runs_model(statements, names())
    assert not infers(statements, names())


def test_a_name_that_has_a_value_keeps_it():
    from cotenant.tracing.training.later_objects import with_later_objects

    statements = ast.parse("made = Table(model)\nother = Table(model)").body
    seen = with_later_objects(statements, names())
    assert isinstance(seen["made"], Sampler)
    assert seen["other"].model is seen["model"]


def test_a_test_by_an_object_made_behind_the_loop_is_traced(tmp_path):
    from traced_scripts import traced

    script = """
import torch
class Judge:
    def __init__(self, model):
        self.model = model
    def run(self):
        return self.model(torch.zeros(100_003, 8).cuda())
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(500):
    model(torch.zeros(10, 8).cuda()).sum().backward()
    optimizer.step()
judge = Judge(model)
judge.run()
"""
    sizes = [event.bytes for event in traced(tmp_path, script).events if event.action == "alloc"]
    assert sizes.count(100_003 * 8 * 4) == 2


def test_a_training_by_an_object_made_behind_the_first_is_traced(tmp_path):
    from traced_scripts import traced

    script = """
import torch
class Trainer:
    def __init__(self, width):
        self.model = torch.nn.Linear(8, width).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
    def train(self):
        for step in range(500):
            self.optimizer.zero_grad()
            self.model(torch.zeros(10, 8).cuda()).sum().backward()
            self.optimizer.step()
first = Trainer(8)
first.train()
second = Trainer(100_003)
second.train()
"""
    sizes = [event.bytes for event in traced(tmp_path, script).events if event.action == "alloc"]
    assert sizes.count(100_003 * 8 * 4) >= 3  # weights, and gradients of at least two steps


def test_a_statement_is_gone_through_once():
    """A branch of a loop is asked about whenever its line runs, and its nodes are the same each time."""
    from cotenant.tracing.training import model_calls

    statement = ast.parse("if x:\n    print(net(x))").body[0]
    assert model_calls._nodes(statement) is model_calls._nodes(statement)
    assert [call.func.id for call in model_calls._calls(statement)] == ["print", "net"]
    assert not model_calls.runs_model([statement], {"net": print})
    assert model_calls.runs_model([statement], {"net": Net()})
