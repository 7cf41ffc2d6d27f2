"""Owners are notified by a process of their own, within limits, without blocking the daemon."""

from __future__ import annotations

import http.server
import json
import logging
import os
import pwd
import resource
import threading
import time

import pytest

from builders import a_job
from cotenant.core.job import Done
from cotenant.daemon.api.views.job_words import end_message
from cotenant.daemon.services import notifier as notifier_module
from cotenant.daemon.services.notifier import Notifier, is_url
from cotenant.osutil.procfs import read_stat

ME = pwd.getpwuid(os.getuid()).pw_name
MESSAGE = end_message(a_job(7, name="n", user=ME)) | {"state": "FAILED", "reason": "exit code 3", "exit_code": 3}


@pytest.fixture
def notify(caplog):
    """A function that sends one notification, waits for it, and returns what was logged."""

    def act(how, timeout_s=30.0, enabled=True):
        notifier = Notifier(enabled=enabled, timeout_s=timeout_s)
        notifier.start()
        done = threading.Event()
        run = notifier._send

        def watched(*args):
            try:
                return run(*args)
            finally:
                done.set()

        notifier._send = watched
        notifier.notify(how, os.getuid(), MESSAGE)
        assert done.wait(60) == enabled if enabled else True
        notifier.close()
        return [record.fields["why"] for record in caplog.records if record.levelno == logging.WARNING]

    return act


def test_a_command_finds_the_job_in_its_environment(notify, tmp_path):
    names = "$COTENANT_JOB_ID $COTENANT_JOB_NAME $COTENANT_JOB_STATE $COTENANT_JOB_EXIT_CODE $COTENANT_JOB_REASON"
    assert notify(f"echo {names} > {tmp_path}/told; ulimit -t >> {tmp_path}/told") == []
    assert (tmp_path / "told").read_text() == "7 n FAILED 3 exit code 3\n20\n"


def test_a_failed_command_is_logged(notify):
    assert notify("echo no such mail >&2; exit 3") == ["no such mail"]


