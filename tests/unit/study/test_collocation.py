"""The collocation study end to end on a simulated GPU: real processes, the probe's protocol, published pairs."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.measurement.collocation import COLUMNS
from cotenant.measurement.job_list import read_jobs
from cotenant.measurement.result_table import read_rows
from cotenant.measurement.sharing import SIMULATED_SHARING
from cotenant.sim.interference import TrueActivity
from cotenant.sim.interference.sharing import mps_speeds, slice_speed
from cotenant.sim.interference.tables import read_pairs
from cotenant.sim.workloads import pair_speeds, workload, workloads
from cotenant.simserver.server import SimulatedServer
from cotenant.study import simulated_job
from cotenant.study.collocation_report import as_collocation_rows, results_of, write_report
from cotenant.study.guidelines import memory_adds_up
from cotenant.study.overhead import JOBS_FOLDER

PAIR = ("resnet50_imagenet_bs64", "vgg16_imagenet_bs64")
GROUPS = """
[defaults]
seconds = 0.6
warmup_steps = 3
{jobs}
[[group]]
jobs = ["resnet50_imagenet_bs64", "vgg16_imagenet_bs64"]
sharing = ["time-sliced", "mps", "mps:30", "mig:4g.20gb,3g.20gb"]

[[group]]
jobs = ["vgg16_imagenet_bs64", "missing"]

[[group]]
jobs = ["resnet50_imagenet_bs64", "vgg16_imagenet_bs64", "resnet50_imagenet_bs64"]

[[group]]
jobs = ["quick", "vgg16_imagenet_bs64"]
until = "steps"

[[group]]
jobs = ["quick", "vgg16_imagenet_bs64"]
until = "refill"
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The folder of a study that ran, and what it printed."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "train.py").touch()
    jobs = [
        f'[[job]]\nname = "{name}"\nscript = "train.py"\nargs = ["--workload", "{name}"]' for name in (*PAIR, "missing")
    ]
    quick = "\n".join([jobs[0].replace(f'"{PAIR[0]}"', '"quick"', 1), "steps = 5"])
    jobs[1] += "\nsteps = 100"
    jobs.append(quick)
    (folder / "groups.toml").write_text(GROUPS.format(jobs="\n".join(jobs)))
    command = [sys.executable, "-m", "cotenant", "study", "collocate", str(folder / "groups.toml")]
    options = ["--out", str(folder / "out"), "--simulate", "A100-40GB", "--json", "--listen", "ps"]
    (folder / "bin").mkdir()
    (folder / "bin" / "ps").write_text('#!/bin/sh\necho "PID and so on"\n')
    for name in ("sh", "sleep"):
        (folder / "bin" / name).symlink_to(shutil.which(name))
    (folder / "bin" / "ps").chmod(0o755)
    env = {"PATH": str(folder / "bin"), "HOME": str(folder)}
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_jobs_run_alone_first_and_every_row_says_where(study):
    _, printed = study
    rows = printed["rows"]
    pair = [way for way in ("time-sliced", "mps", "mps:30", "mig:4g.20gb,3g.20gb") for _ in PAIR]
    ways = ["alone"] * 4 + pair + ["time-sliced"] * 9
    assert [row["sharing"] for row in rows] == ways
    assert {row["gpu"] for row in rows} == {"simulated A100-40GB"}
    assert list(rows[0]) == list(COLUMNS)


def test_slowdowns_are_those_of_the_published_pair(study):
    folder, _ = study
    (result, *_) = results_of(read_rows(folder / "out" / "collocation.csv"))
    speeds = pair_speeds()
    # 0.6 s of training are about 13 steps of the slower job: its last step may count or not.
    assert [1 / slowdown for slowdown in result.slowdowns] == pytest.approx(
        [speeds[PAIR], speeds[PAIR[::-1]]], rel=0.15
    )
    assert result.gain == pytest.approx(sum(1 / slowdown for slowdown in result.slowdowns))


def test_a_way_to_share_that_is_missing_is_rows_with_the_reason(study):
    _, printed = study
    limited = [row for row in printed["rows"] if row["sharing"] == "mps:30"]
    assert {(row["outcome"], row["message"]) for row in limited} == {
        ("not-shared", "limits of SMs under MPS are not simulated")
    }


def test_ways_to_share_a_simulated_gpu_have_the_speeds_of_the_simulators_rules(study):
    _, printed = study
    jobs = [workloads()[name] for name in PAIR]
    members = [TrueActivity(job.name, job.smact, job.smocc, job.drama) for job in jobs]
    on_mig = [
        slice_speed(member, f"A100-40GB/{profile}")
        for member, profile in zip(members, ("4g.20gb", "3g.20gb"), strict=True)
    ]
    for way, speeds in (("mps", mps_speeds(members)), ("mig:4g.20gb,3g.20gb", on_mig)):
        (result,) = (found for found in printed["results"] if found["sharing"] == way)
        assert [1 / slowdown for slowdown in result["slowdowns"]] == pytest.approx(speeds, rel=0.15)


