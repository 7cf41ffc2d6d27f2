"""Texts that a model generates during training have the maximum length."""

import importlib.util

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import allocations, traced

LOOP = """
import torch
from torch import nn

EOS, VOCABULARY, TEXTS, PROMPT, LONGEST = 1, 300, 6, 4, 12

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY, bias=False)

    def forward(self, ids):
        return self.head(self.table(ids))

def draw(scores):
    {draw}

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
words = [f"word{{i}}" for i in range(VOCABULARY)]
for _ in range(4):
    ids = torch.full((TEXTS, PROMPT), 5, device="cuda")
    with torch.no_grad():
        while ids.shape[1] < LONGEST:
            token = draw(model(ids)[:, -1])
            ids = torch.cat([ids, token.view(TEXTS, 1)], 1)
            if (token == EOS).all():
                break
    made = ids[:, PROMPT:]
    is_end = made == EOS
    ends = torch.full((TEXTS,), made.shape[1], device="cuda")
    ends[is_end.any(1)] = is_end.int().argmax(1)[is_end.any(1)]
    mask = torch.arange(made.shape[1], device="cuda") <= ends[:, None]
    lists = [row[mask_row].tolist() for row, mask_row in zip(made, mask)]
    assert [len(tokens) for tokens in lists] == [LONGEST - PROMPT] * TEXTS
    assert ids[0, :PROMPT].tolist() == [5] * PROMPT
    texts = [" ".join(words[token] for token in row if token > 1) for row in lists]
    rewards = torch.tensor([1.0 / len(text.split()) for text in texts]).cuda()
    assert len(set(texts)) == TEXTS
    scores = model(torch.tensor(lists, device="cuda")).log_softmax(-1).gather(-1, made[..., None])
    (-(scores.squeeze(-1) * mask * rewards[:, None]).sum() / mask.sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    "draw",
    [
        pytest.param("return torch.multinomial(scores.softmax(-1), 1)", id="sampled"),
        pytest.param("return torch.distributions.Categorical(logits=scores).sample()", id="of a distribution"),
        pytest.param("return scores.argmax(-1)", id="greedy"),
        pytest.param("return scores.max(-1).indices", id="greedy, with the score"),
        pytest.param(
            "best, at = scores.topk(50); return at.gather(-1, torch.multinomial(best.softmax(-1), 1))", id="top k"
        ),
        pytest.param(
            "best, at = scores.sort(-1, descending=True); i = torch.multinomial(best.softmax(-1), 1)\n"
            "    return at[torch.arange(TEXTS, device='cuda'), i[:, 0]]",
            id="top p",
        ),
    ],
)
def test_generated_texts_have_the_maximum_length(tmp_path, draw):
    script = LOOP.format(draw=draw)
    line = next(i for i, text in enumerate(script.splitlines(), 1) if "token == EOS" in text)
    trace = traced(tmp_path, script)
    assert not trace.partial
    (warning,) = trace.warnings
    assert warning.startswith("what a model generates depends on its weights; assumed: texts of maximum length")
    assert warning.endswith(f"and so are rewards of them (train.py, line {line})")
    assert 4 * 6 * (12 - 4) * 300 in allocations(trace, "forward")  # scores of all that was generated


def test_generated_texts_of_transformers_have_the_maximum_length(tmp_path):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("needs transformers")
    generate = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=90, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes, eos_token_id=2, pad_token_id=0)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    prompt = torch.full((4, 3), 7, device="cuda")
    ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=5, max_new_tokens=6)
    token_lists = [row[row != 2].tolist() for row in ids]
    assert [len(tokens) for tokens in token_lists] == [9] * 4
    assert [tokens[-1] not in (0, 2) for tokens in token_lists] == [True] * 4
    model(ids, labels=ids).loss.backward()
    optimizer.step()
"""
    trace = traced(tmp_path, generate)
    assert not trace.partial
    assert len(trace.warnings) == 1


def test_a_sample_from_something_other_than_a_vocabulary_stays_unknown(tmp_path):
    classify = """
import torch
from torch import nn
table, head = nn.Embedding(100, 8).cuda(), nn.Linear(8, 60).cuda()
optimizer = torch.optim.SGD(head.parameters(), 0.1)
for _ in range(3):
    scores = head(table(torch.arange(5, device="cuda")))
    assert (scores.argmax(-1) == torch.arange(5, device="cuda")).sum().item() == 1
    scores.sum().backward()
    optimizer.step()
"""
    assert traced(tmp_path, classify).warnings == ()
