"""Work behind a training loop that no data loader ends: it is traced, or a warning names it."""

from __future__ import annotations

import pytest

from traced_scripts import allocations, traced

pytest.importorskip("torch", reason="tracing needs torch")

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    model(torch.ones(4, 64, device="cuda")).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
def train_on(x):
    model(x.cuda()).mean().backward()
    optimizer.step()
@torch.no_grad()
def sample():
    model(torch.ones(5000, 64, device="cuda"))
"""
SAMPLED = 4 * 5000 * 64


WORK_BEHIND = {
    "of one line": """
for i in range(1000): train()
sample()""",
    "of several lines": """
for i in range(1000):
    train()
    seen = i
print(seen)
sample()""",
    "with a break": """
i = 0
while True:
    i += 1
    train()
    if i > 500: break
sample()""",
    "while": """
i = 0
while i < 500:
    i += 1
    train()
sample()""",
    "that ends by itself": """
for i in range(3):
    train()
sample()""",
    "in a function": """
def main():
    for i in range(99):
        train()
    sample()
main()""",
    "in with": """
with torch.autograd.profiler.record_function('x'):
    for i in range(99): train()
    sample()""",
    "in a loop over epochs": """
for i in range(99):
    for j in range(99):
        train()
    sample()""",
    "around one over optimizers": """
for i in range(99):
    model(torch.ones(4, 64).cuda()).sum().backward()
    for one in [optimizer]: one.step()
sample()""",
    "beside a loader": """
batches = iter(DataLoader(torch.ones(4000, 64), 4))
for i in range(900): train_on(next(batches))
sample()""",
    "before with": """
for i in range(99): train()
with torch.no_grad(): sample()""",
    "before with of several lines": """
def main():
    count = 0
    for i in range(99): train()
    with torch.no_grad():
        sample()
    return count
seen = main()""",
    "before another": """
for i in range(99): train()
for j in [7, 8]: sample()
assert j == 8""",
    "before several lines": """
for i in range(99): train()
print(
    1,
    sample(),
)""",
    "over a loader": """
for x in DataLoader(torch.ones(4000, 64), 4): train_on(x)
sample()""",
}


@pytest.mark.parametrize("rest", [pytest.param(rest, id=name) for name, rest in WORK_BEHIND.items()])
def test_the_work_of_a_model_behind_a_loop_is_traced(tmp_path, rest):
    trace = traced(tmp_path, HEAD + rest)
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings, trace.partial) == (True, (), False)
    assert trace.header.steps <= 4


def test_a_loop_is_left_when_its_iteration_is_over(tmp_path):
    rest = """
import contextlib
@contextlib.contextmanager
def noted(i):
    yield
    print("closed", i)
for i in range(99):
    with noted(i):
        train()
    print("iteration", i)
print("behind")
sample()
"""
    traced(tmp_path, HEAD + rest)
    assert (tmp_path / "log").read_text().splitlines()[-3:] == ["closed 2", "iteration 2", "behind"]


@pytest.mark.parametrize(
    ("rest", "warnings"),
    [
        pytest.param("fit()\nprint(model)", (), id="nothing that runs a model"),
        pytest.param("fit()\nsample()", ("the work at train.py, line 20, runs only after",), id="behind its function"),
    ],
)
def test_a_loop_that_is_not_left_ends_the_trace(tmp_path, rest, warnings):
    trace = traced(tmp_path, HEAD + "def fit():\n    for i in range(99): train()\n" + rest + "\nprint('left')")
    assert (trace.header.steps, "left" in (tmp_path / "log").read_text()) == (3, False)
    assert [warning[: len(start)] for warning, start in zip(trace.warnings, warnings, strict=True)] == list(warnings)


EPOCHS = """
def epoch():
    for x in DataLoader(torch.ones(4000, 64), 4): train_on(x)
for i in range({epochs}):
    epoch()
{rest}
"""


@pytest.mark.parametrize(
    ("epochs", "rest", "is_named"),
    [
        pytest.param(10, "sample()", True, id="of a model"),
        pytest.param(1, "sample()", False, id="of a model, after one epoch"),
        pytest.param(10, "print(model)", False, id="of no model"),
        pytest.param(10, "epoch()", False, id="that trains"),
    ],
)
def test_the_work_of_a_model_behind_all_epochs_is_named(tmp_path, epochs, rest, is_named):
    trace = traced(tmp_path, HEAD + EPOCHS.format(epochs=epochs, rest=rest))
    named = [
        warning for warning in trace.warnings if warning.startswith("the work at train.py, line 22, runs only after")
    ]
    assert len(named) == is_named, trace.warnings


def test_a_loop_before_another_training_is_not_left(tmp_path):
    rest = """
for i in range(99): train()
sample()
for i in range(99):
    model(torch.ones(4, 64, device="cuda")).mean().backward()
    optimizer.step()
"""
    trace = traced(tmp_path, HEAD + rest)
    assert SAMPLED not in allocations(trace, "forward")
    (warning,) = trace.warnings
    line = 2 + (HEAD + rest).splitlines().index("sample()")
    assert warning.startswith(f"the training at train.py, line {line}, runs only after")


def test_the_work_behind_a_while_loop_that_reads_a_loader_is_named(tmp_path):
    rest = """
batches = iter(DataLoader(torch.ones(4000, 64), 4))
done = 0
while done < 100:
    try:
        train_on(next(batches))
    except StopIteration:
        batches = iter(DataLoader(torch.ones(4000, 64), 4))
    done += 1
sample()
"""
    trace = traced(tmp_path, HEAD + rest)
    assert SAMPLED not in allocations(trace, "forward")
    (warning,) = trace.warnings
    line = 1 + (HEAD + rest).splitlines().index("sample()")
    assert warning.startswith(f"the work at train.py, line {line}, runs only after")


def test_the_work_behind_the_epochs_of_each_of_several_models_is_not_named(tmp_path):
    rest = """
for fold in range(3):
    model = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(10):
        for x in DataLoader(torch.ones(4000, 64), 4): train_on(x)
    sample()
"""
    trace = traced(tmp_path, HEAD + rest)
    assert not [warning for warning in trace.warnings if "runs only after" in warning]
    assert SAMPLED in allocations(trace, "forward")
