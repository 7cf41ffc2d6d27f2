"""GPU memory that grows with each batch of a loop over a loader, of which few are traced."""

from __future__ import annotations

import textwrap
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.estimators.further_iterations import repeated_iteration
from cotenant.tracing.data.loaders.memory_growth import MemoryGrowth
from cotenant.tracing.data.tables import synthetic_records
from traced_scripts import traced

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
data, held_out = TensorDataset(torch.randn(800, 8)), TensorDataset(torch.randn({held_out}, 8))
model = nn.Linear(8, 50_000).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def ahead(loader):
    present = None
    for batch in loader:
        if present is not None:
            yield present
        present = batch
    yield present

"""
LOOP = """
losses, outputs = [], []
for epoch in range(5):
    for (x,) in DataLoader(data, batch_size=50):
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        for (x,) in DataLoader(held_out, batch_size=50):
            model(x.cuda()).sum()
"""
LATE = """optimizer.step()
        losses.append(None)
        if len(losses) == {batch}:
            late = torch.ones(20_000_000).cuda()"""
COLLECTS_OUTPUTS = LOOP.replace("            model(x.cuda()).sum()", "            outputs.append(model(x.cuda()))")


OUTPUT_BYTES = 50 * 50_000 * 4


def collected_bytes(trace):
    """Bytes of outputs, of 50 or 10 samples, that are left."""
    freed = {event.storage_id for event in trace.events if event.action == "free"}
    left = [event.bytes for event in trace.events if event.action == "alloc" and event.storage_id not in freed]
    return sum(size for size in left if size in (OUTPUT_BYTES, OUTPUT_BYTES // 5))


@pytest.mark.parametrize("held_out", [500, pytest.param(460, id="a smaller last batch")])
def test_all_outputs_that_an_evaluation_collects_are_traced(tmp_path, held_out):
    trace = traced(tmp_path, HEAD.format(held_out=held_out) + COLLECTS_OUTPUTS)
    assert trace.warnings == ()
    assert collected_bytes(trace) == held_out * 50_000 * 4


def test_outputs_of_a_long_evaluation_are_reported(tmp_path):
    (warning,) = traced(tmp_path, HEAD.format(held_out=5000) + COLLECTS_OUTPUTS).warnings
    assert warning.startswith("GPU memory grows by 9.5 MiB with each batch of the loop at train.py, line ")
    assert ": by 953.7 MiB over its 100 batches, of which only the first 64 are included" in warning


def test_the_evaluation_after_batches_that_were_read_ahead_is_traced(tmp_path):
    script = COLLECTS_OUTPUTS.replace("in DataLoader(data, batch_size=50)", "in ahead(DataLoader(data, batch_size=50))")
    assert "ahead(" in script
    trace = traced(tmp_path, HEAD.format(held_out=500) + script)
    assert trace.header.steps == 4
    assert collected_bytes(trace) == 500 * 50_000 * 4


def test_graphs_that_a_training_loop_retains_are_reported(tmp_path):
    retaining = LOOP.replace(
        "optimizer.zero_grad()", "optimizer.zero_grad()\n        losses.append(model(x.cuda()).exp().sum())"
    )
    (warning,) = traced(tmp_path, HEAD.format(held_out=500) + retaining).warnings
    assert "over its 16 batches" in warning


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("optimizer.zero_grad()", "optimizer.zero_grad()\n        losses.append(loss)", id="numbers"),
        pytest.param(".sum()\n", ".sum()\n            outputs = model(x.cuda())\n", id="a variable"),
        pytest.param("        optimizer.zero_grad()\n", "", id="gradients"),
        pytest.param("optimizer.step()", LATE.format(batch=2), id="once, after two batches"),
        pytest.param("optimizer.step()", LATE.format(batch=3), id="once, after three batches"),
    ],
)
def test_loops_without_growth_are_not(tmp_path, old, new):
    head, _, validation = LOOP.rpartition("    with")
    script = LOOP.replace(old, new) if "outputs" not in new else f"{head}    with{validation.replace(old, new)}"
    assert not traced(tmp_path, HEAD.format(held_out=500) + script).warnings


def test_samples_that_a_data_set_puts_on_the_gpu_are_gone_after_their_batch(tmp_path):
    source = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    class OnGpu(Dataset):
        def __len__(self):
            return 603

        def __getitem__(self, index):
            return torch.zeros(1 << 18).cuda()

    def endless(loader):
        while True:
            yield from loader

    model = nn.Linear(1 << 18, 1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches, before = endless(DataLoader(OnGpu(), batch_size=6)), torch.cuda.memory_allocated()
    for step in range(400):
        torch.cuda.reset_peak_memory_stats()
        x = next(batches)
        assert torch.cuda.memory_allocated() - before == x.nbytes
        assert torch.cuda.max_memory_allocated() - before >= 2 * x.nbytes, "samples beside their batch"
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        del x
    """
    trace = traced(tmp_path, textwrap.dedent(source))
    assert not trace.warnings
    assert trace.header.steps == 3


PREFETCH = """
def prefetch(loader):
    present = None
    for batch in loader:
        following = [part.cuda().sub_(1).div_(2) for part in batch]
        if present is not None:
            yield present
        present = following
    yield present

wide = nn.Linear(40_000, 10).cuda()
"""


