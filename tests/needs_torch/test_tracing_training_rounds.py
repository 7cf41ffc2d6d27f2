"""Loops of a script that train a new model in every round."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

import torch

from cotenant.tracing.training.training_rounds import TrainingRounds
from traced_scripts import traced

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.randn(400, 64))
held_out = TensorDataset(torch.randn(100, 64))

def net(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 1)).cuda()

def train(width, epochs=5):
    model = net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for (x,) in DataLoader(data, batch_size=50):
            model(x.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        total = 0
        with torch.no_grad():
            for (x,) in DataLoader(held_out, batch_size=50):
                total += len(model(x.cuda()))
        accuracy = 1 / total
"""
ROUNDS = """
for width in {widths}:
    train(width)
"""


def line_of_rounds(source):
    """The line of the last loop at the left margin."""
    return max(number for number, text in enumerate(source.splitlines(), 1) if text.startswith("for "))


def warning(source, rounds):
    """The one of a script whose last loop at the left margin has untraced rounds."""
    place = f"train.py, line {line_of_rounds(source)}"
    return f"every iteration of the loop at {place}, trains a new model; only {rounds} included"


def sizes_warning(source):
    """The one of such a loop that runs over 32 and 4096."""
    return f"`width` at train.py, line {line_of_rounds(source)}, was 32 in the traced steps and grows to 4096"


def test_each_round_of_a_search_is_traced(tmp_path):
    trace = traced(tmp_path, HEAD + ROUNDS.format(widths=(32, 128, 4096)))
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 64 * 4096
    assert trace.header.steps == 9
    assert not trace.warnings


def test_rounds_that_are_alike_are_traced_until_there_are_too_many(tmp_path):
    alike = traced(tmp_path, HEAD + ROUNDS.format(widths=[32] * 5))
    assert alike.header.steps == 15
    assert not alike.warnings
    short = traced(tmp_path, (HEAD + ROUNDS.format(widths=[32] * 20)).replace("epochs=5", "epochs=1"))
    assert short.header.steps == 24
    source = HEAD + ROUNDS.format(widths=[32] * 20)
    many = traced(tmp_path, source)
    assert many.header.steps == 24
    assert many.warnings == (warning(source, "the first 8 are"),)


READS_AHEAD = """
def ahead(loader):
    present = None
    for batch in loader:
        if present is not None:
            yield present
        present = batch
    if present is not None:
        yield present
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            "in DataLoader(data, batch_size=50)", "in ahead(DataLoader(data, batch_size=50))", id="reads ahead"
        ),
        pytest.param("DataLoader(data,", "DataLoader(torch.utils.data.Subset(data, range(400)),", id="a set per epoch"),
        pytest.param("DataLoader(held_out,", "DataLoader(data,", id="validates on the same data"),
    ],
)
def test_epochs_of_a_round_are_known_by_their_loop(tmp_path, old, new):
    assert old in HEAD
    source = READS_AHEAD + HEAD.replace(old, new) + ROUNDS.format(widths=(32, 4096))
    trace = traced(tmp_path, source)
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 64 * 4096
    assert trace.header.steps == (8 if "ahead" in new else 6)
    assert not trace.warnings


def counting(after):
    """The script, which counts batches in `seen`, and after each epoch does what `after` says."""
    body = HEAD.replace("        total = 0", f"        {after}\n        total = 0")
    body = body.replace("        for (x,) in DataLoader(data", "        seen = []\n        for (x,) in DataLoader(data")
    return body.replace("            optimizer.step()", "            optimizer.step()\n            seen.append(1)")


def test_a_round_ends_where_the_script_fails_without_work(tmp_path):
    source = counting("assert seen") + ROUNDS.format(widths=(32, 4096))
    trace = traced(tmp_path, source)
    assert trace.header.steps == 3
    sizes, rounds, failed = sorted(trace.warnings)
    assert (sizes, rounds) == (sizes_warning(source), warning(source, "the first is"))
    assert "AssertionError" in failed


@pytest.mark.parametrize("after", ["mean = 1 / len(seen)", "last = seen[-1]", "best = max(seen)", "print(x.shape)"])
def test_epochs_that_pass_have_one_batch_where_the_script_needs_it(tmp_path, after):
    trace = traced(tmp_path, counting(after) + ROUNDS.format(widths=(32, 4096)))
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 64 * 4096
    assert trace.header.steps == 2 * (3 + 4)
    assert not trace.warnings


def test_a_round_of_many_such_epochs_ends_the_trace_with_a_warning(tmp_path):
    source = counting("last = seen[-1]").replace("epochs=5", "epochs=50") + ROUNDS.format(widths=(32, 4096))
    trace = traced(tmp_path, source)
    assert trace.header.steps == 3 + 20
    assert set(trace.warnings) == {warning(source, "the first is"), sizes_warning(source)}


def test_the_rounds_of_a_loop_without_loaders_are_traced(tmp_path):
    rounds = """
for width in (32, 4096):
    model = net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(100):
        model(torch.randn(8, 64).cuda()).sum().backward()
        optimizer.step()
