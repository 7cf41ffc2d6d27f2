"""Readings of the GPUs: attribution of memory to jobs, and failed readings."""

from __future__ import annotations

import threading

import pytest

from builders import a_gpu
from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptSample
from cotenant.core.gpu import GpuProcess, GpuSample
from cotenant.core.ports import AttemptRef
from cotenant.daemon.monitoring.monitor import INVENTORY_EVERY, Monitor

GPUS = (a_gpu(0), a_gpu(1))


class Backend:
    name = "fake"

    def __init__(self):
        self.gpus = GPUS
        self.inventories = 0
        self.error = None
        self.processes = ()

    def inventory(self):
        self.inventories += 1
        return self.gpus

    def sample(self, at_s):
        if self.error is not None:
            raise self.error
        return {gpu.uuid: GpuSample(at_s=at_s, used_bytes=5, processes=self.processes) for gpu in self.gpus}


class Engine:
    def __init__(self, owners=None):
        self.known = owners or {}

    def owners(self, pids):
        return {pid: self.known[pid] for pid in pids if pid in self.known}


def a_monitor(backend, engine=None, **changes):
    settings = {"tick_s": 1.0, "now": lambda: 7.0, "emit": lambda _: None, **changes}
    return Monitor(backend, engine or Engine(), **settings)


def test_bytes_are_summed_by_attempt_and_gpu_without_foreign_processes():
    ours = AttemptRef(job_id=3, attempt=2)
    backend = Backend()
    backend.processes = tuple(
        GpuProcess(pid=pid, used_bytes=used) for pid, used in [(1, 10), (2, 5), (3, 99), (4, None)]
    )
    event = a_monitor(backend, Engine({1: ours, 2: ours, 4: ours})).read()
    assert event.at_s == 7.0
    assert set(event.observed) == {AttemptSample(job_id=3, attempt=2, gpu_uuid=gpu.uuid, used_bytes=15) for gpu in GPUS}


@pytest.mark.parametrize("error", [BackendError("lost"), RuntimeError("a bug")], ids=["backend", "bug"])
def test_a_failed_reading_has_no_samples(error):
    backend = Backend()
    monitor = a_monitor(backend)
    backend.error = error
    event = monitor.read()
    assert (event.gpus, event.samples, event.observed) == (GPUS, {}, ())
    backend.error = None
    assert set(monitor.read().samples) == {gpu.uuid for gpu in GPUS}


def test_a_reading_without_process_owners_has_no_samples():
    class Broken(Engine):
        def owners(self, pids):
            raise BackendError("no /proc")

    backend = Backend()
    backend.processes = (GpuProcess(pid=1, used_bytes=10),)
    assert a_monitor(backend, Broken()).read().samples == {}


def test_inventory_is_read_periodically_and_after_every_failure():
    backend = Backend()
    monitor = a_monitor(backend)
    for _ in range(INVENTORY_EVERY):
        monitor.read()
    assert backend.inventories == 2  # at the start, and with the first reading
    monitor.read()
    assert backend.inventories == 3
    backend.error = BackendError("lost")
    monitor.read()
    backend.error = None
    backend.gpus = GPUS[:1]
    assert monitor.read().gpus == GPUS[:1]


def test_failure_and_recovery_are_logged_once_each(caplog):
    caplog.set_level("INFO")
    backend = Backend()
    monitor = a_monitor(backend)
    backend.error = BackendError("lost")
    for _ in range(3):
        monitor.read()
    backend.error = None
    for _ in range(3):
        monitor.read()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_poke_triggers_a_reading_before_the_tick():
    emitted = threading.Semaphore(0)
    monitor = a_monitor(Backend(), tick_s=1000.0, emit=lambda _: emitted.release())
    monitor.start()
    assert emitted.acquire(timeout=60)
    monitor.poke()
    assert emitted.acquire(timeout=60)
    monitor.close()
