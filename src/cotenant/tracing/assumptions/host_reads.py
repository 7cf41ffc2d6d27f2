"""Where a script last read unknown values into Python, which may be the cause of an error that it raises later.

A module of its own: the operators and the session share it, which must not import each other.
"""

from __future__ import annotations

from pathlib import Path

from torch._subclasses import fake_tensor

from cotenant.tracing import script_location
from cotenant.tracing.assumptions import data_dependent_loops

_VALUE_ERRORS = (LookupError, ValueError, ArithmeticError, AssertionError)


class HostReads:
    """The last reads of unknown values, by the script or a library; reads by PyTorch itself are left out."""

    def __init__(self) -> None:
        self._last = ""
        self._last_exact = ""  # not of a floating-point number, such as a loss, with which nothing is indexed

    def note(self, *, number: bool) -> None:
        """Unknown values of a tensor are read now; `number`: a single floating-point one."""
        frame = data_dependent_loops.script_frame(through=fake_tensor.__file__)
        if frame is None:
            return
        path = frame.f_code.co_filename
        self._last = f"{Path(path).name}, line {frame.f_lineno}"
        if not script_location.is_user_file(path) and (user_line := script_location.call_location()):
            self._last += f", for {user_line}"
        if not number:
            self._last_exact = self._last

    def any_exact(self) -> bool:
        """Whether unknown values other than single floating-point numbers have been read."""
        return bool(self._last_exact)

    def suspect(self, error: BaseException) -> str:
        """A clause to append to an error's text; empty if no read can have caused an error of its type."""
        location = self._last_exact if isinstance(error, LookupError) else self._last
        if not location or not isinstance(error, _VALUE_ERRORS):
            return ""
        return f"; maybe because of values that are not known without a GPU, read at {location}"
