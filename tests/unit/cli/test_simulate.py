"""`cotenant simulate`, in this process."""

from __future__ import annotations

import csv
import json

import pytest

from cotenant.cli.main import main


@pytest.fixture
def run(capsys):
    def call(*args):
        code = main(["simulate", *args])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_simulate_prints_a_table_and_changes_against_exclusive(run):
    code, out, err = run("--trace", "t1", "--policies", "most-memory,exclusive", "--head", "12", "--bootstrap", "2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("t1: 12 jobs, ")
    assert "  the first 12 jobs" in lines
    table = next(place for place, line in enumerate(lines) if line.startswith("POLICY"))
    assert [line.split()[0] for line in lines[table + 1 : table + 3]] == ["exclusive", "most-memory"]
    assert "against exclusive: mean of 2 bootstraps, with the middle 95 %" in lines
    assert "most-memory: 12 jobs in" in err


def test_jobs_wider_than_the_cluster_are_counted(run, tmp_path):
    trace = tmp_path / "wide.csv"
    trace.write_text("submit_s,duration_s,n_gpus\n0,60,4\n0,60,5\n0,60,6\n")
    _, out, _ = run("--trace", str(trace), "--policies", "exclusive")
    assert "  never started: 2 of 3 jobs, which need more than 4 GPUs" in out.splitlines()
    assert "exclusive: 2 of 3 jobs did not complete: 2 never started" in out.splitlines()
    assert "never started" not in run("--trace", str(trace), "--policies", "exclusive", "--gpus", "8xA100-40GB")[1]


def test_jobs_that_fit_no_gpu_or_run_out_of_memory_are_counted(run):
    small = ("--trace", "heavy-60", "--head", "40", "--gpus", "2xRTX2080Ti-11GB")
    out = run(*small, "--policies", "exclusive")[1]
    assert (
        "exclusive: 18 of 40 jobs did not complete: "
        "8 ran out of memory, 10 never started (10 need more than the 11.0 GiB of a GPU)"
    ) in out.splitlines()
    out = run(*small, "--policies", "most-memory", "--estimator", "none")[1]
    assert "most-memory: 18 of 40 jobs did not complete: 18 ran out of memory" in out.splitlines()


def test_simulate_json_is_complete_and_reproducible(run):
    args = ("--trace", "t1", "--policies", "exclusive", "--head", "8", "--seed", "4", "--json")
    first, second = (json.loads(run(*args)[1]) for _ in range(2))
    assert first["schema"] == 1
    assert (first["trace"]["jobs"], first["cluster"]["gpus"], first["seed"]) == (8, 4, 4)
    policy = first["policies"][0]
    assert policy["metrics"]["jobs"] == policy["metrics"]["ended"] == 8
    assert policy["digest"] == second["policies"][0]["digest"]
    assert policy["change"]["makespan_s"] == {"trace": 0.0}


def test_philly_has_its_own_jobs_and_cluster(run):
    args = ("--trace", "philly", "--policies", "exclusive", "--head", "40", "--cross-node-speed", "0.5", "--json")
    output = json.loads(run(*args)[1])
    assert (output["trace"]["jobs"], output["cluster"]["text"]) == (40, "400xA100-40GB")
    assert any("of 82247 of Philly" in step for step in output["trace"]["steps"])
    said = json.loads(run(*args, "--gpus", "2*8xV100-32GB")[1])
    assert said["cluster"]["gpus"] == 16


@pytest.mark.parametrize(
    ("args", "says"),
    [
        pytest.param(("-o", "carma.smact_limit=0.5"), "add `carma` to --policies", id="an option of nobody who runs"),
        pytest.param(("-o", "most-memory.smact_limit=abc"), "wanted float", id="an option that is no number"),
        pytest.param(("--max-slowdown", "0"), "`--max-slowdown`: must be >= 1, got `0`", id="faster than alone"),
        pytest.param(("--max-slowdown", "nan"), "`--max-slowdown`: must be >= 1, got `nan`", id="no number"),
        pytest.param(("--trace-format", "hlios"), "did you mean `helios`", id="a format that does not exist"),
        pytest.param(("--group", "nobody"), "it has no users", id="a trace without users"),
        pytest.param(("--reference-gpu", "V1OO"), "no GPU type named `V1OO`", id="a GPU type that does not exist"),
        pytest.param(("--save-jobs", "."), "it is a folder", id="a folder for a file"),
        pytest.param(("--forecast",), "`--forecast` queries a daemon", id="a trace for a forecast of the daemon"),
    ],
)
def test_invalid_requests_fail_before_the_simulation(run, args, says):
    code, out, err = run("--trace", "t1", *args)
    assert code == 2
    assert says in err
    assert out == ""
    assert "jobs in" not in err


def test_run_times_are_scaled_to_the_gpu_type_and_reported(run):
    args = ("--trace", "t1", "--policies", "exclusive", "--head", "6", "--gpus", "1xA100-40GB,1xV100-32GB,1xT4-16GB")
    _, out, _ = run(*args)
    assert "run times refer to `A100-40GB`; on other types" in out
    assert "relative speeds of T4-16GB are unknown" in out
    output = json.loads(run(*args, "--reference-gpu", "V100", "--json")[1])["cluster"]
    assert output["reference_gpu"] == "V100"
    assert "refer to `V100`" in output["note"]


@pytest.mark.parametrize("flag", ["--report", "--save-jobs"])
def test_an_unwritable_output_file_fails_before_the_simulation(run, tmp_path, flag):
    code, _, err = run("--trace", "t1", flag, str(tmp_path / "none" / "out"))
    assert code != 0
    assert "there is no folder" in err
    assert "jobs in" not in err


def test_a_trace_without_workloads_gets_them_from_the_seed(run, tmp_path):
    path = tmp_path / "jobs.csv"
    rows = "".join(f"{60 * number},{300 + number},1,lab\n" for number in range(6))
    path.write_text(f"submit_s,duration_s,n_gpus,vc\n{rows}")
    saved = tmp_path / "out.csv"
    args = ("--trace", str(path), "--gpus", "1xA100-40GB", "--policies", "first-fit", "--save-jobs", str(saved))
    code, out, _ = run(*args, "--group", "lab", "--repeat", "2", "--arrival-scale", "0.5")
    assert code == 0
    assert "workloads drawn from" in out
    with saved.open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 12
    assert {item["outcome"] for item in found} == {"completed"}
    assert all(float(item["end_s"]) >= float(item["start_s"]) >= float(item["submit_s"]) for item in found)
    assert all(item["workload"] for item in found)


def test_policy_options_change_the_result(run):
    args = ("--trace", "t1", "--head", "20", "--policies", "most-memory", "--json", "--gpus", "1xA100-40GB")
    usual = json.loads(run(*args)[1])["policies"][0]["digest"]
    other = json.loads(run(*args, "-o", "most-memory.warmup_s=600")[1])["policies"][0]["digest"]
    assert usual != other


def test_overruns_are_acted_on_as_requested(run):
    args = ("--trace", "t1", "--head", "30", "--policies", "most-memory", "--estimator", "horus", "--json")
    found = {action: json.loads(run(*args, "--overrun", action)[1]) for action in ("report", "pause", "stop")}
    digests = {action: result["policies"][0]["digest"] for action, result in found.items()}
    assert len(set(digests.values())) == 3, digests
    assert digests["report"] == json.loads(run(*args)[1])["policies"][0]["digest"]


def test_list_prints_traces_policies_and_models(run):
    code, out, _ = run("--list")
    assert code == 0
    for word in ("t1, t2, heavy-60", "cluster_job_log", "most-memory", "gpumemnet"):
        assert word in out
    output = json.loads(run("--list", "--json")[1])
    assert "mix-90" in output["traces"]
    assert output["policies"]["exclusive"]["backfill"] is False


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "give exactly one of `--trace` and `--from-journal`"),
        (("--trace", "t1", "--from-journal", "x"), "give exactly one of `--trace` and `--from-journal`"),
        (("--trace", "t1", "--policies", "exclusiv"), "no policy named `exclusiv`"),
        (("--trace", "t1", "--policies", ","), "no policy given"),
        (("--trace", "t1", "--estimator", "oracel"), "no estimator named `oracel`"),
        (("--trace", "t1", "--gpus", "4xB1"), "no GPU type named `B1`"),
        (("--trace", "t1", "-o", "smact_limit=1"), "must be POLICY.KEY=VALUE, got `smact_limit=1`"),
        (("--trace", "t1", "-o", "exclusive.x=1", "--policies", "exclusive"), "policy `exclusive` has no option `x`"),
        (("--trace", "t1", "--overrun", "kill"), "must be one of report, pause, stop, got `kill`"),
        (("--trace", "t1", "--sample-window", "61"), "trace `t1` has 60 jobs, no window of 61"),
    ],
)
def test_simulate_refuses_invalid_requests_with_exit_code_2(run, args, said):
    code, out, err = run(*args)
    assert (code, out) == (2, "")
    assert said in err


def test_a_missing_journal_is_a_usage_error(run, tmp_path):
    code, _, err = run("--from-journal", str(tmp_path / "journal.db"))
    assert code == 2
    assert "no journal at" in err


def test_forecast_requires_a_daemon(run, tmp_path):
    code, _, err = run("--forecast", "--socket", str(tmp_path / "sock"))
    assert code == 3
    assert "no daemon listens on" in err


def test_repartitions_of_mig_gpus_are_printed(run):
    gpus = ("--gpus", "1xA100-40GB/" + "+".join(["1g.5gb"] * 7))
    chosen = ("--trace", "t1", "--policies", "most-memory", *gpus)
    fixed, changed = run(*chosen)[1], run(*chosen, "--repartition", "00:00:15")[1]
    assert "repartitioned" not in fixed
    assert "most-memory: 0.0s MIG GPU 0 is repartitioned into 4g.20gb:0, 3g.20gb:4: +1.00 jobs' worth" in changed
