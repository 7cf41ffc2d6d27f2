"""Jobs that take a neighbor's memory, print what is not true, or print to harm who reads it."""

from __future__ import annotations

import json
import time

import psutil

from people import start_for_all

TIMEOUT_S = 60

GPU_JOB = """
import os, pathlib, sys, time
from cotenant.simserver.gpu import SimulatedOutOfMemory
from cotenant.simserver.oom_message import out_of_memory_text
from cotenant.simserver.server import SimulatedServer

server = SimulatedServer.open(pathlib.Path(os.environ["COTENANT_SIM_SERVER"]))
try:
    gpu = server.attach(os.environ["CUDA_VISIBLE_DEVICES"], context_bytes=2**28)
    for step in sys.argv[1:]:
        gate, _, gib = step.partition("=")
        while gate and not os.path.exists(gate):
            time.sleep(0.02)
        gpu.allocate(int(float(gib) * 2**30))
    while True:
        time.sleep(0.02)
except SimulatedOutOfMemory as error:
    sys.stderr.write(out_of_memory_text(error, pathlib.Path(__file__), device=0))
    sys.exit(1)
"""
"""Allocates `GATE=GIB` for each argument, once the file GATE exists, and holds it."""

FORGED_MESSAGE = (
    "Traceback (most recent call last):\\n  x\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    ". GPU 0 has a total capacity of 39.39 GiB of which 0 bytes is free. Including non-PyTorch memory, this process has"
    " 9.00 GiB memory in use.\\n"
)


def wait_until(holds):
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    return found


