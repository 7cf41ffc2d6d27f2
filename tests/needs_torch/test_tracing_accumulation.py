"""Gradient accumulation: batches that repeat are not computed again, and the trace is the same as if they were."""

from __future__ import annotations

import importlib.util
import itertools
import re

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.training import repeated_batches
from traced_scripts import peak, traced

WITH_HOOK = "hooked"
"""An argument of the scripts: their model has a hook, so nothing is replaced, and the memory is the same."""

MODEL = """
import sys
import torch
from torch import nn

calls = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        self.kept = []
    def forward(self, x, y):
        calls.append(1)
        out = self.body(x)
        {inside}
        return {{"out": out, "pair": out.view(2, -1, 10).unbind(0), "loss": nn.functional.cross_entropy(out, y)}}
model = Net().cuda()
other = nn.Linear(64, 64).cuda()
if "hooked" in sys.argv:
    model.register_forward_hook(lambda *unused: None)
"""
IMPORT = "from transformers.modeling_outputs import SequenceClassifierOutput"
LOOP = """
optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()])
total, losses = torch.zeros((), device="cuda"), []
for step in range(4):
    for batch in range(12):
        n = {size}
        x, y = torch.zeros(n, 64).cuda(), torch.zeros(n, dtype=torch.long).cuda()
        with torch.autocast("cuda", enabled={autocast}):
            found = model({first}(x), y)
        loss = found["loss"] / 12
        {extra}
        loss.backward()
        total = total + loss.detach()
        {after}
    optimizer.step()
    optimizer.zero_grad(set_to_none={to_none})
    print("calls", len(calls), flush=True)
"""
PLAIN = {
    "inside": "pass",
    "extra": "pass",
    "after": "pass",
    "size": "8",
    "autocast": "False",
    "first": "",
    "to_none": "True",
}


def compared(folder, source):
    """(model calls after two steps with replacing, without, the trace) of a script whose traces are equal."""
    trace = traced(folder, source)
    calls = calls_of(folder)
    whole = traced(folder, source, WITH_HOOK)
    assert with_sorted_frees(trace.events) == with_sorted_frees(whole.events)
    assert trace.ops == whole.ops
    assert (trace.warnings, trace.partial) == (whole.warnings, whole.partial)
    return calls, calls_of(folder), trace


def with_sorted_frees(events):
    """Autograd frees what a graph held in no fixed order."""
    found = []
    for action, run in itertools.groupby(events, key=lambda event: event.action):
        part = list(run)
        found += sorted(part, key=lambda event: event.storage_id) if action == "free" else part
    return found


def calls_of(folder):
    return int(re.findall(r"calls (\d+)", (folder / "log").read_text())[1])


@pytest.mark.parametrize(
    ("changed", "calls"),
    [
        pytest.param({}, 6, id="plain"),
        pytest.param({"autocast": "True"}, 6, id="autocast"),
        pytest.param({"after": "del found, loss"}, 6, id="results are freed"),
        pytest.param({"extra": "loss *= 2"}, 6, id="loss in place"),
        pytest.param({"extra": "loss = loss + found['pair'][1].mean()"}, 6, id="a view is used"),
        pytest.param({"to_none": "False"}, 6, id="gradients stay"),
        pytest.param({"size": "8 + 2 * (batch == 11)"}, 8, id="the last batch is larger"),
        pytest.param({"size": "8 + 2 * batch"}, 24, id="every batch differs"),
        pytest.param({"inside": "self.kept.append(out * 2)"}, 24, id="the model stores something"),
        pytest.param({"inside": "self.kept = out * 2"}, 24, id="the model stores the latest"),
        pytest.param({"after": "losses.append(loss)"}, 24, id="the script stores results"),
        pytest.param({"extra": "loss = loss + model(x, y)['loss']"}, 48, id="two calls"),
        pytest.param({"first": "other"}, 24, id="two models"),
        pytest.param({"after": "model.zero_grad()"}, 24, id="gradients are made anew"),
    ],
)
def test_the_trace_is_the_same_without_computing_batches_that_repeat(tmp_path, changed, calls):
    found, whole, _ = compared(tmp_path, (MODEL + LOOP).format_map({**PLAIN, **changed}))
    assert (found, whole) == (calls, 48 if calls == 48 else 24)


