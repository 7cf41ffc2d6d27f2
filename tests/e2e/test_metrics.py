"""A real daemon serves Prometheus metrics over TCP and over its socket."""

from __future__ import annotations

import http.client
import socket

from prometheus_client.parser import text_string_to_metric_families

from cotenant.demo.slurm_cluster import free_ports


def scrape(connection):
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return {
        (sample.name, *(sample.labels.get(key) for key in ("state", "job", "name", "gpu", "uuid"))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_metrics_of_gpus_and_jobs_are_served(site):
    (port,) = free_ports(1)
    site.env["COTENANT_METRICS__LISTEN"] = f"127.0.0.1:{port}"
    site.start(simulate="1xA100-40GB")
    gate = site.gate()
    job = site.submit(gate, name="waits", declared_bytes=3 * 2**30)
    site.started(job)
    found = scrape(http.client.HTTPConnection("127.0.0.1", port, timeout=60))
    uuid = site.client.gpus()[0]["uuid"]
    assert found["cotenant_jobs", "running", None, None, None, None] == 1
    assert found["cotenant_job_memory_promised_bytes", None, str(job), "waits", "0", uuid] == 3 * 2**30
    assert found["cotenant_gpu_residents", None, None, None, "0", uuid] == 1
    assert found["cotenant_journal_writable", None, None, None, None, None] == 1
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.connect(str(site.socket))
    over_socket = scrape(connection).keys()
    # Series of a job appear with its first sample, which may come between the two.
    assert over_socket <= scrape(http.client.HTTPConnection("127.0.0.1", port, timeout=60)).keys()
    assert over_socket >= found.keys()
    site.open_gate(gate)
    site.wait(job)


def test_a_port_in_use_is_an_error(site):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        site.env["COTENANT_METRICS__LISTEN"] = where
        done = site.cli("daemon", "--simulate", "1xT4-16GB")
    assert done.returncode == 1
    assert f"error: cannot listen on `{where}`" in done.stderr
