"""sbatch, squeue, scancel, sinfo and sacct against a daemon, and the variables that a job finds."""

from __future__ import annotations

import json
import os
import time

import pytest

from cotenant.core.errors import UsageError
from json_shapes import shape_problems
from sites import TIMEOUT_S

NODE = os.uname().nodename


@pytest.fixture
def script(site):
    """A function: writes a batch script, and returns its name."""

    def write(text, name="job.sh"):
        (site.root / name).write_text(text)
        return name

    return write


def submitted(server, *words):
    done = server.cli("sbatch", "--parsable", "--gpu-mem", "1G", *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def test_a_batch_script_runs_with_the_variables_and_files_of_slurm(server, script):
    script(
        "#!/bin/bash -e\n#SBATCH -J demo -p gpu\n#SBATCH --gpus=1\necho $0 $1 $SLURM_JOB_NAME $SLURM_JOB_ID $(pwd)\n"
    )
    done = server.cli("sbatch", "--gpu-mem", "1G", "job.sh", "first")
    assert done.stdout == "Submitted batch job 1\n"
    assert done.stderr == (
        f"sbatch: warning: {server.root}/job.sh:2: #SBATCH `-p gpu` is ignored: there is one queue\n"
    )
    script("#!/bin/bash\nexit 1\n")  # what was queued is a copy
    server.wait(1)
    wanted = f"{server.root}/job.sh first demo 1 {server.root}\n"
    assert (server.root / "slurm-1.out").read_text() == wanted


def test_variables_of_sbatch_stand_between_the_header_and_the_command_line(server, script):
    script("#!/bin/sh\n#SBATCH --time=1 --job-name=header --hold\n#SBATCH -c 3\ntrue\n")
    server.env |= {"SBATCH_TIMELIMIT": "2", "SBATCH_JOB_NAME": "env", "SBATCH_REQUEUE": "1", "SBATCH_PARTITION": "gpu"}
    done = server.cli("sbatch", "--parsable", "--gpu-mem", "1G", "-J", "line", "job.sh")
    assert done.returncode == 0, done.stderr
    assert "sbatch: warning: `SBATCH_PARTITION gpu` is ignored: there is one queue\n" in done.stderr
    view = server.client.job(int(done.stdout))
    assert (view["state"], view["name"], view["time_limit_s"], view["requeue"]) == ("HELD", "line", 120.0, True)
    refused = server.cli("scancel", "--signal", "USR1", "1")
    assert (refused.returncode, refused.stderr) == (1, "error: job 1 is not running\n")
    unknown = server.cli("scancel", "-s", "NOPE", "1")
    assert (unknown.returncode, "unknown signal `NOPE`" in unknown.stderr) == (2, True)


def test_tasks_of_an_array_know_the_array(server, script):
    script("#!/bin/sh\nenv | grep SLURM_ARRAY | sort | tr '\\n' ' '\n")
    array = submitted(server, "-a", "2-8:3", "job.sh")
    server.wait(int(array) + 2)
    assert (server.root / f"slurm-{array}_8.out").read_text().split() == [
        f"SLURM_ARRAY_JOB_ID={array}",
        "SLURM_ARRAY_TASK_COUNT=3",
        "SLURM_ARRAY_TASK_ID=8",
        "SLURM_ARRAY_TASK_MAX=8",
        "SLURM_ARRAY_TASK_MIN=2",
        "SLURM_ARRAY_TASK_STEP=3",
    ]


def test_launchers_find_an_allocation_only_on_request(server):
    show = "env | grep -cE '^SLURM_(JOBID|NTASKS|PROCID|NODELIST)='; echo $SLURM_NTASKS"
    plain, every, none = (
        submitted(server, *words, "--wrap", show)
        for words in (["-n", "1"], ["--slurm-env", "all", "-n", "4"], ["--slurm-env", "none"])
    )
    for job in (plain, every, none):
        server.wait(int(job))
    outputs = [(server.root / f"slurm-{job}.out").read_text().split() for job in (plain, every, none)]
    assert outputs == [["0"], ["4", "4"], ["0"]]


def test_wait_returns_the_exit_code_and_stdin_may_hold_the_script(server):
    assert server.cli("sbatch", "-W", "--gpu-mem", "1G", "--wrap", "exit 3").returncode == 3
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "w") as text:
        text.write("#!/bin/sh\necho from stdin\n")
    done = server.popen("sbatch", "--gpu-mem", "1G", stdin=read_end)
    os.close(read_end)
    out, err = done.communicate(timeout=60)
    assert (out, err) == ("Submitted batch job 2\n", "")
    server.wait(2)
    assert (server.root / "slurm-2.out").read_text() == "from stdin\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch.sh"], "error: unable to open file nosuch.sh: no such file or directory"),
        (["plain.sh"], "error: this does not look like a batch script: the first line must name an interpreter"),
        (["-t", "soon", "--wrap", "true"], "error: `-t`: `soon` is not a duration"),
        (["--wrap", "true", "x"], "error: script arguments are not permitted with --wrap"),
        (["--bogus"], "error: no such option: `--bogus`"),
    ],
)
def test_what_sbatch_refuses(site, script, words, message):
    script("echo\n", "plain.sh")
    done = site.cli("sbatch", *words)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, message)


