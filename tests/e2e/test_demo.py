"""The demo runs a real daemon and leaves nothing behind, however it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import psutil
import pytest

from cotenant.cli.demo import show_page
from cotenant.core.errors import CotenantError
from cotenant.daemon.client import Client
from cotenant.demo.published import PublishedJob
from cotenant.demo.run_summary import summarize_run
from cotenant.demo.server import demo_server, uninterrupted

TIMEOUT_S = 300


def a_submission(number=0, workload="mnist_bs32", mib="1776", declared=None) -> PublishedJob:
    return PublishedJob(
        number=number,
        arrival_s=number * 30.0,
        workload=workload,
        batch=32,
        gpus=1,
        measured_mib=mib,
        horus_mib="1",
        faketensor_mib="1",
        gpumemnet_mib="1",
        declared_mib=declared,
    )


@pytest.fixture
def folder(monkeypatch):
    # Not `tmp_path`: with it, the path of the socket could get too long.
    with tempfile.TemporaryDirectory(prefix="ct-") as name:
        monkeypatch.setenv("TMPDIR", name)
        monkeypatch.setattr(tempfile, "tempdir", None)
        yield Path(name)
        monkeypatch.setattr(tempfile, "tempdir", None)


def processes_of(folder: Path) -> list[int]:
    """Processes that were told of `folder` on their command line or in their environment, but not we."""
    found = []
    for process in psutil.process_iter():
        try:
            visible = [*process.cmdline(), *process.environ().values()]
        except psutil.Error:
            continue
        if process.pid != os.getpid() and any(f"{folder}/cotenant-demo" in text for text in visible):
            found.append(process.pid)
    return found


def test_a_trace_is_run_and_leaves_nothing_behind(folder):
    seen = []
    trace = [a_submission(0), a_submission(1)]
    with demo_server("most-memory", time_scale=300) as server:
        jobs = server.run(trace, seen.append, limit_s=TIMEOUT_S)
        assert list(folder.iterdir()) != []
    assert [job.state.outcome for job in jobs] == ["completed", "completed"]
    assert [job.spec.declared_bytes for job in jobs] == [row.reported_bytes for row in trace]
    assert seen[-1].is_over
    assert summarize_run(jobs, time_scale=300).makespan_s >= 140  # `mnist_bs32` alone takes 140 s
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


def test_a_run_over_its_time_limit_is_stopped(folder):
    with (
        pytest.raises(CotenantError, match="1 of 1 jobs are not done"),
        demo_server("exclusive", time_scale=1) as server,
    ):
        server.run([a_submission()], lambda _: None, limit_s=0)
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


def test_the_page_of_the_demo_is_served_until_the_user_ends_it(folder):
    pytest.importorskip("jinja2", reason="the page needs cotenant[web]")
    said, pages = [], []

    def look():
        address = re.search(r"http://\S+", said[0])[0]
        pages.append(httpx.get(address, follow_redirects=True, timeout=TIMEOUT_S))

    with demo_server("exclusive", time_scale=300) as server:
        show_page(server.socket, said.append, wait=look)
        assert [page.status_code for page in pages] == [200]
        with pytest.raises(httpx.ConnectError):
            look()
    assert processes_of(folder) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(folder, number):
    command = [sys.executable, "-m", "cotenant", "demo", "--only", "server"]
    demo = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        await_running_job(folder)
        os.killpg(demo.pid, number)  # as a terminal does: to all of its group
        _, err = demo.communicate(timeout=TIMEOUT_S)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130, err
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []
    assert processes_of(folder) == []


def test_a_signal_during_a_cleanup_ends_the_demo_after_it():
    done = []

    def clean_up():
        with uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            done.append("cleanup")

    with pytest.raises(KeyboardInterrupt):
        clean_up()
    assert done == ["cleanup"]


def await_running_job(folder: Path) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        for found in folder.glob("cotenant-demo-*/sock"):
            try:
                if any(job["state"] == "RUNNING" for job in Client(found).jobs()):
                    return
            except CotenantError:
                pass
        time.sleep(0.05)
    pytest.fail("the demo started no job")
