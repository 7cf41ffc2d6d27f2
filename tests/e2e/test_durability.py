"""The daemon survives reboots, full disks and power cuts during writes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

from cotenant.core.errors import JournalError
from cotenant.osutil import procfs
from places import until

FILLER = "filler"


def power_cut(site):
    """End the daemon, its runners and all of its jobs at once, as a machine that goes down."""
    site.kill()
    claims = [json.loads(path.read_text()) for path in (site.root / "state").rglob("attempts/*/*/claim")]
    runners = {claim["process"]["pid"] for claim in claims if "process" in claim}
    for number in (signal.SIGSTOP, signal.SIGKILL):  # nobody sees another one end
        for pid in runners:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        for pid, _ in site.left_behind():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
    while site.left_behind():
        pass


def after_reboot(site):
    """What is kept of processes is of an earlier boot now."""
    old, new = procfs.boot_id().encode(), b"00000000-0000-4000-8000-000000000000"
    changed = 0
    for path in (site.root / "state").rglob("*"):
        if path.is_file() and "attempts" in path.parts and old in (text := path.read_bytes()):
            path.write_bytes(text.replace(old, new))
            changed += 1
    assert changed, "no attempt has noted which boot it is of"


def test_a_reboot_loses_running_attempts_only(server):
    done = server.submit("true")
    server.wait(done)
    gate = server.gate()
    lost = server.submit(f"{gate}; echo never", declared_bytes=20 * 2**30)
    again = server.submit(f"echo run >> runs; {gate}", declared_bytes=20 * 2**30, requeue=True)
    for job in (lost, again):
        server.started(job)
    until((server.root / "runs").is_file, "its shell has come to its first command")
    whole = [server.submit("true", exclusive=True) for _ in range(2)]
    after = server.submit("true", after=[lost])
    anyway = server.submit("true", after_any=[lost])
    held = server.submit("true", hold=True)
    pid = server.client.job(again)["attempt_list"][0]["pid"]
    power_cut(server)
    after_reboot(server)
    server.start()
    view = server.wait(lost)
    assert view["state"] == "LOST", view["reason"]
    assert "the machine restarted" in server.client.job(lost)["reason"]
    server.open_gate(gate)
    view = server.wait(again)
    assert (view["state"], view["attempts"]) == ("COMPLETED", 2)
    assert view["attempt_list"][0]["pid"] == pid
    assert (server.root / "runs").read_text() == "run\nrun\n"
    assert {server.wait(job)["state"] for job in (*whole, anyway)} == {"COMPLETED"}
    assert server.wait(after)["state"] == "CANCELLED"
    assert server.client.job(held)["state"] == "HELD"
    assert server.client.job(done)["state"] == "COMPLETED"


def test_a_process_with_a_runners_pid_after_a_reboot_is_left_alone(server):
    gate = server.gate()
    job = server.submit(gate)
    pid = server.started(job)["attempt_list"][0]["pid"]
    power_cut(server)
    after_reboot(server)
    unrelated = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        for path in (server.root / "state").rglob("*"):
            if path.is_file() and "attempts" in path.parts:
                path.write_bytes(path.read_bytes().replace(f'"pid": {pid}'.encode(), b'"pid": %d' % unrelated.pid))
        server.start()
        view = server.wait(job)
        assert view["state"] == "LOST", view["reason"]
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


@pytest.mark.parametrize("torn", [b"", b'{"exit_co', b"{}", b'{"reason": "exited"}', b"\0" * 300], ids=repr)
def test_a_partly_written_result_is_ignored(server, torn):
    gate = server.gate()
    job = server.submit(gate)
    server.started(job)
    attempt = next((server.root / "state").rglob("claim")).parent
    power_cut(server)
    (attempt / "result.json").write_bytes(torn)
    server.start()
    view = server.wait(job)
    assert view["state"] == "LOST", view["reason"]
    assert server.wait(server.submit("true"))["state"] == "COMPLETED"


@pytest.fixture
def small(site):
    """A site whose state is on a file system of 16 MiB; gives what fills and empties it."""
    state = site.root / "state" / "cotenant"
    state.mkdir(parents=True, mode=0o700)
    mounted = shutil.which("mount") is not None and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", str(state)], capture_output=True, check=False
    )
    if not mounted or mounted.returncode != 0:
        pytest.skip("needs the right to mount a small file system")

    def fill():
        with contextlib.suppress(OSError), (state / FILLER).open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)

    site.set_constant("cotenant.daemon.journal_writer", "RESERVE_RETRY_S", 0.2)
    site.fill, site.empty = fill, (state / FILLER).unlink
    try:
        yield site
        site.stop()
        assert site.left_behind() == []
    finally:
        if site.daemon is not None and site.daemon.poll() is None:
            site.kill()
        subprocess.run(["umount", "-l", str(state)], check=True)


def test_a_full_disk_refuses_submissions_until_there_is_space(small):
    gate = small.gate()
    small.start()
    job = small.submit(f"{gate}; exit 6")
    small.started(job)
    small.fill()
    refused = small.cli("submit", "--gpu-mem", "1G", "--json", "--", "true")
    # A page or two may have been left in the journal's files.
    taken = 0
    while refused.returncode == 0:
        taken += 1
        refused = small.cli("submit", "--gpu-mem", "1G", "--json", "--", "true")
    assert json.loads(refused.stdout)["error"]["kind"] == "JournalError"
    for words in (["ls"], ["show", str(job)], ["daemon", "status"], ["gpus"]):
        assert small.cli(*words).returncode == 0, words
    assert "no job can be submitted or started" in small.cli("daemon", "status").stderr
    small.open_gate(gate)
    view = small.wait(job)
    assert (view["state"], view["exit_code"]) == ("FAILED", 6)  # written into the space that was set aside
    small.empty()
    assert small.wait(submitted_with_space(small))["state"] == "COMPLETED"
    assert len(small.client.jobs()) == taken + 2
    assert small.client.status()["journal_error"] is None


def submitted_with_space(small):
    """A job that is accepted once the disk has room.

    Not once the status names no error: that of a refused submission stands there until something is written, and the
    space that is set aside may have been there all the time.
    """

    def accepted():
        with contextlib.suppress(JournalError):
            return small.submit("true")

    return until(accepted, "a job is accepted")


@pytest.mark.parametrize("ended", [True, False])
def test_startup_on_a_full_disk_serves_queries_and_continues_with_space(small, ended):
    gate = small.gate()
    small.start()
    job = small.submit(f"{gate}; exit 6")
    small.started(job)
    small.fill()
    small.kill()
    if ended:
        small.open_gate(gate)
        while not any((small.root / "state").rglob("attempts/*/*/result.json")):
            time.sleep(0.02)
    small.start()
    assert small.cli("show", str(job)).returncode == 0
    small.open_gate(gate)
    small.fill()
    big = small.job("true", hold=True, env=dict.fromkeys("XYZ", "x" * 100_000))
    with pytest.raises(JournalError):
        small.client.submit([big] * 100)
    assert small.client.status()["journal_error"]
    small.empty()
    assert (small.wait(job)["state"], small.client.job(job)["exit_code"]) == ("FAILED", 6)
    assert small.wait(submitted_with_space(small))["state"] == "COMPLETED"