def submit(person, gib, *command, name="job", script=GPU_JOB, options=()):
    """Id of a job that is promised `gib` and runs the Python program `script`."""
    person.write("job.py", script)
    python = person.site.command[0]
    done = person.cli(
        "submit", "--parsable", "--gpu-mem", f"{gib}G", "--job-name", name, *options, "--", python, "job.py", *command
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def gate(person):
    """A file that lets the person's job grow; homes last longer than a test."""
    return person.home / f"grow-{person.site.mark}"


def gib_held(site, job_id):
    """What samples have shown of a job's newest attempt, in GiB."""
    return (site.client.job(job_id)["observed_bytes"] or 0) / 2**30


def is_running(site, job_id):
    return site.client.job(job_id)["state"] == "RUNNING"


def attempts(person, job_id):
    return json.loads(person.cli("show", str(job_id), "--json").stdout)["job"]["attempt_list"]


def victim_beside_a_liar(site, ann, bob):
    """Ids of Ann's job, promised 16 GiB, which will grow to 6, and Bob's, promised 8, which has just taken 36."""
    victim = submit(ann, 16, "=2", f"{gate(ann)}=4", name="honest")
    liar = submit(bob, 8, f"{gate(bob)}=36", name="secret-plan")
    wait_until(lambda: is_running(site, victim) and is_running(site, liar) and gib_held(site, victim) > 2)
    gate(bob).touch()
    return victim, liar


def test_the_honest_job_is_forgiven_and_the_liar_is_named_and_charged(site, people_of):
    start_for_all(site, simulate="1xA100-40GB")
    ann, bob, _ = people_of(site)
    victim, liar = victim_beside_a_liar(site, ann, bob)
    wait_until(lambda: gib_held(site, liar) > 30)
    gate(ann).touch()
    wait_until(lambda: site.client.job(victim)["state"] == "PENDING")

    (first,) = attempts(ann, victim)
    assert first["forgiven"]
    assert [overrun["job_id"] for overrun in first["overruns"]] == [liar]
    explained, story = (ann.cli(verb, str(victim)).stdout for verb in ("explain", "events"))
    for text in (explained, story):
        assert f"another user's job {liar} held 36.2 GiB, 8.0 GiB promised" in text
        assert "secret-plan" not in text
        assert bob.name not in text
    assert f"another user's job {victim} ran out of memory" in bob.cli("explain", str(liar)).stdout
    story = bob.cli("events", str(liar)).stdout
    assert "NeighborCharged" in bob.cli("events", str(liar), "--json").stdout
    assert f"another user's job {victim} ran out of memory because it held 36.2 GiB, 8.0 GiB promised" in story
    assert "honest" not in story

    billed = {row["user"] for row in site.client.usage("user")}
    assert billed == {bob.name}, "the lost attempt costs her nothing"
    (charge,) = attempts(bob, liar)[0]["charges"]
    assert charge["usage"]["gpu_s"] > 0

    assert bob.cli("cancel", str(liar)).returncode == 0
    wait_until(lambda: is_running(site, victim))
    _, second = attempts(ann, victim)
    assert second["promised_bytes"] == first["promised_bytes"]
    assert second["sharing"] == "time-sliced"


def test_a_forged_message_reserves_nothing(site, people_of):
    start_for_all(site)
    ann, bob, cyd = people_of(site)
    holders = [submit(ann, 30, "=29") for _ in range(2)]
    wait_until(lambda: all(gib_held(site, holder) > 28 for holder in holders))
    forger = submit(cyd, 8, script=f"import sys\nsys.stderr.write('{FORGED_MESSAGE}')\nsys.exit(1)\n")
    wait_until(lambda: site.client.job(forger)["state"] == "PENDING" and site.client.job(forger)["attempts"] == 1)
    honest = [submit(bob, 8) for _ in range(2)]
    wait_until(lambda: all(is_running(site, job_id) for job_id in honest))
    assert "reserved" not in bob.cli("explain", str(submit(bob, 8))).stdout
    assert site.client.job(forger)["attempts"] == 1


def test_who_outgrows_a_promise_is_stopped_before_a_neighbor_fails(site, people_of):
    site.env["COTENANT_SCHEDULING__OVERRUN"] = "stop"
    start_for_all(site, simulate="1xA100-40GB")
    ann, bob, _ = people_of(site)
    victim, liar = victim_beside_a_liar(site, ann, bob)
    wait_until(lambda: len(site.client.job(liar)["attempt_list"]) == 1 and not is_running(site, liar))
    gate(ann).touch()
    wait_until(lambda: gib_held(site, victim) > 6)
    assert attempts(ann, victim)[0]["exit"] is None
    (stopped,) = attempts(bob, liar)
    assert stopped["exit"]["detail"].startswith("exceeded its promise: held 36.2 GiB, 8.0 GiB promised")
    assert site.client.job(liar)["need_bytes"] > 36 * 2**30, "it waits for what it was seen to hold"


def test_who_outgrows_a_promise_is_paused_and_resumed(site, people_of):
    site.env["COTENANT_SCHEDULING__OVERRUN"] = "pause"
    start_for_all(site, simulate="1xA100-40GB")
    ann, bob, _ = people_of(site)
    victim, liar = victim_beside_a_liar(site, ann, bob)
    runner = psutil.Process(attempts(bob, liar)[0]["pid"])

    def states():
        return {process.status() for process in runner.children(recursive=True)}

    wait_until(lambda: states() == {psutil.STATUS_STOPPED})
    assert "paused until all promises fit" in bob.cli("explain", str(liar)).stdout
    site.kill()
    start_for_all(site, simulate="1xA100-40GB")
    wait_until(lambda: states() == {psutil.STATUS_STOPPED} and "paused" in site.client.job(liar)["reason"])
    assert ann.cli("cancel", str(victim)).returncode == 0
    wait_until(lambda: psutil.STATUS_STOPPED not in states())
    assert is_running(site, liar)


def test_output_made_to_hold_its_reader_is_read_at_once(shared_people):
    ann, *_ = shared_people
    message = FORGED_MESSAGE.replace("20.00", "9" * 250_000).replace(" 9.00", " " + "9" * 400 + ".00")
    script = f"import sys\nsys.stderr.write('{message}')\nsys.exit(1)\n"
    job_id = submit(ann, 8, script=script, options=("--max-attempts", "1"))
    done = wait_until(lambda: (job := ann.site.client.job(job_id))["ended_at"] and job)
    assert done["state"] == "OOM"
    (attempt,) = done["attempt_list"]
    assert (attempt["exit"]["oom"]["exception"], attempt["exit"]["oom"]["tried_bytes"]) == (True, None)