def test_scancel_signals_the_programs_of_a_script_or_the_script_itself(server, script):
    script(
        "#!/bin/sh\ntrap 'echo script' USR1; trap 'echo ends; exit 3' USR2\n"
        "(trap 'echo program' USR1; echo up; while :; do sleep 0.05; done) &\nwhile :; do wait; done\n"
    )
    job = submitted(server, "job.sh")
    server.started(int(job))
    log = server.root / f"slurm-{job}.out"

    def wait_for(text):
        give_up_s = time.monotonic() + TIMEOUT_S
        while text not in log.read_text():
            assert time.monotonic() < give_up_s, log.read_text()
            time.sleep(0.02)

    wait_for("up")
    assert server.cli("scancel", "-v", "--signal", "SIGUSR1", job).stderr == f"scancel: signal 10 to job {job}\n"
    wait_for("program")
    assert server.cli("scancel", "-s", "12", "--batch", job).returncode == 0
    assert server.wait(int(job))["exit_code"] == 3
    lines = log.read_text().splitlines()
    assert ("script" in lines, lines[-1]) == (False, "ends")


def test_the_queue_the_machine_and_the_past(server):
    runs = submitted(server, "-J", "first", "-t", "1:00:00", "--wrap", "sleep 1000")
    held = submitted(server, "-H", "--wrap", "true")
    waits = submitted(server, "-d", f"afterok:{runs}", "--wrap", "true")
    tasks = submitted(server, "-a", "1-3", "-b", "now+1day", "-J", "sweep", "--wrap", "true")
    fails = submitted(server, "--wrap", "kill -9 $$")
    server.started(int(runs))
    server.wait(int(fails))
    lines = server.cli("squeue", "-h", "-o", "%i %j %t %R %l %u").stdout.splitlines()
    user = server.cli("squeue", "-h", "-j", runs, "-o", "%u").stdout.strip()
    assert lines == [
        f"{held} wrap PD (JobHeldUser) UNLIMITED {user}",
        f"{waits} wrap PD (Dependency) UNLIMITED {user}",
        f"{tasks}_[1-3] sweep PD (BeginTime) UNLIMITED {user}",
        f"{runs} first R {NODE} 1:00:00 {user}",
    ]
    assert server.cli("squeue", "--me", "-t", "R", "-h", "-O", "JobID:5,Name").stdout == f"{runs:<5}{'first':<20}\n"
    assert server.cli("squeue", "-u", "nobody", "-h").stdout == ""
    assert server.cli("sinfo", "-h", "-o", "%P %D %t %N %G").stdout == f"gpu* 1 mix {NODE} gpu:2\n"
    rows = server.cli("sacct", "-n", "-P", "-j", fails, "-o", "JobID,State,ExitCode").stdout
    assert rows.splitlines() == [f"{fails}|FAILED|0:9", f"{fails}.batch|FAILED|0:9"]
    assert server.cli("sacct", "-X", "-n", "-P", "-s", "R", "-o", "JobID").stdout == f"{runs}\n"
    printed = {verb: server.cli(verb, "--json").stdout for verb in ("squeue", "sinfo", "sacct")}
    for verb, text in printed.items():
        assert shape_problems(verb, text) == []
    queue = json.loads(printed["squeue"])
    by_id = {job["job_id"]: job for job in queue["jobs"]}
    assert queue["meta"]["plugin"]["data_parser"] == "data_parser/v0.0.41"
    first = by_id[int(runs)]
    assert (first["name"], first["user_name"], first["job_state"]) == ("first", user, ["RUNNING"])
    assert first["time_limit"] == {"set": True, "infinite": False, "number": 60}
    assert (first["nodes"], first["tres_alloc_str"]) == (NODE, "cpu=1,gres/gpu=1,node=1")
    assert (first["command"].split()[-1], first["current_working_directory"]) == ("1000", str(server.root))
    assert (by_id[int(held)]["hold"], by_id[int(held)]["job_state"]) == (True, ["PENDING"])
    assert by_id[int(waits)]["dependency"] == f"afterok:{runs}(unfulfilled)"
    assert by_id[int(waits)]["time_limit"] == {"set": False, "infinite": True, "number": 0}
    assert (by_id[int(tasks)]["array_task_string"], by_id[int(tasks)]["array_task_id"]["set"]) == ("1-3", False)
    assert by_id[int(tasks)]["eligible_time"]["number"] >= by_id[int(tasks)]["submit_time"]["number"] + 86_000
    failed = next(job for job in json.loads(printed["sacct"])["jobs"] if job["job_id"] == int(fails))
    assert failed["state"] == {"current": ["FAILED"], "reason": "None"}
    assert failed["exit_code"]["signal"] == {"id": {"set": True, "infinite": False, "number": 9}, "name": "KILL"}
    assert [step["step"]["id"] for step in failed["steps"]] == [f"{fails}.batch"]
    assert [item["name"] for item in failed["tres"]["allocated"] if item["type"] == "gres"] == ["gpu"]
    assert server.cli("scancel", f"{tasks}_[1,3]").returncode == 0
    assert server.cli("squeue", "-h", "-n", "sweep", "-o", "%i").stdout == f"{tasks}_2\n"
    assert server.cli("scancel", "--me", "-t", "PD").returncode == 0
    assert server.cli("squeue", "-h", "-o", "%i").stdout == f"{runs}\n"
    missing = server.cli("scancel", "999")
    assert (missing.returncode, missing.stderr.splitlines()[0]) == (
        1, "error: kill job error on job id 999: invalid job id specified",
    )  # fmt: skip


