"""The probe and a measurement campaign with real processes; a fake `torch.cuda` supplies the figures."""

from __future__ import annotations

import gzip
import json
import sys

import pytest

from cotenant.cli.main import main
from cotenant.measurement.campaign import PROBE, CampaignSetup, run_campaign
from cotenant.measurement.collocation import run_groups
from cotenant.measurement.job_list import JobGroup, JobList, MeasureJob, read_jobs
from cotenant.measurement.result_table import read_rows
from json_shapes import shape_problems
from measured_scripts import FAKE_CUDA, TRAIN

pytest.importorskip("torch")


@pytest.fixture
def campaign(tmp_path):
    """Runs scripts by name: the text of each, options of its job, options of the campaign."""

    def run(scripts, *, resume=False, limit_s=None, pairs=None, probe=PROBE, **options):
        jobs = []
        for name, text in scripts.items():
            path = tmp_path / f"{name}.py"
            path.write_text(text)
            jobs.append(MeasureJob(name=name, script=str(path), **{"limit_s": 100.0, **options}))
        said = []
        setup = CampaignSetup(out=tmp_path / "out", python=sys.executable, watch=None, limit_s=limit_s, probe=probe)
        if pairs is not None:
            listed = JobList(path="jobs.toml", jobs=tuple(jobs), groups=tuple(JobGroup(jobs=pair) for pair in pairs))
            return list(run_groups(listed, setup, table="pairs.csv", resume=resume, say=said.append))
        listed = JobList(path="jobs.toml", jobs=tuple(jobs))
        rows = list(run_campaign(listed, setup, resume=resume, say=said.append))
        return rows, said

    return run


def record(tmp_path, job, repeat=1):
    return json.loads((tmp_path / "out" / job / f"run-{repeat}.json").read_text())


def test_the_probe_stops_after_the_same_step_as_the_tracer(campaign, tmp_path):
    rows, _ = campaign({"train": TRAIN}, steps=3)
    log = (tmp_path / "out" / "train" / "run-1.log").read_text().splitlines()
    # Three batches, then the loader is dry; a validation pass gets two; the next epoch begins to train: over.
    assert log == ["epoch 0 batches 3", "validation 2"]
    assert (rows[0]["outcome"], rows[0]["steps"], rows[0]["steps_timed"]) == ("no-cuda", 3, 1)


def test_an_early_end_of_the_script_is_recorded(campaign, tmp_path):
    campaign({"train": TRAIN.replace("else 9", "else 0")}, steps=3)
    campaign({"short": TRAIN.replace("400", "8")}, steps=500, resume=True)
    assert record(tmp_path, "train")["outcome"] == "no-step"
    assert "ended after 18 optimizer steps" in record(tmp_path, "short")["notes"][0]


def test_a_row_has_peaks_of_phases_times_and_a_history(campaign, tmp_path):
    rows, _ = campaign({"numbers": FAKE_CUDA}, steps=5, snapshot=True)
    row, stored = rows[0], record(tmp_path, "numbers")
    assert stored["notes"] == []
    assert row["outcome"] == "ok"
    phases = {name: row[f"{name}_peak_bytes"] for name in ("load", "forward", "backward", "step")}
    assert phases == {"load": 10, "forward": 40, "backward": 50, "step": 70}
    assert (row["peak_allocated_bytes"], row["peak_reserved_bytes"], row["end_reserved_bytes"]) == (70, 140, 1000)
    assert (row["step_s"], row["steps_timed"], row["retries"]) == (0.25, 3, 2)
    assert (row["gpu"], stored["versions"]["sm_count"], row["history_events"]) == ("NVIDIA Numbers", 132, 1)
    folder = tmp_path / "out" / "numbers"
    with gzip.open(folder / "run-1.history.json.gz", "rt") as file:
        assert json.load(file)["columns"]["size"] == [9]
    assert (folder / "run-1.snapshot.pickle.gz").stat().st_size > 0


@pytest.mark.parametrize(
    ("line", "outcome", "message"),
    [
        pytest.param("raise ValueError('no data')", "error", "ValueError: no data", id="raises"),
        pytest.param("import sys; sys.exit(3)", "error", "ended with 3", id="exits"),
        pytest.param("raise torch.cuda.OutOfMemoryError('tried 4 GiB')", "oom", "tried 4 GiB", id="no memory"),
        pytest.param("import os; print('bye', flush=True); os.abort()", "crashed", "signal 6", id="crashes"),
    ],
)
def test_a_failed_run_is_a_row_with_its_outcome(campaign, line, outcome, message):
    rows, _ = campaign({"bad": f"import torch\n{line}\n"})
    assert rows[0]["outcome"] == outcome
    assert message in rows[0]["message"]