def test_long_output_of_a_command_is_not_held_in_memory(notify):
    """What it says goes to a file, and beyond the limit for files it may not go on."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (said,) = notify("head -c 100000000 /dev/zero | tr '\\0' x >&2; echo >&2; exit 3", timeout_s=60.0)
    assert set(said) == {"x"}
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 50 * 2**20


def test_an_internal_error_does_not_end_the_thread(caplog):
    notifier = Notifier(enabled=True, timeout_s=1.0)
    notifier.start()
    over = threading.Event()

    def run(how, *_):
        if how == "last":
            over.set()
            return ""
        raise RuntimeError(how)

    notifier._send = run
    for address in (*map(str, range(2 * notifier_module.THREADS)), "last"):
        notifier.notify(address, os.getuid(), MESSAGE)
    assert over.wait(60)
    notifier.close()
    assert sorted(record.fields["why"] for record in caplog.records) == [
        str(number) for number in range(2 * notifier_module.THREADS)
    ]


def test_a_command_that_times_out_is_killed_with_its_children(notify, tmp_path):
    for timeout_s in (2, 50):  # again, if the machine was too busy to start the command in time
        said = notify(
            f"sleep 1000 & echo $! > {tmp_path}/part; mv {tmp_path}/part {tmp_path}/pid; wait", timeout_s=timeout_s
        )
        assert said[-1] == f"timed out after {timeout_s} s"
        if (tmp_path / "pid").exists():
            break
    assert ends(int((tmp_path / "pid").read_text()))


def ends(pid):
    """Whether a process ends: it is killed, but nobody of ours waits for it."""
    give_up_s = time.monotonic() + 60
    while (found := read_stat(pid)) is not None and found.state != "Z":
        if time.monotonic() > give_up_s:
            return False
        time.sleep(0.01)
    return True


def test_a_uid_that_now_belongs_to_another_user_is_not_notified(notify, tmp_path, monkeypatch):
    monkeypatch.setitem(MESSAGE, "user", "somebody-who-left")
    (why,) = notify(f"touch {tmp_path}/told")
    assert why.startswith(f"uid {os.getuid()} belonged to user `somebody-who-left`")
    assert not (tmp_path / "told").exists()


def test_nothing_is_sent_when_notifications_are_off(notify, tmp_path):
    assert notify(f"touch {tmp_path}/told", enabled=False) == []
    assert not (tmp_path / "told").exists()


class Hook(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.server.received.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        if self.path.startswith("/close"):
            return
        if self.path.startswith("/garbage"):
            self.wfile.write(b"no HTTP\r\n\r\n")
            return
        if self.path.startswith("/500"):
            self.send_error(500)
            return
        self.send_response(302 if self.path == "/away" else 200)
        self.send_header("location", "/elsewhere")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def hook():
    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    server.received = []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_message_is_posted_to_an_address(notify, hook):
    assert notify(f"http://127.0.0.1:{hook.server_port}/x") == []
    assert hook.received == [MESSAGE]


def test_redirects_are_not_followed(notify, hook):
    (why,) = notify(f"http://127.0.0.1:{hook.server_port}/away")
    assert "302" in why
    assert len(hook.received) == 1


@pytest.mark.parametrize(
    ("how", "address"),
    [
        ("http://a", True),
        ("https://a", True),
        ("HTTPS://a", True),
        ("file:///etc/passwd", False),
        ("curl http://a", False),
    ],
)
def test_addresses_are_recognized(how, address):
    assert is_url(how) is address


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("mail -s done ann", None),
        ("curl http://a/b c", None),
        ("https://hooks.example.org:8443/T0/%20?a=b#c", None),
        ("http://[::1]:80/x", None),
        ("ftp://a/b", "`ftp` is neither http nor https"),
        ("file:///etc/passwd", "`file` is neither http nor https"),
        ("http://", "it names no host"),
        ("http://:80/x", "it names no host"),
        ("http://[bad", "invalid ipv6 url"),
        ("http://a:99999/", "port out of range 0-65535"),
        ("http://a:0/", "it names no port"),
        ("http://a:x/", "port could not be cast to integer value as 'x'"),
        ("http://a/b c", "it contains spaces or other characters"),
        ("http://a/b\nX: 1", "it contains spaces or other characters"),
        ("http://a/ü", "it contains spaces or other characters"),
        ("http://ann:secret@a/", "it contains a user name, which is not supported"),
    ],
)
def test_invalid_addresses_are_refused(how, why):
    found = notifier_module.why_invalid_url(how)
    assert found is None if why is None else found.startswith(why)


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/500", "127.0.0.1: 500 Internal Server Error"),
        ("/garbage", "127.0.0.1: no HTTP"),
        ("/close", "127.0.0.1: Remote end closed connection without response"),
        ("/plain", "127.0.0.1: "),
    ],
)
def test_a_failed_post_is_logged_on_one_line_without_secrets(notify, hook, path, why):
    scheme = "https" if path == "/plain" else "http"
    (said,) = notify(f"{scheme}://127.0.0.1:{hook.server_port}{path}?key=secret")
    assert said.startswith(why)
    assert "\n" not in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("http://127.0.0.1:1/refused", "127.0.0.1"),
        ("http://no.such.host.invalid/", "no.such.host.invalid"),
        ("http://[::1/refused", "None"),  # as a job of an older version may name it: it is refused at submission
    ],
)
def test_an_unreachable_address_is_logged(notify, address, host):
    (said,) = notify(address)
    assert said.startswith(f"{host}: ")
    assert "Traceback" not in said


def test_a_slow_address_delays_only_its_owner():
    notifier = Notifier(enabled=True, timeout_s=60.0)
    notifier.start()
    held, all_received = threading.Event(), threading.Event()
    received = []

    def run(how, uid, _):
        if uid == 1:
            held.wait(60)
        received.append((uid, how))
        if uid == 2:
            held.set()
        if len(received) == 9:
            all_received.set()
        return ""

    notifier._send = run
    for number in range(8):
        notifier.notify(str(number), 1, MESSAGE)
    notifier.notify("mine", 2, MESSAGE)
    assert all_received.wait(30)
    notifier.close()
    assert received == [(2, "mine"), *((1, str(number)) for number in range(8))]


def test_messages_above_the_queue_limit_are_dropped(monkeypatch, caplog):
    monkeypatch.setattr(notifier_module, "MAX_QUEUED", 1)
    monkeypatch.setattr(notifier_module, "THREADS", 0)
    notifier = Notifier(enabled=True, timeout_s=1.0)
    notifier.start()
    for _ in range(2):
        notifier.notify("true", 0, MESSAGE)
    assert "too many notifications" in caplog.text
    notifier.close()


def test_the_message_describes_the_end_of_the_job():
    job = a_job(7)
    received = end_message(job.__class__(id=7, spec=job.spec, submitted_at_s=0.0, state=Done(outcome="oom", at_s=0.0)))
    assert (received["state"], received["ended_at"], received["exit_code"]) == ("OOM", "1970-01-01T00:00:00.000Z", 1)


def test_a_process_that_a_command_leaves_in_a_session_of_its_own_is_ended(notify, tmp_path):
    started = tmp_path / "pid"
    assert (
        notify(
            f"setsid sh -c 'echo $$ > {started}.new; mv {started}.new {started}; sleep 600' & "
            f"while ! test -e {started}; do sleep 0.01; done"
        )
        == []
    )
    assert ends(int(started.read_text()))
