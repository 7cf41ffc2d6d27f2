"""Work that a training does from some epoch on, in the loop over batches or in what it calls."""

from __future__ import annotations

import re

import pytest

from traced_scripts import BIG, RARE, STEP, allocations, peak, traced

pytest.importorskip("torch", reason="tracing needs torch")

HEAD = "import torch\nfrom torch import nn\n"


def _loops(text: str) -> str:
    return text.replace("STEP", STEP).strip()


NESTED = """
for epoch in range(99):
    for i in range(10):
        STEP
        if epoch >= 50 and i % 2 == 0: evaluate(model, 64)
"""
IN_A_FUNCTION = """
def train_epoch(loader, epoch):
    for x in loader:
        train(x.cuda())
        if epoch < args.separated:
            continue
        elif epoch > 60: evaluate(model, 64)
args.separated = 60
for epoch in range(99):
    train_epoch(DataLoader(torch.ones(400, 64), 4), epoch)
"""
IN_A_METHOD = """
class Trainer:
    def step(self):
        if self.epoch < 30:
            STEP
        else: evaluate(model, 64)
    def fit(self):
        for self.epoch in range(99):
            for i in range(10):
                self.step()
Trainer().fit()
"""
NAMED = """
start = 100
for index in range(9999):
    i = index + start
    is_due = i != 0 and i % 5000 == 0
    STEP
    if is_due: evaluate(model, 64)
"""
KEPT = IN_A_METHOD.replace(
    "for self.epoch in range(99):", "for epoch in range(99):\n            self.epoch = epoch + 1"
)
BY_THE_STEP = """
def step(i):
    if i % 7 == 6: evaluate(model, 64)
    STEP
for i in range(99):
    step(i)
"""


@pytest.mark.parametrize(
    "loop",
    [NESTED, IN_A_FUNCTION, IN_A_METHOD, KEPT, NAMED],
    ids=["nested", "in a function", "in a method", "kept", "named"],
)
def test_work_that_waits_for_an_epoch_is_traced_wherever_it_stands(tmp_path, loop):
    trace = traced(tmp_path, HEAD + RARE.format(loop=_loops(loop)))
    assert (trace.warnings, trace.partial, BIG in allocations(trace, "forward")) == ((), False, True)
    assert trace.header.steps <= 8


@pytest.mark.parametrize(
    "loop",
    [NESTED, IN_A_FUNCTION, KEPT, NAMED],
    ids=["nested", "in a function", "kept", "named"],
)
def test_work_that_waits_for_an_epoch_is_traced_where_the_loop_has_no_range(tmp_path, loop):
    for name in ("epoch", "index"):  # counted, and by no range that could begin later
        loop = re.sub(rf"for {name} in (range\(\d+\)):", rf"for {name}, _ in enumerate(\1):", loop)
    trace = traced(tmp_path, HEAD + RARE.format(loop=_loops(loop)))
    assert (trace.warnings, trace.partial, BIG in allocations(trace, "forward")) == ((), False, True)


PENALIZED = """
optimizer = torch.optim.Adam(model.parameters())
def train_with_penalty(x):
    loss = model(x.cuda()).mean()
    if step % EVERY == DUE:
        penalty = torch.autograd.grad(loss.square(), model.weight, create_graph=True)[0].sum()
        loss = loss + (penalty * torch.ones(200000, device="cuda")).sum()
    loss.backward()
    optimizer.step()
for step in range(9999):
    train_with_penalty(torch.ones(4, 64))
"""


def _penalized(folder, every, due):
    loop = PENALIZED.replace("EVERY", str(every)).replace("DUE", str(due))
    return traced(folder, HEAD + RARE.format(loop=loop.strip()))


@pytest.mark.parametrize("every", [6, 5000])
def test_work_of_the_first_iteration_is_traced_beside_the_states_too(tmp_path, every):
    """Of the optimizer; a later iteration has the gradients of the one before, too."""
    first, later = _penalized(tmp_path, every, 0), _penalized(tmp_path, 6, 4)
    assert (first.warnings, later.warnings) == ((), ())
    assert peak(first) == peak(later)
    assert first.header.steps <= 8