def test_the_next_batch_of_a_loader_that_reads_ahead_is_no_growth(tmp_path):
    head = HEAD.format(held_out=500).replace("torch.randn(500, 8)", "torch.randn(500, 40_000)") + PREFETCH
    loop = LOOP.replace("in DataLoader(held_out, batch_size=50)", "in prefetch(DataLoader(held_out, batch_size=50))")
    evaluation = "            model(x.cuda()).sum()"
    assert not traced(tmp_path, head + loop.replace(evaluation, "            wide(x).sum()")).warnings
    collecting = loop.replace(evaluation, "            outputs.append(x * 2 + 1)")
    long = head.replace("torch.randn(500, ", "torch.randn(4000, ") + collecting
    assert "GPU memory grows by 7.6 MiB with each batch" in "".join(traced(tmp_path, long).warnings)


def growth(*live, events, steps=0, size=8, batches=500):
    """What a loop of `batches` warns of, and whether it wants another one.

    `live`, `events`: MiB and events before each batch so far.
    """
    log = SimpleNamespace(steps=0, live_bytes={}, event_count=0, peak_bytes={0: 1 << 30}, warn=lambda text: None)
    found, warnings = MemoryGrowth(log), []
    log.warn = warnings.append
    for present, count in zip(live, events, strict=True):
        log.live_bytes, log.event_count = {0: present << 20}, count
        found.before_batch()
        found.gives(size)
    log.steps = steps
    wants = found.wants_another(batches)
    if not wants:
        found.end(batches)
    return wants, warnings


AHEAD = (0, 2, 100, 200)


def test_what_the_first_batch_leaves_where_the_loader_reads_ahead_is_no_growth():
    """As FSDP, whose root has its whole parameters after the first evaluation."""
    assert growth(100, 101, 202, events=AHEAD[:3]) == (True, [])
    assert growth(100, 101, 202, 202, events=AHEAD) == (False, [])
    assert growth(100, 101, 202, 212, events=AHEAD) == (True, [])


@pytest.mark.parametrize(
    ("live", "events", "steps"),
    [
        pytest.param((100, 150, 200), AHEAD[:3], 0, id="two batches that were read ahead"),
        pytest.param((100, 101, 202), AHEAD[:3], 1, id="training"),
    ],
)
def test_no_other_batch_is_wanted(live, events, steps):
    assert growth(*live, events=events, steps=steps) == (False, [])


@pytest.mark.parametrize("size", [8, pytest.param(0, id="batches of a size that is not known")])
def test_more_batches_of_an_evaluation_are_wanted_while_each_leaves_more(size):
    assert growth(100, 110, 120, events=(0, 100, 200), size=size) == (True, [])
    assert growth(100, 110, 110, events=(0, 100, 200), size=size) == (False, [])
    last = tuple(range(100, 201, 20))
    assert growth(*last, events=range(0, 600, 100), size=size, batches=6) == (True, [])
    assert growth(*last, events=range(0, 600, 100), size=size, batches=5) == (False, [])


def test_no_more_than_64_batches_of_an_evaluation_are_wanted():
    assert growth(*range(100, 740, 10), events=range(0, 6400, 100)) == (True, [])
    wants, (warning,) = growth(*range(100, 750, 10), events=range(0, 6500, 100))
    assert not wants
    assert "grows by 10.0 MiB" in warning


def test_a_number_of_batches_that_was_made_up_is_named_so(monkeypatch):
    monkeypatch.setattr(synthetic_records, "made_up", ["squad"])
    (_, (warning,)) = growth(100, 110, 120, events=(0, 100, 200))
    assert "by 4.9 GiB over its 500 batches of made-up data, of which" in warning


KEPT = """
model = nn.Linear(8, 50_000).cuda()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
total = 0
for step in range(500):
    loss = model(torch.ones(50, 8, device="cuda")).pow(2).sum()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    total += loss{value}
"""


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_losses_that_are_added_with_their_graphs_are_reported(tmp_path, optimizer):
    source = HEAD.format(held_out=500) + KEPT.format(optimizer=optimizer, value="")
    (warning,) = traced(tmp_path, source).warnings
    line = source[: source.index("for step in")].count("\n") + 1
    assert warning.startswith("GPU memory grows by ")
    assert f"with each step of the loop at train.py, line {line}: by " in warning
    assert warning.endswith("over the 473 that come, which are not included")


def test_a_queue_is_traced_until_it_is_full(tmp_path):
    source = """
from collections import deque
bank = deque(maxlen=6)
for step in range(500):
    found = model(torch.ones(1, 1, device="cuda"))[0]
    sum((old * found).sum() for old in [*bank, found]).backward()
    bank.append(found.detach())
    optimizer.step()
"""
    head = "import torch; from torch import nn\nmodel = nn.Linear(1, 1_000_000, device='cuda')\n"
    trace = traced(tmp_path, f"{head}optimizer = torch.optim.SGD(model.parameters(), lr=0.1){source}")
    assert trace.warnings == ()
    assert 6 < trace.header.steps < 12
    assert repeated_iteration(trace.events) is not None


@pytest.mark.parametrize(
    ("optimizer", "value", "rounds"),
    [("Adam", ".item()", 500), ("Adam", ".detach()", 500), ("SGD", "", 4)],
    ids=["a number", "without its graph", "few rounds"],
)
def test_what_a_loop_does_not_keep_is_no_growth(tmp_path, optimizer, value, rounds):
    loop = KEPT.format(optimizer=optimizer, value=value).replace("range(500)", f"range({rounds})")
    assert not traced(tmp_path, HEAD.format(held_out=500) + loop).warnings
