"""Why a job waits, as its user may read it: jobs of other users have no id there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from builders import a_job
from cotenant.core.job import Held, Queued
from cotenant.core.placement import Deferral, Rejection
from cotenant.daemon.api.views.job_views import JsonViews

ANN, BEN = 1000, 1001


def manager_that_says(reason, *, rule="warming_up", rejection=""):
    rejections = (Rejection(gpu_uuid="GPU-0", rule="exclusive", reason=rejection),) if rejection else ()
    wait = Deferral(job_id=2, reason=reason, rule=rule, rejections=rejections)
    jobs = {1: a_job(1, uid=ANN), 2: a_job(2, uid=BEN), 3: a_job(3, uid=BEN)}
    return SimpleNamespace(explain=lambda _: wait, jobs=jobs, gpus=())


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("job 1 was placed 2s ago", "another user's job was placed 2s ago"),
        ("job 3 was placed 2s ago", "job 3 was placed 2s ago"),
        ("job 1 is ahead of job 3", "another user's job is ahead of job 3"),
        ("3 jobs between 1 and 9", "3 jobs between 1 and 9"),
        ("another user's job 1 held 36.2 GiB", "another user's job 1 held 36.2 GiB"),
        ("job 77 is gone", "job 77 is gone"),
    ],
)
def test_a_wait_names_jobs_of_its_own_user_only(reason, shown):
    manager = manager_that_says(reason, rejection=reason)
    job = a_job(2, uid=BEN)
    found = JsonViews(manager, 0.0).explanation(job)
    assert found["reason"] == shown
    assert [rejection["reason"] for rejection in found["rejections"]] == [shown]


@pytest.mark.parametrize(("state", "rule"), [(Queued(since_s=0.0), "dependency"), (Held(since_s=0.0), "")])
def test_what_users_wrote_themselves_stays(state, rule):
    manager = manager_that_says("after job 1", rule=rule)
    job = replace(a_job(2, uid=BEN), state=state)
    assert JsonViews(manager, 0.0).explanation(job)["reason"] == "after job 1"
