"""What a script does behind its training loops is traced, or a warning names it."""

from __future__ import annotations

import pytest

from traced_scripts import allocations, live_bytes, peak, traced

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


@pytest.mark.parametrize("more", ["", "    stage()\n"], ids=["no stage", "a stage"])
def test_a_loop_that_is_left_keeps_nothing_alive(tmp_path, more):
    rest = """
def stage():
    for i in range({stage}):
        model(torch.ones(50, 64, device="cuda")).mean().backward()
        optimizer.step()
def main():
    for i in range({steps}):
        found = model(torch.ones(3000, 64, device="cuda"))
        found.mean().backward()
        optimizer.step()
    del found
    sample()
{more}main()
"""
    left = traced(tmp_path, HEAD + rest.format(steps=99, stage=99, more=more))
    ended = traced(tmp_path, HEAD + rest.format(steps=3, stage=3, more=more))
    assert left.events == ended.events


@pytest.mark.parametrize("epochs", ["range(9)", "range(9), desc=''"], ids=["a range", "a bar"])
def test_a_function_whose_loop_is_left_keeps_its_model_until_it_returns(tmp_path, epochs):
    source = """
import gc, torch
from torch import nn
from torch.utils.data import DataLoader
gc.disable()
def tqdm(over, desc=""): return over
def fit():
    model = nn.Linear(1000, 1000, bias=False).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in tqdm({epochs}):
        for x in DataLoader(torch.ones(400, 1000), 4):
            optimizer.zero_grad()
            model(x.cuda()).sum().backward()
            optimizer.step()
    model(torch.ones(4, 1000, device="cuda"))
for i in range({rounds}):
    fit()
"""
    one, three = (traced(tmp_path, source.format(epochs=epochs, rounds=rounds)) for rounds in (1, 3))
    assert (one.header.steps, three.header.steps, peak(one)) == (3, 9, peak(three))


@pytest.mark.parametrize("rest", ["", "    print(i)\n"], ids=["by its loop", "behind it"])
def test_a_function_whose_loop_may_begin_again_keeps_nothing_when_it_ends(tmp_path, rest):
    source = f"""
import gc
gc.disable()
def fit():
    data = torch.ones(100_000, 64).cuda()
    for i in range(0, 96, 4): train_on(data[i:i + 4])
{rest}for epoch in range(9):
    fit()
    sample()
"""
    trace = traced(tmp_path, HEAD + source)
    assert next(total for event, total in live_bytes(trace) if event.bytes == SAMPLED) < 2 * SAMPLED


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
    "loop",
    [
        pytest.param("for i in range(99): train()", id="one line"),
        pytest.param("for i in range(99):\n        train()", id="two lines"),
        pytest.param("with torch.enable_grad():\n        for i in range(2, 98, 3): train()", id="in with"),
        pytest.param("if model:\n        for i in range(len([0 for _ in range(99)])): train()", id="in a condition"),
        pytest.param("for i in tqdm(range(99)): train()", id="with a bar"),
        pytest.param("for i in trange(99): train()", id="in a bar"),
    ],
)
def test_a_loop_over_a_range_that_ends_its_function_is_left(tmp_path, loop):
    rest = f"""
class tqdm(list): pass
def trange(n): return range(n)
def fit():
    {loop}
fit()
sample()
assert len(range(3)) == 3 and len(trange(3)) == 3 and "range" not in globals()
print("left")
"""
    trace = traced(tmp_path, HEAD + rest)
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings, trace.partial) == (True, (), False)
    assert trace.header.steps == 3
    assert (tmp_path / "log").read_text().endswith("left\n")


def test_other_calls_of_range_are_not_empty_when_a_loop_is_left(tmp_path):
    rest = """
def first():
    return 7 // len(range(7)) - 1
def fit():
    for i in range(first(), 99):
        train()
fit()
sample()
"""
    trace = traced(tmp_path, HEAD + rest)
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings) == (True, ())


