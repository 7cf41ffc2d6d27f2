"""`cotenant learn` trains, tests and reports models from a table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cotenant.cli.main import main
from cotenant.core.units import MiB
from cotenant.learn.datasets.dataset_files import write_dataset
from cotenant.learn.datasets.dataset_row import DatasetRow, Layer
from json_shapes import shape_problems

pytest.importorskip("sklearn", reason="the models are scikit-learn's")


def a_row(number):
    width = 512 + 128 * number
    layers = (
        Layer(kind="linear", output_shape=(width,), parameters=width * width + width, name="Linear"),
        Layer(kind="activation", output_shape=(width,), parameters=0, name="ReLU"),
        Layer(kind="linear", output_shape=(10,), parameters=10 * width + 10, name="Linear"),
    )
    peak = 500 * MiB + 20 * sum(layer.parameters for layer in layers)
    return DatasetRow(
        family="mlp",
        config_id=f"mlp-{number}",
        status="ok",
        source="measured",
        batch=16,
        layers=layers,
        group=("uniform", "pyramid")[number % 2],
        peak_bytes=peak,
        capacity_bytes=40 * 1024 * MiB,
        extras={"inputs": width, "activation": "relu", "optimizer": "adam", "precision": "fp32"},
    )


@pytest.fixture
def table(tmp_path):
    return write_dataset(tmp_path, "mlp", [a_row(number) for number in range(40)], {})[0]


def json_output(capsys, words):
    """What the verb `words` printed, after a comparison with its schema."""
    out = capsys.readouterr().out
    assert shape_problems(words, out) == []
    return json.loads(out)


def test_cross_validation_prints_baselines_for_every_fold(table, capsys):
    assert main(["learn", "cross-validate", str(table), "--models", "extra-trees", "--folds", "4", "--json"]) == 0
    found = json_output(capsys, "learn cross-validate")["families"]["mlp"]
    assert [result["model"] for result in found] == ["majority", "line", "extra-trees"]
    assert [len(result["folds"]) for result in found] == [4, 4, 4]
    assert all(result["rows"] == 40 and sum(map(sum, result["confusion"])) == 40 for result in found)
    line, trees = found[1], found[2]
    assert line["mae_mib"] < trees["mae_mib"] < found[0]["mae_mib"]  # the rows lie on a line
    assert main(["learn", "cross-validate", str(table), "--models", "extra-trees", "--by", "shape"]) == 0
    out, err = capsys.readouterr()
    assert "fold 2 of extra-trees\n" in err
    assert out.startswith("mlp, by architecture shape, classes of 1000 MiB, seed 0\n| model | rows |")


def test_weights_are_trained_and_tested(table, tmp_path, capsys):
    out = tmp_path / "weights"
    assert (
        main(["learn", "train", str(table), "--model", "extra-trees", "--out", str(out), "--folds", "2", "--json"]) == 0
    )
    found = json_output(capsys, "learn train")
    assert (found["rows"], found["weights"]) == (40, str(out / "extra-trees-mlp.npz"))
    assert "extra-trees" in (out / "extra-trees-mlp.md").read_text()
    assert main(["learn", "test", found["weights"], str(table), "--json"]) == 0
    scores = json_output(capsys, "learn test")
    assert (scores["model"], scores["rows"], scores["accuracy"]) == ("extra-trees", 40, 1.0)
    assert main(["learn", "test", found["weights"], str(table)]) == 0
    assert "  accuracy  1\n" in capsys.readouterr().out


def test_the_utilization_verb_cross_validates_and_writes_weights(tmp_path, capsys):
    rows = [replace(a_row(number % 40), config_id=f"mlp-{number}", smact=(number % 40) / 50) for number in range(120)]
    table = write_dataset(tmp_path, "mlp", rows, {})[0]
    assert main(["learn", "utilization", str(table), "--folds", "3", "--out", str(tmp_path / "w"), "--json"]) == 0
    (found,) = json_output(capsys, "learn utilization")["measures"]
    assert (found["family"], found["measure"], found["rows"]) == ("mlp", "smact", 120)
    assert found["mae"] < found["constant_mae"] / 3
    assert Path(found["weights"]).name == "smact-mlp.npz"
    assert main(["learn", "utilization", str(table), "--folds", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["MEASURE", "ROWS", "R2", "MAE", "MAE", "OF", "THE", "MEDIAN"]
    assert out.splitlines()[1].startswith("mlp smact")
    assert err == ""
    assert main(["learn", "utilization", str(table), "--by", "luck"]) == 2
    assert "`--by`: `luck` is not one of" in capsys.readouterr().err


def test_analyze_and_report_write_pages(table, tmp_path, capsys):
    assert main(["learn", "analyze", str(table), "--out", str(tmp_path / "pages")]) == 0
    (page,) = capsys.readouterr().out.splitlines()
    assert "40 jobs: 40 ok" in Path(page).read_text()
    assert main(["learn", "analyze", str(table), "--out", str(tmp_path / "pages"), "--json"]) == 0
    assert json_output(capsys, "learn analyze")["rows"] == {"mlp": 40}
    report = [
        "learn",
        "report",
        str(table),
        "--out",
        str(tmp_path / "pages"),
        "--models",
        "extra-trees",
        "--folds",
        "2",
    ]
    assert main([*report, "--json"]) == 0
    found = json_output(capsys, "learn report")
    assert [result["model"] for result in found["families"]["mlp"]] == ["majority", "line", "extra-trees"]
    assert "extra-trees" in Path(found["pages"][0]).read_text()


def test_one_split_and_wider_classes_are_options(table, capsys):
    words = ["learn", "cross-validate", str(table), "--models", "line", "--split", "70/20/10", "--class-mib", "500"]
    assert main(words) == 0
    assert "mlp, one split of 70/20/10, classes of 500 MiB, seed 0" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    found = json_output(capsys, "learn cross-validate")
    assert found["split"] == "70/20/10"
    assert [result["rows"] for result in found["families"]["mlp"]] == [4, 4]


def test_importances_are_of_the_features_that_memory_follows_from(table, capsys):
    words = [
        "learn",
        "importances",
        str(table),
        "--model",
        "extra-trees-paper",
        "--split",
        "60/10/30",
        "--repeats",
        "3",
    ]
    assert main([*words, "--json"]) == 0
    found = json_output(capsys, "learn importances")["families"]["mlp"]
    lines = {line["feature"]: line for line in found["features"]}
    assert found["features"][0]["feature"] in ("parameters", "activations")  # they grow together, all else is constant
    for name in ("batch", "batchnorms"):
        assert lines[name] == {"feature": name, "accuracy_decrease": 0.0, "mae_increase_mib": 0.0, "impurity": 0.0}
    assert found["features"][0]["mae_increase_mib"] > 10
    assert sum(line["impurity"] for line in found["features"]) == pytest.approx(1)
    assert main(words) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("extra-trees-paper on mlp: accuracy ")
    assert out[1].split() == ["FEATURE", "ACCURACY", "LOST", "MAE", "GAINED", "IMPURITY"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["importances", "TABLE", "--model", "line"], "`line` has no features to shuffle"),
        (["importances", "TABLE", "--model", "magic"], "no model named `magic`"),
        (["cross-validate", "TABLE", "--models", "magic"], "no model named `magic`"),
        (["cross-validate", "TABLE", "--split", "70/40/10"], "a split is '70/40/10', wanted TRAINING/VALIDATION/TEST"),
        (["cross-validate", "TABLE", "--split", "70/20/10", "--by", "shape"], "exclude each other"),
        (["cross-validate", "TABLE", "--class-mib", "0"], "`--class-mib`"),
        (["report", "TABLE", "--out", "x", "--models", "magic"], "no model named `magic`"),
        (
            ["cross-validate", "TABLE", "--models", "line", "--by", "luck"],
            "`--by`: `luck` is not one of `config`, `shape`",
        ),
        (["train", "TABLE", "--model", "magic", "--out", "x"], "no model named `magic`"),
        (["test", "none.npz", "TABLE"], "none.npz"),
    ],
)
def test_invalid_arguments_are_refused_with_a_message(table, tmp_path, monkeypatch, capsys, arguments, error):
    monkeypatch.chdir(tmp_path)
    assert main(["learn", *(str(table) if argument == "TABLE" else argument for argument in arguments)]) == 2
    assert error in capsys.readouterr().err.splitlines()[0]
