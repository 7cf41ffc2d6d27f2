"""GPU memory that grows with each batch of a loop over a loader: predictions in a list, losses with their graphs.

Few batches are traced, so the growth over all of them is extrapolated from two, and a warning reports it.
A module of its own: it is about epochs, and the loader's iterator about their batches.
"""

from __future__ import annotations

from cotenant.core.units import format_bytes
from cotenant.tracing import script_location
from cotenant.tracing.training.training_progress import TrainingLog

_LEAST_BYTES = 16 << 20
_LEAST_SHARE = 0.05
"""Of the peak so far: a growth over all batches is reported if it exceeds both."""


class MemoryGrowth:
    """Allocated bytes during one epoch of a loader."""

    def __init__(self, log: TrainingLog) -> None:
        self._log = log
        self._steps = log.steps
        self._live: list[int] = []  # bytes, before each batch
        self._sizes: list[int] = []

    def before_batch(self) -> None:
        """The script asks for a batch, and is done with the one before."""
        self._live.append(sum(self._log.live_bytes.values()))

    def gives(self, size: int) -> None:
        """A batch of so many samples is given."""
        self._sizes.append(size)

    def end(self, batches: int) -> None:
        """The epoch ends after the traced batches; on a GPU it has so many, 0 if that is not known."""
        growth = self._per_batch()
        if growth * (batches - len(self._live) + 1) < self._least_bytes():
            return
        place = script_location.call_location()
        loop = f"the loop at {place}" if place else "a loop"
        self._log.warn(
            f"GPU memory grows by {format_bytes(growth)} with each batch of {loop}: by "
            f"{format_bytes(growth * batches)} over its {batches:,} batches, of which only the first few are included"
        )

    def _least_bytes(self) -> float:
        return max(_LEAST_BYTES, _LEAST_SHARE * sum(self._log.peak_bytes.values()))

    def _per_batch(self) -> int:
        """Bytes that each batch adds; 0 unless the last ones agree.

        The first batch leaves variables, and in training gradients and states. Without a step, as in an evaluation, one
        growth after it will do; with steps two that are equal. The last batch of an evaluation may be smaller.
        """
        growths = [after - before for before, after in zip(self._live[1:], self._live[2:], strict=False)]
        wanted = 1 if self._log.steps == self._steps else 2
        last = growths[-wanted:]
        if len(last) < wanted or min(last) != max(last) or last[0] < 0:
            return 0
        return last[0] * self._sizes[0] // self._sizes[-1] if len(self._sizes) > wanted else last[0]
