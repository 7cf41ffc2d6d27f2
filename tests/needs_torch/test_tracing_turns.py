"""Several optimizers, optimizer steps in backward, nested tensors, and periodic work."""

from __future__ import annotations

import pytest

from traced_scripts import BIG, RARE, STEP, allocations, by_category, peak, traced

pytest.importorskip("torch", reason="tracing needs torch")

HEAD = "import torch\nfrom torch import nn\n"


def test_a_generator_that_steps_after_five_steps_of_its_critic_has_states(tmp_path):
    source = (
        HEAD
        + """
maker, critic = nn.Linear(8, 32).cuda(), nn.Linear(32, 64).cuda()
makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
while True:
    for _ in range(5):
        judges.zero_grad()
        critic(torch.randn(4, 32, device="cuda")).mean().backward()
        judges.step()
    makes.zero_grad()
    critic(maker(torch.randn(4, 8, device="cuda"))).mean().backward()
    makes.step()
"""
    )
    trace = traced(tmp_path, source)
    weights = 4 * (32 * 8 + 32 + 64 * 32 + 64)
    assert by_category(trace)["optimizer state"] == 2 * weights
    assert trace.header.steps == 13  # two rounds, and a step that gets the last batch of an epoch


def test_two_whole_batches_follow_each_other_where_two_optimizers_step_in_each(tmp_path):
    """What an iteration leaves to the next one, as a graph that is retained, is beside a batch of the same size."""
    source = (
        HEAD
        + """
from torch.utils.data import DataLoader
maker, critic = nn.Linear(8, 512).cuda(), nn.Linear(512, 64).cuda()
makes, judges = torch.optim.Adam(maker.parameters()), torch.optim.Adam(critic.parameters())
for x in DataLoader(torch.randn(40 * 256 + 16, 8), batch_size=256):
    made = maker(x.cuda())
    loss = critic(made.relu()).mean()
    loss.backward(retain_graph=True)
    makes.step()
    judges.step()
"""
    )
    trace = traced(tmp_path, source)
    made = [event.bytes for event in trace.events if event.action == "alloc" and event.category == "input"]
    assert made[:2] == [256 * 8 * 4] * 2
    assert trace.header.steps == 6


def test_the_wait_for_an_optimizer_that_never_steps_is_limited(tmp_path):
    source = (
        HEAD
        + """
model = nn.Linear(8, 8).cuda()
first, later = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.Adam(model.parameters())
while True:
    model(torch.randn(4, 8, device="cuda")).mean().backward()
    first.step()
"""
    )
    assert traced(tmp_path, source).header.steps == 3 + 2 * 5


def test_optimizer_steps_in_backward_hooks_update_all_parameters(tmp_path):
    source = (
        HEAD
        + """
model = nn.Sequential(*[nn.Linear(32, 32, bias=False) for _ in range(6)]).cuda()
optimizers = {parameter: torch.optim.Adam([parameter], foreach=False) for parameter in model.parameters()}
def step(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(step)
while True:
    model(torch.randn(4, 32, device="cuda")).mean().backward()
"""
    )
    trace = traced(tmp_path, source)
    assert by_category(trace)["optimizer state"] == 6 * 2 * 4 * 32 * 32
    # Gradients after the first come in backward, which goes on where the step ended.
    assert allocations(trace, "backward").count(4 * 32 * 32) == 2 * 6 - 1


@pytest.mark.parametrize("made", ["device='cuda')", ").cuda()"])
def test_nested_tensors_allocate_the_sum_of_their_rows(tmp_path, made):
    source = (
        HEAD
        + f"""
embed, model = nn.Embedding(10, 32).cuda(), nn.Linear(32, 96).cuda()
optimizer = torch.optim.SGD([*embed.parameters(), *model.parameters()], lr=0.1)
for _ in range(4):
    rows = [torch.arange(3), torch.arange(7)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, {made}
    q, k, v = (e.unflatten(-1, [4, 8]).transpose(1, 2) for e in model(embed(x)).chunk(3, -1))
    out = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
    torch.stack([row.mean(0) for row in out.unbind()]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    forward = allocations(traced(tmp_path, source), "forward")
    assert {4 * 10 * 32, 4 * 10 * 96} <= set(forward)  # ten tokens, and no padding
    assert not [size for size in forward if size in (4 * 2 * 7 * 32, 4 * 2 * 7 * 96)]


def test_lbfgs_holds_its_whole_history(tmp_path):
    source = (
        HEAD
        + """
model = nn.Linear(32, 32, bias=False).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=10)
x = torch.randn(4, 32, device="cuda")
def closure():
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
while True:
    optimizer.step(closure)
