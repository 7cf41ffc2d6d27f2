"""A user's estimator processes run the user's code: what it writes, reads, holds and starts harms nobody else."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import subprocess
import time
from functools import partial

import psutil
import pytest

from benchmarks._lib.attackers import FORGER, HANGING_PYTHON
from benchmarks._lib.forgeries import forged_bytes
from cotenant.core.codec import encode
from cotenant.core.estimate import Estimate
from people import start_for_all

TIMEOUT_S = 60
GROWTH_BYTES = 32 * 2**20
HONEST = Estimate(
    peak_allocated_bytes=5,
    peak_reserved_bytes=10,
    context_bytes=3,
    margin_bytes=1,
    coverage=0.99,
    estimator="traced",
    version="1",
    gpu="A100-40GB",
)


def forged(text):
    """The line of an honest answer with `text`, which need not be JSON, as `peak_reserved_bytes`."""
    return json.dumps({"estimate": {**encode(HONEST), "peak_reserved_bytes": "HERE"}}).replace('"HERE"', text).encode()


FORGED = {
    "an integer of 4000 digits": forged("1" + "0" * 4000),
    "NaN": json.dumps({"estimate": {**encode(HONEST), "coverage": float("nan")}}).encode(),
    "a negative number": forged("-1"),
    "a boolean": forged("true"),
    "a text": forged('"12"'),
    "a pebibyte": forged(str(2**50)),
    "100,000 brackets": b"[" * 100_000,
    "a line of 1 MiB": b"x" * 2**20,
    "bytes that are no text": b"\xff\xfe\xfd",
}


def a_hanging_job(person):
    """Id of a held job whose estimate does not end by itself."""
    (person.home / "train.py").touch()
    person.write("python", HANGING_PYTHON).chmod(0o755)
    done = person.cli("submit", "--parsable", "-H", "--", "./python", "train.py")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@contextlib.contextmanager
def forging(person, lines):
    """A process of `person` that writes each of `lines` as the answer of one of their estimator processes."""
    path = person.write("forged", "\n".join(base64.b64encode(line).decode() for line in lines) + "\n")
    with person.popen(person.site.command[0], "-c", FORGER, str(path), stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def eventually(compute, *, wanted=bool):
    """The first value of `compute` that is wanted."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not wanted(value := compute()):
        assert time.monotonic() < give_up_s, value
        time.sleep(0.05)
    return value


def estimate_error(site, job_id):
    return eventually(lambda: site.client.job(job_id)["estimate_error"])


def has_estimate_or_error(site, job_id):
    view = site.client.job(job_id)
    return view["estimate"] is not None or view["estimate_error"] is not None


def test_forged_answers_are_refused_and_survive_a_crash(people):
    *_, bob, eve = people
    site = eve.site
    with forging(eve, FORGED.values()):
        errors = {name: estimate_error(site, a_hanging_job(eve)) for name in FORGED}
    refused = {name for name, error in errors.items() if error.startswith("the estimator's answer is refused: ")}
    assert refused == FORGED.keys(), errors
    job = bob.submit("--", "true")
    assert bob.cli("wait", job).returncode == 0
    site.kill()
    start_for_all(site)
    assert {site.client.job(number + 1)["estimate_error"] for number in range(len(FORGED))} == set(errors.values())
    assert bob.cli("wait", bob.submit("--", "true")).returncode == 0


def test_random_answers_over_the_real_pipe_harm_nobody(people):
    *_, bob, eve = people
    site = eve.site
    rng = random.Random(15)
    lines = [forged_bytes({"estimate": encode(HONEST)}, rng).replace(b"\n", b" ") for _ in range(12)]
    daemon = psutil.Process(site.daemon.pid)
    with forging(eve, lines):
        for _ in lines:
            job_id = a_hanging_job(eve)
            eventually(partial(has_estimate_or_error, site, job_id))
            site.client.cancel(job_id)
    assert daemon.is_running()
    assert "Traceback" not in site.log.read_text()
    assert bob.cli("wait", bob.submit("--", "true")).returncode == 0


