"""Faults of a collocation study: signals, jobs that die or run out of memory, a full disk. The GPU is simulated."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cotenant.measurement.result_table import read_rows

SMALL, LARGE = "resnet50_imagenet_bs64", "vgg16_imagenet_bs128"
COMMAND = (sys.executable, "-m", "cotenant", "study", "collocate")
DEADLINE_S = 300.0


def write_groups(folder, jobs, *, seconds):
    (folder / "train.py").touch()
    listed = [
        f'[[job]]\nname = "{name}"\nscript = "train.py"\nargs = ["--workload", "{workload}"]'
        for name, workload in dict(jobs).items()
    ]
    group = f"[[group]]\njobs = {json.dumps([name for name, _ in jobs])}"
    path = folder / "groups.toml"
    path.write_text("\n".join([f"[defaults]\nseconds = {seconds}\nwarmup_steps = 2", *listed, group]) + "\n")
    return [*COMMAND, str(path), "--out", str(folder / "out"), "--simulate", "A100-40GB"]


def environment(folder):
    return {"PATH": "/nonexistent", "HOME": str(folder)}


def wait_for(condition, what):
    end_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < end_s:
        if (found := condition()) is not None:
            return found
        time.sleep(0.02)
    pytest.fail(f"no {what} in {DEADLINE_S:g} s")


def jobs_of(folder):
    """Pids of living job processes that read a request below this folder, by position in the group."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except (OSError, ValueError):
            continue
        requests = [word for word in words if word.startswith(str(folder)) and word.endswith(".request.json")]
        if requests and state != "Z":
            found[Path(requests[0]).name.partition(".")[0], Path(requests[0]).parent.name] = int(entry.name)
    return found


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_study_leaves_nothing_running_and_goes_on_later(tmp_path, number):
    quick = write_groups(tmp_path, [("a", SMALL), ("c", SMALL)], seconds=0.3)
    listed = (tmp_path / "groups.toml").read_text()
    # `c` trains for 600 s alone, which is the second run.
    (tmp_path / "groups.toml").write_text(listed.replace('name = "c"', 'name = "c"\nseconds = 600'))
    study = subprocess.Popen(quick, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        started = tmp_path / "out" / "c" / "alone-1" / "1.go"
        wait_for(lambda: True if started.exists() else None, "run of `c`")
        second = subprocess.run(
            [*quick, "--resume"], env=environment(tmp_path), capture_output=True, text=True, check=False
        )
        assert f"error: process {study.pid} is measuring into `{tmp_path / 'out'}`" in second.stderr
        assert second.returncode == 2
        study.send_signal(number)
        output, _ = study.communicate(timeout=DEADLINE_S)
    finally:
        study.kill()
        study.communicate()
    assert study.returncode not in (0, None), output
    assert jobs_of(tmp_path) == {}
    rows = read_rows(tmp_path / "out" / "collocation.csv")
    assert [(row["job"], row["outcome"]) for row in rows] == [("a", "ok"), ("c", "interrupted")]

    (tmp_path / "groups.toml").write_text(listed)
    done = subprocess.run(
        [*quick, "--resume", "--json"], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert (result["jobs"], result["problem"]) == (["a", "c"], "")
    outcomes = [row["outcome"] for row in read_rows(tmp_path / "out" / "collocation.csv")]
    assert outcomes == ["ok", "interrupted", "ok", "ok", "ok"]


def test_a_job_that_is_killed_in_a_group_is_a_row_that_says_so(tmp_path):
    command = write_groups(tmp_path, [("a", SMALL), ("b", SMALL)], seconds=1.0)
    study = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        pid = wait_for(lambda: jobs_of(tmp_path).get(("2", "time-sliced-1")), "second job of the group")
        os.kill(pid, signal.SIGKILL)
        assert study.wait(timeout=DEADLINE_S) == 0
    finally:
        study.kill()
        study.wait()
    outcomes = {(row["sharing"], row["job"]): row for row in read_rows(tmp_path / "out" / "collocation.csv")}
    died = outcomes["time-sliced", "b"]
    assert (died["outcome"], died["step_s"]) == ("crashed", "")
    assert died["message"].startswith("signal 9")
    assert outcomes["time-sliced", "a"]["step_s"] == "", "without an overlap there is no step time"
    assert outcomes["alone", "b"]["outcome"] == "ok"


def test_jobs_that_do_not_fit_together_run_out_of_memory_in_their_rows(tmp_path):
    jobs = [(name, LARGE) for name in "abcde"]
    done = subprocess.run(
        [*write_groups(tmp_path, jobs, seconds=0.3), "--json"],
        env=environment(tmp_path), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    together = [row for row in json.loads(done.stdout)["rows"] if row["sharing"] == "time-sliced"]
    assert {row["outcome"] for row in together} >= {"oom"}
    assert all("out of memory" in row["message"].lower() for row in together if row["outcome"] == "oom")
    assert jobs_of(tmp_path) == {}


def test_a_full_disk_ends_the_study_and_later_rows_follow(tmp_path):
    command = write_groups(tmp_path, [("a", SMALL), ("b", SMALL)], seconds=0.3)
    # A limit on the size of files (getrlimit(2)) fails like a full disk, at a byte of our choice: in the third row.
    out = tmp_path / "out"
    limited = ["/bin/sh", "-c", 'ulimit -f 2; exec "$@"', "sh", *command]
    failed = subprocess.run(limited, env=environment(tmp_path), capture_output=True, text=True, check=False)
    assert failed.returncode != 0
    assert "hint: make room, then continue with `--resume`" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert jobs_of(tmp_path) == {}
    done = subprocess.run(
        [*command, "--resume"], env=environment(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = read_rows(out / "collocation.csv")
    assert [row["outcome"] for row in rows] == ["ok"] * 4
    assert all(row["at"] for row in rows), "no row is cut"
