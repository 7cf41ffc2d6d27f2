"""The stdin of `cotenant run` reaches the job, whatever it is, and every attempt from its start."""

from __future__ import annotations

import os
import subprocess

import pytest

TIMEOUT_S = 60
RUN = ("run", "--gpu-mem", "1G")


def run(server, *words, **streams):
    return subprocess.run(
        [*server.command, *RUN, *words],
        env=server.env, cwd=server.root, capture_output=True, text=True, check=False, timeout=TIMEOUT_S, **streams,
    )  # fmt: skip


def test_a_pipe_is_passed_while_it_is_written(server):
    read_end, write_end = os.pipe()
    done = server.popen(*RUN, "--", "sh", "-c", "read first; echo got $first; cat", stdin=read_end)
    os.close(read_end)
    os.write(write_end, b"one\n")
    assert done.stdout.readline() == "got one\n"  # and the pipe is open still
    os.write(write_end, b"two\n" * 50_000)
    os.close(write_end)
    assert done.stdout.read() == "two\n" * 50_000
    assert done.wait(TIMEOUT_S) == 0


def test_an_attempt_after_a_failure_reads_all_of_it_again(server):
    twice = "cat >> read.txt; test $COTENANT_ATTEMPT = 2"
    assert run(server, "--retries", "1", "--", "sh", "-c", twice, input="a\nb\n").returncode == 0
    assert (server.root / "read.txt").read_text() == "a\nb\n" * 2


@pytest.mark.parametrize(("seen", "wanted"), [(0, "first\nsecond\n"), (6, "second\n")])
def test_a_file_is_passed_from_where_the_command_found_it(server, seen, wanted):
    path = server.root / "data.txt"
    path.write_text("first\nsecond\n")
    with path.open("rb") as file:
        os.lseek(file.fileno(), seen, os.SEEK_SET)
        assert run(server, "cat", stdin=file).stdout == wanted


def test_a_pipe_that_stays_open_holds_up_no_job_that_ignores_it(server):
    read_end, write_end = os.pipe()
    done = run(server, "echo", "done", stdin=read_end)
    os.close(write_end)
    os.close(read_end)
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_submit_reads_a_named_file_and_nothing_else(server):
    (server.root / "in.txt").write_text("text\n")
    jobs = [
        server.cli("submit", "--gpu-mem", "1G", "--parsable", *words, "cat").stdout for words in (["-i", "in.txt"], [])
    ]
    for job in jobs:
        server.wait(int(job))
    assert [server.cli("logs", job.strip()).stdout for job in jobs] == ["text\n", ""]
    gone = server.cli("submit", "--gpu-mem", "1G", "--parsable", "-i", "gone.txt", "cat").stdout.strip()
    assert server.wait(int(gone))["reason"].endswith(
        f"cannot open `{server.root}/gone.txt` as its input: no such file or directory"
    )