def test_a_batch_with_gradients_of_its_own_is_computed(tmp_path):
    extra = "torch.autograd.grad(loss, model.body[0].weight, retain_graph=True)"
    traced(tmp_path, (MODEL + LOOP).format_map({**PLAIN, "extra": extra}))
    assert calls_of(tmp_path) == 24


@pytest.mark.parametrize(
    ("values", "calls"),
    [
        pytest.param("1", 6, id="masks are equal"),
        pytest.param("int(batch != 5)", 14, id="one mask differs"),
    ],
)
def test_values_that_the_model_reads_are_compared(tmp_path, values, calls):
    """Another mask is another path through the model, with a larger result, which is freed in the next batch.

    So two batches after that one must be alike again.
    """
    inside = "out = out if bool(y.all()) else self.body(x.repeat(4, 1))[:8]"
    source = (MODEL + LOOP).format_map({**PLAIN, "inside": inside}).replace(
        "torch.zeros(n, dtype=torch.long)", f"torch.full((n,), {values})"
    )  # fmt: skip
    assert compared(tmp_path, source)[:2] == (calls, 24)


@pytest.mark.parametrize("left_out", [9, 8])
def test_beyond_many_events_batches_leave_none(tmp_path, monkeypatch, left_out):
    """The peaks stay; of an odd number of batches one leaves its events."""
    source = (MODEL + LOOP).format_map({**PLAIN, "to_none": "True"}).replace("range(12)", f"range({left_out + 3})")
    whole = traced(tmp_path, source, WITH_HOOK)
    monkeypatch.setattr(repeated_batches, "_MAX_EVENTS", 0)
    trace = traced(tmp_path, source)
    assert len(trace.events) < len(whole.events) / 1.7
    phases = ("load", "forward", "backward", "step")
    assert [peak(trace, phase) for phase in phases] == [peak(whole, phase) for phase in phases]


TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, index):
        tokens = torch.zeros(16, dtype=torch.long)
        return {"input_ids": tokens, "labels": tokens, "attention_mask": torch.ones(16, dtype=torch.long)}

calls = []
class Net(GPT2LMHeadModel):
    def forward(self, *args, **kwargs):
        calls.append(1)
        return super().forward(*args, **kwargs)
model = Net(GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=128))
if "hooked" in sys.argv:
    model.register_forward_hook(lambda *unused: None)
class Log(__import__("transformers").TrainerCallback):
    def on_step_end(self, *args, **kwargs):
        print("calls", len(calls), flush=True)
settings = TrainingArguments("out", per_device_train_batch_size=2, gradient_accumulation_steps=12, max_steps=3,
                             remove_unused_columns=False, report_to=[], bf16=True)
Trainer(model=model, args=settings, train_dataset=Texts(), callbacks=[Log()]).train()
"""
ACCELERATE = """
import sys
import torch
from accelerate import Accelerator
from torch import nn

calls = []
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10))
    def forward(self, images):
        calls.append(1)
        return self.body(images)
accelerator = Accelerator(gradient_accumulation_steps=8)
model = Net()
model(torch.zeros(1, 3, 16, 16))
calls.clear()
if "hooked" in sys.argv:
    model.register_forward_hook(lambda *unused: None)
data = torch.utils.data.TensorDataset(torch.zeros(256, 3, 16, 16), torch.zeros(256, dtype=torch.long))
batches = torch.utils.data.DataLoader(data, batch_size=8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
for images, classes in batches:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(images), classes)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        print("calls", len(calls), flush=True)
"""


@pytest.mark.parametrize(
    ("library", "source", "calls"), [("transformers", TRAINER, (6, 24)), ("accelerate", ACCELERATE, (6, 16))]
)
def test_accumulation_by_libraries(tmp_path, library, source, calls):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"needs {library}")
    assert compared(tmp_path, source)[:2] == calls


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
def test_results_that_were_made_of_a_dict_have_no_more_keys_when_they_are_repeated(tmp_path):
    model = MODEL.format(inside="pass").replace("from torch import nn", "from torch import nn\n" + IMPORT, 1)
    model = re.sub(r"return \{.*", "return SequenceClassifierOutput({'logits': out})", model)  # as accelerate does
    loop = LOOP.format(**PLAIN).replace('found["loss"]', "nn.functional.cross_entropy(found[0], y)")
    replaced, every, _ = compared(tmp_path, model + loop)
    assert replaced < every