@pytest.mark.parametrize(
    ("loop", "rest", "warnings"),
    [
        pytest.param("while model: train()", "print(model)", (), id="nothing that runs a model"),
        pytest.param("while model: train()", "sample()", ("the work at train.py, line 20, runs",), id="while"),
        pytest.param(
            "for i in range(\n        99\n    ): train()",
            "sample()",
            ("the work at train.py, line 22, runs",),
            id="a range in three lines",
        ),
        pytest.param(
            "for i in count(99): train()",
            "sample()",
            ("the work at train.py, line 20, runs",),
            id="a range by a local name",
        ),
    ],
)
def test_a_loop_that_cannot_be_left_ends_the_trace(tmp_path, loop, rest, warnings):
    source = f"def fit(count=range):\n    {loop}\nfit()\n{rest}\nprint('left')"
    trace = traced(tmp_path, HEAD + source)
    assert (trace.header.steps, "left" in (tmp_path / "log").read_text()) == (3, False)
    assert [warning[: len(start)] for warning, start in zip(trace.warnings, warnings, strict=True)] == list(warnings)


EPOCHS = """
def epoch():
    for x in DataLoader(torch.ones(4000, 64), 4): train_on(x)
{rest}
"""
BEHIND_EPOCHS = {
    "by a model made there": """
class Pipeline:
    @torch.no_grad()
    def __call__(self): sample()
def validate():
    pipeline = Pipeline()
    with torch.inference_mode(): pipeline()
for i in range(10): epoch()
validate()""",
    "by a function without gradients": """
class Pipeline:
    def run(self): sample()
@torch.no_grad()
def validate():
    Pipeline().run()
for i in range(10): epoch()
validate()""",
    "of one call": """
for i in range(10): epoch()
sample()""",
    "that end a function": """
def fit():
    for i in range(10):
        epoch()
        print("epoch", i)
fit()
sample()""",
    "whose function returns": """
def fit():
    for i in range(10):
        epoch()
        if i == 0: return
fit()
sample()
import sys
assert sys.gettrace() is None""",
    "around a loop that breaks": """
for i in range(9):
    for j in range(99):
        train()
        if j == 2: break
sample()
import sys
assert sys.gettrace() is None""",
    "in two functions": """
def fit():
    for i in range(10):
        epoch()
def main():
    fit()
    sample()
main()""",
    "with a loop": """
for i in range(10):
    for x in DataLoader(torch.ones(4000, 64), 4): train_on(x)
sample()""",
    "while": """
i = 0
while i < 10:
    epoch()
    i += 1
sample()""",
    "while batches are read": """
batches = iter(DataLoader(torch.ones(4000, 64), 4))
i = 0
while i < 100:
    try:
        train_on(next(batches))
    except StopIteration:
        batches = iter(DataLoader(torch.ones(4000, 64), 4))
    i += 1
sample()""",
    "of one epoch": """
for i in range(1): epoch()
sample()""",
    "in rounds": """
for i in range(5):
    for j in range(10): epoch()
    sample()""",
    "in phases": """
for i in range(5):
    for phase in ["train", "val"]:
        for x in DataLoader(torch.ones(4000, 64), 4):
            if phase == "train":
                train_on(x)
            else:
                model(x.cuda())
    print("epoch", i)
sample()""",
    "in phases, in rounds": """
for r in range(5):
    for i in range(5):
        for phase in ["train", "val"]:
            for x in DataLoader(torch.ones(4000, 64), 4):
                if phase == "train":
                    train_on(x)
                else:
                    model(x.cuda())
        model(x.cuda())
    print("epoch", r)
    sample()""",
    "in counted phases": """
for i in range(5):
    for phase in range(2):
        if phase == 0:
            epoch()
        else:
            print("second phase")
    print("epoch", i)
sample()""",
}