def test_work_of_the_first_iteration_is_not_traced_again_if_it_would_stay_below_the_peak(tmp_path):
    loop = "optimizer = torch.optim.Adam(model.parameters())\nfor step in range(9999):\n"
    loop += "    if step % 6 == 0: model(torch.ones(5, 64, device='cuda'))\n    STEP"
    trace = traced(tmp_path, HEAD + RARE.format(loop=_loops(loop)))
    assert (trace.warnings, trace.header.steps) == ((), 3)


def test_work_of_every_second_iteration_is_waited_for_once(tmp_path):
    trace = _penalized(tmp_path, 2, 0)
    assert (trace.warnings, trace.header.steps) == ((), 3)


SIZED = """
SIZES
for i in range(99):
    SIZE
    train(torch.ones(4, 64 * rows).reshape(-1, 64).cuda())
"""


@pytest.mark.parametrize(
    ("sizes", "size"),
    [
        ("sizes = [1, 2, 1250]", "rows = sizes[i // 2 % 3]"),
        ("", "rows_size = (1, 2, 1250)[i // 2 % 3]; rows = rows_size"),
        ("args.sizes = [(1, 1), (1, 1250), (2, 2)]", "rows, times = args.sizes[i % 3]; rows *= times"),
        ("sizes = [1] * 60 + [1250] + [1] * 38", "rows = sizes[i]"),
    ],
    ids=["in turn", "a list without a name", "of two numbers", "late"],
)
def test_a_loop_that_takes_its_sizes_from_a_list_is_traced_up_to_the_largest(tmp_path, sizes, size):
    trace = _sized(tmp_path, sizes, size)
    assert (BIG in allocations(trace, "forward"), trace.warnings) == (True, ())


def test_a_loop_over_sizes_is_traced_up_to_the_largest(tmp_path):
    loop = "for rows_size in (1, 2, 3, 4, 1250, 7, 8):\n    train(torch.ones(4, 64 * rows_size).reshape(-1, 64).cuda())"
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert (BIG in allocations(trace, "forward"), trace.header.steps, trace.warnings) == (True, 5, ())


def test_a_size_that_a_loop_takes_behind_its_step_is_traced_in_the_next_one(tmp_path):
    loop = "rows, sizes = 1, [1, 2, 5000]\nfor i in range(99):\n    train(torch.ones(rows, 64).cuda())\n"
    trace = traced(tmp_path, HEAD + RARE.format(loop=f"{loop}    rows = sizes[i // 4 % 3]"))
    assert (BIG in allocations(trace, "forward"), trace.warnings) == (True, ())


def test_a_size_that_the_loop_takes_from_a_list_too_late_adds_a_warning(tmp_path):
    trace = _sized(tmp_path, "sizes = [1] * 60 + [1250]; n = 0", "rows = sizes[n % 61]; n += 1", "while n < 99")
    expected = "`rows` at train.py, line 18, was 1 in the traced steps and grows to 1250"
    assert (BIG in allocations(trace, "forward"), trace.warnings) == (False, (expected,))


@pytest.mark.parametrize(("sizes", "size"), [("places = [3, 9, 1250]", "place = places[i % 3]; rows = 1")])
def test_what_a_loop_takes_from_a_list_that_is_not_named_as_sizes_are_is_not_waited_for(tmp_path, sizes, size):
    trace = _sized(tmp_path, sizes, size)
    assert (trace.header.steps, trace.warnings) == (3, ())


def _sized(folder, sizes, size, loop="for i in range(99)"):
    source = SIZED.replace("SIZES", sizes).replace("SIZE", size).replace("for i in range(99)", loop)
    return traced(folder, HEAD + RARE.format(loop=source.strip()))


OWN_LABELS = """
made = []
for epoch in EPOCHS:
    FIRST
    for x in DataLoader(torch.ones(40, 64), 4):
        x = x.cuda()
        if made: x = torch.cat([x, *made])
        train(x)
    for x in DataLoader(torch.ones(40, 64), 4):
        made.append(torch.ones(5000, 64, device="cuda"))
"""
TEACHER = """
from copy import deepcopy
def learn(teacher):
    for x in DataLoader(torch.ones(40, 64), 4):
        if args.every and teacher is not None:
            evaluate(teacher, 64)
        train(x.cuda())
teacher = None
for epoch in EPOCHS:
    FIRST
    learn(teacher)
    teacher = deepcopy(model)
"""


