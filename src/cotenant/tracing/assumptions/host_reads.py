"""Where a script last took values that nobody computed into Python: what it raises then may come of them."""

from __future__ import annotations

from pathlib import Path

from torch._subclasses import fake_tensor

from cotenant.tracing import script_location
from cotenant.tracing.assumptions import data_dependent_loops

_VALUE_ERRORS = (LookupError, ValueError, ArithmeticError, AssertionError)


class HostReads:
    """The last reads of unknown values, by a script or a library that it uses; those of PyTorch itself are not told."""

    def __init__(self) -> None:
        self._last = ""
        self._last_exact = ""  # not of a floating-point number, such as a loss, by which nobody indexes

    def note(self, *, number: bool) -> None:
        """The values of a tensor are read, and not known; `number`: it is one, of floating point."""
        frame = data_dependent_loops.script_frame(through=fake_tensor.__file__)
        if frame is None:
            return
        path = frame.f_code.co_filename
        self._last = f"{Path(path).name}, line {frame.f_lineno}"
        if not script_location.is_user_file(path) and (own := script_location.call_location()):
            self._last += f", for {own}"
        if not number:
            self._last_exact = self._last

    def suspect(self, error: BaseException) -> str:
        """What to add to an error's text; empty for errors that do not come of values."""
        place = self._last_exact if isinstance(error, LookupError) else self._last
        if not place or not isinstance(error, _VALUE_ERRORS):
            return ""
        return f"; maybe because of values that are not known without a GPU, read at {place}"