@pytest.mark.parametrize("rest", [pytest.param(rest, id=name) for name, rest in BEHIND_EPOCHS.items()])
def test_the_work_of_a_model_behind_all_epochs_is_traced(tmp_path, rest):
    trace = traced(tmp_path, HEAD + EPOCHS.format(rest=rest + "\nprint('left')"))
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings, trace.partial) == (True, (), False)
    assert trace.header.steps <= 5
    log = (tmp_path / "log").read_text()
    assert log.count("epoch") <= 1
    assert ("second phase" in log) == ("second phase" in rest)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param("for i in range(10): epoch()\nprint(model)", id="of no model"),
        pytest.param("for i in range(10): epoch()\nepoch()", id="that trains elsewhere"),
        pytest.param("def fit():\n    while True: epoch()\nfit()\nprint(model)", id="behind a loop without end"),
    ],
)
def test_behind_all_epochs_there_is_nothing_to_tell(tmp_path, rest):
    trace = traced(tmp_path, HEAD + EPOCHS.format(rest=rest))
    assert (trace.warnings, trace.partial) == ((), False)


@pytest.mark.parametrize(
    "epochs",
    [
        pytest.param("for i in iter([*range(9)]): epoch()", id="of unknown number"),
        pytest.param("def fit():\n    while True: epoch()\nfit()", id="without end"),
    ],
)
def test_the_work_behind_epochs_that_are_not_left_is_named(tmp_path, epochs):
    source = HEAD + EPOCHS.format(rest=epochs + "\nsample()")
    (warning,) = traced(tmp_path, source).warnings
    line = 1 + source.splitlines().index("sample()")
    assert warning.startswith(f"the work at train.py, line {line}, runs only after")


@pytest.mark.parametrize(
    ("condition", "is_named"),
    [
        pytest.param("mode == 'test'", False, id="a string"),
        pytest.param("options.mode == 'test'", False, id="a string of an option"),
        pytest.param("options.test", False, id="an option"),
        pytest.param("not options.test", True, id="an option that is off"),
        pytest.param("options.test and unknown()", False, id="one of two"),
        pytest.param("unknown() or mode == 'test'", True, id="either of two"),
        pytest.param("held_out is not None", False, id="None"),
        pytest.param("best is not None", True, id="None at first"),
        pytest.param("best is not None and mode == 'test'", False, id="None at first, and a string"),
        pytest.param("epochs > 5", True, id="a number that grows"),
    ],
)
def test_the_work_of_a_condition_that_is_decided_is_named_where_it_runs(tmp_path, condition, is_named):
    rest = f"""
from argparse import Namespace
options, mode, held_out, best, epochs = Namespace(test=False, mode="plain"), "plain", None, None, 0
def unknown(): return True
for i in iter([*range(9)]):
    epoch()
    best, epochs = i, epochs + 1
if {condition}:
    sample()"""
    warnings = traced(tmp_path, HEAD + EPOCHS.format(rest=rest)).warnings
    assert [warning.partition(", runs")[2] != "" for warning in warnings] == [True] * is_named


def test_a_condition_is_named_once(tmp_path):
    rest = """
def one_round():
    for i in iter([*range(9)]): train()
def fit():
    round = 0
    while True:
        round += 1
        one_round()
        if round % 5000 == 0:
            sample()
fit()"""
    source = HEAD + EPOCHS.format(rest=rest)
    (warning,) = traced(tmp_path, source).warnings
    line = 1 + source.splitlines().index("            sample()")
    assert warning.startswith(f"the work at train.py, line {line}, runs only after")


STAGE = """
def stage():
    for i in range(99):
        model(torch.ones(50, 64, device="cuda")).mean().backward()
        optimizer.step()
"""
IN_STAGE = 4 * 50 * 64


