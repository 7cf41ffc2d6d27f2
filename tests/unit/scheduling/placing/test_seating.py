"""The manager and its policy at work: what is told when, what is learned, what follows from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from builders import a_gpu, a_job, a_snapshot, a_spec, an_estimate
from cotenant.core.events import (
    AttemptExited,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobSubmitted,
    Launch,
    ObservedBytes,
    ServerSampled,
    Stop,
    Tick,
)
from cotenant.core.gpu import GpuSample
from cotenant.core.job import AttemptExit, ProcessId, Queued
from cotenant.core.placement import Placement, Wait
from cotenant.core.units import GiB
from cotenant.scheduling.explain import who
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.placing.asking import Asking
from cotenant.scheduling.policies import create

OK = AttemptExit(exit_code=0, signal=None, reason="exited")


class Life:
    """A manager over 40 GiB GPUs whose live jobs each hold what `holds` says, in GiB."""

    def __init__(self, gpus=1, policy="marginal-gain", smact=0.3, **config):
        self.policy = create(policy) if isinstance(policy, str) else policy
        self.gpus = tuple(a_gpu(each) for each in range(gpus))
        self.config = ManagerConfig(**config)
        self.manager = Manager(self.policy, self.config)
        self.kept = []
        self.holds = {}
        self.smact = smact
        self.steps_hz = {}
        self.at_s = 0.0
        self.pass_(0)

    def send(self, event):
        if not isinstance(event, (ServerSampled, Tick)):
            self.kept.append(event)
        commands = self.manager.handle(event)
        self.kept += [each.placed for each in commands if isinstance(each, Launch)]
        return commands

    def submit(self, job_id, gib=8, script="a.py", **spec):
        spec = a_spec(command=("python", script), **spec)
        self.send(JobSubmitted(at_s=self.at_s, cause="test", job_id=job_id, spec=spec))
        estimate = None if gib is None else an_estimate(gib)
        commands = self.send(EstimateReady(at_s=self.at_s, cause="test", job_id=job_id, estimate=estimate, error="no"))
        return [each.placed for each in commands if isinstance(each, Launch)]

    def start(self, job_id, holds=4):
        attempt = len(self.manager.jobs[job_id].attempts)
        self.holds[job_id] = holds
        process = ProcessId(pid=job_id, start_ticks=1, boot_id="b")
        return self.send(AttemptStarted(at_s=self.at_s, cause="test", job_id=job_id, attempt=attempt, process=process))

    def pass_(self, seconds):
        """Samples each second."""
        commands = []
        for _ in range(max(1, seconds)):
            self.at_s += 1.0 if seconds else 0.0
            observed = tuple(
                ObservedBytes(
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
                    used_bytes=sum(each.used_bytes for each in observed if each.gpu_uuid == gpu.uuid),
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
        event = self.manager.witnessed(event)
        del self.holds[job_id]
        return self.send(event)

    def run(self, job_id, seconds=120, holds=4, **submit):
        self.submit(job_id, **submit)
        self.start(job_id, holds)
        self.pass_(seconds)
        return self.end(job_id)


def launched(commands):
    return [each.placed.job_id for each in commands if isinstance(each, Launch)]


def test_work_that_ran_twice_is_promised_what_it_took():
    life = Life()
    life.run(1)
    life.run(2)
    (placed,) = life.submit(3)
    assert placed.placement.promised_bytes == 4 * 1.05 * GiB // 2**24 * 2**24 + 2**24
    assert life.submit(4, script="b.py")[0].placement.promised_bytes == 8 * GiB


def test_work_that_could_not_be_estimated_shares_after_it_ran_once():
    life = Life()
    life.run(1, gib=None)
    assert life.manager.jobs[1].attempts[0].placement.sharing == "exclusive"
    (placed,) = life.submit(2, gib=None)
    assert (placed.placement.sharing, placed.placement.promised_bytes) == ("time-sliced", 4512 * 2**20)


def test_a_job_that_waits_is_placed_by_what_a_mate_teaches():
    life = Life(policy=create("first-fit", {"settle_s": 0}))
    life.submit(1, gib=None)
    life.start(1)
    life.submit(2, gib=20, script="b.py")
    life.submit(3, gib=None)
    life.pass_(120)
    assert launched(life.end(1)) == [2, 3]
    assert life.manager.jobs[3].attempts[0].placement.sharing == "time-sliced"


def test_activity_is_learned_alone_and_known_of_residents():
    life = Life()
    life.run(1)
    life.submit(2)
    (resident,) = life.manager.snapshot(life.at_s).gpus[0].residents
    assert resident.workload == "python /tmp/a.py"
    assert resident.smact == pytest.approx(0.3)
    assert life.submit(3), "no settling is needed beside work that is known"


def test_what_a_resident_does_is_known_from_its_own_time_alone():
    life = Life(smact=0.3)
    life.submit(1)
    life.start(1)
    life.pass_(5)
    (resident,) = life.manager.snapshot(life.at_s).gpus[0].residents
    assert resident.smact is None, "its start says nothing"
    life.pass_(60)
    life.submit(2, script="b.py")
    life.start(2)
    life.smact = 0.9
    life.pass_(60)
    mates = life.manager.snapshot(life.at_s).gpus[0].residents
    assert [each.smact for each in mates] == [pytest.approx(0.3), None]


def test_time_together_is_kept_apart():
    life = Life()
    life.run(1)
    for each in (2, 3):
        life.submit(each)
        life.start(each)
    life.steps_hz = {2: 5.0}
    life.pass_(60)
    life.end(3)
    life.pass_(60)
    life.end(2)
    spells = {each.mates: each for each in life.manager.jobs[2].attempts[0].spells}
    assert set(spells) == {(3,), ()}
    assert spells[3,].seconds == pytest.approx(45.0, abs=1.5), "the first 15 s of a resident are left out"
    assert spells[3,].steps_hz == pytest.approx(5.0)
    assert spells[()].seconds == pytest.approx(60.0, abs=1.5)


def test_a_job_of_several_gpus_is_told_of_once():
    life = Life(gpus=2)
    life.submit(1, gpus=2)
    life.start(1)
    life.pass_(60)
    life.end(1)
    (spell,) = life.manager.jobs[1].attempts[0].spells
    assert spell.seconds == pytest.approx(45.0, abs=1.5)


def test_a_restart_knows_the_same():
    life = Life()
    life.run(1)
    life.run(2, gib=None, script="b.py")
    life.run(3)
    again = Manager(life.policy, life.config)
    again.restore(life.kept)
    assert again.history.state() == life.manager.history.state()
    assert again.history.state()["records"]["python /tmp/a.py"]["peaks_bytes"] == [4 * GiB, 4 * GiB]


def test_a_job_that_outgrows_its_promise_is_reported_and_counts_with_what_it_takes():
    life = Life(policy="first-fit")
    life.submit(1, gib=8)
    life.start(1, holds=30)
    life.pass_(60)
    assert life.manager.explain(1).reason == "runs on GPU 0 (time-sliced), 8.0 GiB promised, outgrown: 30.0 GiB seen"
    assert life.submit(2, gib=11) == []
    assert life.manager.explain(2).verdicts[0].reason == "needs 11.0 GiB, 10.0 GiB available"


def test_readings_that_go_stale_between_samples_admit_nobody():
    life = Life(gpus=2, policy=create("first-fit", {"settle_s": 0}), stale_after_s=5.0)
    assert life.submit(1)
    life.at_s += 6.0
    assert life.submit(2) == []
    assert life.manager.explain(2).verdicts[0].rule == "fresh_telemetry"
    assert launched(life.pass_(1)) == [2]


def test_a_clock_that_is_set_back_makes_readings_old():
    life = Life(gpus=2, policy=create("first-fit", {"settle_s": 0}), stale_after_s=5.0)
    life.pass_(30)
    assert life.submit(1)
    life.at_s = 3.0
    assert life.submit(2) == []
    assert life.manager.explain(2).verdicts[0].rule == "fresh_telemetry"
    assert launched(life.pass_(1)) == [2]


def test_a_gpu_that_appears_is_used_and_one_that_vanishes_is_not():
    life = Life(policy="exclusive")
    life.submit(1)
    life.submit(2)
    life.gpus = tuple(a_gpu(each) for each in range(2))
    assert launched(life.pass_(1)) == [2]
    life.gpus = life.gpus[1:]
    life.pass_(1)
    life.submit(3)
    assert life.manager.explain(3).reason == "1 empty GPU with 8.0 GiB available, none of 1 qualifies"


def test_a_job_that_is_cancelled_is_not_placed():
    life = Life(policy="exclusive")
    life.submit(1)
    life.submit(2)
    life.send(JobCancelled(at_s=life.at_s, cause="test", job_id=2))
    assert launched(life.send(replace_exit(life, 1))) == []


def replace_exit(life, job_id):
    return AttemptExited(at_s=life.at_s, cause="test", job_id=job_id, attempt=1, exit=OK, peak_observed_bytes={})


def test_a_time_slot_ends_when_others_wait():
    life = Life(policy="exclusive", slot_grace_s=100.0)
    life.submit(1, slot_s=60.0)
    life.start(1)
    assert life.pass_(90) == []
    life.submit(2)
    (stop,) = [each for each in life.pass_(1) if isinstance(each, Stop)]
    assert (stop.job_id, stop.cause, stop.grace_s) == (1, "time slot over", 100.0)
    assert life.pass_(30) == [], "asked once"
    assert launched(life.end(1, AttemptExit(exit_code=0, signal=None, reason="stopped"))) == [2]
    job = life.manager.jobs[1]
    assert job.state == Queued(since_s=life.at_s, reason="its time slot was over")
    assert job.attempts_forgiven == 1


class Odd:
    """A policy that is no composition: the last job goes to the last GPU, alone."""

    name = "odd"

    def decide(self, queue, server):
        *others, last = queue
        gpu = server.gpus[-1]
        if gpu.residents or gpu.available_bytes is None:
            return [Wait(job_id=each.id, reason="taken") for each in queue]
        place = Placement(
            job_id=last.id, gpu_uuids=(gpu.gpu.uuid,), sharing="exclusive", promised_bytes=gpu.available_bytes
        )
        return [*(Wait(job_id=each.id, reason="not the last") for each in others), place]


def test_a_policy_that_only_decides_is_asked():
    life = Life(gpus=2, policy=Odd())
    assert [each.job_id for each in life.submit(1)] == [1]
    assert life.submit(2) == []
    assert life.submit(3) == []
    assert life.manager.explain(2).reason == "taken"
    life.start(1)
    assert launched(life.end(1)) == [3]
    assert life.manager.explain(2).reason == "not the last"


def test_one_that_is_asked_counts_what_it_gave_away():
    asked = Asking(Odd())
    asked.update(a_snapshot(0))
    for each in (1, 2):
        asked.add(a_job(each, at_s=float(each)))
    assert [each.job_id for each in asked.decide(0.0)] == [2]
    assert asked.decide(1.0) == []
    assert (asked.waiting, asked.explain(1, 1.0).reason) == (1, "taken")
    asked.release(2)
    assert [each.job_id for each in asked.decide(2.0)] == [1]


def test_promises_are_whole_steps():
    life = Life(policy="first-fit")
    (placed,) = life.submit(1, gib=3.001)
    step = 16 * 2**20
    assert placed.placement.promised_bytes % step == 0
    assert 0 <= placed.placement.promised_bytes - 3.001 * GiB < step


def test_a_policy_that_errs_does_not_stop_the_others():
    class Wrong(Odd):
        def decide(self, queue, server):
            answers = super().decide(queue, server)
            return [replace(each, promised_bytes=2**60) if isinstance(each, Placement) else each for each in answers]

    life = Life(policy=Wrong())
    assert life.submit(1) == []
    assert life.manager.explain(1).reason.startswith("policy `odd` erred: ")
    assert isinstance(life.manager.jobs[1].state, Queued)


def test_how_a_job_fares_beside_others_is_told():
    life = Life()
    life.steps_hz = dict.fromkeys((1, 2, 3), 10.0)
    life.run(1)
    life.run(2, script="b.py")
    life.submit(3)
    life.start(3)
    assert life.manager.explain(3).reason.endswith("8.0 GiB promised"), "alone"
    life.submit(4, script="b.py")
    life.start(4)
    told = life.manager.explain(3).reason
    assert ", beside job 4: " in told
    assert "predicted" in told
    assert "measured" not in told, "too early to say"
    life.steps_hz[3] = 8.0
    life.pass_(30)
    assert ", beside job 4: 1.25 times as long measured, " in life.manager.explain(3).reason
    life.end(4)
    (spell,) = [each for each in life.manager.beside(life.manager.jobs[3], 1) if each.mates]
    assert (spell.mates, spell.slowdown) == ((4,), 1.25)
    assert spell.card_bytes == 40 * GiB
    life.end(3)
    kept = life.kept[-1]
    assert [each.slowdown for each in kept.spells if each.mates] == [1.25]
    assert kept.usage.gpu_s == pytest.approx(31.0, abs=2.0)
    assert life.manager.usage(life.manager.jobs[3], 1) == kept.usage


def test_what_was_seen_of_live_attempts_survives_a_restart():
    life = Life()
    life.steps_hz = {2: 10.0}
    life.run(1)
    life.submit(2)
    life.start(2, holds=7)
    life.pass_(60)
    life.holds[2] = 3
    life.pass_(5)
    before = life.manager
    again = Manager(life.policy, life.config)
    again.restore(life.kept)
    assert again.usage(again.jobs[2], 1) is None
    again.watch_on(json.loads(json.dumps(before.watched())))
    life.manager = again
    life.pass_(1)
    assert again.usage(again.jobs[2], 1).gpu_s == before.usage(before.jobs[2], 1).gpu_s + 1.0
    life.end(2)
    attempt = life.manager.jobs[2].attempts[0]
    assert attempt.peak_observed_bytes == {"GPU-0": 7 * GiB}, "not what it holds by now"
    assert attempt.spells[0].seconds == pytest.approx(50.0, abs=2.0)
    assert attempt.spells[0].steps_hz == pytest.approx(10.0)


@pytest.mark.parametrize("state", [{}, {"meter": {}}, {"meter": {"usage": [], "last": {}, "idle_w": {}}, "seen": [3]}])
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises((ValueError, TypeError, KeyError)):
        Life().manager.watch_on(state)


def test_jobs_of_other_users_have_no_id():
    life = Life()
    for job_id, uid in ((1, 7), (2, 7), (3, 8)):
        life.submit(job_id, uid=uid)
    assert life.manager.named(life.manager.jobs[1], (2, 3, 99)) == (2, None, None)


@pytest.mark.parametrize(
    ("mates", "words"),
    [
        ((3,), "job 3"),
        ((3, 4), "jobs 3, 4"),
        ((None,), "another user's job"),
        ((None, None), "2 jobs of other users"),
        ((3, None), "job 3 and 1 of other users"),
    ],
)
def test_who_is_there(mates, words):
    assert who(mates) == words
