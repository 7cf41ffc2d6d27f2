"""Drivers of a `Manager`: short methods that send it events."""

from __future__ import annotations

from builders import a_gpu, a_spec, an_estimate
from cotenant.core.events import (
    AttemptExited,
    AttemptSample,
    AttemptStarted,
    EstimateReady,
    JobSubmitted,
    Launch,
    ServerSampled,
    Tick,
)
from cotenant.core.gpu import GpuSample
from cotenant.core.job import AttemptExit, OomEvidence, ProcessId
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create

OK = AttemptExit(exit_code=0, signal=None, reason="exited")
OOM = AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True))


class Life:
    """A manager over 40 GiB GPUs, with one method per event."""

    def __init__(self, gpus=1, policy="first-fit", options=None, **config):
        self.gpus = tuple(a_gpu(index) for index in range(gpus))
        self.manager = Manager(create(policy, {"warmup_s": 0, **(options or {})}), ManagerConfig(**config))
        self.at_s = 0.0
        self.sample()

    def job(self, job_id=1):
        return self.manager.jobs[job_id]

    def state(self, job_id=1):
        return type(self.job(job_id).state)

    def send(self, kind, job_id=1, **fields):
        return self.manager.handle(kind(at_s=self.at_s, cause="test", job_id=job_id, **fields))

    def submit(self, job_id=1, gib=8, **spec):
        declared = None if gib is None else int(gib * GiB)
        return self.send(JobSubmitted, job_id, spec=a_spec(declared_bytes=declared, **spec))

    def estimate(self, job_id=1, gib=8):
        estimate = None if gib is None else an_estimate(gib)
        return self.send(EstimateReady, job_id, estimate=estimate, error=None if gib else "no such script")

    def start(self, job_id=1, attempt=1):
        return self.send(AttemptStarted, job_id, attempt=attempt, process=ProcessId(pid=7, start_ticks=1, boot_id="b"))

    def exit(self, job_id=1, attempt=1, end=OK, **peaks):
        return self.send(AttemptExited, job_id, attempt=attempt, exit=end, peak_observed_bytes=peaks)

    def sample(self, used=(0, 0, 0), observed=(), at_s=None):
        """`observed` as (job, attempt, GPU index, GiB)."""
        self.at_s = self.at_s if at_s is None else at_s
        return self.manager.handle(
            ServerSampled(
                at_s=self.at_s,
                cause="test",
                gpus=self.gpus,
                samples={
                    gpu.uuid: GpuSample(
                        at_s=self.at_s, used_bytes=None if gpu_used is None else int(gpu_used * GiB), smact=0.1
                    )
                    for gpu, gpu_used in zip(self.gpus, used, strict=False)
                },
                observed=tuple(
                    AttemptSample(job_id=job, attempt=attempt, gpu_uuid=f"GPU-{gpu}", used_bytes=int(gib * GiB))
                    for job, attempt, gpu, gib in observed
                ),
            )
        )

    def tick(self, at_s):
        self.at_s = at_s
        return self.manager.handle(Tick(at_s=at_s, cause="test"))


class WorkingLife:
    """A manager over 40 GiB GPUs whose running jobs use `holds` (job id -> GiB)."""

    def __init__(self, gpus=1, policy="marginal-gain", smact=0.3, **config):
        self.policy = create(policy) if isinstance(policy, str) else policy
        self.gpus = tuple(a_gpu(index) for index in range(gpus))
        self.config = ManagerConfig(**config)
        self.manager = Manager(self.policy, self.config)
        self.events = []
        self.holds = {}
        self.smact = smact
        self.steps_hz = {}
        self.at_s = 0.0
        self.pass_(0)

    def send(self, event):
        if not isinstance(event, (ServerSampled, Tick)):
            self.events.append(event)
        commands = self.manager.handle(event)
        self.events += [command.placed for command in commands if isinstance(command, Launch)]
        return commands

    def submit(self, job_id, gib=8, script="a.py", **spec):
        spec = a_spec(command=("python", script), **spec)
        self.send(JobSubmitted(at_s=self.at_s, cause="test", job_id=job_id, spec=spec))
        estimate = None if gib is None else an_estimate(gib)
        commands = self.send(EstimateReady(at_s=self.at_s, cause="test", job_id=job_id, estimate=estimate, error="no"))
        return [command.placed for command in commands if isinstance(command, Launch)]

    def start(self, job_id, holds=4):
        attempt = len(self.manager.jobs[job_id].attempts)
        self.holds[job_id] = holds
        process = ProcessId(pid=job_id, start_ticks=1, boot_id="b")
        return self.send(AttemptStarted(at_s=self.at_s, cause="test", job_id=job_id, attempt=attempt, process=process))

    def pass_(self, seconds):
        """Send one sample per second for `seconds`."""
        commands = []
        for _ in range(max(1, seconds)):
            self.at_s += 1.0 if seconds else 0.0
            observed = tuple(
                AttemptSample(
                    job_id=job_id,
                    attempt=len(self.manager.jobs[job_id].attempts),
                    gpu_uuid=uuid,
                    used_bytes=int(gib * GiB),
                    steps_hz=self.steps_hz.get(job_id),
                )
                for job_id, gib in self.holds.items()
                for uuid in self.manager.jobs[job_id].attempts[-1].placement.gpu_uuids
            )
            samples = {
                gpu.uuid: GpuSample(
                    at_s=self.at_s,
                    used_bytes=sum(process.used_bytes for process in observed if process.gpu_uuid == gpu.uuid),
                    smact=self.smact,
                )
                for gpu in self.gpus
            }
            sampled = ServerSampled(at_s=self.at_s, cause="test", gpus=self.gpus, samples=samples, observed=observed)
            commands += self.send(sampled)
        return commands

    def end(self, job_id, end=OK):
        event = AttemptExited(
            at_s=self.at_s,
            cause="test",
            job_id=job_id,
            attempt=len(self.manager.jobs[job_id].attempts),
            exit=end,
            peak_observed_bytes={},
        )
        event = self.manager.with_telemetry(event)
        del self.holds[job_id]
        return self.send(event)

    def run(self, job_id, seconds=120, holds=4, **submit):
        self.submit(job_id, **submit)
        self.start(job_id, holds)
        self.pass_(seconds)
        return self.end(job_id)


def launches(commands):
    return [command.placed.job_id for command in commands if isinstance(command, Launch)]
