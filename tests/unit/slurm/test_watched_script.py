"""The script inside the one that watches it: how it runs, also where its folder is mounted `noexec`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("python", [sys.executable, "/nonexistent/python"])
def test_a_script_runs_without_a_file_that_may_be_executed(tmp_path, python):
    """In a folder of a `noexec` mount every job failed: permission denied."""
    text = '#!/bin/sh -e\necho "$1" "$0"\nls -l "$0"\n(exit 3)\necho not reached\n'
    job = {"promised_bytes": 1, "shards": 1, "estimator": "", "attempt": 1, "records": str(tmp_path / "records")}
    outer = tmp_path / "outer.sh"
    outer.write_text(watched_script(text, job, python=python))
    env = {**os.environ, "TMPDIR": str(tmp_path), "SLURM_JOB_ID": "7"}
    done = subprocess.run(["sh", str(outer), "a b"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    first, mode, *rest = done.stdout.splitlines()
    assert first.startswith(f"a b {tmp_path}/cotenant-7.")
    assert "x" not in mode.split()[0]
    assert rest == []
    assert not [*tmp_path.glob("cotenant-7.*")]
