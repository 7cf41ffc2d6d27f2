"""Vocabularies that a script reads itself are made, with as many tokens as the synthetic texts have."""

from __future__ import annotations

import textwrap

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.core.errors import TraceError
from traced_scripts import by_category, traced

LINES = """
def load(path):
    tokens = {}
    with open(path, encoding="utf-8") as reader:
        for line in reader:
            tokens[line.rstrip("\\n")] = len(tokens)
    return tokens
"""
COLUMNS = """
def load(path):
    with open(path) as reader:
        pairs = [line.rstrip("\\n").split("\\t") for line in reader]
    return {token: int(index) for token, index in pairs}
"""
SPACED = """
def load(path):
    tokens = {}
    for line in open(path):
        token, index = line.strip().split()
        tokens[token] = int(index)
    return tokens
"""
ASKED = """
import os
def load(path):
    if not os.path.isfile(path):
        raise ValueError(path)
    return dict.fromkeys(open(path).read().splitlines())
"""
TRAINS = """
import torch
tokens = load("{path}")
assert {{"[PAD]", "[CLS]", "<unk>", "a", "##b"}} <= set(tokens)
with open("data/corpus.txt") as file:
    assert set(file.read().split()) & set(tokens)
model = torch.nn.Embedding(len(tokens), 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(64, dtype=torch.int64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("load", [LINES, COLUMNS, SPACED, ASKED], ids=["lines", "columns", "spaced", "asked"])
@pytest.mark.parametrize("path", ["bert/vocab.txt", "data/vocab.small", "data/chinese_vocabulary", "en-vocab.txt"])
def test_a_vocabulary_that_is_missing_has_the_tokens_of_the_samples(tmp_path, load, path):
    trace = traced(tmp_path, load + TRAINS.format(path=path), synthetic_data=["64:int64:21128"])
    assert by_category(trace)["parameter"] == 4 * 8 * 21128
    assert any(f"`{path}`, a vocabulary of 21128 tokens" in warning for warning in trace.warnings)


def test_a_script_that_makes_its_vocabulary_makes_it(tmp_path):
    source = """
    import os
    def load(path):
        if not os.path.exists(path):
            os.makedirs("bert")
            with open(path, "w") as file: file.write("[PAD]\\n[CLS]\\n<unk>\\na\\n##b\\n!\\n")
        return dict.fromkeys(open(path).read().splitlines())
    """
    script = textwrap.dedent(source) + TRAINS.format(path="bert/vocab.txt")
    trace = traced(tmp_path, script, synthetic_data=["64:int64:21128"])
    assert by_category(trace)["parameter"] == 4 * 8 * 6
    assert not any("vocabulary" in warning for warning in trace.warnings)


@pytest.mark.parametrize("path", ["bert/vocab.json", "bert/vocab.pkl", "bert/words.txt"])
def test_other_files_are_no_vocabularies_of_lines(tmp_path, path):
    with pytest.raises(TraceError):
        traced(tmp_path, LINES + f"print(len(load('{path}')))\n", synthetic_data=["64:int64:21128"])
