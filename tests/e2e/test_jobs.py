"""The path of a job, from the command line to its end, with a real daemon and real processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cotenant.daemon import client
from places import until

GiB = 2**30


def test_a_submitted_job_completes(server):
    done = server.cli("submit", "--gpu-mem", "1G", "-J", "hello", "--", "sh", "-c", "echo to $COTENANT_JOB_ID; pwd")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("submitted job 1 (hello): ")
    assert done.stderr == "", "hints are for terminals"
    waited = server.cli("wait", "1", "--json")
    assert waited.returncode == 0
    view = json.loads(waited.stdout)["jobs"][0]
    assert (view["state"], view["exit_code"], view["attempts"]) == ("COMPLETED", 0, 1)
    assert server.cli("logs", "1").stdout == f"to 1\n{server.root}\n"
    shown = server.cli("show", "1").stdout
    assert "job 1  hello  COMPLETED" in shown
    assert "1 GPU, 1.0 GiB declared" in shown


def test_python_script_runs_with_the_python_of_the_path(server):
    script = server.root / "train.py"
    script.write_text("import sys; print(sys.executable, sys.argv[1:])")
    done = server.cli("run", "--gpu-mem", "1G", "train.py", "--json", "-J", "x")
    assert (done.returncode, done.stdout.strip()) == (
        0,
        f"{Path(sys.executable).parent}/python ['--json', '-J', 'x']",
    )


def test_a_job_that_runs_out_of_memory_is_retried_with_more(site):
    site.start(simulate="1xA100-40GB")
    big = site.simulated("--peak-gib", "30", "--duration", "1e6", gib=30)
    until(lambda: site.client.job(big)["observed_bytes"] == 30 * GiB, "it holds its memory")
    small = site.simulated("--peak-gib", "12", "--duration", "30", gib=2)
    until(lambda: any(attempt["exit"] for attempt in site.client.job(small)["attempt_list"]), "it has no room")
    site.client.cancel(big)
    view = site.wait(small)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2), view
    first, second = view["attempt_list"]
    assert first["exit"]["oom"]["exception"]
    assert first["promised_bytes"] == 2 * GiB
    assert second["promised_bytes"] >= 12 * GiB
    shown = site.cli("show", str(small)).stdout
    assert "out of memory   says the final exception" in shown
    assert "learned floor" in shown


def test_memory_is_attributed_to_jobs(server):
    job = server.simulated("--peak-gib", "5", "--duration", "1e6", gib=6)
    until(lambda: server.client.job(job)["observed_bytes"] == 5 * GiB, "its memory is seen")
    server.client.cancel(job)
    view = server.wait(job)
    assert view["observed_bytes"] == 5 * GiB, view


def test_cancel_running_and_queued(server):
    running = server.submit("trap '' TERM; while :; do sleep 1; done", exclusive=True)
    other = server.submit("sleep 1000", exclusive=True)
    queued = server.submit("true", exclusive=True)
    server.started(running)
    server.started(other)
    done = server.cli("cancel", str(running), str(queued))
    assert done.returncode == 0, done.stderr
    assert server.wait(queued)["state"] == "CANCELLED"
    assert server.wait(running)["state"] == "CANCELLED"
    assert server.cli("wait", str(running)).returncode == 143
    again = server.cli("cancel", str(running), str(other), "--json")
    assert again.returncode == 2
    output = json.loads(again.stdout)
    assert [error["message"] for error in output["errors"]] == [f"job {running} is over (cancelled)"]
    assert [job["id"] for job in output["jobs"]] == [other]


def test_cancel_all_includes_dependent_jobs(server):
    first, second = (
        json.loads(server.cli("submit", "--json", *option, "--gpu-mem", "1G", "--", "true").stdout)["job"]["id"]
        for option in (("--hold",), ("--dependency", "afterok:1"))
    )
    done = server.cli("cancel", "--all")
    assert done.returncode == 0, done.stderr
    assert [server.wait(job)["state"] for job in (first, second)] == ["CANCELLED", "CANCELLED"]


def test_hold_keeps_a_job_until_it_is_released(server):
    gate = server.gate()
    first, second = (server.submit(gate, exclusive=True) for _ in range(2))
    job = server.submit("true", exclusive=True)
    assert server.cli("hold", str(job)).stdout.startswith(f"job {job}: held: ")
    assert server.cli("ls", "--no-header", "--format", "id,state", "-s", "H").stdout == f"{job:>1}  H\n"
    server.started(first)
    server.started(second)
    server.open_gate(gate)
    server.wait(first)
    assert server.client.job(job)["state"] == "HELD"
    assert server.cli("release", str(job)).returncode == 0
    assert server.wait(job)["state"] == "COMPLETED"
    refused = server.cli("hold", str(job))
    assert (refused.returncode, refused.stderr) == (2, f"error: job {job} is over (completed)\n")


def test_a_dependent_job_waits_and_follows(server):
    gate = server.gate()
    first = server.submit(gate)
    after = server.cli("submit", "--parsable", "--gpu-mem", "1G", "-d", f"afterok:{first}", "--", "true").stdout.strip()
    assert f"job {after}: waits for job {first} to complete" in server.cli("explain", after).stdout
    server.started(first)
    server.open_gate(gate)
    assert server.wait(int(after))["state"] == "COMPLETED"
    fails = server.submit("exit 3")
    never = server.submit("true", after=[fails])
    assert server.wait(never)["reason"] == f"cancelled: dependency {fails} failed"
    unknown = server.cli("submit", "-d", "afterok:99", "--", "true")
    assert (unknown.returncode, unknown.stderr.splitlines()[0]) == (4, "error: no job 99")


def test_time_limit(server):
    done = server.cli("run", "-t", "00:01", "--gpu-mem", "1G", "--", "sleep", "1000")
    assert done.returncode == 124, done.stderr
    assert server.client.job(1)["state"] == "TIMEOUT"


def test_logs_follow_to_the_end(server):
    gate = server.gate()
    job = server.submit(f"echo before; {gate}; echo after; echo wrong >&2")
    server.started(job)
    follower = server.popen("logs", "-f", str(job))
    assert follower.stdout.readline() == "before\n"
    server.open_gate(gate)
    out, err = follower.communicate(timeout=60)
    assert (out, err, follower.returncode) == ("after\n", "", 0)
    assert server.cli("logs", "-e", str(job)).stdout == "wrong\n"


def test_output_files_are_named_after_the_job(server):
    done = server.cli(
        "submit", "--gpu-mem", "1G", "-J", "n", "-o", "%x-%j-%%.txt", "--", "sh", "-c", "echo a; echo b >&2"
    )
    assert done.returncode == 0
    server.wait(1)
    assert sorted((server.root / "n-1-%.txt").read_text().split()) == ["a", "b"]


@pytest.mark.parametrize(
    ("script", "code", "reason"),
    [
        pytest.param("exit 0", 0, "completed", id="completed"),
        pytest.param("exit 7", 7, "failed: exit code 7", id="own code"),
        pytest.param("kill -9 $$", 137, "failed: ended by signal 9", id="signal"),
    ],
)
def test_wait_exits_with_the_jobs_exit_code(server, script, code, reason):
    job = server.submit(script)
    done = server.cli("wait", str(job))
    assert (done.returncode, done.stdout) == (code, f"job {job}: {reason}\n")


def test_explain_names_the_rule_and_the_numbers_of_each_gpu(server):
    jobs = [server.submit("sleep 1000", declared_bytes=30 * GiB) for _ in range(2)]
    for job in jobs:
        server.started(job)
    waits = server.submit("true", declared_bytes=20 * GiB)
    assert server.cli("explain", str(waits)).stdout == (
        f"job {waits} waits: GPU 0, best of 2: needs 20.0 GiB, 10.0 GiB available\n"
        "  GPU 0  insufficient_memory  needs 20.0 GiB, 10.0 GiB available\n"
        "  GPU 1  insufficient_memory  needs 20.0 GiB, 10.0 GiB available\n"
    )
    output = json.loads(server.cli("explain", str(waits), "--json").stdout)
    assert [(rejection["gpu"], rejection["rule"]) for rejection in output["rejections"]] == [
        (0, "insufficient_memory"),
        (1, "insufficient_memory"),
    ]
    rows = server.cli("gpus", "--no-header", "--format", "gpu,promised,available,residents").stdout.splitlines()
    assert rows[0].split() == ["0", "30.0", "GiB", "10.0", "GiB", f"{jobs[0]}:job"]


def test_dry_run_says_what_would_happen_and_queues_nothing(server):
    would = server.cli("submit", "--dry-run", "--gpu-mem", "10G", "--", "true")
    assert would.stdout.splitlines() == [
        "memory: 10.0 GiB per GPU (10.0 GiB device, 0 B margin; estimator declared)",
        "would start now on GPU 0 (time-sliced), 10.0 GiB promised",
    ]
    for _ in range(2):
        server.started(server.submit("sleep 1000", exclusive=True))
    would = server.cli("submit", "--dry-run", "--gpu-mem", "10G", "--", "true")
    assert would.stdout.splitlines()[1] == "would wait: GPU 0, best of 2: job 1 has it exclusively"
    assert len(server.client.jobs()) == 2


def test_a_missing_program_fails_the_job(server):
    output = server.cli("submit", "no-such-program")
    assert (output.returncode, output.stderr.splitlines()[0]) == (2, "error: no such command: `no-such-program`")
    job = server.submit("/no/such/program", "x")
    view = server.wait(job)
    assert view["state"] == "FAILED"
    assert "/no/such/program" in view["reason"]


def test_unknown_job_is_exit_code_4(server):
    for command in ("show", "explain", "logs", "wait", "cancel", "hold", "release"):
        done = server.cli(command, "42", "--json")
        assert (command, done.returncode, json.loads(done.stdout)["error"]["kind"]) == (command, 4, "NoSuchJob")
        assert done.stderr.startswith("error: no job 42\n")


def test_a_rad_file_declares_measured_memory(server):
    lines = ["# a comment", "true --flag", "m.model", "data", "32", "exclusive", "1", "2048", "1000", "40000", "8000"]
    (server.root / "tiny.rad").write_text("\n".join(lines))
    output = json.loads(server.cli("submit", "--json", "tiny.rad").stdout)["job"]
    assert (output["name"], output["need_bytes"]) == ("tiny", 2 * GiB)
    (server.root / "bad.rad").write_text("\n".join(lines[:6]))
    refused = server.cli("submit", "bad.rad")
    assert (refused.returncode, refused.stderr) == (
        2,
        "error: bad.rad:7: the file ends here, wanted the number of GPUs\n",
    )


SUMMARY = """
        Layer (type)               Output Shape         Param #
