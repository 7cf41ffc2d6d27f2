"""Ids as people write them, and filters of lists."""

from __future__ import annotations

from dataclasses import replace

import pytest
from starlette.datastructures import QueryParams

from builders import a_job
from cotenant.core.errors import NoSuchJob, UsageError
from cotenant.core.job import ArrayTask, Done, Held
from cotenant.daemon.api.queries import JobFilter, resolve_ids

PLAIN = a_job(1)
ARRAY = [a_job(2 + i, array=ArrayTask(array_id=2, index=10 * i)) for i in range(4)]
AFTER = a_job(6, array=ArrayTask(array_id=6, index=1))
JOBS = {job.id: job for job in (PLAIN, *ARRAY, AFTER)}


@pytest.mark.parametrize(
    ("refs", "ids"),
    [
        (["1"], [1]),
        (["2"], [2, 3, 4, 5]),
        (["2_0"], [2]),
        (["2_20"], [4]),
        (["2_[10-29]"], [3, 4]),
        (["4"], [4]),  # a task by its own id
        (["6"], [6]),
        (["1", "2_10", "1"], [1, 3]),
    ],
)
def test_ids_and_names_are_resolved(refs, ids):
    assert resolve_ids(refs, JOBS) == ids


@pytest.mark.parametrize("ref", ["7", "0", "1_1", "2_5", "2_[1-9]", "4_20", "999999999999999"])
def test_an_unknown_job_is_refused(ref):
    with pytest.raises(NoSuchJob, match="no job"):
        resolve_ids([ref], JOBS)


@pytest.mark.parametrize("ref", ["", "x", "-1", "1_", "_1", "2_[1]", "2_[1-", "9" * 16, "\uff11", "1 "])
def test_an_invalid_id_is_refused(ref):
    with pytest.raises(UsageError, match="is not a job id"):
        resolve_ids([ref], JOBS)


def done(job_id, at_s, outcome="completed", **spec):
    return replace(a_job(job_id, **spec), state=Done(outcome=outcome, at_s=at_s))


LIST = [
    done(1, 10.0),
    done(2, 20.0, "failed", user="bob", uid=7),
    a_job(3, name="n"),
    replace(a_job(4), state=Held(since_s=0.0)),
    done(5, 30.0),
]


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("active=1", [3, 4]),
        ("over=1", [1, 2, 5]),
        ("states=FAILED,HELD", [2, 4]),
        ("user=bob", [2]),
        ("user=7", [2]),
        ("name=n", [3]),
        ("over=1&since_s=20", [2, 5]),
        ("over=1&until_s=20", [1, 2]),
        ("last=2", [4, 5]),
        ("last=99", [1, 2, 3, 4, 5]),
        ("max_waiting=1", [1, 2, 3, 5]),
        ("max_done=1", [3, 4, 5]),
        ("max_done=0&max_waiting=0", []),
        ("limit=2", [1, 2]),
        ("limit=2&after=2", [3, 4]),
        ("limit=2&after=4", [5]),
        ("limit=0", []),
        ("over=1&limit=2", [1, 2]),
        ("max_waiting=1&limit=4", [1, 2, 3, 5]),
        ("limit=3&last=1", [3]),
    ],
)
def test_filters_select_jobs(query, ids):
    assert [job.id for job in JobFilter.of(QueryParams(query)).of_jobs(LIST)] == ids


@pytest.mark.parametrize("query", ["last=x", "since_s=nan", "until_s=-1", "max_done=1e99"])
def test_invalid_filters_are_refused(query):
    with pytest.raises(UsageError, match="wanted a number"):
        JobFilter.of(QueryParams(query))
