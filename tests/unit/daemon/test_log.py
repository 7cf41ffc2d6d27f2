"""What bounds the log: a file that is rotated, and messages that anybody can cause."""

from __future__ import annotations

import io
import logging
import stat

import pytest

from cotenant.daemon import log
from cotenant.daemon.log import ALIKE_WINDOW_S, MAX_ALIKE, RepetitionFilter, RotatingHandler


def _record(message, *arguments):
    return logging.LogRecord("x", logging.WARNING, __file__, 1, message, arguments, None)


def test_a_repeated_message_is_left_out_and_counted():
    now = [0.0]
    passes = RepetitionFilter(lambda: now[0]).filter
    records = [_record("invalid %d", number) for number in range(MAX_ALIKE + 5)]
    assert [passes(record) for record in records] == [True] * MAX_ALIKE + [False] * 5
    assert "left out" in records[MAX_ALIKE - 1].fields["next"]
    assert passes(_record("another"))
    now[0] = ALIKE_WINDOW_S
    later = _record("invalid %d", 0)
    later.fields = {"from": "uid 7"}
    assert passes(later)
    assert later.fields == {"from": "uid 7", "left_out": 5}


@pytest.mark.parametrize("name", log.ANONYMOUS_LOGGERS)
def test_messages_that_anybody_can_cause_are_limited(name):
    out = io.StringIO()
    for _ in range(2):  # a second one replaces the first
        log.set_up("info", out)
    for _ in range(3 * MAX_ALIKE):
        logging.getLogger(name).warning("bad token")
        logging.getLogger("cotenant.daemon.auth.permissions").warning("admin action")
    assert out.getvalue().count("bad token") == MAX_ALIKE
    assert out.getvalue().count("admin action") == 3 * MAX_ALIKE


def test_a_file_is_rotated_under_its_other_writers(tmp_path):
    file = tmp_path / "daemon.log"
    with file.open("a") as stream, file.open("a") as other:
        file.chmod(0o640)
        handler = RotatingHandler(file, max_bytes=1000, stream=stream)
        other.write("traceback of a child\n")
        other.flush()
        for number in range(30):
            handler.emit(_record("line %03d %s", number, "x" * 60))
            other.write("more\n")
            other.flush()
    files = (file, tmp_path / "daemon.log.1")
    lines = "".join(path.read_text() for path in reversed(files)).splitlines()
    assert all(0 < path.stat().st_size < 1100 for path in files)
    assert lines[-2:] == [f"line 029 {'x' * 60}", "more"]
    assert lines.count("more") > 10  # none of those is lost that the two files still have
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o640


def test_a_file_that_cannot_be_copied_is_bounded_all_the_same(tmp_path):
    file = tmp_path / "daemon.log"
    (tmp_path / "daemon.log.1").mkdir()
    with file.open("a") as stream:
        handler = RotatingHandler(file, max_bytes=100, stream=stream)
        for _ in range(10):
            handler.emit(_record("x" * 60))
    assert file.stat().st_size < 200
