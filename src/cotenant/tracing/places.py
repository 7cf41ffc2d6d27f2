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

PACKAGE = str(Path(__file__).resolve().parent.parent) + os.sep
"""The folder of our own files."""


def of_error(error: BaseException) -> str | None:
    """`train.py, line 12`: the innermost frame of the traceback in a file that is the user's own; None without one."""
    return _last(_frames(error.__traceback__))


def assertion(error: BaseException) -> str:
    """What was asserted, as it is written, where an assertion failed that says nothing else; else the empty text."""
    frames = list(_frames(error.__traceback__))
    if not isinstance(error, AssertionError) or str(error) or not frames:
        return ""
    return linecache.getline(*frames[-1]).strip()


def of_call() -> str | None:
    """The same for the call that is being made now."""
    return _last(reversed(list(_outwards(sys._getframe(1)))))


def of_thread(number: int) -> str | None:
    """The same for what another thread is at, by its identity."""
    return _last(reversed(list(_outwards(sys._current_frames().get(number)))))


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def _outwards(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _last(places: Iterable[tuple[str, int]]) -> str | None:
    own = [(path, line) for path, line in places if is_own(path)]
    return f"{Path(own[-1][0]).name}, line {own[-1][1]}" if own else None


def is_own(path: str) -> bool:
    """Whether a source file is neither Python's, nor of an installed package, nor ours."""
    if path.startswith("<") or "site-packages" in path or "dist-packages" in path:
        return False
    full = os.path.abspath(path)  # noqa: PTH100 - links are not followed, as Python did not
    python = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    return not full.startswith((PACKAGE, *(each + os.sep for each in python)))


def names_in(frame: FrameType) -> dict[str, Any]:
    """What the names in a frame stand for. Until Python 3.12 asking leaves a copy in the frame, which would keep
    tensors alive after the script has let them go: it is emptied.
    """
    local = frame.f_locals
    names = {**frame.f_globals, **local}
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(local) is dict:
        local.clear()
    return names
