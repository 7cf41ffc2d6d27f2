"""The output and the error messages of `cotenant learn`."""

from __future__ import annotations

import json

import pytest

from cotenant.cli.main import main
from cotenant.learn.data_collection.generate import read_configs
from json_shapes import shape_problems

SUMMARY = """\
Net(
  (words): Embedding(50, 16), 800 params
  (head): Linear(in_features=16, out_features=3, bias=True), 51 params
), 851 params
"""


def json_output(capsys, words):
    """What the verb `words` printed, after a comparison with its schema."""
    out = capsys.readouterr().out
    assert shape_problems(words, out) == []
    return json.loads(out)


def test_configurations_on_stdout_or_in_a_file(tmp_path, capsys):
    assert main(["learn", "generate", "cnn-small", "--count", "3", "--seed", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    path = tmp_path / "configs.txt"
    assert main(["learn", "generate", "cnn-small", "--count", "3", "--seed", "4", "--out", str(path), "--json"]) == 0
    assert json_output(capsys, "learn generate")["configurations"] == lines
    assert path.read_text().splitlines()[1:] == lines
    assert len(read_configs(path)) == 3


def test_a_summary_is_printed_as_a_table_and_as_json(tmp_path, capsys):
    path = tmp_path / "net.txt"
    path.write_text(SUMMARY)
    assert main(["learn", "summary", str(path), "--sequence", "8"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["embedding", "Embedding", "8", "x", "16", "800"]
    assert err == "2 layers, 851 parameters, batch unknown (modelsummary)\n"
    assert main(["learn", "summary", str(path), "--json"]) == 0
    found = json_output(capsys, "learn summary")
    assert (found["format"], found["parameters"], found["layers"][1]["output_shape"]) == ("modelsummary", 851, [3])


@pytest.mark.parametrize(
    ("arguments", "error", "hint"),
    [
        (["generate", "mpl"], "no file of ranges named `mpl`", "did you mean `mlp`?"),
        (["generate", "none.toml"], "cannot read `none.toml`: no such file or directory", None),
        (["run", "none.txt", "--out", "x"], "cannot read `none.txt`: no such file or directory", None),
        (
            ["run", "one.txt", "--out", "x", "--trace", "--seconds", "3"],
            "`--seconds` needs a GPU to train on",
            "--steps",
        ),
        (["run", "one.txt", "--out", "x", "--trace", "--gpu", "Z9"], "`Z9`", None),
        (["clean", "none", "--out", "x"], "cannot read `none", "cotenant learn run"),
        (
            ["clean", "none", "--out", "x", "--allow", "leaks"],
            "`--allow`: must be of duplicate, twin, leak, saturated, got `leaks`",
            None,
        ),
        (["summary", "one.txt"], "one.txt:1: no summary of a model begins here", "torchsummary"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(tmp_path, monkeypatch, capsys, arguments, error, hint):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "generate", "mlp-small", "--count", "1", "--out", "one.txt"]) == 0
    capsys.readouterr()
    assert main(["learn", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert error in lines[0]
    assert hint is None or hint in lines[1]


def test_retry_accepts_failures_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", "generate", "mlp-small", "--count", "1", "--out", "one.txt"]) == 0
    pytest.importorskip("torch", reason="runs are traced")
    assert main(["learn", "run", "one.txt", "--out", "x", "--trace", "--resume", "--retry", "oom,ok"]) == 2
    assert "`--retry`: must be of oom, crash, timeout, got `ok`" in capsys.readouterr().err
