"""How jobs share that say how: in turns, by MPS, on a MIG instance of their own; and after MPS has failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_job, a_resident, a_server, a_snapshot, a_spec
from cotenant.core.events import JobSubmitted, ServerSampled
from cotenant.core.job import Attempt, AttemptExit, Held
from cotenant.core.placement import Deferral, Placement
from cotenant.core.units import GiB
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.demand import never_fits
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policies import create
from cotenant.scheduling.recovery import Finish, Retry, effective_sharing, next_step

TURNS = create("most-memory", {"warmup_s": 0.0})
MPS = create("most-memory", {"warmup_s": 0.0, "sharing": "mps"})


def instance(index, gib, **options):
    found = a_snapshot(index, gib=gib, **options)
    return replace(found, gpu=replace(found.gpu, mig_profile="3g.20gb", mig_parent="GPU-p"))


@pytest.mark.parametrize(
    ("policy", "share", "sharing"),
    [
        (TURNS, "auto", "time-sliced"),
        (TURNS, "time", "time-sliced"),
        (TURNS, "mps", "mps"),
        (MPS, "auto", "mps"),
        (MPS, "time", "time-sliced"),
        (MPS, "mps", "mps"),
    ],
)
def test_the_sharing_request_of_the_job_overrides_the_policy(policy, share, sharing):
    (answer,) = policy.decide([a_job(sharing=share)], a_server(a_snapshot()))
    assert answer.sharing == sharing


def test_jobs_with_different_sharing_requests_are_placed_separately():
    queue = [a_job(job_id, 4, sharing=share) for job_id, share in enumerate(("auto", "mps", "time", "auto"), start=1)]
    answers = TURNS.decide(queue, a_server(a_snapshot()))
    assert [answer.sharing for answer in answers] == ["time-sliced", "mps", "time-sliced", "time-sliced"]


def test_a_mig_request_gets_the_smallest_sufficient_empty_instance():
    server = a_server(
        a_snapshot(0),
        instance(1, 40),
        instance(2, 20, residents=(a_resident(2),)),
        instance(3, 10),
        instance(4, 20),
    )
    (answer,) = TURNS.decide([a_job(gib=12, sharing="mig")], server)
    assert (answer.gpu_uuids, answer.sharing) == (("GPU-4",), "exclusive")


def test_a_mig_request_without_a_free_instance_is_deferred_with_the_reason():
    server = a_server(a_snapshot(0), instance(1, 20, residents=(a_resident(2),)))
    (answer,) = TURNS.decide([a_job(gib=12, sharing="mig")], server)
    assert isinstance(answer, Deferral)
    assert answer.reason == "GPU 1, best of 2: must be empty (an instance of its own was requested), job 100 on it"
    assert [(rejection.rule, rejection.reason) for rejection in answer.rejections] == [
        ("no_mig_instance", "is not a MIG instance, which was requested"),
        ("not_empty", "must be empty (an instance of its own was requested), job 100 on it"),
    ]


def test_a_mig_request_of_unknown_memory_takes_any_empty_instance():
    (answer,) = TURNS.decide([a_job(gib=None, sharing="mig")], a_server(a_snapshot(0), instance(1, 20)))
    assert (answer.gpu_uuids, answer.promised_bytes) == (("GPU-1",), 20 * GiB)


def test_a_long_waiting_mig_request_reserves_instances_and_no_whole_gpu():
    policy = create("most-memory", {"warmup_s": 0.0, "reserve_after_s": 10.0})
    server = a_server(a_snapshot(0, at_s=100.0), instance(1, 20, residents=(a_resident(2),), at_s=100.0), at_s=100.0)
    answers = {answer.job_id: answer for answer in policy.decide([a_job(1, 12, sharing="mig"), a_job(2, 4)], server)}
    assert isinstance(answers[1], Deferral)
    assert answers[2].gpu_uuids == ("GPU-0",)


def test_a_mig_request_never_fits_a_server_without_instances():
    assert never_fits(a_job(gib=12, sharing="mig"), []) == "needs a MIG instance, the server has none"
    assert never_fits(a_job(gib=12, sharing="mig"), [20 * GiB]) is None
    assert "the largest has 5.0 GiB" in never_fits(a_job(gib=12, sharing="mig"), [5 * GiB])


# After an MPS fault.


def ended(*ends, share="auto", forgiven=0, sharing="mps", **spec):
    """A job whose attempts came to `ends`."""
    attempts = tuple(
        Attempt(
            number=number,
            placement=Placement(job_id=1, gpu_uuids=("GPU-0",), sharing=sharing, promised_bytes=8 * GiB),
            placed_at_s=0.0,
            started_at_s=0.0,
            ended_at_s=10.0,
            exit=end,
        )
        for number, end in enumerate(ends, start=1)
    )
    return replace(a_job(sharing=share, **spec), attempts=attempts, uncounted_attempts=forgiven)


def an_end(code=1, **fields):
    return AttemptExit(exit_code=code, signal=None, reason="exited", **fields)


FAULT = an_end(mps_fault=True)


def test_an_mps_fault_is_retried_without_mps():
    what = next_step(ended(FAULT))
    assert isinstance(what, Retry)
    assert (what.exclusive, what.min_memory_bytes, what.uncount_attempts) == (False, 0, False)
    assert "without MPS" in what.reason
    for share in ("auto", "mps", "time"):
        assert effective_sharing(ended(FAULT, share=share)) == "time"
    (answer,) = MPS.decide([ended(FAULT, share="mps")], a_server(a_snapshot()))
    assert answer.sharing == "time-sliced"


def test_a_job_that_fails_alone_after_an_mps_fault_is_final():
    assert next_step(ended(FAULT, an_end(3))) == Finish(outcome="failed", code=3, reason="exit code 3")


def test_an_mps_fault_counts_neither_as_a_failure_nor_as_an_attempt():
    assert isinstance(next_step(ended(FAULT, an_end(3), retries=1)), Retry)
    assert isinstance(next_step(ended(an_end(3), FAULT, an_end(3), retries=1)), Finish)
    lost = AttemptExit(exit_code=None, signal=None, reason="lost")
    assert isinstance(next_step(ended(FAULT, lost, requeue=True, max_attempts=2)), Retry)
    assert isinstance(next_step(ended(an_end(), lost, requeue=True, max_attempts=2)), Finish)


def test_exit_code_0_completes_the_job_despite_an_mps_fault():
    assert next_step(ended(an_end(0, mps_fault=True))) == Finish(outcome="completed", code=0)


def test_after_a_requeue_a_job_may_use_mps_again():
    assert effective_sharing(ended(FAULT, forgiven=1, share="mps")) == "mps"


def test_a_failure_without_an_mps_fault_is_final():
    assert next_step(ended(an_end(3))) == Finish(outcome="failed", code=3, reason="exit code 3")


# -- through the manager


class Bench:
    """A manager, and a clock for it."""

    def __init__(self):
        self.manager = Manager(TURNS, ManagerConfig(estimate=False))
        self.at_s = 0.0

    def sampled(self, *gpus):
        self.at_s += 1.0
        samples = {gpu.gpu.uuid: replace(gpu.samples[0], at_s=self.at_s) for gpu in gpus}
        known = tuple(gpu.gpu for gpu in gpus)
        self.manager.handle(ServerSampled(at_s=self.at_s, cause="test", gpus=known, samples=samples, observed=()))

    def submitted(self, **spec):
        self.manager.handle(JobSubmitted(at_s=self.at_s, cause="test", job_id=1, spec=a_spec(**spec)))


def test_a_mig_request_is_held_until_an_instance_exists():
    bench = Bench()
    bench.sampled(a_snapshot(0))
    bench.submitted(sharing="mig", declared_bytes=8 * GiB)
    bench.sampled(a_snapshot(0))
    state = bench.manager.jobs[1].state
    assert (type(state), state.reason) == (Held, "needs a MIG instance, the server has none")
    for _ in range(2):
        bench.sampled(a_snapshot(0), instance(1, 20))
    (attempt,) = bench.manager.jobs[1].attempts
    assert attempt.placement.gpu_uuids == ("GPU-1",)


def test_a_gpu_replaced_by_an_instance_of_the_same_size_is_noticed():
    bench = Bench()
    bench.sampled(a_snapshot(0))
    bench.submitted(sharing="mig", declared_bytes=8 * GiB)
    bench.sampled(a_snapshot(0))
    assert type(bench.manager.jobs[1].state) is Held
    for _ in range(2):
        bench.sampled(instance(0, 40))
    assert len(bench.manager.jobs[1].attempts) == 1