================================================================
            Linear-1                 [-1, 4096]       4,198,400
            Linear-2                   [-1, 10]          40,970
================================================================
"""


def test_jobs_that_cannot_be_traced_are_estimated_from_their_summaries(server):
    pytest.importorskip("numpy", reason="the estimators of summaries need numpy")
    (server.root / "net.txt").write_text(SUMMARY)
    (server.root / "env.sh").write_text("export ENTERED=1\n")
    (server.root / "net.rad").write_text(
        "# net.txt is in this folder\npolicy: exclusive\nsource ./env.sh\n"
        "sh -c 'test $ENTERED = 1'  # a job that is no Python script\nmodel: net.txt\nbatch_size: 64\n"
    )
    job = json.loads(server.cli("submit", "--json", "net.rad").stdout)["job"]
    view = server.wait(job["id"])
    assert (view["state"], view["estimate"]["estimator"]) == ("COMPLETED", "summary")
    assert view["sharing"] == "exclusive"
    why = view["estimate"]["warnings"][0]
    assert why.startswith("traced: `bash` is no Python script")
    assert why.endswith("net.txt`")
    given = server.cli("submit", "--json", "--model-summary", "net.txt", "--batch-size", "64", "sh", "-c", "exit 0")
    again = server.wait(json.loads(given.stdout)["job"]["id"])
    assert (again["state"], again["estimate"]["bound_bytes"]) == ("COMPLETED", view["estimate"]["bound_bytes"])


def test_undeclared_memory_is_estimated(server):
    pytest.importorskip("torch", reason="tracing needs torch")
    (server.root / "train.py").write_text(
        "import torch\n"
        "model = torch.nn.Linear(1024, 1024).cuda()\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "model(torch.randn(64, 1024, device='cuda')).sum().backward()\n"
        "optimizer.step()\n"
    )
    output = json.loads(server.cli("submit", "--json", "train.py").stdout)["job"]
    view = server.wait(output["id"])
    assert view["estimate_error"] is None
    assert view["estimate"]["estimator"] == "traced"
    # 4 MiB of weights and as much of gradients, at least; the first attempt was promised the bound, rounded up.
    assert view["estimate"]["peak_reserved_bytes"] >= 8 * 2**20
    assert 0 <= view["attempt_list"][0]["promised_bytes"] - view["estimate"]["bound_bytes"] < 16 * 2**20


def test_a_job_that_cannot_be_estimated_gets_an_exclusive_gpu(server):
    job = server.submit("true", declared_bytes=None)
    view = server.wait(job)
    assert view["estimate"] is None
    assert view["estimate_error"]
    assert (view["state"], view["attempt_list"][0]["sharing"]) == ("COMPLETED", "exclusive")


def test_a_long_list_comes_in_pages(server, monkeypatch):
    task = {**server.job("true"), "hold": True, "name": "task", "array": {"tasks": list(range(8)), "limit": None}}
    ids = [view["id"] for view in server.client.submit([task])]
    filters = ({}, {"last": 9}, {"last": 5}, {"last": 2}, {"name": "t*"}, {"states": "HELD"})
    whole = [server.client.overview(**chosen) for chosen in filters]
    monkeypatch.setattr(client, "MAX_PAGE", 4)
    pages = []
    overview = server.client._overview
    monkeypatch.setattr(server.client, "_overview", lambda query: pages.append(query) or overview(query))
    for chosen, expected in zip(filters, whole, strict=True):
        assert [view["id"] for view in expected["jobs"]] == ids[-chosen.get("last", 8) :]
        pages.clear()
        assert server.client.overview(**chosen) == expected
        assert len(pages) == (1 if chosen.get("last") == 2 else 3), "the third one says that there are no more"
