"""Errors of a script: the traceback without the tracer's frames, a description of one line, and a hint.

Users look for the cause in the last frame of a traceback. Python's functions for files are wrapped (`overlay_hooks`),
and PyTorch's operators pass through the tracer, so its frames would be last.
"""

from __future__ import annotations

import os
import sys
import traceback

from cotenant.tracing import script_location
from cotenant.tracing.patches import kernel_modules
from cotenant.tracing.script_location import PACKAGE_DIR

_SANDBOX = PACKAGE_DIR + f"tracing{os.sep}sandbox{os.sep}"
_RUNPY = ("<frozen runpy>", f"{os.sep}runpy.py")
_USUAL_ERRORS = (OSError, RuntimeError)
_MAX_CAUSES = 20  # of one error; causes may form a circle


def print_script_traceback(error: BaseException) -> None:
    """Print the traceback to stderr, with those of its causes."""
    printed = traceback.TracebackException.from_exception(error)
    _remove_our_frames(printed, error)
    print("".join(printed.format()), file=sys.stderr, end="")


def describe(error: BaseException) -> str:
    """The message, and the innermost line of the user's files."""
    place = script_location.error_location(error)
    text = f"{_first_line(error)}{_import_cause(error)}"
    return f"{text} ({place})" if place else text


def hint_for(error: BaseException) -> str | None:
    """What to do about an error that comes from the environment of the trace."""
    about_kernels = kernel_modules.hint_for(error)
    if about_kernels is not None:
        return about_kernels
    if isinstance(error, ModuleNotFoundError):
        return "the script runs in the Python that estimates it: name the job's own with `--python PATH`"
    if isinstance(error, SyntaxError):
        version = ".".join(map(str, sys.version_info[:2]))
        return f"is it for another Python than {version}? name the job's own with `--python PATH`"
    if isinstance(error, OSError) and "CUDA_HOME" in str(error):
        return "it needs the CUDA toolkit: set `CUDA_HOME` as for the job"
    if isinstance(error, EOFError) and "reading a line" in str(error):
        return "a traced script has no input: stdin is empty"
    return None


def _remove_our_frames(printed: traceback.TracebackException, error: BaseException) -> None:
    printed.stack[:] = _script_frames(printed.stack, error)
    for name in ("__cause__", "__context__"):
        before, of = getattr(printed, name), getattr(error, name)
        if before is not None and of is not None:
            _remove_our_frames(before, of)


def _script_frames(stack: list[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """Frames of the script and its libraries. An innermost frame of ours stays where the bug may be ours."""
    frames = [frame for frame in stack if not frame.filename.startswith(_SANDBOX)]
    innermost = frames[-1:] if not isinstance(error, _USUAL_ERRORS) else []
    outer = frames[: len(frames) - len(innermost)]
    frames = [frame for frame in outer if not frame.filename.startswith(PACKAGE_DIR)] + innermost
    while frames and frames[0].filename.endswith(_RUNPY):
        frames = frames[1:]
    return frames


def _import_cause(error: BaseException) -> str:
    """The first cause of a failed import: libraries that import lazily, such as transformers, raise their own error."""
    first = error
    for _ in range(_MAX_CAUSES if isinstance(error, ImportError) else 0):
        first = first.__cause__ or first
    line = _first_line(first)
    return "" if line in _first_line(error) else f": {line}"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else script_location.failed_assertion(error) or "(no message)")[:300]
