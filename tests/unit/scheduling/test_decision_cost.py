"""Between two readings, what a decision costs does not grow with the server."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from builders import a_gpu, a_spec
from cotenant.core.events import AttemptExited, JobSubmitted, Launch, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import AttemptExit
from cotenant.core.units import GiB
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.fit_check import FitCheck
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create


class Inventory(tuple[Gpu, ...]):
    """Counts how often somebody looks through it."""

    looks = 0

    def __iter__(self) -> Iterator[Gpu]:
        self.looks += 1
        return super().__iter__()


def test_only_a_sample_makes_the_manager_scan_all_gpus():
    gpus = Inventory(a_gpu(index) for index in range(40))
    samples = {gpu.uuid: GpuSample(at_s=0.0, used_bytes=0, smact=0.2) for gpu in gpus}
    manager = Manager(create("most-memory", {"warmup_s": 0.0}), ManagerConfig(estimate=False))
    manager.handle(ServerSampled(at_s=0.0, cause="test", gpus=gpus, samples=samples, observed=()))
    looks = []
    for job_id in range(1, 5):
        spec = a_spec(declared_bytes=8 * GiB)
        commands = manager.handle(JobSubmitted(at_s=0.0, cause="test", job_id=job_id, spec=spec))
        assert [type(command) for command in commands] == [Launch]
        end = AttemptExit(exit_code=1, signal=None, reason="exited")
        event = AttemptExited(at_s=0.0, cause="test", job_id=job_id, attempt=1, exit=end, peak_observed_bytes={})
        seen = manager.with_telemetry(event)
        assert seen.exit.oom.total_bytes == 40 * GiB
        manager.handle(seen)
        looks.append(gpus.looks)
    assert looks[1:] == looks[:1] * 3, "the first decision takes in the reading"


class HeldJobs(dict):
    """Jobs that fit on no GPU; may be looked up, but not walked over."""

    def __iter__(self):
        raise AssertionError("walked over all held jobs")

    keys = items = values = __iter__


def test_a_submission_is_not_compared_with_the_jobs_that_are_held():
    spec = a_spec(declared_bytes=8 * GiB)
    table = SimpleNamespace(jobs={7: SimpleNamespace(spec=spec)}, queued=set(), unsatisfiable={})
    check = FitCheck(table)
    gpus = (a_gpu(0),)
    check.update(gpus, 0.0)
    table.unsatisfiable = HeldJobs(dict.fromkeys(range(100, 200)))
    check.add([7])
    assert check.update(gpus, 1.0)
