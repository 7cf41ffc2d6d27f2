"""Checks of estimates: budgets, doubts, and the pytest fixture."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from cotenant.cli.estimate.json_output import of_estimate, of_result
from cotenant.cli.estimate.reports import EstimateReports
from cotenant.core.errors import UsageError
from cotenant.core.units import MiB, format_bytes
from cotenant.estimators.budget import budget_report, doubts, parts_at_peak
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec
from traces import a_trace, alloc, free

GPU = gpu_spec("A100-40GB")
pytest_plugins = ["pytester"]


def result_of(*events, **header):
    trace = a_trace(list(events))
    return TracedEstimator().on(replace(trace, header=replace(trace.header, **header)), GPU)


def test_parts_are_those_held_at_the_peak_by_category_and_module():
    result = result_of(
        alloc(0, 300, "temporary", "forward", "early"),
        free(0, "forward"),
        alloc(1, 200, "parameter", "load"),
        alloc(2, 150, "activation", "forward", "a"),
        alloc(3, 100, "activation", "forward", "a"),
        alloc(4, 10, "activation", "forward", "b"),
        free(2, "backward"),
    )
    parts = parts_at_peak(result)
    assert parts == {"activation a": 250 * MiB, "parameter": 200 * MiB, "activation b": 10 * MiB}
    assert list(parts) == ["activation a", "parameter", "activation b"]


def test_a_budget_names_what_grew_since_it_was_saved_by_category_and_line():
    before = parts_at_peak(result_of(
        alloc(1, 190, "parameter", "load"), alloc(2, 450, "activation", "forward", "a"),
        alloc(3, 100, "activation", "forward", "b"),
    ))  # fmt: skip
    result = result_of(
        alloc(1, 180, "parameter", "load"), alloc(2, 150, "activation", "forward", "a"),
        alloc(4, 700, "activation", "forward", "c"), alloc(5, 90, "optimizer state", "load"),
        lines={"activation c": "train.py, line 12"},
    )  # fmt: skip
    bound = result.estimate.bound_bytes
    assert budget_report(result, bound) == ""
    head, *lines = budget_report(result, bound - 1, before).splitlines()
    assert "the budget is" in head
    assert [" ".join(line.split()) for line in lines] == [
        "+ 300.0 MiB activation",
        "+ 90.0 MiB optimizer state",
        "- 10.0 MiB parameter",
        "+ 700.0 MiB activation c (train.py, line 12)",
        "- 300.0 MiB activation a",
        "- 100.0 MiB activation b",
        "+ 90.0 MiB optimizer state",
        "- 10.0 MiB parameter",
    ]
    report = budget_report(result, bound - 1)
    assert "850.0 MiB  activation\n" in report
    assert "700.0 MiB  activation c  (train.py, line 12)\n" in report
    assert budget_report(result, bound - 1, parts_at_peak(result)).endswith("no part changed by 1 MiB or more")


@pytest.mark.parametrize(
    ("header", "partial", "ratio", "words"),
    [
        pytest.param({}, False, 1.0, (), id="sure"),
        pytest.param({}, False, 0.0, ("the margin of",), id="a margin"),
        pytest.param({}, True, 1.0, ("a lower bound",), id="partial"),
        pytest.param({"runs_otherwise": ("compiled",)}, False, 1.0, ("an upper bound",), id="eager"),
        pytest.param({"runs_otherwise": ("extension",)}, False, 1.0, ("`extension` was left out",), id="extension"),
    ],
)
def test_doubts_are_what_a_margin_does_not_cover_and_large_margins(header, partial, ratio, words):
    trace = a_trace([alloc(1, 4000, "parameter", "load")])
    trace = replace(trace, header=replace(trace.header, **header), partial=partial)
    found = doubts(TracedEstimator().on(trace, GPU), ratio)
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


def test_a_baseline_is_what_json_printed_and_its_changes_are_listed_once(tmp_path, capsys):
    """On stdout; where the budget is exceeded, in its failure instead."""
    before = result_of(alloc(1, 100, "parameter", "load"), alloc(2, 500, "activation", "forward", "a"))
    now = result_of(alloc(1, 100, "parameter", "load"), alloc(2, 900, "activation", "forward", "a"))
    file = tmp_path / "before.json"
    file.write_text(json.dumps({**of_estimate(before.estimate), **of_result(before)}))
    reports = EstimateReports(baseline=file)
    assert reports.tables(now, ["train.py"], json=True) == {"changes": {"activation a": 400 * MiB}}
    assert capsys.readouterr().out == ""
    reports.tables(now, ["train.py"], json=False)
    head, *lines = capsys.readouterr().out.strip().splitlines()
    bounds = [format_bytes(result.estimate.bound_bytes) for result in (before, now)]
    change = format_bytes(now.estimate.bound_bytes - before.estimate.bound_bytes)
    assert head == f"since the baseline: bound {bounds[0]} -> {bounds[1]} (+{change}); changed at the peak:"
    assert [" ".join(line.split()) for line in lines] == ["+ 400.0 MiB activation", "+ 400.0 MiB activation a"]
    reports = EstimateReports(baseline=file, budget_bytes=1000 * MiB)
    reports.tables(now, ["train.py"], json=False)
    assert capsys.readouterr().out == ""
    (failed,) = reports.failed_checks(now)
    assert "changed at the peak" in failed
    assert "parameter" not in failed


@pytest.mark.parametrize(
    "text",
    ["", "print(1)", "[" * 100_000, "[1]", "{}", '{"parts_at_peak": {"a": 1}}',
     '{"bound_bytes": 1, "parts_at_peak": {"a": "1"}}',
     '{"bound_bytes": 1, "parts_at_peak": {"a": -1}}', '{"bound_bytes": true, "parts_at_peak": {}}'],
)  # fmt: skip
def test_a_file_that_is_no_baseline_is_refused_before_the_script_runs(tmp_path, text):
    file = tmp_path / "before.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="is no baseline") as refused:
        EstimateReports(baseline=file).check_files("train.py")
    assert "estimate SCRIPT --json" in str(refused.value.hint)


def test_a_baseline_that_cannot_be_read_is_named_once(tmp_path):
    with pytest.raises(UsageError) as refused:
        EstimateReports(baseline=tmp_path / "nowhere").check_files("train.py")
    assert refused.value.message == f"cannot read the baseline `{tmp_path}/nowhere`: no such file or directory"


def test_checks_that_are_not_wanted_do_not_fail():
    result = result_of(alloc(1, 4000, "parameter", "load"), runs_otherwise=("compiled",))
    assert EstimateReports().failed_checks(result) == []
    strict, budget = EstimateReports(strict=1.0, budget_bytes=1000 * MiB).failed_checks(result)
    assert strict.startswith("`--strict`: compiled code")
    assert budget.startswith("`--budget`: needs")


def test_the_fixture_fails_with_what_changed_and_saves_with_the_option(pytester, monkeypatch):
    """In this process, with the estimate of a script that is read here and not run."""

    def explain(script, args, *, workdir, gpu):
        assert (script.parent, gpu, args) == (workdir, "A100-40GB", ["--wide"])
        return result_of(alloc(1, int(script.read_text()), "activation", "forward", "a"))

    monkeypatch.setattr("cotenant.estimators.api.explain", explain)
    pytester.makepyfile(
        "def test_memory(memory_budget):\n    memory_budget('train.txt', ['--wide'], limit='2G', gpu='A100-40GB')\n"
    )
    plugin = ("-p", "cotenant.estimators.pytest_plugin", "-p", "no:cacheprovider")
    script = pytester.path / "train.txt"
    script.write_text("500")
    pytester.runpytest_inprocess(*plugin, "--update-memory-budgets").assert_outcomes(passed=1)
    saved = json.loads((pytester.path / "memory_budgets.json").read_text())
    name = next(iter(saved)).partition("::")[2]
    assert (name, list(saved.values())) == ("test_memory train.txt --wide", [{"activation a": 500 * MiB}])
    script.write_text("3000")
    outcome = pytester.runpytest_inprocess(*plugin)
    outcome.assert_outcomes(failed=1)
    outcome.stdout.fnmatch_lines(["*train.txt needs*the budget is 2.0 GiB*", "*+*2.4 GiB  activation a"])


def test_the_fixture_says_what_is_wrong_without_a_traceback_of_ours(pytester):
    pytester.makepyfile(
        "def test_nowhere(memory_budget):\n    memory_budget('nowhere.py', limit='2G')\n"
        "def test_limit(memory_budget):\n    memory_budget('train.py', limit='2 bananas')\n"
    )
    plugin = ("-p", "cotenant.estimators.pytest_plugin", "-p", "no:cacheprovider")
    outcome = pytester.runpytest_inprocess(*plugin)
    outcome.assert_outcomes(failed=2)
    outcome.stdout.fnmatch_lines(
        ["nowhere.py: no script*", "train.py: `2 bananas` is not a size in bytes", "hint: *12G*"]
    )
    outcome.stdout.no_fnmatch_line("*Error*")
    for text in ("{", "[1]"):
        (pytester.path / "memory_budgets.json").write_text(text)
        outcome = pytester.runpytest_inprocess(*plugin, "-k", "nowhere")
        outcome.stdout.fnmatch_lines(["nowhere.py: *memory_budgets.json` is not JSON of `--update-memory-budgets`"])