"""
    )
    trace = traced(tmp_path, source)
    assert peak(trace) // (4 * 32 * 32) >= 2 * 10 + 3  # pairs; weights, gradients and a direction
    assert by_category(trace)["optimizer state"] >= 2 * 10 * 4 * 32 * 32


def test_another_class_of_optimizer_begins_a_training_of_the_same_model(tmp_path):
    """A refinement: the same lines compute gradients, within its step."""
    source = (
        HEAD
        + """
model = nn.Linear(32, 32, bias=False).cuda()
x = torch.randn(4, 32, device="cuda")
def closure():
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
first = torch.optim.SGD(model.parameters(), 0.1)
for _ in torch.utils.data.DataLoader(torch.ones(64, 1)):
    closure()
    first.step()
second = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=10)
for _ in range(30):
    second.step(closure)
"""
    )
    trace = traced(tmp_path, source)
    assert by_category(trace)["optimizer state"] >= 2 * 10 * 4 * 32 * 32
    assert not [warning for warning in trace.warnings if "not included" in warning]


def test_a_later_optimizer_with_a_closure_is_a_training(tmp_path):
    """It is made behind the loop that trains, as its closure."""
    source = (
        HEAD
        + """
model = nn.Linear(32, 32, bias=False).cuda()
x = torch.randn(4, 32, device="cuda")
first = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(2):
    model(x).square().mean().backward()
    first.step()
for _ in range(50):
    model(x).abs().mean().backward()
    first.step()
second = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=10)
def closure():
    second.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    return loss
for _ in range(30):
    second.step(closure)
"""
    )
    trace = traced(tmp_path, source)
    assert by_category(trace)["optimizer state"] >= 2 * 10 * 4 * 32 * 32


def test_lbfgs_tolerances_are_restored_after_a_step(tmp_path):
    source = (
        HEAD
        + """
model = nn.Linear(8, 8).cuda()
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=2)
def closure():
    loss = model(torch.randn(4, 8, device="cuda")).mean()
    loss.backward()
    return loss
for _ in range(2):
    optimizer.step(closure)
    assert optimizer.param_groups[0]["tolerance_change"] == 1e-9
