"""Branches that a script comes to only later are entered after the traced steps, whatever their condition counts."""

from __future__ import annotations

import pytest

from traced_scripts import BIG, RARE, STEP, allocations, peak, traced

pytest.importorskip("torch", reason="tracing needs torch")

HEAD = "import itertools, time, torch\nfrom torch import nn\n"
CALLBACKS = """
class Every:
    def __init__(self, count): self.count = count
    def on_epoch_end(self, trainer):
        if trainer.epoch % self.count == 0:
            evaluate(model, 64)
class Trainer:
    def __init__(self, callbacks): self.callbacks, self.epoch = callbacks, 0
    def fit(self):
        for _ in range(50):
            for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())
            self.epoch += 1
            for callback in self.callbacks: callback.on_epoch_end(self)
Trainer([Every(5)]).fit()
"""
IF_DUE = "% self.count == 0:\n            evaluate"
RETURNS_EARLY = CALLBACKS.replace(IF_DUE, "% self.count:\n            return\n        evaluate")
WHILE = """
step = 0
while step < 20000:
    STEP
    step += 1
    if step % 500 == 0:
        with torch.no_grad():
            print(step, evaluate(model, 64))
"""
CYCLE = """
for i, x in enumerate(itertools.cycle([torch.ones(4, 64)])):
    train(x.cuda())
    if i % 1000 == 0 and i > 0:
        evaluate(model, 64)
    if i > 20000:
        break
"""
TIME = """
last = time.time()
for i in range(999):
    STEP
    elapsed = time.time() - last
    if elapsed > 600:
        evaluate(model, 64)
        last = time.time()
"""
OF_A_FUNCTION = """
class Meter:
    def __init__(self): self.seen = 0
    def tick(self):
        self.seen += 1
        return self.seen % 200 == 0
meter = Meter()
for i in range(999):
    STEP
    if meter.tick():
        evaluate(model, 64)
"""
OF_AN_OBJECT = """
class Interval:
    def __init__(self, length): self.length, self.last = length, 0
    def __call__(self, step):
        if step - self.last < self.length:
            return False
        self.last = step
        return True
is_due = Interval(500)
for step, x in enumerate(DataLoader(torch.ones(4000, 64), 4)):
    train(x.cuda())
    if is_due(step):
        evaluate(model, 64)
"""
NEXT = """
step, next_one = 0, 1000
while step < 100000:
    STEP
    step += 1
    if step >= next_one:
        evaluate(model, 64)
        next_one += 1000
"""
BEFORE_THE_STEP = """
step = 0
while True:
    if (step + 1) % 2000 == 0:
        evaluate(model, 64)
    STEP
    step += 1
"""
DEFINED_LATER = """
def phase():
    for epoch in range(5):
        for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())
phase()
def final():
    evaluate(model, 64)
final()
"""


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(CALLBACKS, id="of a callback in a list"),
        pytest.param(RETURNS_EARLY, id="behind a return"),
        pytest.param(WHILE, id="of a while loop"),
        pytest.param(CYCLE, id="of a cycle"),
        pytest.param(TIME, id="by the time"),
        pytest.param(OF_A_FUNCTION, id="by a function"),
        pytest.param(OF_AN_OBJECT, id="by an object"),
        pytest.param(NEXT, id="by a number that grows"),
        pytest.param(BEFORE_THE_STEP, id="before the step"),
        pytest.param(DEFINED_LATER, id="in a function defined behind the loop"),
    ],
)
def test_the_work_of_a_later_iteration_is_traced(tmp_path, loop):
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop.replace("STEP", STEP)))
    assert (BIG in allocations(trace, "forward"), trace.warnings, trace.partial) == (True, (), False)
    assert trace.header.steps <= 4


LAYERS = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.index = nn.Linear(64, 64).cuda(), 1
    def forward(self, x):
        if self.index % 2 == 0:
            self.inner(torch.ones(5000, 64, device="cuda"))
        return self.inner(x)
model = Net()
class Trainer(nn.Module):
    def forward(self):
        for epoch in range(3):
            for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())
            model(torch.ones(4, 64, device="cuda"))
Trainer()()
"""
FAILS = """
for i in itertools.count():
    STEP
    if i % 900 == 800:
        evaluate(model, 64)
        raise OSError
"""
SWITCHED_OFF = FAILS.replace("== 800", "== 800 and args.sample").replace("        raise OSError\n", "")
OF_A_NUMBER = """
for x in DataLoader(torch.ones(400, 64), 4):
    train(x.cuda())
    if {}:
        evaluate(model, 64)
