"""The traceback of a script's error, as Python itself would print it: without the tracer's frames.

Who reads it looks for the cause, and takes the last frame for it. Python's functions for files are ours here (see
`redirect`), and the operators of PyTorch pass through us.
"""

from __future__ import annotations

import os
import sys
import traceback

from cotenant.tracing.script_location import PACKAGE_DIR

_FILES = PACKAGE_DIR + f"tracing{os.sep}files{os.sep}"
_RUNNER = ("<frozen runpy>", f"{os.sep}runpy.py")
_OF_SCRIPTS = (OSError, RuntimeError)


def print_script_traceback(error: BaseException) -> None:
    """Print it to stderr, with the errors that it came of."""
    told = traceback.TracebackException.from_exception(error)
    _tidy(told, error)
    print("".join(told.format()), file=sys.stderr, end="")


def _tidy(told: traceback.TracebackException, error: BaseException) -> None:
    told.stack[:] = _frames(told.stack, error)
    for name in ("__cause__", "__context__"):
        before, of = getattr(told, name), getattr(error, name)
        if before is not None and of is not None:
            _tidy(before, of)


def _frames(stack: list[traceback.FrameSummary], error: BaseException) -> list[traceback.FrameSummary]:
    """Those of the script and its libraries. An innermost one of ours stays where the mistake may be ours."""
    seen = [each for each in stack if not each.filename.startswith(_FILES)]
    inner = seen[-1:] if not isinstance(error, _OF_SCRIPTS) else []
    seen = [each for each in seen[: len(seen) - len(inner)] if not each.filename.startswith(PACKAGE_DIR)] + inner
    while seen and seen[0].filename.endswith(_RUNNER):
        seen = seen[1:]
    return seen
