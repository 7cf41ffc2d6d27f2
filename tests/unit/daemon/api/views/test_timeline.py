"""The timeline of a job, built from its events."""

from __future__ import annotations

from dataclasses import replace

from builders import a_job, a_spec, an_estimate
from cotenant.core.events import (
    AttemptExited,
    AttemptPlaced,
    AttemptStarted,
    EstimateReady,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    JobUpdated,
)
from cotenant.core.job import Attempt, AttemptExit, Charge, CoRun, Done, OomEvidence, Overrun, ProcessId, ResourceUsage
from cotenant.core.placement import Placement
from cotenant.core.units import GiB
from cotenant.daemon.api.views.timeline import timeline

PLACE = Placement(job_id=1, gpu_uuids=("GPU-0",), sharing="time-sliced", promised_bytes=8 * GiB)
OOM = AttemptExit(
    exit_code=1,
    signal=None,
    reason="exited",
    oom=OomEvidence(exception=True, tried_bytes=GiB, in_use_bytes=8 * GiB),
)
SPEC = a_spec(after=(9,), declared_bytes=None)
TRACED = replace(an_estimate(8, partial=True), estimator="traced")
EVENTS = (
    JobSubmitted(at_s=0.0, cause="submit", job_id=1, spec=SPEC),
    EstimateReady(at_s=1.0, cause="estimator traced", job_id=1, estimate=TRACED),
    JobHeld(at_s=2.0, cause="hold by ann: lunch", job_id=1),
    JobUpdated(at_s=3.0, cause="update by ann", job_id=1, spec=a_spec(after=(9,), declared_bytes=None, priority=2)),
    JobReleased(at_s=4.0, cause="release by ann", job_id=1),
    AttemptPlaced(at_s=5.0, cause="policy best-fit", job_id=1, attempt=1, placement=PLACE),
    AttemptStarted(at_s=6.0, cause="e", job_id=1, attempt=1, process=ProcessId(pid=44, start_ticks=1, boot_id="b")),
    AttemptExited(at_s=7.0, cause="e", job_id=1, attempt=1, exit=OOM, peak_observed_bytes={"GPU-0": 7 * GiB}),
    JobCancelled(at_s=8.0, cause="cancel by root", job_id=1),
)


def test_every_event_has_its_sentence_and_the_state_after_it():
    assert [(entry["state"], entry["text"]) for entry in timeline(EVENTS, indices={"GPU-0": 5})] == [
        ("queued", "submitted by ann: 1 GPU, memory to be estimated"),
        ("queued", "estimated: 8.0 GiB per GPU by traced, a lower bound"),
        ("held", "hold by ann: lunch"),
        ("held", "updated: priority 0 to 2"),
        ("queued", "release by ann"),
        ("starting", "attempt 1 placed by policy best-fit on GPU 5 (time-sliced), 8.0 GiB promised"),
        ("running", "attempt 1 started, runner 44"),
        ("queued", "attempt 1 ended: exit code 1, out of GPU memory, 7.0 GiB seen at most"),
        ("done", "cancel by root"),
    ]
    assert timeline(EVENTS)[1]["at"] == "1970-01-01T00:00:01.000Z"


def test_what_was_declared_is_not_said_to_be_estimated():
    declared = EstimateReady(at_s=1.0, cause="e", job_id=1, estimate=an_estimate(8))
    assert timeline((EVENTS[0], declared))[1]["text"] == "8.0 GiB per GPU, as declared"


def test_a_gpu_that_is_gone_keeps_its_uuid():
    assert "on GPU GPU-0 (time-sliced)" in timeline(EVENTS)[5]["text"]


OVERRUN = Overrun(job_id=7, attempt=1, uid=2000, gpu_uuid="GPU-0", promised_bytes=4 * GiB, observed_bytes=32 * GiB)


def test_a_victim_reads_who_exceeded_the_promise():
    blamed = replace(EVENTS[-2], overruns=(OVERRUN,))
    text = timeline((*EVENTS[:-2], blamed))[-1]["text"]
    assert text.endswith(", while another user's job 7 held 32.0 GiB, 4.0 GiB promised")
    own = replace(blamed, overruns=(replace(OVERRUN, uid=SPEC.uid),))
    assert timeline((*EVENTS[:-2], own))[-1]["text"].endswith(", while job 7 held 32.0 GiB, 4.0 GiB promised")


def test_who_exceeded_the_promise_reads_what_it_was_charged_when_it_happened():
    usage = ResourceUsage(gpu_s=120.0)
    charge = Charge(at_s=6.5, victim_id=3, victim_uid=3000, gpu_uuid="GPU-0", observed_bytes=32 * GiB, usage=usage)
    attempt = Attempt(number=1, placement=PLACE, placed_at_s=5.0, charges=(charge,))
    entries = timeline(EVENTS[:-1], job=replace(a_job(1), attempts=(attempt,)))
    assert [entry["event"] for entry in entries[-3:]] == ["AttemptStarted", "NeighborCharged", "AttemptExited"]
    assert entries[-2]["text"] == (
        "another user's job 3 ran out of memory because it held 32.0 GiB, 8.0 GiB promised, 2m00s of GPU time charged"
    )


def test_a_change_of_the_environment_is_not_shown():
    new = a_spec(env={"TOKEN": "hunter2"})
    (_, update) = timeline([EVENTS[0], JobUpdated(at_s=1.0, cause="c", job_id=1, spec=new)])
    assert "hunter2" not in str(update)


def test_changes_of_a_job_are_described():
    new = a_spec(after=(), declared_bytes=8 * GiB, time_limit_s=7200.0, begin_at_s=60.0)
    (_, update) = timeline([EVENTS[0], JobUpdated(at_s=1.0, cause="c", job_id=1, spec=new)])
    assert update["text"] == (
        "updated: memory none to 8.0 GiB, time limit none to 2h00m, afterok 9 to none,"
        " begin none to 1970-01-01T00:01:00.000Z"
    )


def test_an_exit_caused_by_others_is_described():
    over = replace(a_job(), state=Done(outcome="cancelled", at_s=5.0, reason="dependency 9 failed"))
    assert [(entry["state"], entry["text"]) for entry in timeline(EVENTS[:1], job=over)] == [
        ("queued", "submitted by ann: 1 GPU, memory to be estimated"),
        ("done", "cancelled: dependency 9 failed"),
    ]
    assert len(timeline(EVENTS, job=over)) == len(EVENTS), "it ended by an event of its own"


def test_without_events_the_timeline_is_empty():
    assert timeline([]) == []


def test_the_last_entry_shows_resource_usage_and_co_run_slowdown():
    co_runs = (
        CoRun(neighbor_ids=(), seconds=60.0, steps_hz=3.0),
        CoRun(neighbor_ids=(4,), seconds=60.0, steps_hz=2.0, slowdown=1.5),
        CoRun(neighbor_ids=(4, 5), seconds=60.0, slowdown=2.25),
    )
    usage = ResourceUsage(gpu_s=7200.0, energy_j=9e5, metered_s=3600.0)
    end = AttemptExited(
        at_s=7.0, cause="e", job_id=1, attempt=1, exit=OOM, peak_observed_bytes={}, co_runs=co_runs, usage=usage
    )
    text = timeline((*EVENTS[:-2], end))[-1]["text"]
    ending = ", 1.50 times as long a step beside job 4, 2.25 times as long a step beside jobs 4, 5"
    assert text.endswith(f", 250.0 Wh over 1.00 GPU hours{ending}")