"""
    )
    assert not traced(tmp_path, source).partial


# -- work that comes now and then --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "steps"),
    [
        pytest.param(
            f"for i in range(99):\n    {STEP}\n    if (i + 1) % args.every == 0: evaluate(model, 64)", 10, id="after"
        ),
        pytest.param(f"for i in range(99):\n    if i % 9 == 8: evaluate(model, 64)\n    {STEP}", 9, id="before"),
        pytest.param(
            f"i = 0\nwhile True:\n    {STEP}\n    i += 1\n    if i % 9 == 0 and model: evaluate(model, 64)",
            10,
            id="own counter",
        ),
        pytest.param(
            f"for i in range(99):\n    {STEP}\n    if i >= 5: model(torch.ones(5000, 64).cuda())", 7, id="from then on"
        ),
        pytest.param(
            f"for i in range(99):\n    {STEP}\n    if i >= 5: model.eval()(torch.ones(5000, 64).cuda())",
            7,
            id="chained",
        ),
        pytest.param(
            "for i, x in enumerate(DataLoader(torch.ones(400, 64), 4)):\n    train(x.cuda())\n"
            "    if i % 5 == 4: model(torch.ones(5000, 64).cuda()).sum().backward()",
            6,
            id="loader",
        ),
    ],
)
def test_periodic_work_within_the_limit_is_traced(tmp_path, loop, steps):
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert BIG in allocations(trace, "forward")
    assert (trace.header.steps, trace.warnings) == (steps, ())


def test_for_periodic_work_beyond_the_limit_the_loop_goes_on_there(tmp_path):
    loop = f"for i in range(9999):\n    {STEP}\n    if i % 1000 == 999: print('step', i); evaluate(model, 64)"
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert (trace.header.steps, BIG in allocations(trace, "forward"), trace.warnings) == (6, True, ())
    assert "step 999" in (tmp_path / "log").read_text()


def test_periodic_work_beyond_the_limit_in_the_line_of_its_condition_is_traced(tmp_path):
    loop = f"for i, _ in enumerate(range(9999)):\n    {STEP}\n    if i % 1000 == 999: evaluate(model, 64)"
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert (trace.header.steps, BIG in allocations(trace, "forward"), trace.warnings) == (3, True, ())


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(
            "for i in range(99):\n    if i % 9 == 0: model(torch.ones(1, 64).cuda())\n    {step}", id="was seen"
        ),
        pytest.param("for i in range(8):\n    {step}\n    if i % 9 == 8: evaluate(model, 64)", id="never comes"),
        pytest.param(
            "for i in range(99):\n    {step}\n    if i % 9 == 8: print(model, model.state_dict())", id="no pass"
        ),
        pytest.param("for i in range(99):\n    {step}\n    if model is None: evaluate(model, 64)", id="not known"),
    ],
)
def test_unrelated_conditions_add_no_steps(tmp_path, loop):
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop.format(step=STEP)))
    assert (trace.header.steps, trace.warnings) == (3, ())


def test_the_search_for_periodic_work_holds_no_tensor(tmp_path):
    loop = f"""
def main():
    for i in range(99):
        x = torch.ones(2**20, device="cuda")
        {STEP}
        del x
        torch.ones(2**20, device="cuda")
main()
"""
    assert peak(traced(tmp_path, HEAD + RARE.format(loop=loop))) < 1.5 * 4 * 2**20


def test_a_checkpointed_function_may_index_by_a_list_and_make_tensors_of_lists(tmp_path):
    source = (
        HEAD
        + """
from torch.utils.checkpoint import checkpoint
x = torch.randn(4, 8, 14, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
def chosen(x):
    return x.exp()[..., [-2], :] * x.new_tensor([2.0])
while True:
    checkpoint(chosen, x, use_reentrant=False).sum().backward()
    optimizer.step()
"""
    )
    assert traced(tmp_path, source).header.steps == 3


GROWING = """
class Field:
    def upsample_volume_grid(self, size): ...
    def upsample(self, image): ...
field, stage, patch_size = Field(), 0, 0
milestones, patch_sizes, batch_sizes = [2000, 4000], [128, 160, 192], [8, 8]
for i in range(9999):
    stage = sum(i > limit for limit in milestones)
    patch_size = patch_sizes[stage]
    batch_size = batch_sizes[stage]
    STEP
    if i in milestones:
        field.upsample_volume_grid(2 * i)
    if i % 1000 == 999:
        field.upsample(model.weight)
"""


def test_sizes_that_grow_after_the_traced_steps_add_a_warning(tmp_path):
    """As of a NeRF's grid, or of Gaussians that are split: the traced steps are those of the beginning."""
    source = HEAD + RARE.format(loop=GROWING.replace("STEP", STEP))
    calls, patches = traced(tmp_path, source).warnings
    lines = source.splitlines()
    at = [next(n for n, line in enumerate(lines, 1) if words in line) for words in ("= patch_s", "if i in")]
    assert calls == (
        f"`upsample_volume_grid` at train.py, line {at[1]}, may need more memory later in the training than was traced"
    )
    assert patches == f"`patch_size` at train.py, line {at[0]}, was 128 in the traced steps and grows to 192"


UNFREEZING = """
bias = model.bias.requires_grad_(False)
def unfreeze_last(layer):
    for parameter in layer.parameters():
        parameter.requires_grad = True
for epoch in range(20):
    if epoch == 5:
        CALL
    for i in range(10):
        STEP
"""


@pytest.mark.parametrize("call", ["unfreeze_last(model)", "bias.requires_grad_()", "bias.requires_grad = True"])
def test_parameters_are_unfrozen_in_a_later_epoch_of_a_range(tmp_path, call):
    loop = UNFREEZING.replace("STEP", STEP).replace("CALL", f"{call}; print('epoch', epoch)")
    trace = traced(tmp_path, HEAD + RARE.format(loop=loop))
    assert (trace.warnings, trace.partial, trace.header.steps) == ((), False, 6)
    assert "epoch 5" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("call", ["unfreeze_last(model)", "bias.requires_grad_()", "bias.requires_grad = True"])
def test_parameters_unfrozen_after_the_traced_steps_add_a_warning(tmp_path, call):
    loop = UNFREEZING.replace("for epoch in range(20)", "for epoch, _ in enumerate(range(20))")
    source = HEAD + RARE.format(loop=loop.replace("STEP", STEP).replace("CALL", call))
    line = source.splitlines().index("    if epoch == 5:") + 1
    (warning,) = traced(tmp_path, source).warnings
    assert warning.startswith(f"parameters are unfrozen at train.py, line {line}, after the traced steps;")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CALL", "bias.requires_grad_(False)"),
        ("CALL", "bias.requires_grad = False"),
        ("epoch == 5", "epoch == 50"),
    ],
)
def test_parameters_that_stay_frozen_add_none(tmp_path, old, new):
    loop = UNFREEZING.replace(old, new).replace("CALL", "bias.requires_grad_()")
    assert not traced(tmp_path, HEAD + RARE.format(loop=loop.replace("STEP", STEP))).warnings


