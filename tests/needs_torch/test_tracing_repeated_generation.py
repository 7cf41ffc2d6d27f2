"""Roll-outs of a language model: of many alike texts the first are generated in the trace."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="tracing needs torch")
if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers", allow_module_level=True)

from cotenant.tracing.training import repeated_generation
from traced_scripts import allocations, traced

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=100)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
texts, calls, prepare = [], 0, model.prepare_inputs_for_generation

def counting(*args, **kwargs):
    global calls
    calls += 1
    return prepare(*args, **kwargs)

model.prepare_inputs_for_generation = counting
for turn in range({turns}):
    prompt = torch.randint(5, 100, (2, {length})).cuda()
    mask = torch.ones_like(prompt)
    texts.append(model.generate(prompt, attention_mask=mask, max_new_tokens=24, do_sample=True, pad_token_id=0{more}))
    assert texts[-1].shape == (2, {length} + 24) and (texts[-1][:, -1] > 5).all()
assert calls {traced}, calls
for _ in range(3):
    model(input_ids=texts[-1], labels=texts[-1]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
MASK = 1024 * 1024
"""Bytes of the causal mask of GPT-2, the largest allocation."""
LOGITS = 2 * (10 + 24) * 100 * 4
"""Bytes of the logits of two whole texts, in training."""
AS_OUTPUT = ", return_dict_in_generate=True"


def run(tmp_path, turns, *, traced_calls, length="10", more=""):
    script = SCRIPT.replace("{more}))", "{more}).sequences)") if AS_OUTPUT in more else SCRIPT
    return traced(tmp_path, script.format(turns=turns, length=length, more=more, traced=traced_calls))


def test_of_many_texts_the_first_are_traced(tmp_path):
    more = f"{AS_OUTPUT}, use_cache=False"
    many = run(tmp_path, 20, traced_calls="in range(2 * 24, 5 * 24 + 1)", more=more)
    assert not many.partial
    assert LOGITS in allocations(many)
    assert max(allocations(many)) == MASK


def test_an_output_that_has_more_than_its_tokens_is_not_made_again():
    from torch import zeros
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        ids, scores = zeros(2, 34), zeros(2, 100)
    found, wrap = repeated_generation._token_ids({"sequences": ids})
    assert found is ids
    assert wrap(scores) == {"sequences": scores}
    assert repeated_generation._token_ids({"sequences": ids, "scores": scores})[0] is None
    assert repeated_generation._token_ids([ids])[0] is None


def test_a_mixture_that_is_made_anew_is_known_by_its_models_and_numbers():
    from torch import nn, zeros
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        ids = zeros(2, 34)
    left, right = nn.Linear(2, 2), nn.Linear(2, 2)

    def key(left, right, share=0.5):
        mixture = SimpleNamespace(left=left, right=right, share=share, config=object(), generation_config=None)
        return repeated_generation._key(mixture, (ids,), {"max_new_tokens": 4})

    assert key(left, right) == key(left, right)
    others = [key(right, left), key(left, left), key(left, right, share=0.7), key(left, right.eval())]
    assert key(left, right.train()) not in others
    assert repeated_generation._key(SimpleNamespace(generation_config=None), (ids,), {}) is None


def test_a_longer_prompt_or_a_criterion_of_the_script_is_traced(tmp_path):
    longer = run(tmp_path, 12, traced_calls="<= 7 * 24", length="(60 if turn == 11 else 10)")
    assert 2 * 2 * 8 * 4 * (60 + 23) in allocations(longer)  # its cache: 2 texts, 2 heads of 8 numbers
    own = ", stopping_criteria=[lambda tokens, scores, **_: torch.zeros(2, dtype=torch.bool, device='cuda')]"
    run(tmp_path, 8, traced_calls="== 8 * 24", more=own)


def test_of_many_long_texts_one_is_traced(tmp_path, monkeypatch):
    monkeypatch.setattr(repeated_generation, "_EVENTS_OF_LONG", 1000)
    many = run(tmp_path, 6, traced_calls="== 24")
    assert LOGITS in allocations(many)
    assert max(allocations(many)) == MASK
