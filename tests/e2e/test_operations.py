"""What an administrator meets: a stopped daemon, its log, a full table of GPUs, times in the queue."""

from __future__ import annotations

import signal
import stat
import time

from cotenant.cli.gpus import _residents


def test_a_stopped_daemon_is_reported_within_two_seconds(server):
    server.cli("ls")
    server.daemon.send_signal(signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        try:
            server.client.status()
        except Exception as error:  # noqa: BLE001 - looked at below
            problem = error
        took_s = time.monotonic() - began_s
    finally:
        server.daemon.send_signal(signal.SIGCONT)
    assert type(problem).__name__ == "DaemonUnreachable"
    assert problem.message == f"the daemon (pid {server.daemon.pid}) is stopped"
    assert problem.hint == f"let it go on: kill -CONT {server.daemon.pid}"
    assert took_s < 30.0, "the timeout of a request"


def test_the_log_of_a_detached_daemon_is_not_for_others_and_its_new_warnings_are_shown(site):
    log = site.root / "state" / "cotenant" / "daemon.log"
    log.parent.mkdir(parents=True)
    log.write_text("2026-01-01T00:00:00.000Z warning of an earlier daemon\n")
    (log.parent / "telemetry.json").write_text("[]")
    done = site.cli("daemon", "--detach", "--simulate", "1xA100-40GB")
    assert done.returncode == 0, done.stderr
    try:
        (warning,) = done.stderr.splitlines()
        assert warning.startswith("warning: the telemetry of running jobs is lost why=")
        assert stat.S_IMODE(log.stat().st_mode) == 0o640
    finally:
        site.cli("daemon", "stop")


def test_time_in_the_queue_counts_each_attempt(server):
    """WAITED left out what came before retries."""
    marker = server.root / "failed"
    job_id = server.submit(f"test -e {marker} || {{ touch {marker}; exit 1; }}", retries=1)
    view = server.wait(job_id)
    first, second = view["attempt_list"]
    assert view["state"] == "COMPLETED"
    assert view["waited_s"] > view["queueing_s"]
    assert first["ended_at"] <= second["started_at"]


def test_jobs_of_others_on_a_gpu_are_counted_and_not_named():
    own = {"job_id": 17, "name": "bert", "idle_s": None}
    hidden = {"job_id": None, "name": None, "idle_s": None}
    assert _residents([own, hidden, hidden]) == "17:bert 2 of others"
    assert _residents([{**own, "idle_s": 60.0}]) == "17:bert(idle)"
    assert _residents([hidden]) == "1 of others"
    assert _residents([]) == "-"


def test_cancel_all_is_one_request(server):
    for _ in range(3):
        server.submit("true", hold=True)
    done = server.cli("cancel", "--all")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"job {number}: cancelled: on request" for number in (1, 2, 3)]
    assert server.cli("cancel", "--all").stdout == ""


def test_no_job_starts_on_what_another_cancelled_one_frees(server):
    """`cancel 1 2` was two requests: job 2 started in between, ran for a moment and was killed."""
    running, _, waiting = (server.submit("sleep 600", declared_bytes=30 * 2**30) for _ in range(3))  # on two GPUs
    server.started(running)
    done = server.cli("cancel", str(running), str(waiting))
    assert done.returncode == 0, done.stderr
    assert server.wait(running)["state"] == "CANCELLED"
    assert server.client.job(waiting)["attempt_list"] == []


def test_many_jobs_are_cancelled_newest_first_and_requeued_oldest_first(server):
    def held():
        return [server.submit("true", hold=True) for _ in range(3)]

    def order(verb, jobs):
        refs = [str(job_id) for job_id in (jobs[1], jobs[0], jobs[2])]
        return [view["id"] for view in server.client.change_many(verb, refs)[0]]

    jobs, others = held(), held()
    assert order("release", jobs) == jobs
    for job_id in jobs:
        server.wait(job_id)
    assert order("requeue", jobs) == jobs
    assert order("cancel", others) == others[::-1]


def test_a_verb_goes_on_after_a_job_that_it_cannot_change(server):
    first, second = (server.submit("true", hold=True) for _ in range(2))
    done = server.cli("release", str(first), "99", str(second), "no")
    assert done.stdout.startswith(f"job {first}: "), done.stdout
    assert len(done.stdout.splitlines()) == 2
    assert "error: no job 99" in done.stderr
    assert "`no` is not a job id" in done.stderr
    assert done.returncode == 4, "that of the first failure"


def test_output_is_in_the_folder_of_the_submitter_as_with_sbatch(server):
    done = server.cli("submit", "--parsable", "--gpu-mem", "1G", "--", "sh", "-c", "echo out; echo err >&2")
    job_id = int(done.stdout)
    server.wait(job_id)
    assert (server.root / f"cotenant-{job_id}.out").read_text() == "out\nerr\n"
    assert server.cli("logs", str(job_id)).stdout == "out\nerr\n"
    attached = server.cli("attach", str(job_id))
    assert (attached.stdout, attached.stderr) == ("out\nerr\n", ""), "once, not for each stream"
    array = server.cli("submit", "--parsable", "--gpu-mem", "1G", "-a", "1-2", "--", "sh", "-c", "echo task").stdout
    for index in (1, 2):
        server.wait(int(array) + index - 1)
        assert (server.root / f"cotenant-{int(array)}_{index}.out").read_text() == "task\n"


def test_a_second_daemon_leaves_the_state_folder_of_the_first_as_it_is(server):
    """Jobs of all users open simulated GPUs below it."""
    state = server.root / "state" / "cotenant"
    state.chmod(0o711)
    for words in (("--detach",), ("--socket", str(server.root / "other" / "sock"))):
        done = server.cli("daemon", "--simulate", "1xA100-40GB", *words)
        assert done.returncode != 0
        assert stat.S_IMODE(state.stat().st_mode) == 0o711, words
