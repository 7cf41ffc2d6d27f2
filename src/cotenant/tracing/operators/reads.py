"""Where a script last took values that nobody computed into Python: what it raises then may come of them."""

from __future__ import annotations

from pathlib import Path

from torch._subclasses import fake_tensor

from cotenant.tracing import places
from cotenant.tracing.operators import loops

_OF_VALUES = (LookupError, ValueError, ArithmeticError, AssertionError)


class Reads:
    """The last reads of unknown values, by a script or a library that it uses; those of PyTorch itself are not told."""

    def __init__(self) -> None:
        self._last = ""
        self._last_exact = ""  # not of a floating-point number, such as a loss, by which nobody indexes

    def note(self, *, number: bool) -> None:
        """The values of a tensor are read, and not known; `number`: it is one, of floating point."""
        frame = loops.script_frame(through=fake_tensor.__file__)
        if frame is None:
            return
        path = frame.f_code.co_filename
        self._last = f"{Path(path).name}, line {frame.f_lineno}"
        if not places.is_own(path) and (own := places.of_call()):
            self._last += f", for {own}"
        if not number:
            self._last_exact = self._last

    def blamed(self, error: BaseException) -> str:
        """What to add to an error's text; empty for errors that do not come of values."""
        place = self._last_exact if isinstance(error, LookupError) else self._last
        if not place or not isinstance(error, _OF_VALUES):
            return ""
        return f"; maybe because of values that are not known without a GPU, read at {place}"
