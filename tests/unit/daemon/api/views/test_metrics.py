"""Prometheus metrics, read with the parser of its client library."""

from __future__ import annotations

import http.client
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cotenant.core.errors import BackendError, UsageError
from cotenant.core.job import ResourceUsage
from cotenant.daemon.api.views.metrics import MetricsSnapshot, PrometheusCollector
from cotenant.demo.slurm_cluster import free_ports

GPU = {
    "index": 1,
    "uuid": "GPU-a",
    "mig_profile": None,
    "memory_total_bytes": 100,
    "used_bytes": 40,
    "promised_bytes": 70,
    "foreign_bytes": 5,
    "available_bytes": 25,
    "smact": 0.5,
    "smocc": None,
    "drama": 0.25,
    "gract": 0.97,
    "tensor": 0.3,
    "fp32": 0.2,
    "pcie_tx_bytes_s": 4096.0,
    "pcie_rx_bytes_s": 8192.0,
    "utilization": 0.9,
    "power_w": 310.5,
    "energy_j": 12345.5,
    "sample_age_s": 0.4,
    "residents": [
        {"job_id": 7, "name": 'say "hi"\n\\', "promised_bytes": 70, "observed_bytes": 30},
        {"job_id": 8, "name": "new", "promised_bytes": 1, "observed_bytes": None},
    ],
}
UNREAD = {
    **dict.fromkeys(GPU),
    "index": 0,
    "uuid": "MIG-b",
    "mig_profile": "3g.20gb",
    "memory_total_bytes": 9,
    "promised_bytes": 0,
    "residents": [],
}
PICTURE = MetricsSnapshot(
    info={"version": "1.2.3", "policy": "most-memory"},
    jobs={"RUNNING": 2, "PENDING": 3},
    gpus=[UNREAD, GPU],
    oldest_wait_s=61.5,
    journal_ok=True,
)


def series(text):
    """Value by name and labels."""
    return {
        (sample.name.removeprefix("cotenant_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def read(picture=PICTURE):
    return series(PrometheusCollector(lambda: picture).text().decode())


def test_metrics_of_the_daemon_and_its_jobs():
    found = read()
    assert found["info", "1.2.3", "most-memory"] == 1
    assert (found["jobs", "running"], found["jobs", "pending"]) == (2, 3)
    assert found["queue_oldest_wait_seconds",] == 61.5
    assert found["journal_writable",] == 1


def test_metrics_of_an_unwritable_journal_and_an_empty_queue():
    found = read(MetricsSnapshot(info={}, jobs={}, gpus=[], oldest_wait_s=None, journal_ok=False))
    assert found == {("info",): 1, ("journal_writable",): 0}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_total_bytes", 100),
        ("memory_used_bytes", 40),
        ("memory_promised_bytes", 70),
        ("memory_foreign_bytes", 5),
        ("memory_available_bytes", 25),
        ("sm_activity_ratio", 0.5),
        ("dram_activity_ratio", 0.25),
        ("graphics_activity_ratio", 0.97),
        ("tensor_activity_ratio", 0.3),
        ("fp32_activity_ratio", 0.2),
        ("pcie_transmit_bytes_per_second", 4096.0),
        ("pcie_receive_bytes_per_second", 8192.0),
        ("utilization_ratio", 0.9),
        ("power_watts", 310.5),
        ("energy_joules_total", 12345.5),
        ("sample_age_seconds", 0.4),
        ("residents", 2),
    ],
)
def test_metrics_of_gpus(name, value):
    assert read()[f"gpu_{name}", "1", "GPU-a"] == value


def test_unknown_values_have_no_sample():
    found = read()
    assert ("gpu_sm_occupancy_ratio", "1", "GPU-a") not in found
    assert {key[0] for key in found if "MIG-b" in key} == {
        "gpu_memory_total_bytes",
        "gpu_memory_promised_bytes",
        "gpu_residents",
    }
    assert found["gpu_memory_total_bytes", "0/3g.20gb", "MIG-b"] == 9


def test_metrics_of_running_jobs():
    found = read()
    first = sorted(["7", 'say "hi"\n\\', "1", "GPU-a"])
    assert found[("job_memory_promised_bytes", *first)] == 70
    assert found[("job_memory_observed_bytes", *first)] == 30
    assert ("job_memory_observed_bytes", *sorted(["8", "new", "1", "GPU-a"])) not in found


def test_metrics_are_served_over_tcp():
    (port,) = free_ports(1)
    close = PrometheusCollector(lambda: PICTURE).listen(f"127.0.0.1:{port}")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        assert series(connection.getresponse().read().decode()) == read()
        with pytest.raises(BackendError, match="cannot listen on"):
            PrometheusCollector(lambda: PICTURE).listen(f"127.0.0.1:{port}")
    finally:
        connection.close()
        close()
    with pytest.raises(ConnectionRefusedError):
        connection.connect()


@pytest.mark.parametrize("where", ["", "localhost", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999"])
def test_a_wrong_address_for_metrics_is_refused(where):
    with pytest.raises(UsageError, match="is no address to listen on"):
        PrometheusCollector(lambda: PICTURE).listen(where)


def test_metrics_of_usage_by_job_and_user():
    used = ResourceUsage(gpu_s=100.0, gpu_share_s=60.0, sm_s=30.0, sm_known_s=100.0, energy_j=5000.0, metered_s=50.0)
    running = [
        {"job": "7", "name": "bert", "user": "ann", "usage": used, "slowdown": 1.5, "idle_s": 1900.0},
        {"job": "8", "name": "new", "user": "bob", "usage": None, "slowdown": None, "idle_s": None},
        {
            "job": "9",
            "name": "dark",
            "user": "bob",
            "usage": ResourceUsage(gpu_s=3.0),
            "slowdown": None,
            "idle_s": None,
        },
    ]
    found = read(replace(PICTURE, jobs_running=running, users={"ann": used + used, "bob": ResourceUsage(gpu_s=3.0)}))
    of_job = {name: value for (name, *labels), value in found.items() if labels == ["7", "ann", "bert"]}
    assert of_job == {
        "job_gpu_seconds": 100.0,
        "job_energy_joules": 5000.0,
        "job_power_watts": 100.0,
        "job_sm_activity_ratio": 0.3,
        "job_slowdown_ratio": 1.5,
        "job_idle_seconds": 1900.0,
    }
    assert found["job_gpu_seconds", "9", "bob", "dark"] == 3.0
    assert ("job_energy_joules", "9", "bob", "dark") not in found, "what is not known is not 0"
    assert (found["user_gpu_seconds_total", "ann"], found["user_gpu_share_seconds_total", "ann"]) == (200.0, 120.0)
    assert found["user_energy_joules_total", "ann"] == 10000.0
    assert ("user_energy_joules_total", "bob") not in found
