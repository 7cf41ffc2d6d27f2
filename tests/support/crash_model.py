"""A daemon that crashes at every kind of step, simulated in one process.

The control loop, the manager and the policy are the daemon's own. The machine under them is a model that knows the
truth: which attempts ran and how often, what each holds, and how it ended. A crash is an exception that nobody catches,
raised before or after the journal writes and before or after the engine launches or stops an attempt. After it only the
journal and the machine are left, and the next daemon starts from them as `serve` does.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.events import AttemptExited, AttemptSample, AttemptStarted, EstimateReady, Journaled, ServerSampled
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import AttemptExit, Job, JobSpec, OomEvidence, ProcessId, Running, Starting
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, RecoveredAttempt
from cotenant.core.units import GiB
from cotenant.daemon.control_loop import ControlLoop
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.messages import BulkChange, JobChange
from cotenant.daemon.services.base import AttemptService
from cotenant.daemon.startup import recovered_reports
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from cotenant.store.memory import MemoryJournal

GPU_GIB = 40
ROUNDS_TO_FINISH = 400


class Crash(BaseException):
    """The daemon is gone. No `except Exception` of it may survive this."""


@dataclass(slots=True)
class _ModelAttempt:
    """An attempt on the machine."""

    placement: Placement
    uses_bytes: int
    reported_start: bool = False
    exit: AttemptExit | None = None


@dataclass(slots=True)
class CrashReport:
    """Outcome of a schedule; `faults` is empty if all invariants held."""

    faults: list[str] = field(default_factory=list)
    steps: Counter[str] = field(default_factory=Counter)
    jobs: int = 0
    attempts: int = 0

    @property
    def crashes(self) -> int:
        """How often the daemon was killed."""
        return sum(self.steps.values())


class _Machine:
    """GPUs, and an engine whose attempts go on without a daemon. Starts an attempt once, as a runner's claim does."""

    name = "model"

    def __init__(self, gpus: int, rng: random.Random, may_crash: Callable[[str], None], verdict: CrashReport) -> None:
        self.gpus = tuple(
            Gpu(uuid=f"GPU-{i}", index=i, name="A100-40GB", memory_total_bytes=GPU_GIB * GiB) for i in range(gpus)
        )
        self.runs: dict[AttemptRef, _ModelAttempt] = {}
        self.void: set[AttemptRef] = set()
        self._rng = rng
        self._may_crash = may_crash
        self._verdict = verdict

    # -- the engine's side

    def start(self, on_event: Callable[[AttemptStarted | AttemptExited], None]) -> None:
        """Nothing to do: the schedule generates the events."""

    def launch(self, spec: JobSpec, attempt: int, placement: Placement, env: Mapping[str, str]) -> None:
        """Start an attempt."""
        self._may_crash("before the launch")
        ref = AttemptRef(job_id=placement.job_id, attempt=attempt)
        if ref in self.void:
            self._verdict.faults.append(f"{ref} starts although recovery reported that it never would")
        if any(other.job_id == ref.job_id and run.exit is None for other, run in self.runs.items()):
            self._verdict.faults.append(f"{ref} starts while an attempt of the job runs")
        if ref not in self.runs:
            self.runs[ref] = _ModelAttempt(placement, int(self._rng.uniform(0.3, 1.3) * placement.promised_bytes))
            self._check_capacity(placement)
        self._may_crash("after the launch")

    def _check_capacity(self, placement: Placement) -> None:
        for uuid in placement.gpu_uuids:
            here = [run.placement for run in self.runs.values() if run.exit is None and uuid in run.placement.gpu_uuids]
            promised = sum(placement.promised_bytes for placement in here)
            if promised > GPU_GIB * GiB:
                self._verdict.faults.append(f"{promised / GiB:.1f} GiB promised on {uuid}")
            if len(here) > 1 and any(placement.sharing == "exclusive" for placement in here):
                self._verdict.faults.append(f"an exclusive job shares {uuid}")

    def stop(self, ref: AttemptRef, *, reason: str, grace_s: float, checkpoint: bool = False) -> None:
        """Stop an attempt."""
        self._may_crash("before the stop")
        run = self.runs.get(ref)
        if run is not None and run.exit is None:
            run.exit = AttemptExit(exit_code=None, signal=15, reason="stopped", detail=reason)
        self._may_crash("after the stop")

    def pause(self, ref: AttemptRef) -> None:
        """Nothing: an attempt of this model has no processes."""

    def resume(self, ref: AttemptRef) -> None:
        """Nothing, as `pause`."""

    def send_signal(self, ref: AttemptRef, number: int, target: str, *, uid: int) -> int:
        """Nothing, as `pause`."""
        return 0

    def recover(self, refs: Iterable[AttemptRef]) -> tuple[RecoveredAttempt, ...]:
        """State of the attempts; an attempt that has not started is voided and never will."""
        found = []
        for ref in refs:
            run = self.runs.get(ref)
            if run is None:
                self.void.add(ref)
                found.append(RecoveredAttempt(ref=ref, started=None, exited=None))
            else:
                run.reported_start = True
                found.append(
                    RecoveredAttempt(ref=ref, started=_started(ref), exited=_exited(ref, run) if run.exit else None)
                )
        return tuple(found)

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """Samples here name attempts, not processes."""
        return {}

    def log_paths(self, ref: AttemptRef) -> tuple[str, str]:
        """No logs are written."""
        return "/dev/null", "/dev/null"

    def close(self) -> None:
        """Nothing to release."""

    # -- the model's own events

    def news(self) -> Iterator[AttemptStarted | AttemptExited]:
        """Starts and exits not yet reported to the daemon; some attempts exit now."""
        for ref, run in self.runs.items():
            if run.exit is None and run.reported_start and self._rng.random() < 0.3:
                run.exit = self._some_end(run)
            if not run.reported_start:
                run.reported_start = True
                yield _started(ref)
            elif run.exit is not None:
                yield _exited(ref, run)

    def _some_end(self, run: _ModelAttempt) -> AttemptExit:
        if run.uses_bytes > run.placement.promised_bytes and run.placement.sharing != "exclusive":
            oom = OomEvidence(exception=True, tried_bytes=GiB, in_use_bytes=run.uses_bytes)
            return AttemptExit(exit_code=1, signal=None, reason="exited", oom=oom)
        return AttemptExit(exit_code=self._rng.choice((0, 0, 0, 1)), signal=None, reason="exited")

    def sample(self, at_s: float) -> ServerSampled:
        """A sample of the GPUs: running attempts use their promise or less."""
        used = dict.fromkeys((gpu.uuid for gpu in self.gpus), 0)
        observed = []
        for ref, run in self.runs.items():
            if run.exit is not None:
                continue
            for uuid in run.placement.gpu_uuids:
                held = min(run.uses_bytes, run.placement.promised_bytes)
                used[uuid] += held
                observed.append(AttemptSample(job_id=ref.job_id, attempt=ref.attempt, gpu_uuid=uuid, used_bytes=held))
        samples = {uuid: GpuSample(at_s=at_s, used_bytes=held, smact=0.1) for uuid, held in used.items()}
        return ServerSampled(at_s=at_s, cause="model", gpus=self.gpus, samples=samples, observed=tuple(observed))


