"""Raw runs become tables."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cotenant.core.errors import DatasetError, UsageError
from cotenant.core.units import GiB
from cotenant.learn.data_collection.configs import config_id
from cotenant.learn.data_collection.generate import generate
from cotenant.learn.data_collection.ranges import load_ranges
from cotenant.learn.data_collection.run_log import LabelRecord, RunLog
from cotenant.learn.datasets.clean import clean
from cotenant.learn.datasets.dataset_files import read_dataset

MLP = [config_id(drawn) for drawn in generate(load_ranges("mlp-small"), 4, 0)]
CNN = [config_id(drawn) for drawn in generate(load_ranges("cnn-small"), 2, 0)]


def a_run(config, **changes):
    width = 1 + (MLP + CNN).index(config)
    run = LabelRecord(
        config_id=config,
        status="ok",
        source="measured",
        at="2026-01-02T00:00:00Z",
        gpu="G",
        layers=f"linear:{width}:{width}:Linear",
        peak_bytes=2 * GiB,
        capacity_bytes=40 * GiB,
        smact=0.5,
        torch="2.9",
    )
    return replace(run, **changes)


def write(folder, *runs):
    with RunLog(folder, resume=False) as log:
        for run in runs:
            log.add(run)
    return folder


def test_one_table_for_each_family(tmp_path):
    runs = write(tmp_path / "runs", *map(a_run, MLP + CNN))
    found = clean([runs], tmp_path / "data")
    assert found.rows == {"mlp": 4, "cnn": 2}
    (row, *_) = read_dataset(tmp_path / "data" / "mlp.csv")
    assert (row.config_id, row.group, row.batch) == (MLP[0], MLP[0].split("_")[1], int(MLP[0].split("_")[2][5:]))
    assert (row.peak_bytes, row.smact, row.parameters) == (2 * GiB, 0.5, 1)
    assert row.extras["gpu"] == "G"
    assert set(row.extras) == {
        *("activation", "classes", "depth", "dropout", "gpu", "inputs", "norm", "optimizer", "precision")
    }
    schema = json.loads((tmp_path / "data" / "mlp.schema.json").read_text())
    (source,) = schema["provenance"]["files"]
    assert (source["runs"], source["gpus"], source["torch"], source["from"]) == (
        6,
        ["G"],
        ["2.9"],
        "2026-01-02T00:00:00Z",
    )
    assert len(source["sha256"]) == 64
    assert all(column["meaning"] != "as the source tells" for column in schema["columns"])


def test_failed_runs_are_rows_without_a_peak(tmp_path):
    failed = a_run(MLP[0], status="crash", peak_bytes=None, smact=None, message="boom")
    clean([write(tmp_path / "runs", failed, *map(a_run, MLP[1:]))], tmp_path)
    assert [row.status for row in read_dataset(tmp_path / "mlp.csv")] == ["crash", "ok", "ok", "ok"]


def test_the_newest_run_of_a_configuration_counts(tmp_path):
    runs = write(tmp_path / "runs", a_run(MLP[0], status="timeout", peak_bytes=None), a_run(MLP[0]))
    found = clean([runs], tmp_path)
    assert (found.runs, found.superseded, found.rows) == (2, 1, {"mlp": 1})
    assert read_dataset(tmp_path / "mlp.csv")[0].status == "ok"


def test_a_duplicate_is_refused_and_if_allowed_the_first_row_stays(tmp_path):
    first = write(tmp_path / "a", *map(a_run, MLP))
    second = write(tmp_path / "b", a_run(MLP[0], peak_bytes=3 * GiB))
    with pytest.raises(DatasetError, match="duplicate: 1 configurations") as error:
        clean([first, second], tmp_path / "data")
    assert "--allow duplicate" in error.value.hint
    assert not (tmp_path / "data").exists()
    found = clean([first, second], tmp_path / "data", allow=("duplicate",))
    assert [problem.rule for problem in found.findings] == ["duplicate"]
    assert [row.peak_bytes for row in read_dataset(tmp_path / "data" / "mlp.csv")] == [2 * GiB] * 4


def test_a_twin_is_refused_and_if_allowed_the_first_row_stays(tmp_path):
    other = MLP[0].replace(MLP[0].split("_")[1], next(s for s in ("pyramid", "uniform") if s not in MLP[0]), 1)
    runs = write(tmp_path / "runs", a_run(MLP[0]), replace(a_run(MLP[0]), config_id=other))
    with pytest.raises(DatasetError, match="twin: 1 jobs"):
        clean([runs], tmp_path / "data")
    assert clean([runs], tmp_path / "data", allow=("twin",)).rows == {"mlp": 1}


def test_saturated_rows_are_marked_if_allowed(tmp_path):
    runs = write(tmp_path / "runs", a_run(MLP[0], peak_bytes=39 * GiB), a_run(MLP[1]))
    with pytest.raises(DatasetError, match="saturated: 1 peaks"):
        clean([runs], tmp_path / "data")
    clean([runs], tmp_path / "data", allow=("saturated",))
    assert [row.extras["saturated"] for row in read_dataset(tmp_path / "data" / "mlp.csv")] == [True, False]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(DatasetError, match="no runs found"):
        clean([write(tmp_path / "runs")], tmp_path)
    with pytest.raises(UsageError, match=r"cannot read .*/none/?"):
        clean([tmp_path / "none"], tmp_path)


def test_a_run_that_contradicts_its_id_is_refused(tmp_path):
    with pytest.raises(DatasetError, match=r"smact is 1\.5"):
        clean([write(tmp_path / "runs", a_run(MLP[0], smact=1.5))], tmp_path)
