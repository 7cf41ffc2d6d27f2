"""Generation token by token: most calls only grow the cache, and the peak is that of all calls."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import allocations, peak, traced

TEXTS, PROMPT, HEADS, WIDTH = 4, 8, 2, 64
SCRIPT = """
import torch
from torch import nn
import torch.nn.functional as F

class {layer}:
    keys = values = None

    def update(self, keys, values):
        if self.keys is None:
            self.keys, self.values = keys[..., :0, :], values[..., :0, :]
        self.keys = torch.cat([self.keys, keys], dim=-2)
        self.values = torch.cat([self.values, values], dim=-2)
        return self.keys, self.values

class Cache:
    def __init__(self):
        self.layers = [{layer}(), {layer}()]

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(100, 128), nn.Linear(128, 100)
        self.parts = nn.ModuleList([nn.Linear(128, 384), nn.Linear(128, 384)])

    def forward(self, input_ids, past_key_values):
        forwards.append(input_ids.shape)
        x = self.table(input_ids)
        for part, layer in zip(self.parts, past_key_values.layers):
            q, k, v = part(x).unflatten(-1, (3, 2, 64)).permute(2, 0, 3, 1, 4).contiguous()
            keys, values = layer.update(k, v)
            x = x + F.scaled_dot_product_attention(q, keys, values).transpose(1, 2).flatten(-2)
        {more}
        return dict(logits=self.head(x[:, -1:]), past_key_values=past_key_values)

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    forwards, cache = [], Cache()
    tokens = torch.full((4, 8), 5, device="cuda")
    with torch.no_grad():
        for _ in range({calls}):
            scores = model(input_ids=tokens, past_key_values=cache)["logits"]
            tokens = scores[:, -1].argmax(-1, keepdim=True)
            assert scores.shape == (4, 1, 100)
    assert [tuple(layer.keys.shape) for layer in cache.layers] == [(4, 2, 7 + {calls}, 64)] * 2
    {check}
    del cache
    model(input_ids=torch.full((4, 8), 5, device="cuda"), past_key_values=Cache())["logits"].sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("calls", "missing"),
    [
        pytest.param(49, 0, id="the last one is traced"),
        pytest.param(61, 0.01, id="the last one is not"),
    ],
)
def test_most_calls_only_grow_the_cache_and_the_peak_is_that_of_all(tmp_path, calls, missing):
    check = "assert len(forwards) < 10, len(forwards)"
    grown = SCRIPT.format(layer="DynamicLayer", calls=calls, more="", check=check)
    every = SCRIPT.format(layer="OtherLayer", calls=calls, more="", check=f"assert len(forwards) == {calls}")
    (tmp_path / "all").mkdir()
    trace, whole = traced(tmp_path, grown), traced(tmp_path / "all", every)
    caches = {4 * TEXTS * HEADS * length * WIDTH for length in range(PROMPT, PROMPT + calls)}
    assert caches <= set(allocations(trace))
    assert (1 - missing) * peak(whole) <= peak(trace) <= peak(whole)
    assert len(trace.events) < len(whole.events)


def test_calls_that_record_other_events_are_traced(tmp_path):
    more = "x = x + (torch.zeros(4, 1, 128, device='cuda') if len(forwards) % 2 else 0)"
    script = SCRIPT.format(layer="DynamicLayer", calls=61, more=more, check="assert len(forwards) == 61")
    assert not traced(tmp_path, script).partial


