"""What one user, and all together, may store in the journal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import a_spec
from cotenant.core.errors import JournalError, NotPermitted
from cotenant.core.job import ArrayTask
from cotenant.daemon.config.schema import LimitsSection
from cotenant.daemon.messages import JobChange
from cotenant.daemon.storage_quota import StorageQuota, stored_bytes
from loops import TIMEOUT_S, Bench

LARGE = a_spec(env={"DATA": "x" * 400_000}, hold=True)


@pytest.fixture
def bench():
    bench = Bench()
    bench.limits = LimitsSection(user_mib=1.0)
    bench.loop._submissions._quota = StorageQuota(bench.limits, bench.manager, bench.disk)
    yield bench.start()
    bench.loop.close()


def test_a_user_who_stores_too_much_is_refused_until_jobs_are_over(bench):
    bench.submit(LARGE)
    (second,) = bench.submit(replace(LARGE, env=dict(LARGE.env)))
    with pytest.raises(NotPermitted, match=r"your unfinished jobs would take 1.1 MiB, 1.0 MiB are allowed"):
        bench.submit(replace(LARGE, env=dict(LARGE.env)))
    bench.submit(replace(LARGE, uid=LARGE.uid + 1, user="eve", env=dict(LARGE.env)))
    bench.loop.change(JobChange("cancel", second, "t")).result(TIMEOUT_S)
    bench.submit(replace(LARGE, env=dict(LARGE.env)))


def test_an_array_counts_its_environment_once(bench):
    tasks = [replace(LARGE, array=ArrayTask(array_id=-1, index=i)) for i in range(100)]
    assert stored_bytes(tasks) < 410_000
    assert len(bench.submit(*tasks)) == 100


def test_a_journal_that_is_too_large_takes_no_job_and_says_what_to_do(bench):
    bench.disk.size_bytes = lambda: 20 * 2**30
    with pytest.raises(JournalError, match=r"the journal takes 20.0 GiB, 16.0 GiB are allowed") as caught:
        bench.submit(LARGE)
    assert "cotenant prune" in caught.value.hint


def test_a_pruned_job_is_not_requeued_without_its_environment(bench):
    (job_id,) = bench.submit(LARGE)
    bench.loop.change(JobChange("cancel", job_id, "t")).result(TIMEOUT_S)
    bench.disk.prune([job_id])
    with pytest.raises(Exception, match=f"job {job_id} was pruned, its environment is gone"):
        bench.loop.change(JobChange("requeue", job_id, "t")).result(TIMEOUT_S)
