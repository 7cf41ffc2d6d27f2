"""Where in the user's own files something happened: what a person can look up."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

PACKAGE_DIR = str(Path(__file__).resolve().parent.parent) + os.sep
"""The folder of our own files."""


def error_location(error: BaseException) -> str | None:
    """`train.py, line 12`: the innermost frame of the traceback in a file that is the user's own; None without one."""
    return _innermost_user_line(_traceback_lines(error.__traceback__))


def failed_assertion(error: BaseException) -> str:
    """What was asserted, as it is written, where an assertion failed that says nothing else; else the empty text."""
    frames = list(_traceback_lines(error.__traceback__))
    if not isinstance(error, AssertionError) or str(error) or not frames:
        return ""
    return linecache.getline(*frames[-1]).strip()


def call_location() -> str | None:
    """The same for the call that is being made now."""
    return _innermost_user_line(reversed(list(_callers(sys._getframe(1)))))


def thread_location(number: int) -> str | None:
    """The same for what another thread is at, by its identity."""
    return _innermost_user_line(reversed(list(_callers(sys._current_frames().get(number)))))


def _traceback_lines(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def _callers(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _innermost_user_line(places: Iterable[tuple[str, int]]) -> str | None:
    own = [(path, line) for path, line in places if is_user_file(path)]
    return f"{Path(own[-1][0]).name}, line {own[-1][1]}" if own else None


def is_user_file(path: str) -> bool:
    """Whether a source file is neither Python's, nor of an installed package, nor ours."""
    if path.startswith("<") or "site-packages" in path or "dist-packages" in path:
        return False
    full = os.path.abspath(path)  # noqa: PTH100 - links are not followed, as Python did not
    python = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    return not full.startswith((PACKAGE_DIR, *(each + os.sep for each in python)))


def visible_names(frame: FrameType) -> dict[str, Any]:
    """What the names in a frame stand for. Until Python 3.12 asking leaves a copy in the frame, which would keep
    tensors alive after the script has let them go: it is emptied.
    """
    local = frame.f_locals
    names = {**frame.f_globals, **local}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(local) is dict:
        local.clear()
    return names
