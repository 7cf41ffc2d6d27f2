"""Jobs of two GPUs on a daemon with two hosts of two GPUs each: never across hosts."""

from __future__ import annotations

import pytest

from host_sites import hosts_site
from places import until

BIG = 30 * 2**30  # no two fit on a GPU of 40 GiB
GATE = "until [ -e {0}.open ]; do sleep 0.05; done; echo $CUDA_VISIBLE_DEVICES >{0}"


@pytest.fixture
def site(tmp_path_factory):
    site = hosts_site(tmp_path_factory.mktemp("h"), {"n1": "", "n2": ""}, gpus="2xA100-40GB")
    site.start(simulate=None)
    until(lambda: len(site.client.gpus()) == 4, "both hosts are heard of")
    yield site
    site.stop()
    site.kill_left_behind()


def hosts_of(site, job_id):
    """The host of each of its GPUs."""
    return [gpu["server"] for gpu in site.client.gpus() if job_id in [job["job_id"] for job in gpu["residents"]]]


def gated(site, name, gpus):
    """A job that runs until its gate is opened, and then writes which GPUs it has."""
    return site.submit(GATE.format(site.root / name), gpus=gpus, declared_bytes=BIG)


def open_gates(site, *names):
    for name in names:
        (site.root / f"{name}.open").touch()


def test_each_of_two_gangs_gets_the_gpus_of_one_host(site):
    first, second = gated(site, "first", 2), gated(site, "second", 2)
    for job_id in (first, second):
        assert site.started(job_id)["state"] == "RUNNING"
    found = [hosts_of(site, job_id) for job_id in (first, second)]
    assert sorted(found) == [["n1", "n1"], ["n2", "n2"]]
    uuids = [site.client.job(job_id)["gpu_uuids"] for job_id in (first, second)]
    open_gates(site, "first", "second")
    assert [site.wait(job_id)["state"] for job_id in (first, second)] == ["COMPLETED", "COMPLETED"]
    assert [(site.root / name).read_text().strip() for name in ("first", "second")] == [",".join(of) for of in uuids]


def test_a_gang_waits_while_no_host_has_two_free_gpus(site):
    singles = [gated(site, f"single{number}", 1) for number in range(3)]
    for job_id in singles:
        site.started(job_id)
    waits = gated(site, "gang", 2)
    until(lambda: "2 GPUs of one host" in str(site.client.job(waits)["reason"]), "it is explained")
    by_host = {}
    for number, job_id in enumerate(singles):
        by_host.setdefault(hosts_of(site, job_id)[0], []).append(f"single{number}")
    ((_, (gone, _)), (half, _)) = sorted(by_host.items(), key=lambda item: -len(item[1]))
    open_gates(site, gone)  # two GPUs are free then, one of each host
    site.wait(singles[int(gone[-1])])
    until(lambda: site.client.job(waits)["reason"].count("2 of 4 qualify"), "two would do, were they of one host")
    assert "qualifies, but 2 GPUs of one host are needed at once" in site.cli("explain", str(waits)).stdout
    open_gates(site, by_host[half][0])
    assert site.started(waits)["state"] == "RUNNING"
    assert hosts_of(site, waits) == [half, half]
    open_gates(site, *(f"single{number}" for number in range(3)), "gang")
    assert site.wait(waits)["state"] == "COMPLETED"


def test_a_gang_that_no_host_has_gpus_for_is_held_with_the_reason(site):
    done = site.cli("submit", "--gpus", "3", "--gpu-mem", "1G", "--", "true")
    assert done.returncode == 0, done.stderr
    said = "needs 3 GPUs of one host, no host has more than 2"
    (view,) = site.client.jobs(active=True)
    until(lambda: site.client.job(view["id"])["state"] == "HELD", "it is held")
    assert said in site.client.job(view["id"])["reason"]
    assert said in done.stdout + done.stderr
    site.client.cancel(view["id"])