def test_texts_of_transformers_grow_a_cache(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    generate = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=90, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=2, pad_token_id=0)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
calls = []
model.lm_head.register_forward_pre_hook(lambda *_: calls.append(1))
for _ in range(3):
    prompt = torch.full((4, 3), 7, device="cuda")
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, max_new_tokens=40)
    assert ids.shape == (4, 43)
    assert len(calls) < 10, len(calls)
    calls.clear()
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    calls.clear()
"""
    trace = traced(tmp_path, generate)
    assert not trace.partial
    assert 2 * 4 * 42 * 16 * 2 in allocations(trace)  # keys of 42 tokens, in fp32


def test_texts_of_an_encoder_and_a_decoder_grow_the_cache_of_the_decoder(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    generate = """
import torch
from transformers import T5Config, T5ForConditionalGeneration
sizes = dict(vocab_size=90, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, decoder_start_token_id=0)
model = T5ForConditionalGeneration(T5Config(**sizes)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
calls = []
model.lm_head.register_forward_pre_hook(lambda *_: calls.append(1))
for _ in range(3):
    text = torch.full((4, 6), 7, device="cuda")
    ids = model.generate(text, attention_mask=torch.ones_like(text), max_new_tokens=40, min_new_tokens=40)
    assert ids.shape == (4, 41)
    assert len(calls) < 10, len(calls)
    calls.clear()
    model(text, labels=text).loss.backward()
    optimizer.step()
    calls.clear()
"""
    trace = traced(tmp_path, generate)
    assert not trace.partial
    assert 4 * 4 * 2 * 40 * 8 in allocations(trace)  # keys of 40 tokens, in fp32


FEW_CALLED = "assert len(forwards) <= 45, len(forwards)"
ONE_OTHER = "assert [other for _, other in forwards].count(True) == 1, forwards"
all_called = "assert len(forwards) == 100, len(forwards)"


def by_value(trace):
    """Events, with the parameters of library calls in place of their numbers."""
    return [
        (event.action, event.storage_id, event.bytes, event.category, event.phase, event.module, trace.ops[event.op_id])
        if event.action == "op"
        else (event.action, event.storage_id, event.bytes, event.category, event.phase, event.module)
        for event in trace.events
    ]


OWN_CACHE = """
import dataclasses
import torch
from torch import nn

@dataclasses.dataclass
class Cache:
    parts: list

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(100, 128), nn.Linear(128, 100)
        self.parts = nn.ModuleList([nn.Linear(128, 384), nn.Linear(128, 384)])

    def forward(self, tokens, cache=None, start=0):
        forwards.append(tokens.shape)
        x, parts = self.table(tokens), []
        for place, part in enumerate(self.parts):
            q, k, v = part(x).chunk(3, dim=-1)
            if cache is not None:
                k = torch.cat([cache.parts[place][0], k], dim=1)
                v = torch.cat([cache.parts[place][1], v], dim=1)
            parts.append((k, v))
            x = x + (q @ k.transpose(1, 2)).softmax(-1) @ v
        {more}
        return self.head(x), Cache(parts)

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    forwards, cache = [], None
    tokens = torch.full((4, 8), 5, device="cuda")
    model.eval()
    with torch.no_grad():
        for place in range(100):
            scores, new = {model}(tokens if {whole} or cache is None else tokens[:, -1:], cache, place if cache else 0)
            cache = None if {whole} else new
            tokens = torch.cat([tokens, scores[:, -1].argmax(-1, keepdim=True)], dim=1)
            assert scores.shape == (4, 8 + place if {whole} or place == 0 else 1, 100)
    if cache is not None:
        assert [tuple(part.shape) for pair in cache.parts for part in pair] == [(4, 107, 128)] * 4
    {check}
    model.train()
    model(tokens)[0].sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("whole", "model"),
    [
        pytest.param("True", "model", id="texts that grow"),
        pytest.param("False", "model", id="a cache in a dataclass"),
        pytest.param("True", "model.forward", id="without the model's own call"),
    ],
)
def test_of_calls_that_grow_evenly_one_of_16_is_traced(tmp_path, whole, model):
    """The others have the events that they would have."""
    check = "assert len(forwards) <= 20, forwards"
    found = traced(tmp_path, OWN_CACHE.format(whole=whole, model=model, more="x.sum() == 0", check=check))
    every = traced(tmp_path, OWN_CACHE.format(whole=whole, model=model, more="bool(x.sum() == 0)", check=all_called))
    assert (found.partial, every.partial) == (False, False)
    assert by_value(found) == by_value(every)
    counts = [sum(group.times for group in trace.header.kernels) for trace in (found, every)]
    assert 0.98 * counts[1] < counts[0] <= counts[1]  # that of a value that is read is one more


def test_calls_that_read_the_same_known_values_are_replaced(tmp_path):
    """As transformers asks whether a mask is all ones; the 50th mask is not."""
    ones = "mask = torch.ones_like(tokens)\n        bool(mask.all())"
    assert not traced(tmp_path, OWN_CACHE.format(whole="True", model="model", more=ones, check=FEW_CALLED)).partial
    asks = "forwards[-1] = (forwards[-1], bool(torch.as_tensor(start == 50).all()))"
    one = OWN_CACHE.format(whole="True", model="model", more=asks, check=f"{FEW_CALLED}; {ONE_OTHER}")
    number = "torch.tensor(place if place == 50 else 1, device='cuda')"
    assert not traced(tmp_path, one.replace("place if cache else 0)", f"{number})")).partial


@pytest.mark.parametrize(
    "more",
    ["self.kept = [*getattr(self, 'kept', []), x]", "x = x + x.sum().item()"],
    ids=["a module that keeps what it made", "values that are read"],
)
def test_a_call_that_leaves_more_is_traced(tmp_path, more):
    assert not traced(tmp_path, OWN_CACHE.format(whole="False", model="model", more=more, check=all_called)).partial
