"""Errors of a script: the traceback without the tracer's frames, a description of one line, and a hint.

Users look for the cause in the last frame of a traceback. Python's functions for files are wrapped (`overlay_hooks`),
and PyTorch's operators pass through the tracer, so its frames would be last.
"""

from __future__ import annotations

import os
import re
import sys
import traceback

from cotenant.tracing import script_location
from cotenant.tracing.patches import kernel_modules
from cotenant.tracing.script_location import PACKAGE_DIR

_SANDBOX = PACKAGE_DIR + f"tracing{os.sep}sandbox{os.sep}"
_RUNPY = ("<frozen runpy>", f"{os.sep}runpy.py")
_USUAL_ERRORS = (OSError, RuntimeError)
_ANNOUNCES = re.compile(r":$|see (the |its )?(chained exception|traceback)", re.IGNORECASE)
_LAUNCHER_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MAX_CAUSES = 20  # of one error; causes may form a circle


def print_script_traceback(error: BaseException) -> None:
    """Print the traceback to stderr, with those of its causes."""
    printed = traceback.TracebackException.from_exception(error)
    _remove_our_frames(printed, error)
    print("".join(printed.format()), file=sys.stderr, end="")


_WORD = re.compile(r"\w")


def describe(error: BaseException) -> str:
    """The message, that of the cause which it announces, and the innermost line of the user's files."""
    cause = announced_cause(error)
    text = f"{_first_line(error)}{_cause_line(error, cause)}"
    place = script_location.error_location(cause) or script_location.error_location(error)
    return f"{text} ({place})" if place else text


def hint_for(error: BaseException) -> str | None:
    """What to do about an error that comes from the environment of the trace."""
    about_kernels = kernel_modules.hint_for(error)
    if about_kernels is not None:
        return about_kernels
    if isinstance(error, ModuleNotFoundError):
        return f"the script runs in `{sys.executable}`: install it there, or name the job's Python with `--python`"
    if isinstance(error, SyntaxError):
        version = ".".join(map(str, sys.version_info[:2]))
        return f"correct it; is it for another Python than {version}? name the job's own with `--python PATH`"
    if isinstance(error, OSError) and "CUDA_HOME" in str(error):
        return "it needs the CUDA toolkit: set `CUDA_HOME` as for the job"
    if isinstance(error, EOFError) and "reading a line" in str(error):
        return "a traced script has no input: stdin is empty; give it the answer by an option, or a file"
    if _wants_launcher(error):
        return "does a launcher start it? give its command: `cotenant estimate -- torchrun --nproc-per-node N train.py`"
    return None


def _wants_launcher(error: BaseException) -> bool:
    """Whether a variable that `torchrun` sets is missing.

    Source of the message: PyTorch, torch/distributed/rendezvous.py, `_env_rendezvous_handler`.
    """
    if isinstance(error, KeyError):
        return bool(error.args) and error.args[0] in _LAUNCHER_VARIABLES
    return "env:// rendezvous: environment variable" in str(error)


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


def announced_cause(error: BaseException) -> BaseException:
    """The cause of an error that says no more than that there is one; the error itself without such a cause.

    Libraries that import lazily, such as transformers and diffusers, raise their own error, and so does Hydra for a
    class that it calls.
    """
    cause = error
    for _ in range(_MAX_CAUSES):
        says_no_more = isinstance(cause, ImportError) or _ANNOUNCES.search(_first_line(cause))
        if cause.__cause__ is None or not says_no_more:
            break
        cause = cause.__cause__
    return cause


def _cause_line(error: BaseException, cause: BaseException) -> str:
    """What follows the first line of an error."""
    first = _first_line(error)
    if cause is error:
        return _announced_lines(error) if first.endswith(":") else ""
    line = _first_line(cause)
    if line in first:
        return ""
    name = "" if isinstance(cause, ImportError) else f"{type(cause).__name__}: "
    return f"{'' if first.endswith(':') else ':'} {name}{line}"


def _announced_lines(error: BaseException) -> str:
    """The line after the first, and after each that ends with a colon: `Tried https://..., got:`."""
    found = ""
    for line in filter(None, map(str.strip, str(error).strip().splitlines()[1:])):
        found += f" {line}"
        if not line.endswith(":"):
            break
    return found[:300]


def _first_line(error: BaseException) -> str:
    lines = [line for line in map(str.strip, str(error).splitlines()) if _WORD.search(line)]  # NLTK frames its text
    return (lines[0] if lines else script_location.failed_assertion(error) or "(no message)")[:300]
