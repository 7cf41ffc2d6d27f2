"""Resource usage and co-run slowdowns of jobs, as a real daemon measures them on a simulated server."""

from __future__ import annotations

import json
import math
import re
import time

import pytest

from cotenant.scheduling.prediction.interference import GpuActivity, PriorInterference
from cotenant.sim.workloads import pair_speeds, workload

VICTIM, BULLY = "xception_imagenet_bs32", "vgg16_imagenet_bs128"
SLOWDOWN = 1.0 / pair_speeds()[VICTIM, BULLY]
"""Measured on an A100, and what the simulated server makes of the two."""

LONG = "1e6"
ENOUGH_S = 1.5
"""Three times what teaches on a server whose time runs sixty times as fast."""
TIMEOUT_S = 60


@pytest.fixture
def packed(site):
    """A server with one GPU, which all share."""
    return site.start("--policy", "most-memory", simulate="1xA100-40GB")


def train(site, name, seconds, **fields):
    gib = workload(name).peak_bytes / 2**30 + 1
    return site.simulated("--workload", name, "--duration", seconds, "--delay", "5", gib=gib, **fields)


def beside(view):
    return {tuple(co_run["neighbor_ids"]): co_run for attempt in view["attempt_list"] for co_run in attempt["co_runs"]}


def in_explain(site, job, word):
    """The slowdown that `explain` tells of, or None."""
    match = re.search(rf"([\d.]+) times as long {word}", site.client.explain(job)["reason"])
    return None if match is None else float(match[1])


