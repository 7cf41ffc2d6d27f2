"""Repartitions of a live server: begun before jobs are placed, hidden while they last, resumed after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_spec
from cotenant.core.events import (
    AttemptExited,
    JobSubmitted,
    Launch,
    Repartition,
    RepartitionEnded,
    RepartitionStarted,
    ServerSampled,
    Tick,
)
from cotenant.core.gpu import Gpu, GpuProcess, GpuSample
from cotenant.core.job import AttemptExit, Held, Queued
from cotenant.core.mig import MigGpu, layout_texts, parse_layout, parse_profiles
from cotenant.core.units import GiB
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.policies import create
from cotenant.scheduling.repartition import RepartitionRule

PROFILES = parse_profiles([("1g.5gb", 5 * GiB), ("3g.20gb", 20 * GiB), ("4g.20gb", 20 * GiB), ("7g.40gb", 40 * GiB)])
SMALL = tuple(f"1g.5gb:{place}" for place in range(7))
HALVES = ("4g.20gb:0", "3g.20gb:4")
RULE = RepartitionRule(period_s=100.0)


def a_sample(*texts, at_s, foreign="", mig=True):
    """What the monitor sends of one GPU in MIG mode, all of whose instances are empty."""
    layout = parse_layout(texts, PROFILES)
    gpus = tuple(
        Gpu(
            uuid=f"MIG-{instance.text}",
            index=0,
            name="A100",
            memory_total_bytes=instance.profile.memory_bytes,
            mig_parent="GPU-0",
            mig_profile=instance.profile.name,
        )
        for instance in layout
    )
    owner = MigGpu(uuid="GPU-0", index=0, profiles=PROFILES, layout=layout, foreign=foreign)
    samples = {gpu.uuid: GpuSample(at_s=at_s, used_bytes=0) for gpu in gpus}
    return ServerSampled(
        at_s=at_s, cause="monitor", gpus=gpus, samples=samples, observed=(), mig_gpus=(owner,) if mig else ()
    )


def submitted(job_id, gib, at_s):
    return JobSubmitted(at_s=at_s, cause="submit", job_id=job_id, spec=a_spec(declared_bytes=int(gib * GiB)))


def ended(*texts, at_s, error=None):
    return RepartitionEnded(
        at_s=at_s, cause="repartition", job_id=1, gpu_uuid="GPU-0", gpu_index=0, layout=texts, error=error
    )


def a_manager(rule=RULE, **config):
    return Manager(create("exclusive"), ManagerConfig(repartition=rule, estimate=False, **config))


def begun(**config):
    """A manager that has begun to repartition its GPU for job 1, and the command."""
    manager = a_manager(**config)
    manager.handle(a_sample(*SMALL, at_s=1.0))
    (command,) = manager.handle(submitted(1, 15, at_s=2.0))
    return manager, command


def test_it_begins_when_a_job_gains_by_it():
    manager, command = begun()
    started = RepartitionStarted(
        at_s=2.0,
        cause="+1.00 jobs' worth of speed for 1 waiting job",
        job_id=1,
        gpu_uuid="GPU-0",
        gpu_index=0,
        before=SMALL,
        after=HALVES,
    )
    assert command == Repartition(at_s=2.0, cause=started.cause, started=started)
    assert manager.gpus == ()
    assert manager.snapshot().repartitions == (started,)


def test_without_a_rule_no_layout_changes_and_the_job_is_held():
    manager = a_manager(rule=None)
    manager.handle(a_sample(*SMALL, at_s=1.0))
    assert manager.handle(submitted(1, 15, at_s=2.0)) == []
    assert isinstance(manager.jobs[1].state, Held)


def test_a_job_that_only_another_layout_holds_is_not_held():
    manager = a_manager()
    manager.handle(a_sample(*SMALL, at_s=1.0, foreign="an instance is divided"))
    manager.handle(submitted(1, 15, at_s=2.0))
    assert isinstance(manager.jobs[1].state, Held)
    manager.handle(a_sample(*SMALL, at_s=3.0))
    assert isinstance(manager.jobs[1].state, Queued)


def test_a_job_is_not_placed_on_the_instances_that_it_would_be_slow_on():
    manager = a_manager()
    manager.handle(a_sample(*SMALL, at_s=1.0))
    (command,) = manager.handle(submitted(1, 4, at_s=2.0))
    assert isinstance(command, Repartition)


def busy(sample):
    """`sample` with a process on its first instance."""
    first = sample.gpus[0].uuid
    shown = GpuSample(at_s=sample.at_s, used_bytes=0, processes=(GpuProcess(pid=7, used_bytes=0),))
    return replace(sample, samples={**sample.samples, first: shown})


@pytest.mark.parametrize(("sampled_s", "begins"), [(3.0, True), (5.0, False)])
def test_the_processes_of_a_job_that_has_left_do_not_count(sampled_s, begins):
    """The sample of 3 s is from before the job left at 4 s; one of 5 s shows a process of somebody else."""
    manager = a_manager()
    manager.handle(a_sample("7g.40gb:0", at_s=1.0))
    (launch,) = manager.handle(submitted(1, 15, at_s=2.0))
    for number in range(2, 6):
        manager.handle(submitted(number, 15, at_s=2.5))
    assert isinstance(launch, Launch)
    manager.handle(busy(a_sample("7g.40gb:0", at_s=sampled_s)))
    exited = AttemptExited(
        at_s=4.0,
        cause="engine",
        job_id=1,
        attempt=1,
        exit=AttemptExit(exit_code=0, signal=None, reason="exited"),
        peak_observed_bytes={},
    )
    commands = manager.handle(exited)
    assert any(isinstance(command, Repartition) for command in commands) == begins


def test_nothing_is_placed_while_it_lasts():
    manager, _ = begun()
    assert manager.handle(submitted(2, 2, at_s=3.0)) == []
    assert manager.handle(a_sample(*SMALL[:3], at_s=4.0)) == []
    assert manager.handle(a_sample(*SMALL[:3], at_s=5.0, mig=False)) == []
    assert manager.gpus == ()
    assert isinstance(manager.jobs[1].state, Queued)


def test_jobs_get_the_new_instances_when_it_is_over():
    manager, _ = begun()
    manager.handle(ended(*HALVES, at_s=5.0))
    assert manager.handle(a_sample(*SMALL, at_s=4.5)) == [], "an older sample, of instances that are gone"
    assert manager.gpus == ()
    (command,) = manager.handle(a_sample(*HALVES, at_s=5.5))
    assert isinstance(command, Launch)
    assert command.placed.placement.gpu_uuids == ("MIG-4g.20gb:0",)


def test_a_gpu_keeps_its_layout_for_the_period_and_longer_after_failures():
    manager, command = begun()
    at_s, waits = 2.0, []
    for _ in range(3):
        failed_s = at_s + 1.0
        manager.handle(ended(*SMALL, at_s=failed_s, error="in use"))
        while True:
            at_s += 10.0
            manager.handle(a_sample(*SMALL, at_s=at_s))
            if manager.snapshot().repartitions:
                break
        waits.append(at_s - failed_s)
    assert waits == [pytest.approx(100.0 * 2.0**failures, abs=10.0) for failures in (1, 2, 3)]
    assert command.started.after == HALVES


def test_explain_says_what_goes_on_and_what_failed():
    manager, _ = begun()
    manager.handle(a_sample(*SMALL, at_s=3.0))
    assert "GPU 0 is repartitioned into 4g.20gb:0, 3g.20gb:4 for job 1" in manager.explain(1).reason
    manager.handle(ended(*SMALL, at_s=4.0, error="`1g.5gb:3` is in use"))
    manager.handle(a_sample(*SMALL, at_s=5.0))
    assert "GPU 0 could not be repartitioned: `1g.5gb:3` is in use" in manager.explain(1).reason


@pytest.mark.parametrize("has_snapshot", [False, True])
def test_a_restart_resumes_a_repartition_that_has_no_end(has_snapshot):
    before, command = begun()
    events = [submitted(1, 15, at_s=2.0), command.started]
    after = a_manager()
    commands = after.restore([], before.snapshot()) if has_snapshot else after.restore(events)
    assert commands == [Repartition(at_s=2.0, cause="restart", started=command.started, is_resumed=True)]
    assert after.handle(a_sample(*SMALL[:2], at_s=3.0)) == []
    assert after.gpus == ()
    after.handle(ended(*HALVES, at_s=4.0))
    assert [type(found) for found in after.handle(a_sample(*HALVES, at_s=5.0))] == [Launch]


def test_a_restart_after_its_end_resumes_nothing():
    _, command = begun()
    after = a_manager()
    assert after.restore([submitted(1, 15, at_s=2.0), command.started, ended(*HALVES, at_s=3.0)]) == []


def test_a_gpu_whose_layout_cannot_be_changed_is_used_as_it_is():
    manager = a_manager()
    (sample,) = [a_sample(*SMALL, at_s=1.0, foreign="an instance is divided")]
    manager.handle(sample)
    (command,) = manager.handle(submitted(1, 4, at_s=2.0))
    assert isinstance(command, Launch)


def test_a_plan_is_not_made_anew_for_the_same_gpus_and_queue(monkeypatch):
    manager = a_manager()
    manager.handle(a_sample(*SMALL, at_s=1.0))
    manager.handle(submitted(1, 45, at_s=2.0))  # too large for any layout
    watch = manager._repartitions
    calls = []
    monkeypatch.setattr(watch._planner, "plan", lambda *args, **_: calls.append(args))
    for at_s in (3.0, 4.0, 5.0):
        manager.handle(replace(a_sample(*SMALL, at_s=at_s), cause="monitor"))
        manager.handle(Tick(at_s=at_s, cause="clock"))
    assert len(calls) <= 1
    assert layout_texts(watch._mig_gpus[0].layout) == SMALL


def test_a_layout_that_the_administrator_changes_later_is_seen():
    manager, _ = begun()
    manager.handle(ended(*HALVES, at_s=5.0))
    manager.handle(a_sample(*SMALL, at_s=6.0))
    assert len(manager.gpus) == 7


def test_one_gpu_is_repartitioned_at_a_time():
    manager = a_manager()
    first, second = a_sample(*SMALL, at_s=1.0), a_sample(*SMALL, at_s=1.0)
    others = tuple(replace(gpu, uuid=f"{gpu.uuid} of GPU-1", mig_parent="GPU-1") for gpu in second.gpus)
    samples = {gpu.uuid: GpuSample(at_s=1.0, used_bytes=0) for gpu in (*first.gpus, *others)}
    owners = (*first.mig_gpus, replace(second.mig_gpus[0], uuid="GPU-1"))
    manager.handle(replace(first, gpus=(*first.gpus, *others), samples=samples, mig_gpus=owners))
    commands = [manager.handle(submitted(number, 15, at_s=2.0)) for number in range(1, 5)]
    assert [len(found) for found in commands] == [1, 0, 0, 0]
    assert len(manager.gpus) == 7
