"""Owners are told by a process of theirs, within limits, and nothing waits for it."""

from __future__ import annotations

import http.server
import json
import logging
import os
import threading

import pytest

from builders import a_job
from cotenant.core.job import Done
from cotenant.daemon import notify
from cotenant.daemon.calls.views import ending
from cotenant.daemon.notify import Notifier, is_address
from cotenant.engines.processes import read_stat

MESSAGE = ending(a_job(7, name="n")) | {"state": "FAILED", "reason": "exit code 3", "exit_code": 3}


@pytest.fixture
def tell(caplog):
    """Tells one message and waits until that is over; what was logged."""

    def act(how, timeout_s=30.0, enabled=True):
        notifier = Notifier(enabled=enabled, timeout_s=timeout_s)
        done = threading.Event()
        run = notifier._run

        def watched(*args):
            try:
                return run(*args)
            finally:
                done.set()

        notifier._run = watched
        notifier.tell(how, os.getuid(), MESSAGE)
        assert done.wait(60) == enabled if enabled else True
        notifier.close()
        return [each.fields["why"] for each in caplog.records if each.levelno == logging.WARNING]

    return act


def test_a_command_finds_the_job_in_its_environment(tell, tmp_path):
    names = "$COTENANT_JOB_ID $COTENANT_JOB_NAME $COTENANT_JOB_STATE $COTENANT_JOB_EXIT_CODE $COTENANT_JOB_REASON"
    assert tell(f"echo {names} > {tmp_path}/told; ulimit -t >> {tmp_path}/told") == []
    assert (tmp_path / "told").read_text() == "7 n FAILED 3 exit code 3\n20\n"


def test_what_fails_is_logged(tell):
    assert tell("echo no such mail >&2; exit 3") == ["no such mail"]


def test_what_takes_too_long_is_ended_with_all_it_started(tell, tmp_path):
    assert tell(f"sleep 1000 & echo $! > {tmp_path}/pid; wait", timeout_s=3.0) == ["not done after 3 s"]
    assert not alive(int((tmp_path / "pid").read_text()))


def alive(pid):
    found = read_stat(pid)
    return found is not None and found.state != "Z"


def test_off_means_off(tell, tmp_path):
    assert tell(f"touch {tmp_path}/told", enabled=False) == []
    assert not (tmp_path / "told").exists()


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hook():
    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    server.told = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_address_gets_a_message(tell, hook):
    assert tell(f"http://127.0.0.1:{hook.server_port}/x") == []
    assert hook.told == [MESSAGE]


def test_an_address_that_sends_us_elsewhere_is_not_followed(tell, hook):
    (why,) = tell(f"http://127.0.0.1:{hook.server_port}/away")
    assert "302" in why
    assert len(hook.told) == 1


@pytest.mark.parametrize(
    ("how", "address"),
    [("http://a", True), ("https://a", True), ("file:///etc/passwd", False), ("curl http://a", False)],
)
def test_what_is_an_address(how, address):
    assert is_address(how) is address


def test_more_than_can_wait_is_dropped(monkeypatch, caplog):
    monkeypatch.setattr(notify, "MOST_WAITING", 1)
    monkeypatch.setattr(notify, "THREADS", 0)
    notifier = Notifier(enabled=True, timeout_s=1.0)
    for _ in range(2):
        notifier.tell("true", 0, MESSAGE)
    assert "too many notifications" in caplog.text
    notifier.close()


def test_what_is_told():
    job = a_job(7)
    told = ending(job.__class__(id=7, spec=job.spec, submitted_at_s=0.0, state=Done(outcome="oom", at_s=0.0)))
    assert (told["state"], told["ended_at"], told["exit_code"]) == ("OOM", "1970-01-01T00:00:00.000Z", 1)