def _started(ref: AttemptRef) -> AttemptStarted:
    process = ProcessId(pid=1000 + ref.job_id, start_ticks=ref.attempt, boot_id="model")
    return AttemptStarted(at_s=0.0, cause="model", job_id=ref.job_id, attempt=ref.attempt, process=process)


def _exited(ref: AttemptRef, run: _ModelAttempt) -> AttemptExited:
    end = run.exit or AttemptExit(exit_code=None, signal=None, reason="lost")
    return AttemptExited(
        at_s=0.0, cause="model", job_id=ref.job_id, attempt=ref.attempt, exit=end, peak_observed_bytes={}
    )


class _Disk(MemoryJournal):
    """A journal that outlives the daemon; a crash comes before or after a write."""

    def __init__(self, may_crash: Callable[[str], None]) -> None:
        super().__init__()
        self._may_crash = may_crash

    def append(self, events: Sequence[Journaled], *, durable: bool = True) -> None:
        kinds = "decisions" if type(events[0]).__name__ == "AttemptPlaced" else "news"
        self._may_crash(f"before {kinds} are written")
        super().append(events, durable=durable)
        self._may_crash(f"after {kinds} are written")


class _Declared:
    """Estimates: none, for all jobs here declare their memory."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def request(self, job_id: int, spec: JobSpec) -> None:
        """Report at once that there is no estimate."""
        self._inbox.put(EstimateReady(at_s=0.0, cause="model", job_id=job_id, estimate=None, error="declared"))

    def cancel(self, job_id: int) -> None:
        """Nothing to cancel."""


class CrashSchedule:
    """One random schedule of submissions, events and crashes, determined by `seed`."""

    def __init__(self, seed: int, *, policy: str = "most-memory", jobs: int = 12, gpus: int = 2) -> None:
        self._rng = random.Random(seed)
        self._policy = policy
        self._max_jobs = jobs
        self.verdict = CrashReport()
        self._crashing = False
        self._at_s = 1000.0
        self._machine = _Machine(gpus, self._rng, self._may_crash, self.verdict)
        self._disk = _Disk(self._may_crash)
        self._promised: set[int] = set()
        self._submitted = 0
        self._starts = 0
        self._loop = self._daemon()

    def run(self, *, steps: int = 60) -> CrashReport:
        """Run `steps` with random crashes, then without crashes until all jobs are done; returns the report."""
        for crashing in (True, False):
            self._crashing = crashing
            for _ in range(steps if crashing else ROUNDS_TO_FINISH):
                self._at_s += 1.0
                try:
                    self._step(submits=crashing)
                except Crash:
                    self._crash()
                if not crashing and self._all_over():
                    break
        self._judge()
        return self.verdict

    def _may_crash(self, step: str) -> None:
        if self._crashing and self._rng.random() < 0.04:
            self.verdict.steps[step] += 1
            raise Crash

    def _crash(self) -> None:
        """Restart the daemon from the journal and the machine; it may crash again during startup."""
        while True:
            try:
                self._loop = self._daemon()
                return
            except Crash:
                continue

    def _daemon(self) -> ControlLoop:
        manager = self._manager = Manager(create(self._policy))
        since, later = self._disk.load_snapshot()
        commands = manager.restore(later, since)
        self._starts += 1
        if self._starts % 2 == 0:
            self._disk.save_snapshot(manager.snapshot())
        live = [job for job in manager.jobs.values() if isinstance(job.state, (Starting, Running))]
        found = self._machine.recover([AttemptRef(job_id=job.id, attempt=len(job.attempts)) for job in live])
        inbox = self._inbox = Inbox()
        loop = ControlLoop(
            manager=manager,
            journal=self._disk,
            engine=self._machine,
            inbox=inbox,
            estimates=_Declared(inbox),
            services=AttemptService(),
            now=lambda: self._at_s,
            wall=lambda: self._at_s,
            tick_s=0.0,
        )
        loop.prepare(recovered_reports(live, found, at_s=self._at_s), commands)
        return loop

    def _step(self, *, submits: bool) -> None:
        answers: list[Future[list[int]]] = []
        if submits and self._submitted < self._max_jobs and self._rng.random() < 0.5:
            self._submitted += 1
            answers.append(self._loop.submit([self._some_spec()]))
        for report in self._machine.news():
            self._inbox.put(report)
        if self._rng.random() < 0.7:
            self._inbox.put_sample(self._machine.sample(self._at_s))
        if submits and self._promised and self._rng.random() < 0.1:
            kind: Any = self._rng.choice(("cancel", "hold", "release", "requeue"))
            chosen = tuple(self._rng.sample(sorted(self._promised), min(len(self._promised), self._rng.randint(1, 3))))
            if len(chosen) == 1:
                self._loop.change(JobChange(kind, chosen[0], "schedule"))
            else:
                self._loop.change_many(BulkChange(kind, chosen, "schedule"))
        if not submits:
            for job_id in self._promised:
                self._loop.change(JobChange("release", job_id, "schedule"))
        self._loop.turn()
        for answer in answers:
            if answer.done() and answer.exception() is None:
                self._promised.update(answer.result())

    def _some_spec(self) -> JobSpec:
        rng = self._rng
        return JobSpec(
            command=("true",),
            workdir="/",
            env={},
            user="ann",
            uid=1,
            name=f"job {self._submitted}",
            gpus=rng.choice((1, 1, 1, 2)),
            declared_bytes=rng.choice((4, 8, 16, 30)) * GiB,
            exclusive=rng.random() < 0.2,
            requeue=rng.random() < 0.5,
        )

    def _replayed(self) -> Manager:
        """A manager restored from all events, without a snapshot."""
        manager = Manager(create(self._policy))
        manager.restore(self._disk.replay())
        return manager

    def _jobs(self) -> Mapping[int, Job]:
        return self._replayed().jobs

    def _all_over(self) -> bool:
        jobs = self._jobs()
        return all(job_id in jobs and jobs[job_id].is_done for job_id in self._promised)

    def _judge(self) -> None:
        verdict, jobs = self.verdict, self._jobs()
        verdict.jobs = len(self._promised)
        verdict.attempts = len(self._machine.runs)
        for job_id in sorted(self._promised):
            if job_id not in jobs:
                verdict.faults.append(f"job {job_id} was acknowledged and is lost")
            elif not jobs[job_id].is_done:
                verdict.faults.append(f"job {job_id} never ended: {jobs[job_id].state}")
        for job_id, job in jobs.items():
            ran = [ref for ref in self._machine.runs if ref.job_id == job_id]
            recorded = [
                attempt.number for attempt in job.attempts if attempt.exit is None or attempt.exit.reason != "never-ran"
            ]
            if sorted(ref.attempt for ref in ran) != recorded:
                verdict.faults.append(f"job {job_id} ran as {ran}, its attempts are {recorded}")
        if self._loop.is_consistent() and self._manager.snapshot() != self._replayed().snapshot():
            verdict.faults.append("the daemon's state, restored from a snapshot, differs from a full replay")
