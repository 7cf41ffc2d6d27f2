"""Models of SentencePiece that are missing are made, with as many pieces as the synthetic texts have."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="tracing needs torch")

from cotenant.tracing.data.text.sentencepiece_files import _model
from traced_scripts import by_category, traced

SCRIPT = """
import os, sentencepiece, torch
assert os.path.isfile("llama/tokenizer.model")
first = sentencepiece.SentencePieceProcessor(model_file="llama/tokenizer.model")
second = sentencepiece.SentencePieceProcessor()
second.Load("data/bpe_own.model")
assert first.vocab_size() == second.get_piece_size() == {size}
assert (first.unk_id(), first.bos_id(), first.eos_id()) == (0, 1, 2)
if {size} > 1000:
    assert first.decode(first.encode("any text of bytes")) == "any text of bytes"
model = torch.nn.Embedding(first.vocab_size(), 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.zeros(64, dtype=torch.int64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("size", [32000, 100])
def test_a_model_of_pieces_that_is_missing_has_those_of_the_samples(tmp_path, size):
    pytest.importorskip("sentencepiece")
    trace = traced(tmp_path, SCRIPT.format(size=size), synthetic_data=[f"64:int64:{size}"])
    assert by_category(trace)["parameter"] == 4 * 8 * size
    assert sum(f"a model of {size} pieces" in warning for warning in trace.warnings) == 2


def _fields(content: bytes) -> list[tuple[int, int, bytes]]:
    """(number, wire type, content) of each field of a message of protobuf."""
    found, place = [], 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = content[place]
            place += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while place < len(content):
        tag = number()
        start = place
        if tag & 7 == 0:
            number()
            found.append((tag >> 3, 0, content[start:place]))
            continue
        size = number() if tag & 7 == 2 else 4
        found.append((tag >> 3, tag & 7, content[place : place + size]))
        place += size
    return found


def test_a_made_model_is_a_message_of_distinct_pieces():
    fields = _fields(_model(32000))
    pieces = [_fields(content) for number, _, content in fields if number == 1]
    names = [content.decode() for piece in pieces for number, _, content in piece if number == 1]
    assert ([number for number, _, _ in fields[32000:]], len(set(names))) == ([2, 3], 32000)
    assert names[:4] == ["<unk>", "<s>", "</s>", "<0x00>"]
    assert all([(number, wire) for number, wire, _ in piece] == [(1, 2), (2, 5), (3, 0)] for piece in pieces)