def waits_for(look):
    """What `look` gives as soon as it is something; the jobs it looks at run as long as it takes."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while (found := look()) is None:
        assert time.monotonic() < give_up_s
        time.sleep(0.05)
    return found


def ends_when(site, job, neighbor_ids):
    """Cancel `job` once it has told of its steps beside `neighbor_ids` for long enough to teach; its view then."""

    def seen():
        match = beside(site.client.job(job)).get(neighbor_ids)
        return match if match is not None and match["seconds"] >= ENOUGH_S and match["steps_hz"] else None

    waits_for(seen)
    site.client.cancel(job)
    return site.wait(job)


def test_slowdowns_are_measured_and_learned(packed):
    site = packed
    alone = [ends_when(site, train(site, script, LONG, exclusive=True), ()) for script in (VICTIM, BULLY)]
    smacts = [attempt["usage"]["smact"] for attempt in alone]
    cold = PriorInterference().slowdowns([GpuActivity(smact=smact) for smact in smacts])[0]

    victim = train(site, VICTIM, LONG)
    bully = train(site, BULLY, LONG)
    view = ends_when(site, victim, (bully,))
    site.client.cancel(bully)
    site.wait(bully)
    together = beside(view)[bully,]
    assert together["slowdown"] == pytest.approx(SLOWDOWN, rel=0.05)
    assert (
        f"{together['slowdown']:.2f} times as long a step beside job {bully}" in site.cli("events", str(victim)).stdout
    )
    works = json.loads(site.cli("history", "--by", "workload", "--json").stdout)["workload"]
    (known,) = [work for work in works if VICTIM in work["workload"]]
    assert known["co_runs"][0]["slowdown"] == pytest.approx(SLOWDOWN, rel=0.05)
    assert known["steps_hz"] == pytest.approx(60.0, rel=0.05), "a second of its time a step, sixty times as fast"
    assert known["sensitivity"] > 1

    again = train(site, VICTIM, LONG), train(site, BULLY, LONG)
    for job in again:
        site.started(job)
    learned = in_explain(site, again[0], "predicted")
    assert abs(math.log(learned / SLOWDOWN)) < 0.5 * abs(math.log(cold / SLOWDOWN)), (cold, learned, SLOWDOWN)
    assert waits_for(lambda: in_explain(site, again[0], "measured")) == pytest.approx(SLOWDOWN, rel=0.1)


def test_energy_is_charged_to_jobs_and_users_and_survives_a_restart(packed):
    site = packed
    jobs = [train(site, VICTIM, LONG), train(site, BULLY, LONG)]
    for job in jobs:
        site.started(job)

    def usage_of(job):
        return site.client.job(job)["usage"] or {"gpu_s": 0.0, "gpu_share_s": 0.0, "energy_j": None}

    def have_overlapped():
        usages = [usage_of(job) for job in jobs]
        is_done = all(usage["gpu_share_s"] < usage["gpu_s"] and usage["energy_j"] for usage in usages)
        return usages[0]["gpu_s"] if is_done else None

    before_s = waits_for(have_overlapped)
    site.stop()
    site.start("--policy", "most-memory", simulate="1xA100-40GB")
    waits_for(lambda: usage_of(jobs[0])["gpu_s"] > before_s or None)
    for job in jobs:
        site.client.cancel(job)
    views = [site.wait(job) for job in jobs]
    for view in views:
        usage = view["usage"]
        assert 0 < usage["idle_energy_j"] < usage["energy_j"]
        assert 49.5 / 2 < usage["power_w"] < 49.5 + 225.6
        assert usage["gpu_share_s"] < usage["gpu_s"], "they shared a GPU for some of the time"
    assert views[0]["usage"]["gpu_s"] > before_s, "what was accumulated before the restart counts"
    charged_j = sum(view["usage"]["energy_j"] for view in views)
    (user,) = site.client.usage("user")
    assert user["energy_j"] == pytest.approx(charged_j)
    assert user["jobs"] == 2
    spent_j = max(gpu["energy_j"] for gpu in site.client.gpus())
    assert charged_j < spent_j
    rows = json.loads(site.cli("history", "--json").stdout)["jobs"]
    assert [row["usage"]["energy_j"] for row in rows] == [view["usage"]["energy_j"] for view in views]
    text = site.cli("history", "--by", "user").stdout
    assert f"{charged_j / 3.6e6:.3f}" in text


def test_steps_are_found_in_the_output(packed):
    job = train(packed, VICTIM, "360", progress=r"(\d+) %")
    view = packed.wait(job)
    rate_hz = beside(view)[()]["steps_hz"]
    assert rate_hz == pytest.approx(100 / (355 / 60), rel=0.3), "a percent a step, looked at twice a second"
    assert view["progress"] == r"(\d+) %"


def test_a_pattern_that_finds_nothing_is_refused(packed):
    done = packed.cli("submit", "--progress", "step", "--gpu-mem", "1G", "--", "true")
    assert done.returncode == 2
    assert "error: `step` has no group that finds a number" in done.stderr
    assert packed.client.jobs() == []


def test_the_history_of_gpus_is_shown(packed):
    (gpu,) = waits_for(lambda: packed.client.gpus() or None)  # listed from the first sample on
    began_j = gpu["energy_j"]
    train(packed, BULLY, LONG)
    points = waits_for(lambda: _at_work(packed.client.gpu_history(600.0)))
    assert points[-1]["smact"] == pytest.approx(workload(BULLY).smact, abs=0.02)
    spent_j = sum(point["energy_j"] for point in points if point["energy_j"] is not None)
    now_j = packed.client.gpus()[0]["energy_j"]
    assert 0.5 * (now_j - began_j) <= spent_j <= now_j, "no reading is left out"
    assert packed.cli("gpus", "--history", "9999-00").returncode == 0, "as long as anybody asks for"
    table = packed.cli("gpus", "--history", "10").stdout.splitlines()
    assert [line.split()[1] for line in table[1:5]] == ["memory", "SMACT", "power", "energy"]


def _at_work(gpus):
    """The points of the GPU, once the newest two were at work."""
    points = gpus[0]["points"]
    return points if len(points) > 2 and min(point["smact"] or 0.0 for point in points[-2:]) > 0.5 else None