"""
SHORT = """
for i in range(99):
    for x in DataLoader(torch.ones(40, 64), 4): train(x.cuda())
    if i % 200 == 150:
        evaluate(model, 64)
"""


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(LAYERS, id="inside a model"),
        pytest.param(FAILS, id="that ends the script"),
        pytest.param("args.sample = False\n" + SWITCHED_OFF, id="that an option switches off"),
        pytest.param(SHORT, id="that the loop never comes to"),
        pytest.param("count = 8\n" + OF_A_NUMBER.format("count % 5 == 1"), id="of a number that stays"),
        pytest.param(OF_A_NUMBER.format("len(args.__dict__) > 5"), id="that nothing counts"),
    ],
)
def test_other_branches_are_not_entered(tmp_path, loop):
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop.replace("STEP", STEP)))
    assert (BIG in allocations(trace, "forward"), trace.partial) == (False, False)


def test_a_branch_that_has_run_is_not_entered_again(tmp_path):
    loop = f"for i in range(3):\n    {STEP}\n    if i % 3 == 1:\n        evaluate(model, 64)"
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop.replace("range(3)", "range(99)")))
    once = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert allocations(trace, "forward").count(BIG) == allocations(once, "forward").count(BIG) > 0


CHECKPOINT = """
best = 1.0
for epoch in range(9):
    for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())
    loss = model(torch.ones(4, 64, device="cuda")).sum().item() + 2.0
    if loss < best - 0.01:
        best = loss
        torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt"))
evaluate(model, 64)
"""


def test_a_checkpoint_of_the_best_epoch_is_there_for_the_work_that_loads_it(tmp_path):
    trace = traced(tmp_path, HEAD + RARE.format(loop=CHECKPOINT))
    assert (BIG in allocations(trace, "forward"), trace.warnings, trace.partial) == (True, (), False)


EPOCHS = "for epoch in range(99):\n    for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())\n"
IN_ONE_LINE = TIME.replace("600:\n        evaluate(model, 64)\n        last = time.time()", "600: evaluate(model, 64)")
IN_A_FUNCTION = """
def run(net, seen=0):
    best = [0.0]
    for x in itertools.repeat(torch.ones(4, 64)):
        train(x.cuda())
        seen += 1
        if seen % 500 == 0: best = [evaluate(net, width) for width in (64,)]; continue
        if seen > 3000: return best
run(model)
"""
CALLED = """
def maybe(count):
    if count % 500 == 0:
        evaluate(model, 64)
for step in range(1, 20000):
    STEP
    maybe(step)
"""
METHOD = """
class Trainer:
    step = 0
    def after_step(self): self.evaluate_sometimes()
    def evaluate_sometimes(self):
        if self.step % 500 == 0:
            evaluate(model, 64)
    def fit(self):
        while self.step < 20000:
            STEP
            self.step += 1
            self.after_step()
Trainer().fit()
"""
LAMBDA = """
hooks = [lambda count: evaluate(model, 64) if count % 500 == 0 else None,
         lambda count: None]
seen = 0
while seen < 3000:
    STEP
    seen += 1
    for hook in hooks: hook(seen)
"""
MATCH = """
seen = 0
while seen < 3000:
    STEP
    seen += 1
    match seen % 500, seen:
        case [0, 7]: pass
    match seen % 500:
        case 100 | 0:
            evaluate(model, 64)
"""
GUARD = MATCH.replace("match seen % 500:", "match seen:").replace("case 100 | 0", "case count if count % 500 == 9")


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(EPOCHS + "    found = evaluate(model, 64) if epoch % 5 == 4 else None", id="of a choice"),
        pytest.param(EPOCHS + "    found = None if epoch % 5 != 4 else evaluate(model, 64)", id="of its other side"),
        pytest.param(EPOCHS + "    epoch % 5 == 4 and evaluate(model, 64)", id="of `and`"),
        pytest.param(IN_ONE_LINE, id="in the line of its condition"),
        pytest.param(IN_A_FUNCTION, id="in such a line of a function"),
        pytest.param(CALLED, id="of a function that the loop calls"),
        pytest.param(METHOD, id="of a method that such a one calls"),
        pytest.param(LAMBDA, id="of a lambda in a list"),
        pytest.param(MATCH, id="of a case"),
        pytest.param(GUARD, id="of a case with a guard"),
    ],
)
def test_work_without_lines_of_its_own_is_traced(tmp_path, loop):
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop.replace("STEP", STEP)))
    assert (BIG in allocations(trace, "forward"), trace.warnings, trace.partial) == (True, (), False)


def test_names_that_a_line_assigns_are_those_of_its_function(tmp_path):
    source = """
