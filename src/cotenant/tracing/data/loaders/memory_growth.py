"""GPU memory that grows with each batch of a loop over a loader: predictions in a list, losses with their graphs.

Few batches are traced, so the growth over all of them is extrapolated from two, and a warning reports it. An evaluation
that collects results is cheap, since calls that repeat are not computed (`training.repeated_evaluation`): more of its
batches are traced, unless they are made up and nobody knows how many there are. A loader that
reads ahead asks for the next batch before the script has the first: between these two requests nothing runs but the
copy of a batch. Before the third the script has worked on one batch only, and what that one left, such as the root
module's whole parameters of FSDP, is no growth: where it is large, one batch more is traced.
Source: accelerate/data_loader.py, `DataLoaderShard.__iter__`; timm/data/loader.py, `PrefetchLoader.__iter__`;
torch/distributed/fsdp/_runtime_utils.py, `_post_forward_reshard`.
"""

from __future__ import annotations

from cotenant.core.units import format_bytes
from cotenant.tracing import script_location
from cotenant.tracing.data.tables import synthetic_records
from cotenant.tracing.training.step_growth import is_large
from cotenant.tracing.training.training_progress import TrainingLog

_MAX_SHARE_OF_COPY = 0.5
"""Of the events of a batch, what copying it to the GPU and normalizing it there may take."""
_REQUESTS_OF_ONE_BATCH = 3
"""Requests to a loader that reads ahead until the script has worked on its first batch."""
_MAX_GROWING_BATCHES = 64
"""Batches of an evaluation to trace at most, while memory grows with them."""


class MemoryGrowth:
    """Allocated bytes during one epoch of a loader."""

    def __init__(self, log: TrainingLog) -> None:
        self._log = log
        self._steps = log.steps
        self._live: list[int] = []  # bytes, before each batch
        self._events: list[int] = []  # so far, before each batch
        self._sizes: list[int] = []

    def before_batch(self) -> None:
        """The script asks for a batch, and is done with the one before."""
        self._live.append(sum(self._log.live_bytes.values()))
        self._events.append(self._log.event_count)

    def gives(self, size: int) -> None:
        """A batch of so many samples is read; 0 if that is not known."""
        self._sizes.append(size)

    def wants_another(self, batches: int) -> bool:
        """Whether one more batch of an evaluation is needed, whose loader has so many: memory grows, or it may.

        If the loader reads ahead, one batch more shows whether it does.
        """
        if self._log.steps != self._steps:
            return False
        if len(self._live) == _REQUESTS_OF_ONE_BATCH and self._is_read_ahead():
            copied, left = (after - before for before, after in zip(self._live, self._live[1:], strict=False))
            return is_large((left - copied) * batches, self._log)
        return len(self._live) <= min(batches, _MAX_GROWING_BATCHES) and self._grows(batches)

    def _grows(self, batches: int) -> bool:
        """Whether so many batches of the user's own data leave much if all are like the traced ones."""
        return not synthetic_records.made_up and is_large(self._per_batch() * batches, self._log)

    def end(self, batches: int) -> None:
        """The epoch ends after the traced batches; on a GPU it has so many, 0 if that is not known."""
        growth = self._per_batch()
        if not is_large(growth * (batches - len(self._live) + 1), self._log):
            return
        place = script_location.call_location()
        loop = f"the loop at {place}" if place else "a loop"
        kind = " of made-up data" if synthetic_records.made_up else ""  # the real data may have fewer, or more
        total = format_bytes(growth * batches)
        self._log.warn(
            f"GPU memory grows by {format_bytes(growth)} with each batch of {loop}: by {total} over its "
            f"{batches:,} batches{kind}, of which only the first {len(self._sizes)} are included"
        )

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
        if len(growths) == 1 and self._is_read_ahead():
            return 0
        is_known = len(self._sizes) > wanted and self._sizes[-1] > 0
        return last[0] * self._sizes[0] // self._sizes[-1] if is_known else last[0]

    def _is_read_ahead(self) -> bool:
        """Whether the second of three requests came before the script had the first batch."""
        first, second = (after - before for before, after in zip(self._events, self._events[1:3], strict=False))
        return first < _MAX_SHARE_OF_COPY * second
