"""Steps of jobs: the file they write to, and the rates that the daemon reads from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from builders import a_job
from cotenant.core.ports import AttemptRef
from cotenant.daemon.services.progress import CLEANUP_AFTER, ProgressService

JOB = AttemptRef(job_id=7, attempt=1)


@pytest.fixture
def files(tmp_path):
    return ProgressService(tmp_path / "progress")


def write(path, text):
    path.write_text(text)


def test_rates_use_the_jobs_own_timestamps(files):
    path = Path(files.create_file(7, os.geteuid()))
    assert files.observe(JOB) is None
    rates = []
    for text in ("10 100.0\n", "10 100.0\n", "30 104.0\n", "30 105.0\n", "31 109.0\n"):
        write(path, text)
        rates.append(files.observe(JOB))
    assert rates == [None, None, (5.0, 4.0), None, (0.2, 5.0)]


@pytest.mark.parametrize("text", ["5 101.0\n", "50 99.0\n"], ids=["fewer steps", "an earlier time"])
def test_a_restarted_counter_restarts_the_rate(files, text):
    path = Path(files.create_file(7, os.geteuid()))
    write(path, "10 100.0\n")
    files.observe(JOB)
    write(path, text)
    assert files.observe(JOB) is None
    write(path, "60 111.0\n")
    assert files.observe(JOB) is not None


@pytest.mark.parametrize(
    "text",
    ["", "10", "10 100", "nan 100\n", "10 inf\n", "-1 100\n", "a b\n", "1 2 3\n", "1e300 5\n", "\0" * 500 + "\n"],
)
def test_malformed_records_are_ignored(files, text):
    path = Path(files.create_file(7, os.geteuid()))
    write(path, "1 1.0\n")
    files.observe(JOB)
    write(path, text)
    assert files.observe(JOB) is None
    write(path, "3 2.0\n")
    assert files.observe(JOB) == (2.0, 1.0), "and does no harm"


def test_attempts_are_counted_separately(files):
    write(Path(files.create_file(7, os.geteuid())), "10 100.0\n")
    files.observe(JOB)
    again = Path(files.create_file(7, os.geteuid()))
    assert again.read_text() == ""
    write(again, "20 105.0\n")
    assert files.observe(AttemptRef(job_id=7, attempt=2)) is None


def test_a_symlink_instead_of_the_file_is_not_followed(files, tmp_path):
    path = Path(files.create_file(7, os.geteuid()))
    (tmp_path / "secret").write_text("1 1.0\n")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    files.observe(JOB)
    (tmp_path / "secret").write_text("2 2.0\n")
    assert files.observe(JOB) is None


def test_without_a_progress_folder_jobs_run_without_rates(tmp_path, caplog):
    (tmp_path / "file").touch()
    assert ProgressService(tmp_path / "file" / "progress").create_file(7, os.geteuid()) is None
    assert "cannot create a progress file" in caplog.text


def test_files_of_ended_jobs_are_removed_periodically(files, tmp_path):
    files.reconcile(list)  # an earlier daemon may have left some
    for job_id in range(CLEANUP_AFTER - 1):
        files.create_file(job_id, os.geteuid())
    files.reconcile(lambda: pytest.fail("scanned all jobs without need"))
    files.create_file(CLEANUP_AFTER, os.geteuid())
    files.reconcile(lambda: [a_job(3)])
    assert [path.name for path in (tmp_path / "progress").iterdir()] == ["3"]


def run(code, path):
    env = {"PATH": os.environ["PATH"], **({} if path is None else {"COTENANT_PROGRESS": str(path)})}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_script_reports_steps_with_one_call(files):
    path = Path(files.create_file(7, os.geteuid()))
    run("from cotenant.progress import step\nfor _ in range(1000): step()\nstep(5)", path)
    count, at_s = path.read_text().split()
    assert (float(count), float(at_s) > 0) == (1005.0, True)
    assert files._read(7) == (float(count), float(at_s))


@pytest.mark.parametrize("path", [None, "/no/such/file", "/dev/null/x"])
def test_reporting_without_a_daemon_does_nothing(path):
    assert run("from cotenant import progress\nprogress.step()\nprogress.at(3)\nprint('ok')", path) == "ok\n"


def test_only_rank_0_reports(files):
    path = Path(files.create_file(7, os.geteuid()))
    code = (
        "import os, subprocess, sys\nfrom cotenant.progress import step\nstep(3)\n"
        "if len(sys.argv) < 2: subprocess.run([sys.executable, '-c', sys.orig_argv[2], 'x'], check=True)\n"
        "if os.fork() == 0:\n    step(100)\n    sys.exit(0)\n"
        "os.wait()\nstep(1)\n"
    )
    run(code, path)
    assert float(path.read_text().split()[0]) == 4.0
