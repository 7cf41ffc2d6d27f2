"""Where in the user's own files something happened."""

from __future__ import annotations

import functools
import inspect
import itertools
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_MESSAGE = re.compile(r",\s*[frbFRB]*[\"']")  # where that of an `assert` begins

_UNLESS_EMPTY = re.compile(r"\bnot [\w.]+ or ")  # of a path that an option may leave out
_OPENERS = re.compile(r"/(?:gzip|bz2|lzma|pathlib(?:/\w+)?)\.py$")

PACKAGE_DIR = str(Path(__file__).resolve().parent.parent) + os.sep


def error_location(error: BaseException) -> str | None:
    """`train.py, line 12`: the innermost frame of the traceback in a file of the user; None without one."""
    return _innermost_user_line(_traceback_lines(error.__traceback__))


def failed_assertion(error: BaseException) -> str:
    """The source line of a failed assertion that has no message; else the empty string."""
    lines = list(_traceback_lines(error.__traceback__))
    if not isinstance(error, AssertionError) or str(error) or not lines:
        return ""
    return linecache.getline(*lines[-1]).strip()


def call_location() -> str | None:
    """As `error_location`, for the call that is being made now."""
    return _innermost_user_line(reversed(list(_callers(sys._getframe(1)))))


def thread_location(thread_id: int) -> str | None:
    """As `error_location`, for what another thread is doing now; in a library, where no file of the user is at work."""
    lines = list(_callers(sys._current_frames().get(thread_id)))
    others = [f"{Path(path).name}, line {line}" for path, line in lines if not path.startswith((PACKAGE_DIR, "<"))]
    return _innermost_user_line(reversed(lines)) or next(iter(others), None)


def _traceback_lines(traceback: TracebackType | None) -> Iterator[tuple[str, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
        traceback = traceback.tb_next


def _callers(frame: FrameType | None) -> Iterator[tuple[str, int]]:
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _innermost_user_line(lines: Iterable[tuple[str, int]]) -> str | None:
    """`lines`: (path, line) of frames, the innermost last."""
    own = [(path, line) for path, line in lines if is_user_file(path)]
    return _line_text(*own[-1]) if own else None


def innermost_line() -> str | None:
    """As `call_location`, for frequent calls: from the innermost frame outwards, with cached answers about files."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return _line_text(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return None


@functools.cache
def _line_text(path: str, line: int) -> str:
    return f"{Path(path).name}, line {line}"


@functools.cache
def is_user_file(path: str) -> bool:
    """Whether a source file belongs neither to Python, nor to an installed package, nor to us."""
    if path.startswith("<") or "site-packages" in path or "dist-packages" in path:
        return False
    full = os.path.abspath(path)  # noqa: PTH100 - `resolve` would follow links, which Python did not
    return not full.startswith((PACKAGE_DIR, *_python_folders()))


@functools.cache
def _python_folders() -> tuple[str, ...]:
    # `get_path` expands all configuration variables, in 0.3 ms, and a call stack has dozens of files.
    return tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))


def is_called_by_user() -> bool:
    """Whether the function that asks was called by the user's own file; wrappers of ours in between do not count."""
    return is_user_file(calling_file())


def calling_file() -> str:
    """The file that called the function that asks; wrappers of ours in between do not count."""
    return calling_frame().f_code.co_filename


def calling_line() -> tuple[str, int]:
    """As `calling_file`, with the number of the line."""
    frame = calling_frame()
    return frame.f_code.co_filename, frame.f_lineno


def call_stack() -> tuple[tuple[str, int], ...]:
    """(path, line) of all frames, the innermost first: a place of the script, with all that led to it."""
    return tuple(_callers(sys._getframe(1)))


def user_callers(limit: int) -> tuple[tuple[str, int], ...]:
    """(path, line) of the calls in the user's files that led to the one of `calling_line`, the innermost first."""
    lines = (at for at in _callers(calling_frame().f_back) if is_user_file(at[0]))
    return tuple(itertools.islice(lines, limit))


def opening_frame() -> FrameType:
    """The frame that opens a file by the function that asks, by itself or through a module of Python such as gzip."""
    frame = calling_frame()
    while frame.f_back is not None and _is_opener(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


@functools.cache
def _is_opener(path: str) -> bool:
    is_module = path.startswith(_python_folders()) and bool(_OPENERS.search(path)) and "site-packages" not in path
    return is_module or path.startswith(PACKAGE_DIR)


def calling_text() -> str:
    """As `calling_line`: the text of the line."""
    return linecache.getline(*calling_line()).strip()


def calling_frame() -> FrameType:
    """The frame of the function that called the one that asks; wrappers of ours in between do not count."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_DIR):
        frame = frame.f_back
    return frame


def is_absence_an_error() -> bool:
    """Whether the user's line that calls this raises where it finds nothing.

    It is an `assert` without a `not` in its condition, but for `not path or exists(path)`, or an `if not ...:` or
    `if ... is False:` whose first statement raises or exits.
    """
    for path, line in _callers(sys._getframe(1)):
        if not path.startswith(PACKAGE_DIR):
            text, following = linecache.getline(path, line).strip(), linecache.getline(path, line + 1).strip()
            raises = re.match(r"if (?:not .*|.*(?:is|==) False):$", text) and re.match(
                r"raise\b|sys\.exit|exit\(", following
            )
            condition = _UNLESS_EMPTY.sub("", _MESSAGE.split(text)[0])
            return bool(raises or (condition.startswith("assert ") and not re.search(r"\bnot\b", condition)))
    return False


def visible_names(frame: FrameType) -> dict[str, Any]:
    """Global and local names of a frame, with their values.

    Before Python 3.13 (PEP 667), `f_locals` of a function returns a dict that the frame keeps. It would keep tensors
    alive after the script has dropped them, so it is emptied.
    """
    names = {**frame.f_globals, **frame.f_locals}
    release_locals(frame)
    return names


def local_value(frame: FrameType, name: str) -> Any:
    """The value of a local name; None without one."""
    value = frame.f_locals.get(name)
    release_locals(frame)
    return value


def release_locals(frame: FrameType) -> None:
    """Empty the dict of locals that a frame keeps; not in a trace function of that frame."""
    local = frame.f_locals
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and type(local) is dict:
        local.clear()
