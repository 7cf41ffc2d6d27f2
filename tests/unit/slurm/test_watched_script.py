"""The script inside the one that watches it: how it runs, also where its folder is mounted `noexec`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from cotenant.slurm.supervise import ABANDONED_S
from cotenant.slurm.watched_script import interpreter_words, watched_script


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("#!/bin/bash", ["/bin/bash"]),
        ("#! /usr/bin/env  -S python3 -u", ["/usr/bin/env", "-S python3 -u"]),
        ("#!", ["/bin/sh"]),
    ],
)
def test_the_first_line_is_read_as_by_the_kernel(line, words):
    assert interpreter_words(f"{line}\necho\n") == words


ABSENT = "/nonexistent/python"


def start(tmp_path, text, *words, python=ABSENT, env=(), prefix=(), stderr=subprocess.PIPE, stdin=None):
    """Start `text` in its outer script, as slurmd does: by the interpreter that the first line names."""
    job = {"promised_bytes": 1, "shards": 1, "estimator": "", "attempt": 4, "records": str(tmp_path / "records")}
    outer = tmp_path / "outer.sh"
    outer.write_text(watched_script(text, job, python=python))
    return subprocess.Popen(
        [*prefix, *interpreter_words(outer.read_text()), str(outer), *words],
        env={**os.environ, "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "7", **dict(env)},
        stdout=subprocess.PIPE,
        stderr=stderr,
        stdin=stdin,
        text=True,
    )


def folders(tmp_path):
    return [*tmp_path.glob("cotenant-7.*")]


@pytest.mark.parametrize("python", [sys.executable, ABSENT])
def test_a_script_runs_without_a_file_that_may_be_executed(tmp_path, python):
    """In a folder of a `noexec` mount every job failed: permission denied."""
    process = start(
        tmp_path, '#!/bin/sh -e\necho "$1" "$0"\nls -lL "$0"\n(exit 3)\necho not reached\n', "a b", python=python
    )
    out, err = process.communicate()
    assert process.returncode == 3, err
    first, mode, *rest = out.splitlines()
    assert first.startswith(f"a b {tmp_path}/cotenant-7." if python != ABSENT else "a b /dev/fd/")
    assert "x" not in mode.split()[0]
    assert rest == []
    assert not folders(tmp_path)


@pytest.mark.parametrize("python", [sys.executable, ABSENT])
@pytest.mark.parametrize("line", ["#!/bin/bash", "#!/usr/bin/env bash"])
def test_a_script_of_bash_has_the_exported_functions(tmp_path, python, line):
    """`module` is one. dash, which is /bin/sh on Debian, drops them from the environment of what it starts."""
    process = start(
        tmp_path, f"{line}\nmodule load cuda\n", python=python, env={"BASH_FUNC_module%%": '() { echo "loads $2"; }'}
    )
    assert process.communicate()[0] == "loads cuda\n"


def test_without_cotenant_the_script_gets_the_signals_of_its_job(tmp_path):
    """`scancel --batch` and `--signal=B:USR1` signal one process: the shell that waited for the script died of it."""
    process = start(tmp_path, "#!/bin/sh\ntrap 'echo saved; exit 0' USR1\necho ready\nwhile :; do sleep 0.01; done\n")
    assert process.stdout.readline() == "ready\n"
    assert not folders(tmp_path), "a job that is killed would leave it"
    process.send_signal(signal.SIGUSR1)
    assert process.communicate()[0] == "saved\n"
    assert process.returncode == 0


@pytest.mark.parametrize("python", [sys.executable, ABSENT])
def test_a_script_that_was_cut_short_does_not_run(tmp_path, python):
    """As on a full disk."""
    text = f"#!/bin/sh\necho runs\n{'# ' + 'x' * 78}\n" * 100
    process = start(tmp_path, text, python=python, prefix=["sh", "-c", 'ulimit -f 1; exec "$@"', "sh"])
    out, err = process.communicate()
    assert (out, process.returncode) == ("", 1)
    assert "cannot be written to a temporary folder" in err
    assert not folders(tmp_path)


def test_a_folder_that_a_node_lacks_is_not_needed(tmp_path):
    """TMPDIR may come from the login node."""
    process = start(tmp_path, "#!/bin/sh\necho runs\n", env={"TMPDIR": str(tmp_path / "absent")})
    assert process.communicate()[0] == "runs\n"


def test_a_run_begins_with_a_new_record(tmp_path):
    """A requeued job ran, and `cotenant squeue` had the exit code of its run before."""
    text = f"#!/bin/sh\ncat {tmp_path}/records/7.ran.json\nexit 3\n"
    seen = [json.loads(start(tmp_path, text, python=sys.executable).communicate()[0]) for _ in range(2)]
    assert [(record["exit_code"], record["ended_at_s"]) for record in seen] == [(None, None)] * 2
    assert json.loads((tmp_path / "records" / "7.ran.json").read_text())["exit_code"] == 3


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGTERM, "the job was stopped"), (signal.SIGUSR1, "this was attempt 4 of 4")],
)
def test_a_job_that_was_stopped_is_not_submitted_again(tmp_path, number, why):
    """A job whose script had run out of memory, and hung, was cancelled: it came back as another one, with more."""
    text = "#!/bin/sh\ntrap 'exit 1' TERM USR1\necho 'Traceback (most recent call last):' >&2\n"
    text += "echo 'torch.OutOfMemoryError: CUDA out of memory.' >&2\necho ready\nwhile :; do sleep 0.01; done\n"
    with (tmp_path / "err").open("w") as stderr:
        process = start(tmp_path, text, python=sys.executable, stderr=stderr)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    process.communicate()
    lines = (tmp_path / "err").read_text().splitlines()
    assert lines[-1] == f"cotenant: out of GPU memory: not submitted again: {why}"


def test_folders_of_killed_jobs_are_removed_a_day_later(tmp_path):
    old = time.time() - 2 * ABANDONED_S
    waits = start(tmp_path, "#!/bin/sh\necho ready\nread line\n", python=sys.executable, stdin=subprocess.PIPE)
    assert waits.stdout.readline() == "ready\n"
    (used,) = folders(tmp_path)
    left, new, other = (tmp_path / f"cotenant-7.{name}" for name in ("LEFT00", "NEW000", "OTHER0"))
    for folder in (left, new, other, tmp_path / "mine"):
        folder.mkdir()
        (folder / ("job.json" if folder == other else "lock")).write_text("")
    link = tmp_path / "cotenant-7.LINK00"
    link.symlink_to(tmp_path / "mine")
    for path in (used, left, other, tmp_path / "mine"):
        os.utime(path, (old, old))
    assert start(tmp_path, "#!/bin/sh\ntrue\n", python=sys.executable).wait() == 0
    assert set(folders(tmp_path)) == {used, new, other, link}
    assert (tmp_path / "mine" / "lock").exists()
    waits.communicate("\n")
    assert waits.returncode == 0
    assert set(folders(tmp_path)) == {new, other, link}
