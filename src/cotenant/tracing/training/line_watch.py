"""Calls watchers before lines of frames run. Python has one trace function for a thread, which those who need it share.

A watcher may set `frame.f_lineno` then, at which the frame goes on. Source: Python's data model, `frame.f_lineno`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any, Protocol

from cotenant.tracing import script_location


class Watcher(Protocol):
    """What is called for frames of the script."""

    def follows(self, code: CodeType) -> bool:
        """Whether to watch frames of this code that begin; the same each time."""

    def line_runs(self, frame: FrameType) -> None:
        """A line of a watched frame, maybe of another watcher's, is about to run."""

    def returns(self, frame: FrameType) -> None:
        """A watched frame ends."""


class LineWatch:
    """The trace function of the thread that adds watchers, while there are any; then the one before it is set again."""

    def __init__(self) -> None:
        self._watchers: list[Watcher] = []
        self._frames: list[FrameType] = []
        self._before: Any = None
        self._is_set = self._is_called = False
        self._thread = 0  # that it is the trace function of
        self._not_followed: dict[int, CodeType] = {}  # by `id`: the hash of a code object takes a microsecond

    def add(self, watcher: Watcher, frames: Iterable[FrameType]) -> None:
        """Call a watcher for these frames, and for those that it follows."""
        self._watchers.append(watcher)
        self._not_followed.clear()
        for frame in frames:
            if not any(frame is other for other in self._frames):
                self._frames.append(frame)
            frame.f_trace = self._call
        if not self._is_set:
            self._before, self._is_set, self._thread = sys.gettrace(), True, threading.get_ident()
        sys.settrace(self._enter)

    def remove(self, watcher: Watcher) -> None:
        """Call a watcher no more."""
        if watcher not in self._watchers:
            return
        self._watchers.remove(watcher)
        if not self._watchers and not self._is_called:
            self._end()

    def pause(self) -> None:
        """Watch nothing until `resume`, as while a model runs: calls of functions are slower with a trace function."""
        if self._is_set and threading.get_ident() == self._thread:  # others run models, too
            sys.settrace(None)

    def resume(self) -> None:
        """Watch on."""
        if self._is_set and threading.get_ident() == self._thread:
            sys.settrace(self._enter if self._watchers else self._end)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if id(code) in self._not_followed:
            return None
        if any(watcher.follows(code) for watcher in self._watchers):
            self._frames.append(frame)
            return self._call
        self._not_followed[id(code)] = code
        return None

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._is_called = True
        # Before Python 3.13 the frame has a dict of its locals since it was asked for them; asking again drops what the
        # script has dropped since.
        _ = frame.f_locals
        try:
            if event == "line":
                for watcher in list(self._watchers):
                    watcher.line_runs(frame)
            elif event == "return":
                self._frames[:] = [other for other in self._frames if other is not frame]
                for watcher in list(self._watchers):
                    watcher.returns(frame)
        finally:
            self._is_called = False
        if not self._watchers:
            sys.settrace(self._end)
        return self._call

    def _end(self, frame: FrameType | None = None, event: str = "", arg: Any = None) -> None:
        """Called with the next function that is called: in a trace function, the locals of its frame are Python's."""
        sys.settrace(self._before)
        self._before, self._is_set = None, False
        for watched in self._frames:
            script_location.release_locals(watched)
            watched.f_trace = None  # it refers to what has the frame
        self._frames.clear()


LINES = LineWatch()
