"""`cotenant compare` on a real script: one trace, every estimator."""

from __future__ import annotations

import importlib.util
import json

import pytest

from cotenant.cli.main import main
from cotenant.estimators import ESTIMATORS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")

SCRIPT = """
import os, pathlib, torch
with pathlib.Path(os.environ["XDG_CACHE_HOME"], "runs.txt").open("a") as file:
    file.write("run\\n")
model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)).cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(4):
    model(torch.ones(64, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
PARAMETERS = 512 * 512 + 512 + 512 * 256 + 256


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where a script's writes go
    return tmp_path


def test_all_estimators_answer_from_one_trace(folder, capsys):
    assert main(["compare", "train.py", "--gpu", "h100", "--json", "--", "--batch-size", "64"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (folder / "runs.txt").read_text() == "run\n"
    assert report["gpu"] == "H100-80GB"
    found = {row["name"]: row for row in report["estimators"]}
    assert set(found) == set(ESTIMATORS) - {"declared", "summary"}
    assert found["traced"]["ratio_to_traced"] == 1
    assert found["params16"]["device_bytes"] == 16 * PARAMETERS
    ratio = 16 * PARAMETERS / found["traced"]["device_bytes"]
    assert found["params16"]["ratio_to_traced"] == pytest.approx(ratio, abs=1e-4)
    assert found["deepspeed-zero2"]["device_bytes"] == 20 * PARAMETERS
    outputs = 64 * (512 + 512 + 256) * 4
    assert found["horus"]["device_bytes"] == 800 * 2**20 + 4 * PARAMETERS * 65 + outputs
    assert not found["horus"]["partial"]
    assert found["memtracker"]["device_bytes"] >= 16 * PARAMETERS
    assert found["faketensor"]["device_bytes"] < found["memtracker"]["device_bytes"]
    assert found["traced"]["device_bytes"] > found["memtracker"]["device_bytes"]
    assert found["llmem"]["device_bytes"] is None
    assert "no decoder-only" in found["llmem"]["problem"]


def test_the_table_has_a_row_per_estimator(folder, capsys):
    assert main(["compare", "train.py"]) == 0
    out, err = capsys.readouterr()
    title, blank, header, *rows = out.splitlines()
    assert title.startswith("train.py on A100-40GB")
    assert blank == ""
    assert header.split() == ["ESTIMATOR", "DEVICE", "BOUND", "RATIO", "LEAVES", "OUT"]
    by_name = {row.split()[0]: row for row in rows}
    assert by_name["traced"].split()[5] == "1.00"
    assert by_name["llmem"].split()[1:4] == ["-", "-", "-"]
    assert "no decoder-only language model" in by_name["llmem"]
    # Without an option that tells the batch, its formula is a lower bound.
    assert by_name["horus"].split()[1].startswith(">")
    assert "the batch size is unknown" in err


def test_a_failing_script_is_reported_with_the_end_of_its_output(folder, capsys):
    (folder / "train.py").write_text("print('opening the data set'); raise KeyError('x')")
    assert main(["compare", "train.py"]) == 1
    err = capsys.readouterr().err
    assert "opening the data set" in err
    assert "error: the script raised KeyError" in err
