"""The trace function that watchers of lines share."""

from __future__ import annotations

import sys
import threading

import pytest

from cotenant.tracing.training.line_watch import LineWatch


class Lines:
    """Watches functions called `watched`, and notes their lines by their distance from the first one."""

    def __init__(self):
        self.seen = []

    def follows(self, code):
        return code.co_name == "watched"

    def line_runs(self, frame):
        self.seen.append(frame.f_lineno - frame.f_code.co_firstlineno)

    def returns(self, frame):
        self.seen.append("returns")


def watched():
    return 1


@pytest.fixture
def watch():
    watch, before = LineWatch(), sys.gettrace()
    yield watch
    sys.settrace(before)


def test_lines_are_watched_but_for_pauses(watch):
    first, second, before = Lines(), Lines(), sys.gettrace()
    watch.add(first, [])
    watch.add(second, [])
    watched()
    watch.pause()
    watched()
    watch.resume()
    watch.remove(second)
    watched()
    watch.remove(first)
    assert (first.seen, second.seen) == ([1, "returns"] * 2, [1, "returns"])
    assert sys.gettrace() is before


def test_another_thread_that_runs_a_model_is_not_watched(watch):
    lines, found = Lines(), []

    def run():
        watch.pause()
        watch.resume()
        found.append(sys.gettrace())
        watched()

    watch.add(lines, [])
    before = sys.gettrace()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    is_watching = sys.gettrace() == before
    watch.remove(lines)
    assert (is_watching, found, lines.seen) == (True, [None], [])
