"""One user cannot lock the others out of the unix socket."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import time

from people import Person, start_for_all

HOLD = """
import socket, sys
held = []
for number in range(int(sys.argv[2])):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    if number % 2:
        connection.send(b"GET / HTTP/1.1\\r\\nhost:")
    held.append(connection)
print("held", flush=True)
sys.stdin.read()
"""


def test_idle_connections_and_half_requests_of_one_user_keep_nobody_else_out(site, users):
    """With 256 descriptors, as many as a daemon may have had to serve everybody."""
    site.env["COTENANT_ACCESS__CONNECTIONS_PER_USER"] = "50"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        start_for_all(site)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    limits = (f"/proc/{site.daemon.pid}/limits",)
    with open(*limits) as file:  # noqa: PTH123
        (line,) = (line for line in file if line.startswith("Max open files"))
    soft, hard = line.split()[3:5]
    assert soft == hard
    attacker, victim = (Person(site, account) for account in users[:2])
    with contextlib.ExitStack() as stack:
        for _ in range(10):  # again, if the machine was so slow that the daemon had closed them before
            holder = attacker.popen(
                site.command[0], "-c", HOLD, str(site.socket), "400", stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.callback(holder.communicate)
            assert holder.stdout.readline() == b"held\n"
            refused = attacker.cli("ls")
            if refused.returncode:
                break
        assert refused.returncode == 1
        assert "you have 50 connections open, the limit is 50" in refused.stderr
        done = victim.cli("ls")
        assert done.returncode == 0, done.stderr
        deadline_s = time.monotonic() + 60
        while attacker.cli("ls").returncode != 0:  # until the daemon has closed those that send no request
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


def test_jobs_get_the_limit_of_open_files_that_the_daemon_was_started_with(site, users):
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
    try:
        start_for_all(site)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    job_id = site.submit("ulimit -n")
    assert site.wait(job_id)["state"] == "COMPLETED"
    assert b"".join(site.client.logs(job_id)) == b"300\n"


def test_a_removed_socket_is_made_again(people, site):
    site.socket.unlink()
    deadline_s = time.monotonic() + 60
    while not site.socket.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    done = people[0].cli("ls")
    assert done.returncode == 0, done.stderr