def test_data_that_require_gradients_are_no_parameters(tmp_path):
    loop = UNFREEZING.replace("for epoch in range(20)", "for epoch, _ in enumerate(range(20))")
    loop = loop.replace("STEP", STEP).replace("CALL", "images = torch.zeros(2).requires_grad_()")
    assert not traced(tmp_path, HEAD + RARE.format(loop=loop)).warnings


METHODS = """
import torch
from torch import nn
from torch.utils.data import DataLoader

class Pair:
    def __init__(self):
        self.nets = [nn.Linear(64, 8).cuda(), nn.Linear(64, 16).cuda()]
        self.optimizers = [torch.optim.SGD(net.parameters(), lr=0.1) for net in self.nets]

    def train_on(self, x):
        self.nets[0](x).sum().backward()
        self.optimizers[0].step()
        self.nets[1](x).sum().backward()
        self.optimizers[1].step()

pair = Pair()
for epoch in range(3):
    for x in DataLoader(torch.randn(400, 64), batch_size=50):
        pair.train_on(x.cuda())
"""


def test_training_later_in_a_method_that_was_traced_before_is_not_warned_of(tmp_path):
    trace = traced(tmp_path, METHODS)
    assert trace.header.steps == 6
    assert not [warning for warning in trace.warnings if "after the traced part" in warning]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_a_long_step_of_lbfgs_ends_when_its_history_is_full(tmp_path, search):
    source = f"""
    import torch
    image = torch.zeros(2**18, device="cuda", requires_grad=True)
    optimizer = torch.optim.LBFGS([image], max_iter=1000, history_size=6, line_search_fn={search!r})
    evaluations = []
    def closure():
        optimizer.zero_grad()
        loss = image.square().sum()
        loss.backward()
        evaluations.append(0)
        return loss
    optimizer.step(closure)
    assert 6 < len(evaluations) < 40, len(evaluations)
    assert len(optimizer.state[image]["old_dirs"]) == 6
    first = len(evaluations)
    optimizer.step(closure)
    assert len(evaluations) - first < first // 2, (first, len(evaluations))
    """
    trace = traced(tmp_path, source)
    assert not trace.warnings  # of an assertion
    assert peak(trace) >= (2 * 6 + 2) * 4 * 2**18
