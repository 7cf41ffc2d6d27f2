"""GPU memory that grows with each optimizer step of a script without data loaders: losses with their graphs, in a sum.

Few steps are traced, so the growth is extrapolated from the last two, if it is alike in both, and a warning reports it.
Loops over data loaders: see `data.loaders.memory_growth`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from cotenant.core.units import format_bytes
from cotenant.tracing import script_location
from cotenant.tracing.training.later_training import script_frames
from cotenant.tracing.training.loop_counters import Counters
from cotenant.tracing.training.source_bodies import function_body
from cotenant.tracing.training.source_loops import loops_around

_MIN_BYTES = 16 << 20
_MIN_SHARE = 0.05
"""Of the peak so far: a growth over all rounds of a loop is reported if it exceeds both."""
_GROWING_PASSES = 5  # one more than are often accumulated before weights are updated
_MIN_ALIKE = 0.9
"""Of the larger one of two growths: the first round of a loop leaves a few small variables, too."""


class AllocatedBytes(Protocol):
    """Allocated now and at most, by GPU."""

    @property
    def live_bytes(self) -> Mapping[int, int]: ...

    @property
    def peak_bytes(self) -> Mapping[int, int]: ...


def is_large(growth: int, allocated: AllocatedBytes) -> bool:
    """Whether so many bytes more are worth a warning."""
    return growth >= max(_MIN_BYTES, _MIN_SHARE * sum(allocated.peak_bytes.values()))


class StepGrowth:
    """Allocated bytes at the end of each step."""

    def __init__(self, allocated: AllocatedBytes) -> None:
        self._allocated = allocated
        self._live: list[int] = []
        self._at_passes: list[int] = []

    def pass_begins(self) -> bool:
        """A backward pass of a script without an optimizer begins; whether each of the last left more than before."""
        self._at_passes = [*self._at_passes[-_GROWING_PASSES:], sum(self._allocated.live_bytes.values())]
        pairs = zip(self._at_passes, self._at_passes[1:], strict=False)
        return len(self._at_passes) > _GROWING_PASSES and all(before < after for before, after in pairs)

    def step_ends(self) -> None:
        """An optimizer has stepped."""
        self._live.append(sum(self._allocated.live_bytes.values()))

    @property
    def has_grown(self) -> bool:
        """Whether the last step left more than the one before."""
        return len(self._live) > 1 and self._live[-1] > self._live[-2]

    def warning(self) -> str | None:
        """What to say of the rounds that come; call it within the last step that is traced."""
        growths = [after - before for before, after in zip(self._live, self._live[1:], strict=False)][-2:]
        growth = min(growths, default=0)
        if len(growths) < 2 or growth <= _MIN_ALIKE * max(growths):
            return None
        place, rounds = _present_loop()
        if not is_large(growth * rounds, self._allocated):
            return None
        return (
            f"GPU memory grows by {format_bytes(growth)} with each step of the loop at {place}: by "
            f"{format_bytes(growth * rounds)} over the {rounds:,} that come, which are not included"
        )


def _present_loop() -> tuple[str, int]:
    """Where the innermost loop of the script is, and how many rounds it has left; 0 if that is not known."""
    for frame in list(script_frames()):
        loops = list(loops_around(function_body(frame), frame.f_lineno))
        if loops:
            place = f"{Path(frame.f_code.co_filename).name}, line {loops[-1].lineno}"
            return place, Counters.of(loops[-1], script_location.visible_names(frame)).rounds_left or 0
    return "", 0
