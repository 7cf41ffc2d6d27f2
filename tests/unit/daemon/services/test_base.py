"""Several services act as one: environments merge in order, every service sees every exit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builders import a_job, a_spec
from cotenant.core.events import AttemptExited
from cotenant.core.job import AttemptExit
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.daemon.services.base import AttemptService, AttemptServices, StepRate
from cotenant.daemon.services.simulated_gpus import SimulatedGpuService

PLACE = Placement(job_id=1, gpu_uuids=("GPU-a",), sharing="time-sliced", promised_bytes=1)
REF = AttemptRef(job_id=1, attempt=1)


class Recorder(AttemptService):
    def __init__(self, name, calls, rate=None):
        self.name, self.calls, self.rate = name, calls, rate

    def start(self):
        self.calls.append(f"start {self.name}")

    def prepare(self, spec, placement):
        return {"WHO": self.name, self.name: "1"}

    def observe(self, ref):
        return self.rate

    def ended(self, job, attempt, event, running):
        return replace(event, cause=f"{event.cause} {self.name}")

    def reconcile(self, running):
        self.calls.append(f"reconcile {self.name}")

    def job_done(self, job):
        self.calls.append(f"done {self.name}")

    def close(self):
        self.calls.append(f"close {self.name}")


def test_services_are_called_in_order_and_closed_in_reverse():
    calls = []
    services = AttemptServices([Recorder("A", calls), Recorder("B", calls, StepRate(2.0, 1.0))])
    services.start()
    assert services.prepare(a_spec(), PLACE) == {"WHO": "B", "A": "1", "B": "1"}
    assert services.observe(REF) == StepRate(2.0, 1.0)
    end = AttemptExit(exit_code=0, signal=None, reason="exited")
    event = AttemptExited(at_s=1.0, cause="t", job_id=1, attempt=1, exit=end, peak_observed_bytes={})
    assert services.ended(a_job(1), None, event, list).cause == "t A B"
    services.reconcile(list)
    services.job_done(a_job(1))
    services.close()
    assert calls == ["start A", "start B", "reconcile A", "reconcile B", "done A", "done B", "close B", "close A"]


def test_a_service_does_nothing_unless_it_overrides_a_method():
    service = AttemptService()
    assert service.prepare(a_spec(), PLACE) == {}
    assert service.observe(REF) is None
    event = AttemptExited(
        at_s=1.0,
        cause="t",
        job_id=1,
        attempt=1,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
        peak_observed_bytes={},
    )
    assert service.ended(a_job(1), None, event, list) is event


@pytest.mark.parametrize(
    ("own", "path"), [({}, "/site"), ({"PYTHONPATH": ""}, "/site"), ({"PYTHONPATH": "/a:/b"}, "/site:/a:/b")]
)
def test_the_folder_of_fake_cuda_is_first_on_the_python_path(own, path):
    service = SimulatedGpuService({"SIM": "/x"}, site=Path("/site"))
    assert service.prepare(a_spec(env=own), PLACE) == {"SIM": "/x", "PYTHONPATH": path}


def test_without_fake_cuda_the_python_path_stays():
    assert SimulatedGpuService({"SIM": "/x"}).prepare(a_spec(env={"PYTHONPATH": "/a"}), PLACE) == {"SIM": "/x"}
