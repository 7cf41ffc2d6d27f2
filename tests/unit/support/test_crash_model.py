"""A daemon killed at every kind of step loses no job, runs none twice and promises no memory twice."""

from __future__ import annotations

from collections import Counter

import pytest

from cotenant.core.events import Launch
from cotenant.core.ports import AttemptRef, RecoveredAttempt
from cotenant.daemon.command_executor import CommandExecutor
from tests.support import crash_model
from tests.support.crash_model import CrashSchedule

STEPS = {
    *(f"{when} {what} are written" for when in ("before", "after") for what in ("news", "decisions")),
    *(f"{when} the {what}" for when in ("before", "after") for what in ("launch", "stop")),
}


def test_random_schedules_have_no_faults_and_meet_every_kind_of_crash():
    steps = Counter()
    attempts = jobs = 0
    for seed in range(60):
        verdict = CrashSchedule(seed, policy=("most-memory", "exclusive", "best-fit")[seed % 3]).run()
        assert verdict.faults == [], f"seed {seed}"
        steps += verdict.steps
        jobs += verdict.jobs
        attempts += verdict.attempts
    assert set(steps) == STEPS, steps
    assert attempts > jobs > 300


def test_a_daemon_that_launches_before_it_writes_the_decision_is_detected(monkeypatch):
    act = CommandExecutor.execute

    def act_early(self, commands):
        self._launch([command for command in commands if isinstance(command, Launch)])
        act(self, commands)

    monkeypatch.setattr(CommandExecutor, "execute", act_early)
    assert any(CrashSchedule(seed).run().faults for seed in range(20))


def test_an_engine_that_recovers_nothing_is_detected(monkeypatch):
    def finds_nothing(self, refs):
        return tuple(RecoveredAttempt(ref=ref, started=None, exited=None) for ref in refs)

    monkeypatch.setattr(crash_model._Machine, "recover", finds_nothing)
    assert any(CrashSchedule(seed).run().faults for seed in range(20))


@pytest.mark.parametrize(("promised_gib", "faults"), [(20, 0), (21, 1)])
def test_the_judge_counts_promises(promised_gib, faults):
    schedule = CrashSchedule(0)
    machine = schedule._machine
    for job_id in (1, 2):
        place = crash_model.Placement(
            job_id=job_id,
            gpu_uuids=("GPU-0",),
            sharing="time-sliced",
            promised_bytes=promised_gib * 2**30,
        )
        machine.launch(schedule._some_spec(), 1, place, {})
    assert len(schedule.verdict.faults) == faults
    assert set(machine.runs) == {AttemptRef(job_id=1, attempt=1), AttemptRef(job_id=2, attempt=1)}