def owned_children(site):
    """The daemon's descendants that other users own: command line and environment by process."""
    found = {}
    for process in psutil.Process(site.daemon.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.uids().real != 0:
                found[process] = " ".join(process.cmdline()), process.environ()
    return found


def test_root_s_environment_reaches_no_process_of_a_user(site, people_of):
    site.env |= {"ROOT_SECRET": "hunter2", "COTENANT_NOTIFICATIONS__ENABLED": "true"}
    start_for_all(site)
    _, _, eve = people_of(site)
    a_hanging_job(eve)
    eve.write("notify", "#!/bin/sh\nsleep 1000\n").chmod(0o755)
    eve.submit("--progress", "tqdm", "--", "sleep", "1000")
    eve.submit("--notify", str(eve.home / "notify"), "--", "true")
    kinds = ("cotenant.estimators", "sleep 1000", "progress.py", "notify")

    def seen():
        children = owned_children(site)
        lines = [line for line, _ in children.values()]
        return children if all(any(kind in line for line in lines) for kind in kinds) else None

    children = eventually(seen)
    for line, environment in children.values():
        assert "hunter2" not in environment.values(), line
    readable = eve.run("sh", "-c", "cat /proc/[0-9]*/environ 2>/dev/null", text=False).stdout
    assert b"HOME=" in readable
    assert b"hunter2" not in readable
    for process, (line, _) in children.items():
        if "notify" in line:  # the daemon's end waits for notifications in flight
            process.kill()


def test_an_estimate_has_the_limits_of_the_submitting_shell(shared_people):
    eve = shared_people[2]
    (eve.home / "train.py").touch()
    eve.write("python", f"#!/bin/sh\nulimit -Sn >{eve.home}/limits; ulimit -Hn >>{eve.home}/limits\n").chmod(0o755)
    command = " ".join((*eve.site.command, "submit", "--dry-run", "./python", "train.py"))
    eve.run("sh", "-c", f"ulimit -Sn 400; ulimit -Hn 500; exec {command}")
    assert (eve.home / "limits").read_text().split() == ["400", "500"]


ESCAPE = """#!/bin/sh
env -i setsid sh -c 'setsid sleep 1000 & echo $! >{home}/escaped' </dev/null >/dev/null 2>&1
pkill -KILL -f parent_watchdog.py 2>{home}/refusals
touch {home}/tried
exec sleep 1000
"""
"""Starts a process outside of its session, without its environment, and then tries to kill its watchdog."""


def test_what_an_estimate_starts_ends_with_it(shared_people):
    eve = shared_people[2]
    site = eve.site
    (eve.home / "train.py").touch()
    eve.write("python", ESCAPE.format(home=eve.home)).chmod(0o755)
    job = eve.cli("submit", "--parsable", "-H", "--", "./python", "train.py").stdout.strip()
    unrelated = eve.popen("sleep", "1000")
    try:
        eventually((eve.home / "tried").exists)
        escaped = psutil.Process(int((eve.home / "escaped").read_text()))
        site.client.cancel(int(job))
        gone, _ = psutil.wait_procs([escaped], timeout=TIMEOUT_S)
        assert gone == [escaped]
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()
    assert "not permitted" in (eve.home / "refusals").read_text().lower()


@pytest.mark.parametrize("flood", ["x", " ", "\\n"], ids=["a line without end", "spaces", "lines"])
def test_a_flood_does_not_grow_the_daemon(shared_people, flood):
    eve = shared_people[2]
    site = eve.site
    daemon = psutil.Process(site.daemon.pid)
    eve.cli("ls")
    before = daemon.memory_info().rss
    with forging(eve, [flood.encode().decode("unicode_escape").encode() * 2**26]):
        assert "the estimator's answer is refused" in estimate_error(site, a_hanging_job(eve))
    assert daemon.memory_info().rss - before < GROWTH_BYTES


def test_slow_scripts_of_one_user_do_not_delay_another(shared_people):
    ann, _, eve = shared_people
    jobs = [a_hanging_job(eve) for _ in range(3)]
    done = ann.cli("submit", "--dry-run", "--", "python3", "absent.py")
    assert "no script `absent.py`" in done.stdout + done.stderr
    for job_id in jobs:
        assert eve.site.client.job(job_id)["estimate_error"] is None
        eve.site.client.cancel(job_id)