@pytest.mark.parametrize(
    ("rest", "steps"),
    [
        pytest.param("for i in range(99): train()\nsample()\nstage()", 6, id="behind a sampling"),
        pytest.param("for i in range(99): train()\nstage()", 6, id="behind steps"),
        pytest.param("for i in range(99): epoch()\nstage()\nsample()", 8, id="behind epochs"),
        pytest.param("for i in range(99):\n    for j in range(99): train()\n    stage()", 6, id="in an outer loop"),
    ],
)
def test_a_second_stage_is_traced(tmp_path, rest, steps):
    trace = traced(tmp_path, HEAD + EPOCHS.format(rest=STAGE + rest))
    found = allocations(trace, "forward")
    assert (IN_STAGE in found, SAMPLED in found) == (True, "sample" in rest)
    assert (trace.warnings, trace.partial) == ((), False)
    assert trace.header.steps <= steps


def test_a_stage_whose_backward_pass_is_in_a_closure_is_traced(tmp_path):
    rest = """
def closure():
    loss = model(torch.ones(50, 64, device="cuda")).mean()
    loss.backward()
    return loss
for i in range(99): train()
for i in range(99): optimizer.step(closure)
"""
    trace = traced(tmp_path, HEAD + rest)
    assert (IN_STAGE in allocations(trace, "step"), trace.warnings, trace.header.steps) == (True, (), 7)


def test_the_loops_around_a_stage_that_begins_are_not_left_before_its_steps(tmp_path):
    rest = """
def hidden():
    model(torch.ones(50, 64, device="cuda")).mean().backward()
    optimizer.step()
for i in range(9):
    for j in range(99): train()
    print("train")
    {"stage": hidden}["stage"]()
    print("stage")
sample()
"""
    trace = traced(tmp_path, HEAD + rest)
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings, trace.header.steps) == (True, (), 7)
    assert (tmp_path / "log").read_text().split() == ["train", "stage", "train", "stage"]


def test_of_many_stages_the_first_are_traced(tmp_path):
    stages = "\n".join(f"for i in range({number}, 99): train()" for number in range(1, 12))
    trace = traced(tmp_path, HEAD + stages)
    assert trace.header.steps == 8 * 3 + 1  # a loader may have read a batch ahead
    tenth = len(HEAD.splitlines()) + 10
    (warning,) = trace.warnings
    assert warning.startswith(f"the training at train.py, line {tenth}, runs only after the traced part")


LIBRARY = """
import torch
class Trainer:
    def __init__(self, step, loader):
        self.step, self.loader = step, loader
    def train(self, epochs=9):
        for epoch in range(epochs):
            for x in self.loader:
                self.step(x)
            print("epoch", epoch)
        return self
    def fit(self):
        epoch = 0
        while not self.done(epoch):
            self.train(1)
            epoch += 1
        return self
    def done(self, epoch):
        return epoch == 9
    def evaluate(self):
        self.step.__globals__["sample"]()
"""


@pytest.mark.parametrize(
    ("rest", "steps", "epochs"),
    [
        pytest.param("trainer.train()\ntrainer.evaluate()", 4, 1, id="a method of the library"),
        pytest.param("fitted = trainer.train()\nprint(fitted.evaluate())", 4, 1, id="a method of what it returns"),
        pytest.param("trainer.fit()\nsample()", 4, 1, id="a function of the script, behind a while loop"),
        pytest.param("trainer.train()\nTrainer(train_on, loader).train()\nsample()", 8, 2, id="another training"),
        pytest.param("trainer.train()\nprint(trainer)", 4, 1, id="nothing"),
        pytest.param("model.train()\ntrainer.train()\nmodel.train()", 4, 1, id="the mode of a module"),
    ],
)
def test_the_loops_of_a_library_are_left(tmp_path, monkeypatch, rest, steps, epochs):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "fitting.py").write_text(LIBRARY)
    text = f"""
import sys; sys.path.append({str(tmp_path / "site-packages")!r})
from fitting import Trainer
loader = DataLoader(torch.ones(4000, 64), 4)
trainer = Trainer(train_on, loader)
{rest}
"""
    trace = traced(tmp_path, HEAD + text)
    is_sampled = "sample" in rest or "evaluate" in rest
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings, trace.partial) == (is_sampled, (), False)
    assert trace.header.steps <= steps
    assert (tmp_path / "log").read_text().count("epoch") == epochs


