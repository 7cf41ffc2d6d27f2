"""One estimator process: it stays for the next request, and is started again once if it has ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from cotenant.daemon.estimation.worker import EstimatorWorker, Submitter
from estimator_programs import ECHO

TIMEOUT_S = 60


@pytest.fixture
def a_worker(tmp_path):
    """Makes a worker that runs a program."""
    lifeline, life = os.pipe()
    made = []

    def make(code):
        made.append(EstimatorWorker((sys.executable, "-c", code), lifeline=lifeline, folder=tmp_path, name="one"))
        return made[-1]

    yield make
    for worker in made:
        worker.dispose()
    os.close(life)
    os.close(lifeline)


def pid_from(worker, request=b"{}"):
    """The pid that `ECHO` answers."""
    answer = worker.exchange(request, submitter=Submitter(os.geteuid()), timeout_s=TIMEOUT_S)
    return int(json.loads(answer)["error"]["message"])


def test_an_estimator_that_ends_during_a_request_is_started_once_more(a_worker, monkeypatch):
    """Its pipes are closed already, and nobody knows of its end yet."""
    worker = a_worker(ECHO)
    first = pid_from(worker)
    process = worker._process
    os.kill(first, signal.SIGKILL)
    process.wait()
    monkeypatch.setattr(process, "poll", lambda: None)
    assert pid_from(worker) != first


def test_what_another_process_writes_between_requests_answers_nobody(a_worker):
    worker = a_worker(ECHO)
    first = pid_from(worker)
    Path(f"/proc/{first}/fd/1").write_text("{}\n")
    second = pid_from(worker)
    assert second != first
    assert pid_from(worker) == second