@pytest.mark.parametrize("loop", [OWN_LABELS, TEACHER], ids=["own labels", "a teacher"])
def test_what_the_first_iteration_leaves_for_the_next_one_is_traced_there(tmp_path, loop):
    loop = loop.strip().replace("FIRST", "pass")
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop.replace("EPOCHS", "range(4)")))
    assert (BIG in allocations(trace, "forward"), trace.header.steps, trace.warnings) == (True, 6, ())
    several = traced(tmp_path, HEAD + RARE.format(loop=loop.replace("EPOCHS", "[1, 2, 3]")))
    assert BIG in allocations(several, "forward") or "runs only after the traced steps" in several.warnings[0]


@pytest.mark.parametrize(("loop", "first"), [(OWN_LABELS, "made = []"), (TEACHER, "teacher = None")])
def test_a_name_that_each_iteration_sets_anew_is_not_waited_for(tmp_path, loop, first):
    loop = loop.strip().replace("FIRST", first).replace("EPOCHS", "range(4)")
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert (trace.header.steps, trace.warnings) == (3, ())


COPIES = """
import copy
model, host = nn.Linear(2048, 2048).cuda(), nn.Linear(2048, 2048)
found = []
for epoch in EPOCHS:
    for step in range(9): train(torch.ones(4, 2048, device="cuda"))
    found.append(COPIED)
"""


@pytest.mark.parametrize("copied", ["copy.deepcopy(model)", "(epoch, copy.deepcopy(model.state_dict()))"])
def test_copies_that_a_loop_collects_add_a_warning(tmp_path, copied):
    source = COPIES.strip().replace("EPOCHS", "range(9)").replace("COPIED", copied)
    trace = traced(tmp_path, HEAD + RARE.format(loop=source))
    (warning,) = trace.warnings
    assert warning == (
        "a copy of a model is added to a list at train.py, line 21, 16.0 MiB on the GPU, in each iteration of a loop: "
        "128.1 MiB in the 8 that come are not included"
    )


@pytest.mark.parametrize(
    ("epochs", "copied"),
    [
        ("range(1)", "copy.deepcopy(model)"),
        ("range(9)", "copy.deepcopy(args)"),
        ("range(9)", "copy.deepcopy(host)"),
    ],
    ids=str,
)
def test_one_copy_or_copies_of_something_else_add_no_warning(tmp_path, epochs, copied):
    source = COPIES.strip().replace("EPOCHS", epochs).replace("COPIED", copied)
    assert traced(tmp_path, HEAD + RARE.format(loop=source)).warnings == ()


SOMETIMES = """
from torch.utils.data import DataLoader
def train_epoch(epoch):
    for x in DataLoader(torch.ones(400, 64), 4):
        train(x.cuda())
    print("epoch", epoch)
for epoch in {epochs}:
    train_epoch(epoch)
    if {first}: evaluate(model, 64)
    if {second}: evaluate(model, 64)
print("end")
"""
LATER = "the work at train.py, line 23, runs only after the traced steps; its memory is not included"


@pytest.mark.parametrize(
    ("epochs", "first", "second", "run", "warnings"),
    [
        pytest.param("range(100)", "epoch % 10 == 9", "epoch == 99", [0, 9, 99], (), id="twice"),
        pytest.param("range(100)", "epoch % 10 == 9", "epoch == 9", [0, 9], (), id="at once"),
        pytest.param("range(5, 100, 5)", "epoch == 40", "epoch == 41", [5, 40], (), id="strides"),
        pytest.param("range(100)", "epoch % 10 == 9 and not model", "False", [0, 9], (LATER,), id="is not entered"),
        pytest.param("range(9)", "epoch == 9", "epoch > 9", [0], (), id="never"),
    ],
)
def test_the_loop_goes_on_at_the_epochs_with_work(tmp_path, epochs, first, second, run, warnings):
    text = _loops(SOMETIMES).format(epochs=epochs, first=first, second=second)
    trace = traced(tmp_path, HEAD + RARE.format(loop=text))
    log = (tmp_path / "log").read_text().splitlines()
    assert [line for line in log if line.startswith("epoch ")] == [f"epoch {epoch}" for epoch in run]
    assert (trace.warnings, trace.partial, trace.header.steps <= 4 * len(run)) == (warnings, False, True)


