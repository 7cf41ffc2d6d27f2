"""The vocabulary of characters that a language model's script looks for beside its files of tokens."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from traced_scripts import by_category, traced, trained

SCRIPT = """
import os, pickle
import numpy, torch
size, folder = 50304, "data/poems"
meta_path = os.path.join(folder, "meta.pkl")
if os.path.exists(meta_path):
    with open(meta_path, "rb") as file:
        size = pickle.load(file)["vocab_size"]
tokens = numpy.memmap(os.path.join(folder, "train.bin"), dtype=numpy.uint16, mode="r")
batch = torch.from_numpy(tokens[:64].astype(numpy.int64)).cuda()
model = torch.nn.Embedding(size, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("sample", "tokens"),
    [
        pytest.param("64:int64:65", 65, id="characters"),
        pytest.param("64:int64:50257", 50304, id="parts of words"),
        pytest.param("64:int64", 50304, id="not said"),
    ],
)
def test_a_model_has_as_many_tokens_as_the_sample_has_characters(tmp_path, sample, tokens):
    trace = traced(tmp_path, SCRIPT, synthetic_data=[sample])
    assert by_category(trace)["parameter"] == 4 * 8 * tokens
    assert any("vocabulary of 65 characters" in warning for warning in trace.warnings) == (tokens == 65)


def test_real_tokens_without_a_vocabulary_have_none(tmp_path):
    (tmp_path / "data" / "poems").mkdir(parents=True)
    (tmp_path / "data" / "poems" / "train.bin").write_bytes(bytes(256))
    trace = traced(tmp_path, SCRIPT, synthetic_data=["64:int64:65"])
    assert by_category(trace)["parameter"] == 4 * 8 * 50304


def test_a_script_that_does_not_ask_finds_it_and_its_characters_differ(tmp_path):
    source = """
    import pickle
    with open("data/poems/meta.pkl", "rb") as file:
        meta = pickle.load(file)
    assert meta["vocab_size"] == len(meta["stoi"]) == len(set(meta["itos"].values())) == 65
    assert all(meta["stoi"][meta["itos"][index]] == index for index in range(65))
    """
    trained(tmp_path, source, synthetic_data=["64:int64:65"])
