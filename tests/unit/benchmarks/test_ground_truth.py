"""Rows of published tables become jobs, and their errors are counted as the report says."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.estimator import whole_runs
from traces import a_trace, alloc

ROOT = Path(__file__).parents[3]
MIB = 2**20


@pytest.fixture(scope="module")
def modules():
    sys.path.insert(0, str(ROOT))
    try:
        yield (
            importlib.import_module("benchmarks.estimator.ground_truth_scores"),
            importlib.import_module("benchmarks.estimator.ground_truth_rows"),
        )
    finally:
        sys.path.remove(str(ROOT))


@pytest.fixture
def truth(modules):
    return importlib.import_module("benchmarks.estimator.ground_truth")


@pytest.fixture
def tables(modules):
    return modules[1]


def a_result(modules, *, measured, reserved, oom=False, measured_oom=False, margin=0, problem=None):
    truth, tables = modules
    row = tables.Row(
        title="job",
        script="mlp_row.py",
        args=(),
        gpu="RTX3060-12GB",
        torch="2.6.0",
        measured_bytes=measured * MIB,
        measured_oom=measured_oom,
    )
    return truth.Result(
        row=row,
        reserved_bytes=reserved * MIB,
        margin_bytes=margin * MIB,
        parameter_bytes=MIB,
        oom=oom,
        problem=problem,
    )


MLP = {
    "dataset": "mlp_step2",
    "row_in_source": "7",
    "input_size": "64",
    "hidden_widths": "32-16",
    "output_size": "4",
    "activation": "gelu",
    "batch": "10",
    "use_batchnorm": "1",
    "use_dropout": "1",
    "dropout_p": "0.25",
    "measured_mib": "1500",
    "flag": "",
}


def test_mlp_row_says_all_of_the_network(tables):
    row = tables.mlp_row(MLP)
    assert " ".join(row.args) == (
        "--inputs 64 --hidden 32 16 --classes 4 --activation gelu --batch-size 10 --batch-norm --dropout 0.25"
    )
    assert row.measured_bytes == 1500 * MIB


def test_mlp_of_the_first_step_has_no_softmax(tables):
    assert "--no-softmax" in tables.mlp_row({**MLP, "dataset": "mlp_step1"}).args


@pytest.mark.parametrize(
    ("function", "cells", "reason"),
    [
        pytest.param("mlp_row", {**MLP, "flag": "crashed"}, "crashed", id="crashed"),
        pytest.param("cnn_row", {"status": "oom"}, "oom", id="out of memory"),
        pytest.param("cnn_row", {"status": "ok", "flag": "near_capacity"}, "near_capacity", id="censored"),
        pytest.param("cnn_row", {"status": "ok", "flag": "", "architecture": "dense"}, "branches", id="branches"),
        pytest.param("timm_row", {"flag": "at_capacity|flat_over_batch"}, "at_capacity", id="first flag"),
        pytest.param("xmem_row", {"model": "unheard-of"}, "model not rebuilt", id="unknown model"),
        pytest.param("peft_row", {"model": "black-forest-labs/FLUX.2-klein-base-4B"}, "other model", id="other model"),
    ],
)
def test_a_row_left_out_says_why(tables, function, cells, reason):
    assert getattr(tables, function)(cells) == reason


def test_xmem_oom_rows_are_kept(tables):
    cells = {
        "model": "VGG16",
        "optimizer": "SGD",
        "batch": "657",
        "gpu": "NVIDIA GeForce RTX 4060",
        "measured_bytes": "100",
        "measured_oom": "True",
    }
    row = tables.xmem_row(cells)
    assert row.measured_oom
    assert row.gpu == "RTX4060-8GB"
    assert "--classes" not in row.args
    assert row.may_lack_weights
    assert not tables.xmem_row({**cells, "model": "T5-small"}).may_lack_weights


def test_every_job_script_exists(tables):
    scripts = {
        "mlp_row.py",
        "cnn_row.py",
        "transformer_row.py",
        "timm_row.py",
        "xmem_cnn.py",
        "xmem_lm.py",
        "peft_row.py",
        "bert_row.py",
        "cogvideox_row.py",
        "compiled_row.py",
        "litgpt_row.py",
        "qwen_row.py",
        "segmentation_row.py",
        "vitdet_row.py",
    }
    assert scripts == {path.name for path in (ROOT / "benchmarks" / "estimator" / "jobs").glob("*.py")} - {
        "architecture.py",
        "operator_calls.py",
        "old_torch.py",
        *whole_runs.SCRIPTS,
        "image_parts.py",
        "language_parts.py",
    }


def test_read_counts_what_it_leaves_out(tables, tmp_path):
    (tmp_path / "table.csv").write_text("keep\nyes\nno\nno\n")
    group = tables.Group(
        name="x",
        file="table.csv",
        measures="",
        outside_bytes=0,
        imports=(),
        row=lambda cells: tables.mlp_row(MLP) if cells["keep"] == "yes" else "unwanted",
    )
    rows, left_out = tables.read(group, tmp_path)
    assert len(rows) == 1
    assert left_out == {"unwanted": 2}


def test_sample_depends_on_the_seed_alone(truth):
    rows = list(range(100))
    assert truth.sample(rows, 10, 1) == truth.sample(rows, 10, 1)
    assert truth.sample(rows, 10, 1) != truth.sample(rows, 10, 2)
    assert sorted(truth.sample(rows, None, 1)) == rows


@pytest.mark.parametrize(
    ("rows", "constant"),
    [
        pytest.param([(100, 30), (900, 99), (50, 10), (800, 70), (200, 20)], 20, id="all differ: median of small jobs"),
        pytest.param([(100, 10), (101, 500), (102, 501), (103, 502), (104, 700)], 501, id="most are within 2 MiB"),
        pytest.param([(100, 5)], 5, id="one row"),
    ],
)
def test_constant_is_the_commonest_or_the_median_of_small_jobs(modules, rows, constant):
    results = [a_result(modules, measured=reserved + extra, reserved=reserved) for reserved, extra in rows]
    assert modules[0].outside_of(results) == {"": constant * MIB}


def test_each_library_has_its_constant_and_a_doubtful_row_none(modules):
    results = [a_result(modules, measured=100 + extra, reserved=100) for extra in (10, 50, 900)]
    rows = [
        replace(results[0].row, loads=""),
        replace(results[1].row, loads="more"),
        replace(results[2].row, doubt="odd"),
    ]
    results = [replace(result, row=row) for result, row in zip(results, rows, strict=True)]
    assert modules[0].outside_of(results) == {"": 10 * MIB, "more": 50 * MIB}


@pytest.mark.parametrize(
    ("reserved", "error"),
    [
        pytest.param(990, "1.00%", id="below the reading"),
        pytest.param(1000, "0.00%", id="the reading"),
        pytest.param(1001, "0.00%", id="with the weights, of 1 MiB"),
        pytest.param(1021, "2.00%", id="above that"),
    ],
)
def test_an_error_counts_beyond_the_weights_that_a_reading_may_lack(modules, reserved, error):
    result = a_result(modules, measured=1000, reserved=reserved)
    assert modules[0].beyond_weights_lines([result], {"": 0}) == []
    lacking = replace(result, row=replace(result.row, may_lack_weights=True))
    _, line = modules[0].beyond_weights_lines([lacking, result], {"": 0})
    assert line.startswith(f"| cotenant, rows whose reading may lack the weights: beyond them | 1 | {error} |")


def test_rows_without_a_fitted_constant_take_the_usual_one(modules):
    group = modules[1].GROUPS["cnn"]
    fitted = [a_result(modules, measured=110, reserved=100)]
    other = a_result(modules, measured=110, reserved=100)
    other = replace(other, row=replace(other.row, loads="batch norm"))
    assert modules[0].constants(group, fitted, [other]) == {"": 10 * MIB, "batch norm": 10 * MIB}


def test_above_a_larger_batch_is_left_out(tables):
    def cells(batch, mib, flag=""):
        return {"model": "a", "batch": str(batch), "measured_mib": str(mib), "flag": flag}

    table = [cells(8, 900), cells(16, 500, "below_smaller_batch"), cells(32, 700), cells(64, 600, "at_capacity")]
    assert tables._above_larger_batches(table, "model") == {0}


@pytest.mark.parametrize(
    ("cells", "doubtful"),
    [
        pytest.param([(8, 2650, ""), (16, 3700, "")], set(), id="in proportion, and a tenth"),
        pytest.param([(8, 2650, ""), (16, 3900, "")], {1}, id="more"),
        pytest.param([(8, 2650, ""), (16, 2650, ""), (64, 9700, "")], {2}, id="more than any smaller one allows"),
        pytest.param([(8, 1700, "flat_over_batch"), (16, 3900, "")], set(), id="a flagged one says nothing"),
    ],
)
def test_more_than_in_proportion_to_a_smaller_batch_is_doubtful(tables, cells, doubtful):
    table = [{"model": "a", "batch": str(batch), "measured_mib": str(mib), "flag": flag} for batch, mib, flag in cells]
    assert tables._above_smaller_batches(table, "model", set()) == doubtful


def test_a_flag_is_void_where_the_smaller_batch_is_left_out(tables):
    sizes = [(8, 9000, ""), (16, 2650, "below_smaller_batch"), (32, 9000, "")]
    table = [{"model": "a", "batch": str(batch), "measured_mib": str(mib), "flag": flag} for batch, mib, flag in sizes]
    assert tables._above_smaller_batches(table, "model", {0}) == {2}
    assert tables._above_smaller_batches(table, "model", set()) == set()


def test_a_doubtful_row_is_read_with_its_doubt(tables, tmp_path):
    group = tables.GROUPS["timm"]
    file = tmp_path / group.file
    file.parent.mkdir()
    file.write_text("model,batch,measured_mib,flag\na,8,2650,\na,16,3900,\n")
    rows, _ = tables.read(group, tmp_path)
    assert [row.doubt for row in rows] == ["", "more than in proportion to the batch"]


def test_a_cached_trace_names_the_commit_that_made_it(truth, tables, tmp_path, monkeypatch):
    row = tables.mlp_row(MLP)
    made = []

    def trace_function(*_args, **_kwargs):
        made.append(1)
        return a_trace([alloc(0, 100)])

    monkeypatch.setattr(truth, "trace_function", trace_function)
    options = truth.Options(steps=3, traces=tmp_path, commit="abc")
    first, at = truth.recorded(row, options)
    again, then = truth.recorded(row, replace(options, commit="def"))
    assert (at, then, len(made)) == ("abc", "abc", 1)
    assert again.events == first.events
    assert truth.recorded(row, truth.Options(steps=3, traces=None, commit="def"))[1] == "def"
    assert truth.traces_line({"abc": 2, "def": 1}) == "Traces are of abc (2 rows), def (1 rows)."


def test_rows_that_fit_the_constant_are_not_scored(modules):
    results = [a_result(modules, measured=number + 1, reserved=1) for number in range(4)]
    results.insert(1, a_result(modules, measured=9, reserved=0, problem="raised"))
    fitted, scored = modules[0].split(results, 2)
    assert [result.row.measured_bytes // MIB for result in fitted] == [1, 2]
    assert [result.row.measured_bytes // MIB for result in scored] == [3, 4]
    assert modules[0].split(results, None)[0] == []


def test_score_counts_oom_rows_out_and_misses_of_the_bound_in(modules):
    results = [
        a_result(modules, measured=1000, reserved=900, margin=50),
        a_result(modules, measured=1000, reserved=980, margin=50),
        a_result(modules, measured=5000, reserved=1, measured_oom=True),
    ]
    text = "\n".join(modules[0].score_lines(results, {"": 0}))
    assert "| cotenant | 2 | 6.00% | 6.00% |" in text
    assert "| 100% | 100.0% |" in text
    assert "above our bound: 1 of 2" in text


@pytest.mark.parametrize(
    ("measured", "reserved", "margin", "by_estimate", "by_bound"),
    [
        pytest.param(5000, 5100, 0, 0, 0, id="estimate above"),
        pytest.param(5000, 4500, 600, 1, 0, id="only the bound is above"),
        pytest.param(5000, 4000, 100, 1, 1, id="both below"),
    ],
)
def test_second_run_fails_above_its_cap(modules, measured, reserved, margin, by_estimate, by_bound):
    lines = modules[0].failure_lines([a_result(modules, measured=measured, reserved=reserved, margin=margin)], {"": 0})
    assert f"({by_estimate} runs above their cap)" in lines[1]
    assert f"({by_bound} runs above their cap)" in lines[2]


def test_wrong_oom_predictions_are_failures(modules):
    results = [
        a_result(modules, measured=5000, reserved=5100),
        a_result(modules, measured=5000, reserved=9000, oom=True),
        a_result(modules, measured=9000, reserved=9000, measured_oom=True),
        a_result(modules, measured=9000, reserved=9000, oom=True, measured_oom=True),
    ]
    lines = modules[0].failure_lines(results, {"": 0})
    assert lines[0].startswith("Wrong OOM predictions: 2 of 4")
    assert "50.0%" in lines[1]


def recorded(modules, *, estimated, oom=False, second=False):
    return modules[1].Recorded(estimated_bytes=estimated * MIB, oom=oom, second_oom=second)


def test_recorded_estimators_are_scored_on_the_jobs_that_they_support(modules):
    scores = modules[0]
    others = [
        {"A": recorded(modules, estimated=5500), "B": recorded(modules, estimated=4000, second=True)},
        {"A": recorded(modules, estimated=9000, oom=True)},
        {"A": recorded(modules, estimated=3000)},
    ]
    results = [
        replace(result, row=replace(result.row, others=other))
        for result, other in zip(
            [
                a_result(modules, measured=5000, reserved=5000),
                a_result(modules, measured=5000, reserved=5000),
                a_result(modules, measured=9000, reserved=5000, measured_oom=True),
            ],
            others,
            strict=True,
        )
    ]
    text = "\n".join(scores.score_lines(results, {"": 0}))
    assert "| A, recorded | 1 | 10.00% |" in text
    assert "| B, recorded | 1 | 20.00% |" in text
    failures = scores.other_failure_lines(results)
    # A: a wrong OOM prediction and a wrong fit; B: its second run failed, and its cap is below the measured peak.
    assert "| A | 3 | 2 | 66.7% | 66.7% |" in failures
    assert "| B | 1 | 0 | 100.0% | 100.0% |" in failures
    assert scores.other_failure_lines(results[1:2]) != []
    assert scores.other_failure_lines([a_result(modules, measured=1, reserved=1)]) == []


def test_a_job_that_another_estimator_does_not_support_has_no_record_of_it(modules):
    cells = {
        "model": "VGG16",
        "optimizer": "SGD",
        "batch": "8",
        "gpu": "NVIDIA GeForce RTX 3060",
        "measured_bytes": "5",
        "measured_oom": "False",
        **{f"{name}_{end}": "" for name in ("dnnmem", "schedtune", "llmem") for end in ("bytes", "oom", "v2_oom")},
        "xmem_bytes": "7",
        "xmem_oom": "False",
        "xmem_v2_oom": "True",
    }
    row = modules[1].xmem_row(cells)
    assert row.others == {"xMem": modules[1].Recorded(estimated_bytes=7, oom=False, second_oom=True)}
