"""Arrays, dependencies, directives, updates, requeues, stories, histories and attachment, over the socket."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

GiB = 2**30


def test_an_array_from_its_directives_to_its_history(server):
    (server.root / "sweep.sh").write_text(
        "#!/bin/bash\n"
        "#SBATCH --partition=gpu\n"
        "#SBATCH -J theirs\n"
        "#COTENANT -a 1-4%2 --gpu-mem 1G -o out-%A_%a.txt\n"
        "#COTENANT -J sweep\n"
        "echo $COTENANT_ARRAY_JOB_ID $COTENANT_ARRAY_TASK_ID $1\n"
        "[ $COTENANT_ARRAY_TASK_ID != 3 ]\n"
    )
    done = server.cli("submit", "--json", "sweep.sh", "x")
    assert done.returncode == 0, done.stderr
    assert done.stderr == "warning: sweep.sh:2: #SBATCH `--partition=gpu` is ignored: there is one queue\n"
    views = json.loads(done.stdout)["jobs"]
    assert [(view["id"], view["label"], view["name"]) for view in views] == [
        (i, f"1_{i}", "sweep") for i in (1, 2, 3, 4)
    ]
    after = server.cli("submit", "--parsable", "--gpu-mem", "1G", "-d", "afterany:1", "--", "true").stdout.strip()
    waited = server.cli("wait", "1")
    assert waited.returncode == 1
    assert waited.stdout.splitlines()[2] == "job 1_3: failed: exit code 1"
    assert server.wait(int(after))["state"] == "COMPLETED"
    assert (server.root / "out-1_4.txt").read_text() == "1 4 x\n"
    shown = server.cli("show", "1_4").stdout
    assert "task 4 of array 1, job 4" in shown
    assert server.cli("show", "1").stderr.startswith("error: job 1 is an array of 4 tasks\n")
    assert server.cli("hold", "1_4").stderr == "error: job 1_4 is over (completed)\n"
    failed = server.cli("history", "-s", "F", "--no-header", "--format", "id,state,promised")
    assert failed.stdout.split() == ["1_3", "F", "1.0", "GiB"]
    assert json.loads(server.cli("history", "-n", "2", "--json").stdout)["jobs"][1]["id"] == int(after)
    advised = server.cli("history", "--advice")
    assert advised.stderr == "no advice: 0 of 5 jobs ran for 1m00s or longer, and shorter runs are not judged\n"


def test_a_job_updated_held_requeued_and_its_story(server):
    gate = server.gate()
    job = str(server.submit(f"{gate}; exit 3", hold=True))
    assert server.cli("update", job, "-J", "new", "--gpu-mem", "2G", "--priority", "7").returncode == 0
    assert server.client.job(int(job))["priority"] == 7
    assert server.cli("release", job).returncode == 0
    server.started(int(job))
    refused = server.cli("update", job, "--priority", "1")
    assert (refused.returncode, refused.stderr) == (
        2,
        f"error: job {job} is running, only a pending job can be updated\n",
    )
    assert server.cli("requeue", job).returncode == 0
    server.open_gate(gate)
    view = server.wait(int(job))
    assert (view["state"], view["attempts"], view["name"]) == ("FAILED", 2, "new")
    assert server.cli("requeue", job).returncode == 0
    assert server.wait(int(job))["attempts"] == 3
    events = json.loads(server.cli("events", job, "--json").stdout)["events"]
    kinds = [event["event"] for event in events if event["event"] != "EstimateReady"]
    attempt = ["AttemptPlaced", "AttemptStarted", "AttemptExited"]
    assert kinds == [
        *("JobSubmitted", "JobUpdated", "JobReleased", "AttemptPlaced", "AttemptStarted"),
        *("JobRequeued", "AttemptExited", *attempt, "JobRequeued", *attempt),
    ]
    (updated,) = [event["text"] for event in events if event["event"] == "JobUpdated"]
    assert "memory 1.0 GiB to 2.0 GiB" in updated
    assert events[-1]["state"] == "done"
    assert "requeue by " in server.cli("events", job).stdout
    # What was decided holds after a crash.
    before = server.client.job(int(job))
    server.kill()
    server.start()
    assert server.client.job(int(job))["attempt_list"] == before["attempt_list"]


def test_attach_follows_both_streams_and_detaches(server):
    gate = server.gate()
    job = server.submit(f"echo before; {gate}; echo wrong >&2; exit 9")
    server.started(job)
    watcher = server.popen("attach", str(job))
    assert watcher.stdout.readline() == "before\n"
    watcher.send_signal(signal.SIGINT)
    _, err = watcher.communicate(timeout=60)
    assert (watcher.returncode, err) == (130, f"detached; job {job} continues\n")
    watcher = server.popen("attach", str(job))
    assert watcher.stdout.readline() == "before\n"
    server.open_gate(gate)
    out, err = watcher.communicate(timeout=60)
    assert (out, watcher.returncode) == ("", 9)
    assert err.splitlines() == ["wrong", f"job {job}: failed: exit code 9"]
    late = server.cli("attach", str(job))
    assert (late.returncode, late.stdout) == (9, "before\n")


def test_an_update_is_held_to_what_a_submission_is(site):
    site.env["COTENANT_QUOTAS__GPUS"] = "1"
    site.start()
    job = str(site.submit("true", hold=True))
    later = str(site.submit("true", after=[int(job)]))
    changes = ("--sharing", "time", "--retries", "2", "--time-slice", "1:00:00", "--progress", "tqdm")
    assert site.cli("update", job, *changes).returncode == 0
    (events,) = [
        event for event in json.loads(site.cli("events", job, "--json").stdout)["events"] if "updated" in event["text"]
    ]
    assert "retries 0 to 2, time slice none to 1h00m, progress none to tqdm, sharing auto to time" in events["text"]
    for words, why in (
        (("--sharing", "mps"), "this server does not offer `--sharing mps`: its GPUs are simulated"),
        (("--notify", "true"), "this daemon sends no notifications"),
        (("--gpus", "2"), "may have 1 GPU at once, 2 requested"),
        (("--max-slowdown", "0.5"), "`--max-slowdown`: must be >= 1, got `0.5`"),
        (("-d", f"afterok:{job}"), f"job {job} cannot wait for itself"),
        (("-d", f"afterany:{later}"), "nor for one that waits for it"),
    ):
        done = site.cli("update", job, *words)
        assert (done.returncode != 0, why in done.stderr) == (True, True), (words, done.stderr)
    assert site.cli("update", job, "--nice", "1").returncode == 0
    assert site.cli("release", job).returncode == 0
    assert site.wait(int(later))["state"] == "COMPLETED"


def test_quotas_and_shares_of_the_configuration(site):
    site.env |= {"COTENANT_QUOTAS__MAX_RUNNING": "1", "COTENANT_QUOTAS__MAX_UNFINISHED": "3"}
    site.start()
    gate = site.gate()
    first, second = site.submit(gate), site.submit("true")
    site.started(first)
    assert "may run 1 job at once: 1 running" in site.cli("explain", str(second)).stdout
    too_many = site.cli("submit", "-a", "1-2", "--gpu-mem", "1G", "--", "true")
    assert too_many.returncode == 5
    assert "may have 3 unfinished jobs, has 2, submits 2 more" in too_many.stderr
    site.open_gate(gate)
    assert site.wait(second)["state"] == "COMPLETED"


def test_begin_later_and_ids_that_complete(server):
    job = server.cli("submit", "--parsable", "--begin", "now+1hour", "--gpu-mem", "1G", "--", "true").stdout.strip()
    assert f"job {job}: begins in " in server.cli("explain", job).stdout
    server.env |= {"_COTENANT_COMPLETE": "bash_complete", "COMP_WORDS": "cotenant show ", "COMP_CWORD": "2"}
    assert f"plain,{job}" in server.cli().stdout.split()
    del server.env["_COTENANT_COMPLETE"]
    assert server.cli("update", job, "--begin", "none").returncode == 0
    assert server.wait(int(job))["state"] == "COMPLETED"


def test_completion_offers_ids_and_nothing_that_a_shell_would_run(server):
    name = "it\\$(touch pwned)`touch pwned`'\";x"
    spec = {"command": ["true"], "workdir": str(server.root), "env": {}, "name": name, "hold": True}
    job = server.client.submit([spec])[0]["id"]
    shell = {"_COTENANT_COMPLETE": "zsh_complete", "COMP_WORDS": "cotenant show ", "COMP_CWORD": "2"}
    kind, value, text = with_env(server, shell).splitlines()[:3]
    assert (kind, value, text) == ("plain", str(job), "it_touch_pwned_touch_pwned_x held")


def with_env(server, env, *args):
    """What a command prints with these variables; without arguments, as a shell calls it that completes."""
    code = "from cotenant.cli.main import run; run()"
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, env={**server.env, **env}, capture_output=True, text=True, check=True).stdout