def test_work_within_a_branch_that_is_never_entered_is_not_waited_for(tmp_path):
    text = _loops(SOMETIMES).format(epochs="range(100)", first="quick", second="False")
    nested = text.replace("if quick: evaluate(model, 64)", "if quick:\n        if epoch == 50: evaluate(model, 64)")
    assert nested != text
    trace = traced(tmp_path, HEAD + RARE.format(loop="quick = False\n" + nested))
    log = (tmp_path / "log").read_text().splitlines()
    assert [line for line in log if line.startswith("epoch ")] == ["epoch 0"]
    assert trace.warnings == ()


def test_a_later_epoch_that_fails_leaves_the_answer_whole(tmp_path):
    text = _loops(SOMETIMES).format(epochs="range(100)", first="epoch == 50", second="False")
    text = text.replace("    train_epoch(epoch)", "    assert epoch < 9, epoch\n    train_epoch(epoch)")
    trace = traced(tmp_path, HEAD + RARE.format(loop=text))
    raised, later = trace.warnings
    assert (trace.partial, trace.header.steps <= 4) == (False, True)
    assert raised.startswith("not traced after training: the script raised AssertionError: 50")
    assert later == LATER.replace("23", "24")


def test_periodic_work_in_a_function_that_the_loop_calls_is_traced(tmp_path):
    trace = traced(tmp_path, HEAD + RARE.format(loop=_loops(BY_THE_STEP)))
    assert (trace.header.steps, trace.warnings, BIG in allocations(trace, "forward")) == (7, (), True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("epoch >= 50", "epoch >= 150", id="after the last epoch"),
        pytest.param("epoch >= 50", "epochs >= 50", id="another number"),
        pytest.param("for epoch in", "for late in", id="no counter"),
        pytest.param("epoch >= 50", 'epoch >= 50 and mode != "plain"', id="another string"),
        pytest.param("epoch >= 50", 'epoch >= 50 and mode in ("full", "test")', id="none of some strings"),
        pytest.param("epoch >= 50", 'epoch >= 50 and mode not in ["plain"]', id="one of some strings"),
        pytest.param("epoch >= 50", "epoch >= 50 and held_out is not None", id="None"),
        pytest.param("epoch >= 50", "epoch >= 50 and options.test is not None", id="an option that is None"),
    ],
)
def test_work_that_waits_for_no_epoch_adds_none(tmp_path, old, new):
    source = _loops(NESTED).replace(old, new)
    head = "from argparse import Namespace\nmode, held_out, options = 'plain', None, Namespace(test=None)"
    assert not traced(tmp_path, HEAD + RARE.format(loop=f"{head}\nepoch = epochs = 1\n{source}")).warnings


CHANGED = """
mode = best = None
def train_epoch(epoch, part):
    STEP
    if epoch == 50 and part == "test": evaluate(model, 64)
for epoch in range(99):
    {changes}
    train_epoch(epoch, "train")
    train_epoch(epoch, "test")
"""


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param("pass", id="an argument"),
        pytest.param("mode = ['train', 'test'][epoch % 2]", id="a string"),
        pytest.param("if best is not None and epoch == 50: evaluate(model, 64)\n    best = epoch", id="None at first"),
    ],
)
def test_a_string_that_changes_in_the_loop_hides_no_work(tmp_path, changes):
    text = _loops(CHANGED.replace("{changes}", changes))
    trace = traced(tmp_path, HEAD + RARE.format(loop=text))
    assert (trace.warnings, BIG in allocations(trace, "forward")) == ((), True)


FIRST_OF_ALL = """
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
for step in range({steps}):
    if step % 50 == 0:
        with torch.no_grad():
            model(torch.ones({samples}, 64).cuda())
    model(torch.ones(4, 64).cuda()).sum().backward()
    optimizer.step()
"""


def test_a_validation_at_step_0_comes_again_beside_the_states_of_the_optimizer(tmp_path):
    trace = traced(tmp_path, HEAD + FIRST_OF_ALL.format(steps=200, samples=5000))
    weights = 4 * (64 * 64 + 64)
    validation = 2 * 4 * 64 * 5000
    assert trace.header.steps == 6
    assert peak(trace) >= validation + 4 * weights  # parameters, gradients and two states
    assert not trace.warnings


@pytest.mark.parametrize(("steps", "samples"), [(200, 1), (40, 5000)], ids=["a small one", "once"])
def test_a_validation_at_step_0_that_decides_nothing_is_traced_once(tmp_path, steps, samples):
    assert traced(tmp_path, HEAD + FIRST_OF_ALL.format(steps=steps, samples=samples)).header.steps == 3