def run(seen=0):
    def note(): nonlocal noted; noted = True
    result, noted = "none", False
    while seen < 3000:
        STEP
        seen += 1
        if seen % 500 == 0: result = evaluate(model, 64) or "some"; note()
        if noted: torch.ones({"some": 777, "none": 555}[result], device="cuda")
run()
"""
    trace = traced(tmp_path, HEAD + RARE.format(loop=source.replace("STEP", STEP)))
    assert (4 * 777 in allocations(trace), trace.warnings) == (True, ())


@pytest.mark.parametrize(
    "work",
    ["evaluate(missing, 64)", "evaluate(model, 64), missing", "(yield evaluate(model, 64))"],
    ids=["fails", "fails behind its model", "yields"],
)
def test_work_in_the_line_of_its_condition_that_cannot_run_is_named(tmp_path, work):
    loop = f"""
def run():
    global model
    for seen in itertools.count():
        {STEP}
        if seen % 500 == 499 and seen * seen > 500: model.eval(), {work}
        if seen > 3000: yield seen
list(run())
"""
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert (trace.warnings, trace.partial) == (
        ("the work at train.py, line 21, runs only after the traced steps; its memory is not included",), False,
    )  # fmt: skip


IN_A_CHAIN = """
class Estimator:
    def fit(self, data):
        for epoch in range(50):
            for x in DataLoader(data, 4): train(x.cuda())
        return self
    def predict(self, width):
        return evaluate(model, width)
{}
"""


@pytest.mark.parametrize(
    "call",
    [
        "Estimator().fit(torch.ones(400, 64)).predict(64)",
        "print(Estimator().fit(torch.ones(400, 64)).predict(64))",
        "def main(): return Estimator().fit(torch.ones(400, 64)).predict(64)\nmain()",
    ],
)
def test_what_follows_a_training_in_its_own_statement_is_traced(tmp_path, call):
    trace = traced(tmp_path, HEAD + RARE.format(loop=IN_A_CHAIN.format(call)))
    assert (BIG in allocations(trace, "forward"), trace.warnings, trace.header.steps) == (True, (), 3)


OF_THE_LOOP = """
for i, x in enumerate(DataLoader(torch.ones(400, 64), 4)):
    train(x.cuda())
    if i % 40 == 0:
        inverse = torch.ones(1500, 4, device="cuda") @ torch.ones(4, 1500, device="cuda")
"""
OF_THE_OPTIMIZER = """
class Preconditioned(torch.optim.SGD):
    def step(self):
        state = self.state[model.weight]
        state["step"] = state.get("step", -1) + 1
        if state["step"] % 40 == 0:
            self.update(state)
        super().step()
    def update(self, state):
        state["inverse"] = torch.ones(1500, 4, device="cuda").matmul(torch.ones(4, 1500, device="cuda"))
optimizer = Preconditioned(model.parameters(), lr=0.1)
for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())
"""


@pytest.mark.parametrize("loop", [OF_THE_LOOP, OF_THE_OPTIMIZER], ids=["of the loop", "of the optimizer"])
def test_matrices_are_computed_again_beside_those_before(tmp_path, loop):
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    matrix = 4 * 1500 * 1500
    assert (allocations(trace).count(matrix), peak(trace) > 2 * matrix) == (2, True)


DROPPED = """
def main():
    epoch = 0
    while epoch < 9:
        for x in DataLoader(torch.ones(400, 64), 4): train(x.cuda())
        found = torch.ones(10**6, device="cuda")
        if {}:
            del found
            evaluate(model, 64)
        epoch += 1
main()
"""


@pytest.mark.parametrize("test", ["epoch % 5 == 4", "epoch % 5 == 0"], ids=["entered", "natural"])
def test_what_a_branch_drops_is_freed(tmp_path, test):
    trace = traced(tmp_path, HEAD + RARE.format(loop=DROPPED.format(test)))
    assert (BIG in allocations(trace, "forward"), peak(trace) < 4 * 10**6 + BIG) == (True, True)


def test_work_of_an_earlier_stage_is_named_behind_a_later_one(tmp_path):
    loop = f"""
for i, _ in enumerate(range(9999)):
    if i % 1000 == 999: evaluate(model, 64)
    {STEP}
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
for i in range(9):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
    warnings = traced(tmp_path, HEAD + RARE.format(loop=loop)).warnings
    assert "the work at train.py, line 18, runs only after the traced steps; its memory is not included" in warnings
