"""Waiting for jobs: how often the daemon is asked."""

from __future__ import annotations

import pytest

from cotenant.cli.jobs import job_output
from cotenant.cli.jobs.job_output import wait_in_order
from cotenant.cli.main import main


@pytest.mark.parametrize(
    ("attempts", "said"), [(0, "job 7 has not started: GPU 0: needs 9.0 GiB, 8.0 GiB available\n"), (1, "")]
)
def test_logs_of_a_job_that_waits_say_so(monkeypatch, capsys, attempts, said):
    class Waiting:
        def logs(self, *_, **__):
            return iter(())

        def job(self, job_id):
            return {"label": job_id, "attempts": attempts, "reason": "GPU 0: needs 9.0 GiB, 8.0 GiB available"}

    monkeypatch.setattr("cotenant.cli.common.Connection.client", lambda _: Waiting())
    monkeypatch.setattr(job_output, "one_job", lambda _, job: int(job))
    assert main(["logs", "7"]) == 0
    assert capsys.readouterr() == ("", said)


class CountingClient:
    """Answers for the jobs in `over`, and for others once they are waited for; counts the requests."""

    def __init__(self, over):
        self.over, self.lists, self.waits = set(over), [], []

    def jobs(self, **filters):
        self.lists.append(filters["after"])
        return [{"id": job_id, "exit_code": 0} for job_id in sorted(self.over) if job_id > filters["after"]]

    def wait(self, job_id, *, timeout_s):
        self.waits.append(job_id)
        return {"id": job_id, "exit_code": 0, "timeout_s": timeout_s}


def waited(client, job_ids, **options):
    return [view["id"] for view in wait_in_order(client, job_ids, **{"timeout_s": None, "fields": None, **options})]


def test_jobs_that_are_over_take_one_request_for_all(monkeypatch):
    client = CountingClient(over=range(3, 103))
    assert waited(client, [*range(102, 2, -1)]) == [*range(102, 2, -1)]
    assert (client.lists, client.waits) == ([2], [])


@pytest.mark.parametrize(("relist_s", "lists"), [(0.0, [0, 1]), (1e9, [0])], ids=["long waits", "short waits"])
def test_those_that_are_not_over_are_listed_again_only_after_a_while(monkeypatch, relist_s, lists):
    monkeypatch.setattr(job_output, "RELIST_S", relist_s)
    client = CountingClient(over=())
    assert waited(client, [1, 2, 3]) == [1, 2, 3]
    assert (client.lists, client.waits) == (lists, [1, 2, 3])


def test_one_job_is_waited_for_without_a_list():
    client = CountingClient(over=())
    assert waited(client, [7]) == [7]
    assert (client.lists, client.waits) == ([], [7])


def test_the_timeout_is_of_all_jobs_together():
    client = CountingClient(over=())
    views = wait_in_order(client, [1, 2], timeout_s=0.0, fields=None)
    assert [view["timeout_s"] for view in views] == [0.0, 0.0]
