"""Files that compiled code of libraries writes and reads are in the scratch folder, as the script's others are."""

from __future__ import annotations

import sqlite3

import pytest

from traced_scripts import traced

pytest.importorskip("torch", reason="tracing needs torch")

TRAINS = """
import os, torch
os.makedirs("made/inside")
TEXT = "made/inside/text.txt"
with open(TEXT, "w") as file: file.write("\\n".join(f"a line of many words, number {i}" for i in range(200)))
{work}
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""
WORK = {
    "h5py": """
import h5py
with h5py.File("made/inside/a.h5", "w") as file: file["x"] = range(5)
with h5py.File("beside.h5", "a") as file: file["x"] = range(5)
with h5py.File("made/inside/a.h5") as file: assert file["x"][4] == 4
with h5py.File("beside.h5", "r+") as file: del file["x"]
""",
    "soundfile": """
import numpy, soundfile
soundfile.write("made/inside/a.wav", numpy.zeros(100), 16000)
assert (len(soundfile.read("made/inside/a.wav")[0]), soundfile.info("made/inside/a.wav").frames) == (100, 100)
""",
    "sqlite3": """
import sqlite3
for path in ("made/inside/a.db", ":memory:", "there.db"):
    base = sqlite3.connect(path)
    base.execute("create table t(x)")
    base.commit()
    base.close()
assert sqlite3.connect("made/inside/a.db").execute("select * from t").fetchall() == []
assert sqlite3.connect("there.db").execute("select * from kept").fetchall() == []
sqlite3.dbapi2.connect("made/inside/other.db").execute("create table t (a int)")
""",
    "pyarrow": """
import pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), "made/inside/a.parquet")
assert pyarrow.parquet.read_table("made/inside/a.parquet").num_rows == 2
""",
    "tokenizers": """
from tokenizers import ByteLevelBPETokenizer, BertWordPieceTokenizer
for kind, files in ((ByteLevelBPETokenizer, ["vocab.json", "merges.txt"]), (BertWordPieceTokenizer, ["vocab.txt"])):
    tokenizer = kind()
    tokenizer.train([TEXT], vocab_size=300)
    tokenizer.save_model("made/inside")
    assert set(files) <= set(os.listdir("made/inside"))
    paths = [os.path.join("made/inside", name) for name in files]
    assert kind.from_file(*paths).get_vocab_size() == tokenizer.get_vocab_size()
""",
    "sentencepiece": """
import sentencepiece
sentencepiece.SentencePieceTrainer.train(input=TEXT, model_prefix="made/inside/a", vocab_size=30)
sentencepiece.SentencePieceTrainer.Train(f"--input={TEXT} --model_prefix=made/inside/b --vocab_size=31")
first = sentencepiece.SentencePieceProcessor()
first.load("made/inside/a.model")
second = sentencepiece.SentencePieceProcessor(model_file="made/inside/b.model")
assert (first.get_piece_size(), second.get_piece_size()) == (30, 31)
""",
}


@pytest.mark.parametrize("library", WORK)
def test_what_compiled_code_writes_is_read_again(tmp_path, library):
    pytest.importorskip(library)
    base = sqlite3.connect(tmp_path / "there.db")
    base.execute("create table kept(x)")
    base.commit()
    base.close()
    before = (tmp_path / "there.db").read_bytes()
    trace = traced(tmp_path, TRAINS.replace("{work}", WORK[library]))
    assert (trace.header.steps, trace.warnings, trace.partial) == (3, (), False)
    assert not (tmp_path / "made").exists()
    assert not (tmp_path / "beside.h5").exists()
    assert (tmp_path / "there.db").read_bytes() == before


def test_a_folder_that_is_missing_for_a_log_is_named(tmp_path):
    source = """
import logging
import torch
logging.getLogger("mine").addHandler(logging.FileHandler("logs/train.log"))
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    optimizer.step()
"""
    trace = traced(tmp_path, source)
    sentence = "the folder `logs` does not exist, and the script writes to it: make it before the job starts"
    assert (trace.partial, trace.warnings, (tmp_path / "logs").exists()) == (False, (sentence,), False)