def test_a_job_that_fails_costs_its_group_only(study):
    _, printed = study
    (last,) = (found for found in printed["results"] if "missing" in found["jobs"])
    assert last["jobs"] == ["vgg16_imagenet_bs64", "missing"]
    assert "missing: error" in last["problem"]
    assert last["gain"] is None


def test_memory_of_simulated_jobs_adds_up(study):
    _, printed = study
    rows = as_collocation_rows(results_of(printed["rows"]), "test")
    assert (memory_adds_up(rows).held, memory_adds_up(rows).tested) == (6, 6)


def test_the_place_of_a_job_that_is_done_stays_empty_or_is_refilled(study):
    _, printed = study
    until = {row["until"]: row for row in printed["rows"] if row["job"] == "quick" and row["sharing"] != "alone"}
    assert until["steps"]["starts"] == "1"
    assert int(until["refill"]["starts"]) > 1
    emptied, refilled = (
        next(
            row
            for row in printed["rows"]
            if row["until"] == how and row["job"] == PAIR[1] and row["group"] == f"quick+{PAIR[1]}"
        )
        for how in ("steps", "refill")
    )
    assert int(emptied["steps_run"]) == int(refilled["steps_run"]) == 100
    (fixed,) = (found for found in printed["results"] if found["until"] == "steps")
    assert fixed["makespan_s"] == pytest.approx(float(emptied["run_s"]))


def test_host_use_of_each_job_is_in_its_row(study):
    _, printed = study
    for row in printed["rows"]:
        if row["step_s"] and row["until"] == "seconds":
            assert int(row["host_rss_bytes"]) > 1_000_000, "a Python process"
            assert 0.0 <= float(row["host_cpu_cores"]) < 2.0


def test_listeners_write_into_the_folder_of_each_run_and_end_with_it(study):
    folder, _ = study
    outputs = sorted((folder / "out").rglob("ps.out"))
    runs = {path.parent for path in (folder / "out").rglob("1.log")}
    assert {path.parent for path in outputs} == runs
    assert all("PID and so on" in path.read_text() for path in outputs)
    left = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            left += [path] * (path.readlink() in runs)
    assert left == []


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("nosuch", "no monitoring tool named `nosuch`"),
        ("iostat", "`iostat`: no `iostat` on the PATH"),
        ("probe", "runs around a job"),
    ],
)
def test_a_listener_that_cannot_run_is_refused_before_anything_runs(tmp_path, tools, message):
    command = [sys.executable, "-m", "cotenant", "study", "collocate", "--simulate", "A100-40GB", "--listen", tools]
    env = {"PATH": "/nonexistent", "HOME": str(tmp_path)}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "o")], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert not (tmp_path / "o").exists()


def test_pairs_are_written_as_the_simulator_reads_them(study):
    folder, _ = study
    (first, second, speed_first, speed_second), _ = read_pairs(folder / "out" / "pairs.csv")
    assert (first, second) == PAIR
    assert 0 < speed_first < speed_second <= 1


def test_the_report_has_groups_guidelines_and_what_was_not_measured(study, tmp_path):
    _, printed = study
    text = write_report(printed["rows"], tmp_path / "report.html").read_text()
    assert "published, and simulated here" in text
    for words in ("simulated A100-40GB", "Not measured", "Guidelines", "Table 4.2", "no row to test it on"):
        assert words in text


def test_a_report_without_rows_tests_guidelines_on_published_ones_only(tmp_path):
    text = write_report([], tmp_path / "report.html").read_text()
    assert "Nothing was measured" in text
    assert "held in 69 of 69" in text
    assert "on these rows" not in text


def test_a_job_that_is_larger_than_its_instance_runs_out_of_memory(tmp_path, monkeypatch):
    SimulatedServer.create(tmp_path, "1xA100-40GB")
    monkeypatch.setenv("COTENANT_SIM_SERVER", str(tmp_path))
    monkeypatch.setenv(SIMULATED_SHARING, "mig:1g.5gb")
    answer = simulated_job.run({"program": {"args": []}, "simulated": "vgg16_imagenet_bs128"})
    assert answer["outcome"] == "oom"
    assert answer["message"].startswith("CUDA out of memory: 21")


def test_every_shipped_job_has_a_measured_workload_for_simulated_gpus():
    for job in read_jobs(JOBS_FOLDER / "collocation.toml").jobs:
        assert workload(job.simulated).peak_bytes > 0, job.name


def test_the_shipped_campaign_can_be_read():
    listed = read_jobs(JOBS_FOLDER / "collocation.toml")
    assert {group.way for group in listed.groups} == {"time-sliced", "mps", "mig"}
    assert max(len(group.jobs) for group in listed.groups) == 7