def test_jobs_are_listed_and_cancelled_by_user_name_and_state(server):
    for name in ("sweep-1", "sweep-2", "other"):
        server.submit("true", name=name, hold=True)
    names = ["ls", "--no-header", "--format", "name"]
    assert server.cli(*names, "-J", "sweep-*").stdout.split() == ["sweep-1", "sweep-2"]
    assert server.cli(*names, "-J", "sweep-*", "-s", "R").stdout == ""
    assert server.cli(*names, "-u", "nobody").stdout == ""
    assert server.cli("cancel", "-J", "sweep-?").stdout.splitlines() == [
        "job 1: cancelled: on request",
        "job 2: cancelled: on request",
    ]
    assert server.cli("cancel", "-u", "nobody").stderr == "no job to cancel\n"
    assert server.cli("cancel", "3", "-s", "PD").returncode == 2
    assert [job["id"] for job in server.client.jobs(active=True)] == [3]


def test_a_list_comes_in_pages(server, monkeypatch):
    for _ in range(5):
        server.submit("true", hold=True)
    pages = [server.client.jobs(after=after, limit=2) for after in (0, 2, 4)]
    assert [[job["id"] for job in page] for page in pages] == [[1, 2], [3, 4], [5]]
    assert server.client.overview(after=2, limit=2)["counts"] == {}
    monkeypatch.setattr("cotenant.daemon.client.MAX_PAGE", 2)
    whole = server.client.overview(fields="id,name")
    assert whole["jobs"] == [{"id": job_id, "name": "job"} for job_id in range(1, 6)]
    assert whole["counts"] == {"HELD": 5}
    with pytest.raises(UsageError, match="`fields` has `nme`"):
        server.client.jobs(fields="id,nme")