def test_the_evaluation_behind_the_epochs_of_a_trainer_is_traced(tmp_path):
    pytest.importorskip("transformers", reason="the trainer is that of transformers")
    text = f"""
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
class Texts(torch.utils.data.Dataset):
    def __len__(self): return 4000
    def __getitem__(self, at): return dict(input_ids=torch.ones(64, dtype=torch.long), labels=torch.tensor(0))
model = BertForSequenceClassification(BertConfig(
    hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128, vocab_size=100))
options = TrainingArguments({str(tmp_path)!r}, per_device_train_batch_size=4, per_device_eval_batch_size=512,
    num_train_epochs=3, report_to=[])
trainer = Trainer(model, options, train_dataset=Texts(), eval_dataset=Texts())
trainer.train()
trainer.evaluate()
print("left")
"""
    trace = traced(tmp_path, text)
    assert 4 * 512 * 64 * 128 in allocations(trace, "forward")
    assert (trace.partial, [sentence for sentence in trace.warnings if "included" in sentence]) == (False, [])
    assert (tmp_path / "log").read_text().endswith("left\n")


@pytest.mark.parametrize(
    ("block", "is_sampled"),
    [("finally:\n    sample()", True), ("except ZeroDivisionError:\n    sample()", False),
     ("except ValueError:\n    pass\nelse:\n    sample()", True)],
    ids=["finally", "except", "else"],
)  # fmt: skip
def test_what_a_try_runs_behind_the_epochs_is_traced(tmp_path, block, is_sampled):
    trace = traced(tmp_path, HEAD + f"try:\n    for i in range(99):\n        train()\n{block}\n")
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings, trace.partial) == (is_sampled, (), False)


def test_an_error_behind_the_epochs_leaves_the_answer_whole(tmp_path):
    trace = traced(tmp_path, HEAD + EPOCHS.format(rest="for i in range(9): epoch()\nsample()\nassert i == 8"))
    assert (SAMPLED in allocations(trace, "forward"), trace.partial) == (True, False)
    (warning,) = trace.warnings
    assert warning.startswith("not traced after training: the script raised AssertionError")


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


ROLLOUTS = """
optimizer = torch.optim.Adam(model.parameters())
def learn():
{advantages}
    for epoch in range(2):
        for start in range(0, 80, 20):
            model(torch.ones(4, 64, device="cuda")).mean().backward()
            optimizer.step()
for update in range({updates}):
{first}
    learn()
"""


@pytest.mark.parametrize(
    ("advantages", "first"), [("", "    sample()"), ("    sample()", "")], ids=["in the loop", "in a function"]
)
def test_rollouts_before_a_training_are_traced_beside_its_states(tmp_path, advantages, first):
    source = HEAD + ROLLOUTS.format(updates=9, advantages=advantages, first=first)
    trace = traced(tmp_path, source)
    weights = 4 * (64 * 64 + 64)
    assert [event.bytes for event in trace.events].count(SAMPLED) == 4  # twice made and freed
    assert peak(trace) >= 2 * SAMPLED + 4 * weights  # its input; parameters, gradients and two states
    assert not trace.warnings


@pytest.mark.parametrize(
    ("updates", "first"), [(1, "    sample()"), (9, "    print()")], ids=["the only ones", "no rollouts"]
)
def test_what_runs_no_model_before_a_training_is_not_waited_for(tmp_path, updates, first):
    trace = traced(tmp_path, HEAD + ROLLOUTS.format(updates=updates, advantages="", first=first))
    assert [event.bytes for event in trace.events].count(SAMPLED) == 2 * (first == "    sample()")