"""
    trace = traced(tmp_path, HEAD + rounds)
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 64 * 4096
    assert (trace.header.steps, trace.warnings) == (6, ())


def test_rounds_whose_loop_cannot_be_left_add_a_warning(tmp_path):
    rounds = """
def fit(width):
    model = net(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    while True:
        model(torch.randn(8, 64).cuda()).sum().backward()
        optimizer.step()
for width in {widths}:
    fit(width)
"""
    several, one = (HEAD + rounds.format(widths=widths) for widths in ("(32, 4096)", "(32,)"))
    assert set(traced(tmp_path, several).warnings) == {warning(several, "the first is"), sizes_warning(several)}
    assert not traced(tmp_path, one).warnings


@pytest.mark.parametrize(
    "epochs",
    [
        pytest.param("model = net(32)\nfor epoch in range(1000):\n    step(model)\n", id="an optimizer in each epoch"),
        pytest.param("model = net(32)\nstep(model)\n", id="a function"),
    ],
)
def test_a_new_optimizer_of_the_same_model_is_no_new_training(tmp_path, epochs):
    step = """
def step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(data, batch_size=50):
        model(x.cuda()).sum().backward()
        optimizer.step()
"""
    trace = traced(tmp_path, HEAD + step + epochs)
    assert trace.header.steps == 3
    assert not trace.warnings


TASKS = """
import torch
from torch import nn
from torch.utils.data import DataLoader
model, kept = nn.Linear(2048, 2048).cuda(), []
for task in range(5):
    optimizer = torch.optim.Adam(model.parameters())
    for x in DataLoader(torch.ones(256, 2048), 4):
        x = x.cuda()
        big = torch.ones(3000, 2048, device="cuda")
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    LEFT
"""


@pytest.mark.parametrize(
    ("left", "rounds"),
    [
        pytest.param("kept.append([value.detach().clone() for value in model.parameters()])", 5, id="weights of each"),
        pytest.param("big = torch.cat([big, big])", 2, id="the results of the last one"),
        pytest.param("pass", 2, id="its last batch"),
    ],
)
def test_tasks_of_one_model_are_traced_while_they_leave_more(tmp_path, left, rounds):
    trace = traced(tmp_path, TASKS.replace("LEFT", left))
    assert trace.header.steps == 3 * rounds
    assert not trace.warnings


def test_a_second_optimizer_of_a_model_is_part_of_its_round(tmp_path):
    second = "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    source = HEAD.replace(second, second + second.replace("0.1", "0.2")) + ROUNDS.format(widths=(32, 4096))
    trace = traced(tmp_path, source)
    assert max(event.bytes for event in trace.events if event.action == "alloc") == 4 * 64 * 4096


@pytest.mark.parametrize(
    ("test", "is_round"),
    [
        pytest.param("epoch == first and i == 0", [False] * 4, id="the first batch of the first epoch"),
        pytest.param("epoch == first and unknown() and not i", [False] * 4, id="with a part that is not known"),
        pytest.param("epoch < 1 or i == 0", [True] * 4, id="one of two"),
        pytest.param("epoch < 1 or unknown()", [True] * 4, id="one of two, which is not known"),
        pytest.param("not (epoch > 0 and unknown()) and i == 0", [True] * 4, id="one of two, negated"),
        pytest.param("epoch >= 0 and i == 0", [True] * 4, id="the first batch of each epoch"),
        pytest.param("epoch < 2 and i == 0", [True, True, False, False], id="the first batch of two epochs"),
        pytest.param("epoch < 1 and i >= 0", [True, True, False, False], id="each batch of the first epoch"),
        pytest.param("unknown()", [True] * 4, id="not known"),
    ],
)
def test_model_of_the_first_round_alone_is_no_round(tmp_path, test, is_round):
    script = tmp_path / "train.py"
    script.write_text(f"""
first = 0
for epoch in range(2):
    for i, batch in enumerate([1, 2]):
        if {test}:
            rounds.optimizer_made(torch.optim.SGD([torch.ones(1)]), int, bool)
        loop = rounds.loop()
        found.append(loop is not None and loop[0].f_code.co_filename == {str(script)!r})
""")
    found: list[bool] = []
    names = {"torch": torch, "rounds": TrainingRounds(), "found": found, "unknown": lambda: True}
    exec(compile(script.read_text(), str(script), "exec"), names)
    assert found == is_round


def test_data_set_at_the_address_of_a_freed_one_is_another():
    rounds = TrainingRounds()
    kept = torch.ones(4)
    assert not set(rounds.epoch(kept)).isdisjoint(rounds.epoch(kept))
    freed = torch.utils.data.TensorDataset(kept)
    address, before = id(freed), rounds.epoch(freed)
    del freed
    for _ in range(1000):
        dataset = torch.utils.data.TensorDataset(kept)
        if id(dataset) == address:
            assert set(before).isdisjoint(rounds.epoch(dataset))
            return
        del dataset
    pytest.skip("this Python gave the address to nothing new")
