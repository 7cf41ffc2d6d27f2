"""Memory that a loop over a loader keeps for each batch: predictions in a list, losses with their graphs.

Few batches are traced, so what all of them keep is computed from the growth between two of them, and told.
A module of its own: it is about epochs, and the loader's iterator about their batches.
"""

from __future__ import annotations

from cotenant.core.units import format_bytes
from cotenant.tracing import script_location
from cotenant.tracing.recorder import TraceRecorder

_LEAST_BYTES = 16 << 20
_LEAST_SHARE = 0.05
"""Of the peak so far: what a loop keeps in all is told if it exceeds both."""


class KeptByBatches:
    """One epoch of a loader."""

    def __init__(self, recorder: TraceRecorder) -> None:
        self._recorder = recorder
        self._steps = recorder.steps
        self._live: list[int] = []  # bytes, before each batch
        self._sizes: list[int] = []

    def before_batch(self) -> None:
        """The script asks for a batch, and is done with the one before."""
        self._live.append(sum(self._recorder.live_bytes.values()))

    def gives(self, size: int) -> None:
        """A batch of so many samples is given."""
        self._sizes.append(size)

    def end(self, batches: int) -> None:
        """The epoch ends early; it has so many batches without a GPU's limits."""
        kept = self._kept()
        total = kept * (batches - len(self._live) + 1)
        if total < max(_LEAST_BYTES, _LEAST_SHARE * sum(self._recorder.peak_bytes.values())):
            return
        place = script_location.call_location()
        self._recorder.warn(
            f"the loop{f' at {place},' if place else ''} keeps {format_bytes(kept)} on the GPU for each batch: its "
            f"{batches:,} batches keep {format_bytes(kept * batches)}, of which all but the first few are not included"
        )

    def _kept(self) -> int:
        """Bytes that each batch adds; 0 unless the last ones agree.

        The first batch leaves variables, and in training gradients and states. Without a step, as in an evaluation, one
        growth after it will do; with steps two that are equal. The last batch of an evaluation may be smaller.
        """
        growths = [after - before for before, after in zip(self._live[1:], self._live[2:], strict=False)]
        wanted = 1 if self._recorder.steps == self._steps else 2
        last = growths[-wanted:]
        if len(last) < wanted or min(last) != max(last) or last[0] < 0:
            return 0
        return last[0] * self._sizes[0] // self._sizes[-1] if len(self._sizes) > wanted else last[0]