PARTS = {
    "a range": ("for i in range(0, 100, 24): train_on(data[i:i + 24])", [24, 24, 24, 4]),
    "a permutation": ("for rows in torch.randperm(100).split(24): train_on(data[rows])", [24, 24, 24, 4]),
    "numbered chunks": ("for i, part in enumerate(data.chunk(8)): train_on(part)", [13, 13, 13, 9]),
    "nothing smaller": ("for i in range(0, 100, 25): train_on(data[i:i + 25])", [25] * 3),
    "alike chunks": ("for part in data.chunk(10): train_on(part)", [10] * 3),
    "a text": ("for word in 'a b c d e f g h'.split(): train_on(data)", [100] * 3),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_loop_over_parts_of_the_data_ends_with_its_smaller_last_part(tmp_path, name):
    loop, sizes = PARTS[name]
    made = "def forward(x): print(len(x)); return nn.functional.linear(x, model.weight)\nmodel.forward = forward\n"
    end = "\n    sample()\nprint('the end')\n"
    traced(tmp_path, f"{HEAD}{made}data = torch.ones(100, 64)\nfor epoch in range(3):\n    {loop}{end}")
    assert (tmp_path / "log").read_text().splitlines()[: len(sizes) + 1] == [*map(str, sizes), "5000"]


def test_the_smaller_last_part_is_traced_without_work_behind_the_loop(tmp_path):
    loop = "for _ in range(3):\n    for i in range(0, 100, 24):\n        print(i)\n        train_on(data[i:i + 24])\n"
    traced(tmp_path, f"{HEAD}data = torch.ones(100, 64)\n{loop}")
    assert (tmp_path / "log").read_text().split() == ["0", "24", "48", "96", "0"]


NEXT_EPOCHS = {
    "with a smaller last part": (
        "data = torch.ones(100, 64)\nfor epoch in range(9):\n"
        "    for i in range(0, 100, 24): train_on(data[i:i + 24])\n    sample()\n"
    ),
    "in one function": "for epoch in range(9):\n    for i in range(99): train()\n    sample()\n",
    "in a function of its own": (
        "def fit():\n    for i in range(99): train()\nfor epoch in range(9):\n    fit()\n    sample()\n"
    ),
    "in the last loop of a function": (
        "def run():\n    for epoch in range(9):\n        sample()\n        for i in range(99): train()\nrun()\n"
    ),
}


@pytest.mark.parametrize("name", NEXT_EPOCHS)
def test_the_end_of_an_epoch_without_a_loader_is_where_its_loop_begins_again(tmp_path, name):
    trace = traced(tmp_path, HEAD + NEXT_EPOCHS[name])
    end = trace.header.epoch_end
    assert end is not None
    before, after = (
        [event.bytes for event in part if event.action == "alloc"] for part in (trace.events[:end], trace.events[end:])
    )
    assert before.count(SAMPLED) == 2 * (2 if "last loop" in name else 1)  # input and output
    assert SAMPLED not in after
    assert after[0] == 4 * 64 * (24 if "part" in name else 4)  # a batch


PREFETCHED = """
class Prefetcher:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=4)
    def reset(self):
        self.batches = iter(self.loader)
        self.ahead = next(self.batches)
    def next(self):
        batch, self.ahead = self.ahead, next(self.batches, None)
        return batch
def fit(batches):
    batches.reset()
    batch = batches.next()
    while batch is not None:
        train_on(batch)
        batch = batches.next()
batches = Prefetcher(torch.ones(400, 64))
for epoch in range(9):
    fit(batches)
    sample()
"""


def test_the_work_behind_a_loop_that_ends_with_its_loader_is_not_named(tmp_path):
    trace = traced(tmp_path, HEAD + PREFETCHED)
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings) == (True, ())


@pytest.mark.parametrize("scales", [2, 3])
def test_an_epoch_ends_where_each_of_its_batches_has_several_steps(tmp_path, scales):
    rest = f"""
for epoch in range(9):
    for x in DataLoader(torch.ones(400, 64), batch_size=4):
        for scale in range({scales}): train_on(x)
    sample()
"""
    trace = traced(tmp_path, HEAD + rest)
    assert (SAMPLED in allocations(trace, "forward"), trace.warnings) == (True, ())
