"""A daemon's life in random order: nothing over-promised, no job lost, nothing run twice, a replay that agrees."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import event as hypothesis_event
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from builders import a_gpu, a_spec, an_estimate
from cotenant.core.codec import decode, encode
from cotenant.core.events import (
    AttemptExited,
    AttemptSample,
    AttemptStarted,
    Command,
    EstimateReady,
    Event,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    Journaled,
    Launch,
    RequestEstimate,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.gpu import GpuSample, Resident, ServerSnapshot
from cotenant.core.job import AttemptExit, Done, Held, Job, OomEvidence, ProcessId, Queued, Running, Starting
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create, policies
from cotenant.scheduling.recovery import is_forgiven

GPUS = (a_gpu(0, 40), a_gpu(1, 40), a_gpu(2, 24))
TOTAL = {gpu.uuid: gpu.memory_total_bytes for gpu in GPUS}
CONFIG = ManagerConfig(stale_after_s=5.0)

LEGAL = {
    Queued: (Queued, Held, Starting, Done),
    Held: (Held, Queued, Starting, Done),  # released and placed within one event
    Starting: (Starting, Running, Queued, Held, Done),
    Running: (Running, Queued, Held, Starting, Done),  # ended and placed again within one event
    Done: (Done,),
}

EXITS = {
    "completed": AttemptExit(exit_code=0, signal=None, reason="exited"),
    "failed": AttemptExit(exit_code=1, signal=None, reason="exited"),
    "killed": AttemptExit(exit_code=None, signal=9, reason="exited"),
    "lost": AttemptExit(exit_code=None, signal=None, reason="lost"),
    "stopped": AttemptExit(exit_code=None, signal=15, reason="stopped"),
    "timeout": AttemptExit(exit_code=None, signal=15, reason="timeout"),
    "not-started": AttemptExit(exit_code=None, signal=None, reason="not-started"),
    "oom": AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(exception=True)),
    "oom, told": AttemptExit(
        exit_code=1,
        signal=None,
        reason="exited",
        oom=OomEvidence(exception=True, tried_bytes=GiB, in_use_bytes=9 * GiB),
    ),
    "oom, hinted": AttemptExit(exit_code=1, signal=None, reason="exited", oom=OomEvidence(message=True)),
}


@dataclass
class Reading:
    """What the model last told the manager of one GPU."""

    at_s: float
    foreign_bytes: int | None


@dataclass
class Live:
    """What the model knows of an attempt that runs."""

    placement: Placement
    peaks: dict[str, int] = field(default_factory=dict)

    def held_bytes(self, uuid: str) -> int:
        return max(self.placement.promised_bytes, self.peaks.get(uuid, 0))


class Server(RuleBasedStateMachine):
    """A daemon, its journal, and GPUs of which the model knows the truth."""

    @initialize(policy=st.sampled_from(policies()))
    def begin(self, policy: str) -> None:
        self.policy = create(policy)
        self.manager = Manager(self.policy, CONFIG)
        self.at_s = 100.0
        self.journal: list[Journaled] = []
        self.sent: list[Event] = []
        self.launched: set[tuple[int, int]] = set()
        self.live: dict[tuple[int, int], Live] = {}
        self.readings: dict[str, Reading] = {}
        self.before: dict[int, Job] = {}
        for declared in (8, None):  # most runs should have a server at work to disturb
            self.submit(gpus=1, declared=declared, exclusive=False, after=(), time_limit_s=20.0, max_attempts=4)
        self.sample(pass_s=1.0, foreign_gib=0, quality="good", data=None)

    def send(self, event: Event) -> list[Command]:
        """As the daemon does: keep, handle, keep what was decided, act."""
        if not isinstance(event, (ServerSampled, Tick)):
            self.journal.append(event)
        self.sent.append(event)
        commands = self.manager.handle(event)
        for command in commands:
            if isinstance(command, Launch):
                self.journal.append(command.placed)
                self.launch(command)
        return commands

    def launch(self, command: Launch) -> None:
        placed = command.placed
        key = (placed.job_id, placed.attempt)
        assert key not in self.launched, "an attempt runs twice"
        assert not any(job_id == placed.job_id for job_id, _ in self.live), "two attempts of one job at once"
        assert self.manager.jobs[placed.job_id].last_attempt.placement == placed.placement
        assert len(set(placed.placement.gpu_uuids)) == command.spec.gpus
        self.launched.add(key)
        hypothesis_event(f"placed {placed.placement.sharing}, attempt {placed.attempt}")
        for uuid in placed.placement.gpu_uuids:
            reading = self.readings.get(uuid)
            assert reading is not None, "placed on a GPU never read"
            assert self.at_s - reading.at_s <= CONFIG.stale_after_s, "placed on a stale reading"
            assert reading.foreign_bytes is not None, "placed on nonsense"
            residents = [attempt for attempt in self.live.values() if uuid in attempt.placement.gpu_uuids]
            held = reading.foreign_bytes + sum(mate.held_bytes(uuid) for mate in residents)
            assert held + placed.placement.promised_bytes <= TOTAL[uuid], "over-promised"
            assert not any(mate.placement.sharing == "exclusive" for mate in residents), "put beside an exclusive job"
            assert placed.placement.sharing != "exclusive" or not residents, "exclusive, but not alone"
        self.live[key] = Live(placed.placement)

    # Events, in any order.

    @rule(
        gpus=st.sampled_from([1, 1, 1, 2]),
        declared=st.sampled_from([None, None, 6, 39, 70]),
        exclusive=st.sampled_from([False, False, True]),
        after=st.sampled_from([(), (), (1,), (99,)]),
        time_limit_s=st.sampled_from([None, 20.0]),
        max_attempts=st.sampled_from([1, 2, 4]),
    )
    def submit(self, gpus, declared, exclusive, after, time_limit_s, max_attempts) -> None:
        if len(self.manager.jobs) >= 25:
            return
        spec = a_spec(
            gpus=gpus,
            declared_bytes=None if declared is None else declared * GiB,
            exclusive=exclusive,
            after=after,
            time_limit_s=time_limit_s,
            max_attempts=max_attempts,
        )
        job_id = len(self.manager.jobs) + 1
        commands = self.send(JobSubmitted(at_s=self.at_s, cause="test", job_id=job_id, spec=spec))
        requested = any(isinstance(command, RequestEstimate) and command.job_id == job_id for command in commands)
        assert requested != self.manager.jobs[job_id].is_done

    @rule(data=st.data(), count=st.integers(1, 4), gib=st.sampled_from([4, 8, 16]))
    def rush(self, data, count, gib) -> None:
        """Ordinary jobs on ordinary readings, so that most runs have a busy server to disturb."""
        for _ in range(count):
            self.submit(gpus=1, declared=gib, exclusive=False, after=(), time_limit_s=None, max_attempts=4)
            self.sample(pass_s=20.0, foreign_gib=0, quality="good", data=data)

    @precondition(lambda self: self.manager.jobs)
    @rule(data=st.data(), gib=st.sampled_from([None, 4, 8, 16, 41, 60]), partial=st.sampled_from([False, False, True]))
    def estimate(self, data, gib, partial) -> None:
        estimate = None if gib is None else an_estimate(gib, partial=partial)
        error = "could not trace" if gib is None else None
        event = EstimateReady(at_s=self.at_s, cause="test", job_id=self.any_job(data), estimate=estimate, error=error)
        self.send(event)

    @rule(
        pass_s=st.sampled_from([0.5, 1.0, 1.0, 20.0]),
        foreign_gib=st.sampled_from([0, 0, 0, 2, 20]),
        quality=st.sampled_from(["good", "good", "good", "no smact", "missing", "none", "negative", "beyond"]),
        data=st.data(),
    )
    def sample(self, pass_s, foreign_gib, quality, data) -> None:
        self.at_s += pass_s
        foreign_bytes = foreign_gib * GiB
        observed = tuple(self.observe(data, foreign_bytes))
        samples = {}
        for gpu in GPUS:
            used = foreign_bytes + sum(sample.used_bytes for sample in observed if sample.gpu_uuid == gpu.uuid)
            reported = {"none": None, "negative": -1, "beyond": gpu.memory_total_bytes + 1}.get(quality, used)
            if quality == "missing" and gpu.index == 0:
                continue
            samples[gpu.uuid] = GpuSample(
                at_s=self.at_s, used_bytes=reported, smact=None if quality == "no smact" else 0.3
            )
            known = foreign_bytes if reported == used else None
            self.readings[gpu.uuid] = Reading(self.at_s, known)
        self.send(ServerSampled(at_s=self.at_s, cause="test", gpus=GPUS, samples=samples, observed=observed))

    def observe(self, data, foreign_bytes: int) -> Iterable[AttemptSample]:
        """Every live attempt shows some memory, sometimes more than promised; never more than the GPU has."""
        room = {uuid: total - foreign_bytes for uuid, total in TOTAL.items()}
        for (job_id, attempt), live in sorted(self.live.items()):
            for uuid in live.placement.gpu_uuids:
                used = min(room[uuid], data.draw(st.sampled_from([0, 1, 6, 14, 30])) * GiB)
                room[uuid] -= used
                live.peaks[uuid] = max(live.peaks.get(uuid, 0), used)
                yield AttemptSample(job_id=job_id, attempt=attempt, gpu_uuid=uuid, used_bytes=used)

    @rule(pass_s=st.sampled_from([0.0, 1.0, 6.0, 30.0]))
    def tick(self, pass_s) -> None:
        self.at_s += pass_s
        commands = self.send(Tick(at_s=self.at_s, cause="test"))
        for command in commands:
            if isinstance(command, Stop):
                assert (command.job_id, command.attempt) in self.live, "stops what does not run"

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def start(self, data) -> None:
        job_id, attempt = data.draw(st.sampled_from(sorted(self.live)))
        process = ProcessId(pid=100 + job_id, start_ticks=attempt, boot_id="b")
        self.send(AttemptStarted(at_s=self.at_s, cause="test", job_id=job_id, attempt=attempt, process=process))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), how=st.sampled_from(sorted(EXITS)))
    def exit(self, data, how) -> None:
        job_id, attempt = data.draw(st.sampled_from(sorted(self.live)))
        event = AttemptExited(
            at_s=self.at_s, cause="test", job_id=job_id, attempt=attempt, exit=EXITS[how], peak_observed_bytes={}
        )
        del self.live[job_id, attempt]
        self.send(self.manager.with_telemetry(event))

    @precondition(lambda self: self.manager.jobs)
    @rule(data=st.data())
    def cancel(self, data) -> None:
        job_id = self.any_job(data)
        commands = self.send(JobCancelled(at_s=self.at_s, cause="test", job_id=job_id))
        stops = [command for command in commands if isinstance(command, Stop) and command.cause == "cancelled"]
        assert len(stops) == any(live_id == job_id for live_id, _ in self.live)

    @precondition(lambda self: self.manager.jobs)
    @rule(data=st.data())
    def hold(self, data) -> None:
        self.send(JobHeld(at_s=self.at_s, cause="test", job_id=self.any_job(data)))

    @precondition(lambda self: self.manager.jobs)
    @rule(data=st.data())
    def release(self, data) -> None:
        self.send(JobReleased(at_s=self.at_s, cause="test", job_id=self.any_job(data)))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def repeat(self, data) -> None:
        """Something old arrives again, late: an exit of an ended attempt, a start, a sample of the past."""
        event = data.draw(st.sampled_from(self.sent))
        if isinstance(event, (JobSubmitted, AttemptStarted, AttemptExited)):
            before = dict(self.manager.jobs)
            touched = isinstance(event, AttemptStarted) and (event.job_id, event.attempt) in self.live
            self.send(replace(event, at_s=self.at_s))
            assert touched or self.manager.jobs[event.job_id].attempts[: len(before[event.job_id].attempts)] == (
                before[event.job_id].attempts
            )
        elif isinstance(event, ServerSampled) and self.at_s - event.at_s <= CONFIG.stale_after_s:
            for gpu in GPUS:  # only a GPU that the newer readings left out may take up an old one
                known = self.readings.get(gpu.uuid)
                if gpu.uuid in event.samples and (known is None or known.at_s < event.at_s):
                    return
            if event.at_s < self.at_s:
                self.manager.handle(replace(event, observed=()))

    @rule()
    def restart(self) -> None:
        """kill -9, then a new daemon on the same journal, whose engine finds all that lives."""
        self.manager = Manager(self.policy, CONFIG)
        commands = self.manager.restore(self.journal)
        assert not any(isinstance(command, Launch) for command in commands)
        waiting = {job.id for job in self.manager.jobs.values() if not job.is_done and job.estimate is None}
        requested = {command.job_id for command in commands if isinstance(command, RequestEstimate)}
        assert requested == {job_id for job_id in waiting if self.manager.jobs[job_id].estimate_error is None}
        self.readings.clear()
        for live in self.live.values():
            live.peaks.clear()

    def any_job(self, data) -> int:
        return data.draw(st.sampled_from(sorted(self.manager.jobs)))

    # What holds after each of them.

    @invariant()
    def no_job_is_lost(self) -> None:
        submitted = {event.job_id for event in self.journal if isinstance(event, JobSubmitted)}
        assert set(self.manager.jobs) == submitted
        running = {
            (job.id, job.state.attempt)
            for job in self.manager.jobs.values()
            if isinstance(job.state, (Starting, Running))
        }
        assert running == set(self.live)
        assert all(self.manager.explain(job_id).reason for job_id in submitted)

    @invariant()
    def states_follow_each_other_legally(self) -> None:
        for job_id, job in self.manager.jobs.items():
            old = self.before.get(job_id)
            if old is not None:
                assert type(job.state) in LEGAL[type(old.state)]
                assert len(job.attempts) >= len(old.attempts)
                assert not old.is_done or without_charges(job) == without_charges(old)
            counted = [attempt for attempt in job.attempts if not is_forgiven(attempt)]
            assert len(counted) <= job.spec.max_attempts
            assert [attempt.number for attempt in job.attempts] == list(range(1, len(job.attempts) + 1))
            assert all(attempt.exit is not None for attempt in job.attempts[:-1])
        self.before = dict(self.manager.jobs)

    @rule()
    def save_a_snapshot(self) -> None:
        state = self.manager.snapshot()
        assert not any(isinstance(job.state, Held) and job.state.reason.startswith("needs") for job in state.jobs)
        jobs = json.loads(json.dumps([encode(job, lean=True) for job in state.jobs]))
        history = json.loads(json.dumps(state.history))
        self.snapshot = replace(state, jobs=[decode(Job, job) for job in jobs], history=history)
        self.snapshot_events = len(self.journal)
        assert self.snapshot == state

    def teardown(self) -> None:
        """Whatever came after the newest snapshot, a start with it finds what a start without it finds."""
        if not hasattr(self, "snapshot"):
            return
        with_it, without = Manager(self.policy, CONFIG), Manager(self.policy, CONFIG)
        commands = with_it.restore(self.journal[self.snapshot_events :], self.snapshot)
        assert commands == without.restore(self.journal)
        assert with_it.snapshot() == without.snapshot()
        assert with_it.queue() == without.queue()

    @invariant()
    def a_replay_agrees(self) -> None:
        again = Manager(self.policy, CONFIG)
        again.restore(self.journal)
        assert again.jobs.keys() == self.manager.jobs.keys()
        assert again.history.state() == self.manager.history.state()
        for job_id, job in self.manager.jobs.items():
            if isinstance(job.state, Held) and job.state.reason.startswith("needs"):
                # Held for want of a GPU large enough: not kept, it follows from the first reading of the GPUs.
                assert isinstance(again.jobs[job_id].state, Queued)
                assert replace(again.jobs[job_id], state=job.state) == job
            else:
                assert again.jobs[job_id] == job
        sampled = ServerSampled(at_s=self.at_s, cause="test", gpus=GPUS, samples={}, observed=())
        again.handle(sampled)
        assert (
            tenants(again.server_snapshot(self.at_s)) == tenants(self.manager.server_snapshot(self.at_s))
            or not self.readings
        )


def without_charges(job: Job) -> Job:
    """A job that has ended changes in one way only: a neighbor that it made run out of memory is charged to it."""
    return replace(job, attempts=tuple(replace(attempt, charges=()) for attempt in job.attempts))


def tenants(server: ServerSnapshot) -> dict[str, list[Resident]]:
    """Residents without what is only known from samples."""
    return {
        view.gpu.uuid: [
            replace(mate, observed_bytes=None, first_active_at_s=None, smact=None) for mate in view.residents
        ]
        for view in server.gpus
    }


Server.TestCase.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
TestServer = Server.TestCase