def test_a_job_over_its_limit_is_a_timeout(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(600)\n")
    jobs = (MeasureJob(name="slow", script=str(tmp_path / "slow.py"), limit_s=1.0),)
    setup = CampaignSetup(out=tmp_path / "out", python=sys.executable, watch=None)
    rows = list(run_campaign(JobList(path="jobs.toml", jobs=jobs), setup, resume=False, say=print))
    assert (rows[0]["outcome"], rows[0]["message"]) == ("timeout", "not done after 1.0s")


BRIEF_PROBE = """
import pathlib, sys

answer = pathlib.Path(sys.argv[2])
answer.with_suffix(".part").write_text('{"outcome": "no-step"}')
answer.with_suffix(".part").rename(answer)
"""
"""Answers without a run: torch is imported in 2 s."""


def test_resume_runs_only_what_is_missing(campaign, tmp_path):
    probe = tmp_path / "probe.py"
    probe.write_text(BRIEF_PROBE)
    _, said = campaign({"a": TRAIN}, steps=3, repeats=2, probe=probe)
    rows, _ = campaign({"a": TRAIN, "b": TRAIN}, steps=3, repeats=2, resume=True, probe=probe)
    assert [(row["job"], row["repeat"]) for row in rows] == [("b", 1), ("b", 2)]
    stored = read_rows(tmp_path / "out" / "rows.csv")
    assert [(row["job"], row["repeat"]) for row in stored] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert said == []


def test_a_campaign_over_its_time_limit_reports_the_remaining_runs(campaign, tmp_path):
    rows, said = campaign({"slow": "import time\ntime.sleep(600)\n"}, limit_s=1.0)
    assert rows == []
    assert "stopped slow at the time limit of the campaign" in said[0]
    assert read_rows(tmp_path / "out" / "rows.csv") == []


def test_co_located_runs_overlap(campaign, tmp_path):
    endless = TRAIN.replace("else 9", "else 10**9")
    rows = campaign({"a": endless, "b": endless}, pairs=(("a", "b"),), seconds=0.5)
    found = [(row["sharing"], row["job"], row["partners"]) for row in rows]
    assert found == [("alone", "a", ""), ("alone", "b", ""), ("time-sliced", "a", "b"), ("time-sliced", "b", "a")]
    assert all(row["steps_timed"] > 0 for row in rows[:2])
    assert rows[2]["alone_step_s"] == rows[0]["step_s"]
    folder = tmp_path / "out" / "a-with-b" / "time-sliced-1"
    ended = [json.loads((folder / f"{n}.json").read_text())["step_ended_s"] for n in (1, 2)]
    # Two steps to warm up; the third of each ends after both had their second.
    assert min(interval[2] for interval in ended) >= max(interval[1] for interval in ended)


def test_a_failing_run_does_not_block_its_co_located_run(campaign):
    rows = campaign({"a": TRAIN, "bad": "raise SystemExit(1)"}, pairs=(("a", "bad"),), seconds=0.2)
    outcomes = {(row["sharing"], row["job"]): (row["outcome"], row["step_s"] is None) for row in rows}
    assert outcomes["time-sliced", "a"] == ("no-cuda", True)
    assert outcomes["time-sliced", "bad"] == ("error", True)


def test_settings_reach_the_script(tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nraise SystemExit(f'tf32 {torch.backends.cudnn.allow_tf32} {torch.backends.cudnn.benchmark}')\n"
    )
    (tmp_path / "jobs.toml").write_text(
        '[[job]]\nname = "a"\nscript = "train.py"\n'
        'settings = { "cudnn.allow_tf32" = false, "cudnn.benchmark" = true }\n'
    )
    setup = CampaignSetup(out=tmp_path / "out", python=sys.executable, watch=None)
    (row,) = run_campaign(read_jobs(tmp_path / "jobs.toml"), setup, resume=False, say=print)
    assert row["message"] == "the script ended with 'tf32 False True'"


def test_dry_run_estimates_every_job(tmp_path, capsys):
    (tmp_path / "train.py").write_text(
        TRAIN.replace("Linear(4, 3)", "Linear(4, 3).cuda()").replace(
            "(model(inputs), labels)", "(model(inputs.cuda()), labels.cuda())"
        )
    )
    (tmp_path / "jobs.toml").write_text(
        '[[job]]\nname = "a"\nscript = "train.py"\n[[job]]\nname = "b"\nscript = "b.py"\n'
    )
    (tmp_path / "b.py").write_text("raise SystemExit(2)\n")
    assert main(["measure", str(tmp_path / "jobs.toml"), "--dry-run", "--json"]) == 1
    out = capsys.readouterr().out
    assert shape_problems("measure --dry-run", out) == []
    estimates = json.loads(out)["estimates"]
    assert [estimate["job"] for estimate in estimates] == ["a", "b"]
    assert estimates[0]["peak_reserved_bytes"] > 0
    assert estimates[1]["device_bytes"] is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dry-run", "--convs"], "exclude each other"),
        (["jobs.toml", "--mps"], "`--mps` needs `--pairs`"),
        (["jobs.toml", "--convs"], "takes no jobs"),
        ([], "no file of jobs"),
    ],
)
def test_conflicting_options_are_refused(argv, message, capsys):
    assert main(["measure", *argv]) == 2
    assert message in capsys.readouterr().err
