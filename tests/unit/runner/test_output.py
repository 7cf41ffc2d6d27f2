"""The output files of a job: how large they may become, and what the runner reads of them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from cotenant.runner.output import OutputFiles

LIMIT = 1000


@pytest.fixture
def log(tmp_path):
    return tmp_path / "log"


def grow(path, text):
    with path.open("a") as file:
        file.write(text)


def test_a_file_within_half_of_the_limit_stays(log):
    output = OutputFiles({str(log): None}, LIMIT)
    grow(log, "x" * 500)
    output.enforce_limit()
    assert log.stat().st_size == 500
    assert not log.with_name("log.1").exists()


def test_a_larger_file_is_rotated_and_its_newest_half_kept(log):
    output = OutputFiles({str(log): None}, LIMIT)
    grow(log, "old" * 1000 + "n" * 500)
    output.enforce_limit()
    assert (log.read_text(), log.with_name("log.1").read_text()) == ("", "n" * 500)
    grow(log, "later")
    assert output.tails(7) == ["nnlater"[-7:]]


def test_what_the_file_held_before_stays_and_counts_nothing(log):
    log.write_text("b" * 5000)
    output = OutputFiles({str(log): None}, LIMIT)
    grow(log, "x" * 400)
    output.enforce_limit()
    assert log.stat().st_size == 5400
    grow(log, "y" * 400)
    output.enforce_limit()
    assert (log.read_text(), log.with_name("log.1").read_text()) == ("b" * 5000, "x" * 100 + "y" * 400)
    assert output.tails(4096) == ["x" * 100 + "y" * 400]


def test_the_writer_goes_on_at_the_beginning(log):
    output = OutputFiles({str(log): None}, LIMIT)
    with log.open("a") as job:
        job.write("x" * 900)
        job.flush()
        output.enforce_limit()
        job.write("more")
    assert log.read_text() == "more", "no hole of zeros"


def test_the_limit_holds_where_the_copy_fails(log):
    log.with_name("log.1").mkdir()
    output = OutputFiles({str(log): None}, LIMIT)
    grow(log, "x" * 900)
    output.enforce_limit()
    assert log.stat().st_size == 0


def test_the_copy_follows_no_link(log, tmp_path):
    (tmp_path / "precious").write_text("precious")
    log.with_name("log.1").symlink_to("precious")
    output = OutputFiles({str(log): None}, LIMIT)
    grow(log, "x" * 900)
    output.enforce_limit()
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("kind", ["pipe", "device", "none", "folder"])
def test_what_is_no_file_is_left_alone(log, kind):
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "folder":
        log.mkdir()
    path = "/dev/zero" if kind == "device" else str(log)
    output = OutputFiles({path: None}, 0)
    output.enforce_limit()
    assert output.tails(100) == [""]


def test_without_a_limit_nothing_is_rotated(log):
    output = OutputFiles({str(log): None})
    grow(log, "x" * 10_000)
    output.enforce_limit()
    assert not output.is_limited
    assert log.stat().st_size == 10_000


def test_reading_is_bounded(log):
    """1 GiB of a sparse file is read within 200 MiB of memory."""
    log.touch()
    os.truncate(log, 2**30)
    code = "import sys; from cotenant.runner.output import OutputFiles\n"
    code += "files = OutputFiles({sys.argv[1]: None}); files._begins[sys.argv[1]] = 0\n"
    code += "assert len(files.tails(1000)[0]) == 1000"
    limit = (200 * 2**20,) * 2
    subprocess.run(
        [sys.executable, "-c", code, str(log)],
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
