"""The daemon itself: one at a time, restarts, crashes, a full disk, interrupted clients."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import threading
import time
from pathlib import Path

from cotenant.core.errors import CotenantError
from cotenant.core.events import AttemptPlaced
from cotenant.core.placement import Placement
from cotenant.daemon.log import MAX_FILE_BYTES
from cotenant.store.sqlite import SqliteJournal

TIMEOUT_S = 60


def test_a_second_daemon_is_refused(server):
    second = server.cli("daemon", "--simulate", "2xA100-40GB", "--time-scale", "60")
    assert second.returncode == 1
    assert (
        second.stderr.splitlines()[-2]
        == f"error: a daemon (pid {server.daemon.pid}) already listens on `{server.socket}`"
    )
    elsewhere = server.cli("daemon", "--simulate", "2xA100-40GB", "--socket", str(server.root / "other"))
    assert f"another daemon (pid {server.daemon.pid}) holds" in elsewhere.stderr
    assert server.cli("daemon", "status").returncode == 0


def test_a_missing_configuration_file_is_an_error(site):
    refused = site.cli("daemon", "--simulate", "1xA100-40GB", "--config", "nowhere.toml")
    assert (refused.returncode, refused.stderr.splitlines()[0]) == (2, "error: no file `nowhere.toml`")


def test_a_stale_socket_is_replaced(site):
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(site.socket))
    left.close()
    assert site.cli("ls").returncode == 3
    site.start()
    assert site.cli("ls").returncode == 0
    assert site.socket.stat().st_mode & 0o777 == 0o600


def test_a_detached_daemon_answers_and_stops(site):
    started = site.cli("daemon", "--detach", "--simulate", "1xA100-40GB", "--json")
    assert started.returncode == 0, started.stderr
    pid = json.loads(started.stdout)["pid"]
    assert json.loads(site.cli("daemon", "status", "--json").stdout)["pid"] == pid
    assert site.cli("daemon", "--detach", "--simulate", "1xA100-40GB").returncode == 1
    log_file = site.root / "state" / "cotenant" / "daemon.log"
    os.truncate(log_file, MAX_FILE_BYTES + 1)  # a file with a hole, that takes no space
    site.wait(site.submit("true"))
    assert log_file.stat().st_size < 2**20 < log_file.with_name("daemon.log.1").stat().st_size
    assert site.cli("daemon", "stop").stdout == f"daemon {pid} has stopped\n"
    assert site.cli("daemon", "status").returncode == 3


def test_jobs_continue_across_a_restart_of_the_daemon(server):
    gate = server.gate()
    job = server.submit(f"echo one; {gate}; echo two")
    pid = server.started(job)["attempt_list"][0]["pid"]
    server.stop()
    server.start()
    view = server.client.job(job)
    assert (view["state"], view["attempt_list"][0]["pid"]) == ("RUNNING", pid)
    server.open_gate(gate)
    assert server.wait(job)["state"] == "COMPLETED"
    assert server.cli("logs", str(job)).stdout == "one\ntwo\n"


def test_a_job_that_exits_without_a_daemon_is_recorded_later(server):
    gate = server.gate()
    job = server.submit(f"{gate}; exit 5")
    server.started(job)
    server.kill()
    server.open_gate(gate)
    server.start()
    assert (server.wait(job)["state"], server.client.job(job)["exit_code"]) == ("FAILED", 5)


def test_twenty_crashes_lose_no_job_and_run_none_twice(site):
    rng = random.Random(20)
    site.start()
    runs = site.root / "runs"
    runs.mkdir()
    script = f"echo start >> {runs}/$COTENANT_JOB_ID; sleep 0.2; echo end >> {runs}/$COTENANT_JOB_ID"
    promised: list[int] = []
    for _ in range(20):
        killer = threading.Timer(rng.uniform(0.0, 0.25), site.daemon.kill)
        try:
            while True:
                promised += [view["id"] for view in site.client.submit([site.job(script, declared_bytes=4 * 2**30)])]
                if killer.ident is None:  # one submission in every life, however slow the machine
                    killer.start()
                if len(promised) % 7 == 6:
                    site.client.wait(promised[-1], until="started", timeout_s=1)
        except CotenantError:
            pass
        killer.join()
        site.daemon.wait(TIMEOUT_S)
        before = {view["id"]: view["state"] for view in site.start().client.jobs()}
        assert set(promised) <= before.keys()
    for job_id in {view["id"] for view in site.client.jobs()}:
        view = site.wait(job_id)
        assert view["state"] == "COMPLETED", view
        assert (runs / str(job_id)).read_text().split() == ["start", "end"], view
    assert len(promised) >= 20


def test_a_crash_between_decision_and_launch_runs_the_job_once(server):
    """An attempt that is in the journal but was never handed to the engine starts anew."""
    gate = server.gate()
    jobs = [server.submit(gate, exclusive=True) for _ in range(2)]
    for job in jobs:
        server.started(job)
    waits = server.submit("echo ran >> ran")
    server.kill()
    server.open_gate(gate)
    journal = SqliteJournal(server.root / "state" / "cotenant" / "journal.db")
    uuid = next(event for event in journal.replay() if isinstance(event, AttemptPlaced)).placement.gpu_uuids[0]
    placement = Placement(job_id=waits, gpu_uuids=(uuid,), sharing="time-sliced", promised_bytes=2**30)
    journal.append([AttemptPlaced(at_s=time.time(), cause="test", job_id=waits, attempt=1, placement=placement)])
    journal.close()
    server.start()
    view = server.wait(waits)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    assert view["attempt_list"][0]["exit"]["reason"] == "never-ran"
    assert (server.root / "ran").read_text() == "ran\n"


def test_a_full_disk_refuses_submissions_and_loses_no_exit(site):
    site.set_constant("cotenant.daemon.journal_writer", "RESERVE_RETRY_S", 0.2)
    server = site.start()
    gate = server.gate()
    job = server.submit(f"{gate}; exit 6")
    server.started(job)
    soft, hard = resource.prlimit(server.daemon.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.daemon.pid, resource.RLIMIT_FSIZE, (0, hard))
    refused = server.cli("submit", "--gpu-mem", "1G", "--json", "--", "true")
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["kind"] == "JournalError"
    cancelled = server.cli("cancel", str(job))
    assert (cancelled.returncode, server.client.job(job)["state"]) == (1, "RUNNING")
    server.open_gate(gate)
    # The runner has written the result; the daemon knows of it and cannot keep it.
    wait_for_file(server.root / f"state/cotenant/attempts/{job}/1/result.json")
    assert server.client.job(job)["state"] == "RUNNING"
    assert server.client.status()["journal_error"]
    resource.prlimit(server.daemon.pid, resource.RLIMIT_FSIZE, (soft, hard))
    assert (server.wait(job)["state"], server.client.job(job)["exit_code"]) == ("FAILED", 6)
    while server.client.status()["journal_error"]:  # until the reserve is there again, submissions are refused
        time.sleep(0.05)
    assert server.wait(server.submit("true"))["state"] == "COMPLETED"
    assert [view["id"] for view in server.client.jobs()] == [1, 2]


def test_ctrl_c_in_run_cancels_the_job(server):
    client = server.popen("run", "--gpu-mem", "1G", "--", "sh", "-c", "echo up; sleep 1000")
    assert client.stdout.readline() == "up\n"
    client.send_signal(signal.SIGINT)
    _, err = client.communicate(timeout=TIMEOUT_S)
    assert (client.returncode, err.splitlines()[-1]) == (130, "job 1: cancelled")
    assert server.wait(1)["state"] == "CANCELLED"


def test_ctrl_c_in_wait_and_logs_leaves_the_job_alone(server):
    job = server.submit("echo up; sleep 1000")
    server.started(job)
    follower = server.popen("logs", "-f", str(job))
    assert follower.stdout.readline() == "up\n"
    waiter = server.popen("wait", str(job))
    for client in (follower, waiter):
        wait_for_connection(client)
    for client in (follower, waiter):
        client.send_signal(signal.SIGINT)
        assert client.communicate(timeout=TIMEOUT_S) == ("", "")
        assert client.returncode == 130
    assert server.client.job(job)["state"] == "RUNNING"


def test_a_closed_pipe_is_no_error(server):
    for _ in range(3):
        server.submit("sleep 1000")
    lister = server.popen("ls")
    lister.stdout.close()
    assert (lister.wait(TIMEOUT_S), lister.stderr.read()) == (141, "")


def test_state_and_socket_are_private(server):
    server.wait(server.submit("true", env={**server.env, "WANDB_API_KEY": "hunter2"}))
    assert "hunter2" not in server.log.read_text()
    assert "hunter2" not in json.dumps(server.client.job(1)) + json.dumps(server.client.jobs())
    journal = server.root / "state" / "cotenant" / "journal.db"
    assert journal.stat().st_mode & 0o077 == 0
    assert journal.parent.stat().st_mode & 0o077 == 0


def wait_for_file(path):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def wait_for_connection(client):
    """Until a client has a socket: its own, since the test's client keeps connections, too."""

    def has_socket():
        for path in Path(f"/proc/{client.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                if str(path.readlink()).startswith("socket:"):
                    return True
        return False

    give_up_s = time.monotonic() + TIMEOUT_S
    while not has_socket():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
