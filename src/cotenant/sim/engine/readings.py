"""What readings show of a GPU of a simulated world, worked out from its changes and not by ticking."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSample

_sample: Callable[..., GpuSample] = fast_constructor(GpuSample)

Values = tuple[float, float, float]
"""SMACT, SMOCC and DRAMA; ratios."""


class GpuReadings:
    """Of one GPU. Each reading is the mean since the one before."""

    __slots__ = ("_history", "_samples")

    def __init__(self) -> None:
        self._history: deque[tuple[float, float, float, float]] = deque([(0.0, 0.0, 0.0, 0.0)])
        self._samples: deque[GpuSample] = deque()

    def note(self, at_s: float, smact: float, smocc: float, drama: float) -> None:
        """From `at_s` on, which is no earlier than what was noted last, the GPU does this."""
        history = self._history
        if history[-1][0] == at_s:
            history[-1] = (at_s, smact, smocc, drama)
        else:
            history.append((at_s, smact, smocc, drama))

    def of_window(
        self, at_s: float, window_s: float, reading_s: float, *, used_bytes: int, power_w: float
    ) -> tuple[GpuSample, ...]:
        """Readings of the last `window_s` at multiples of `reading_s`; new ones show these bytes and watts.

        A GPU that has not changed for a whole window shows its ends only: all readings between them are the same.
        """
        history = self._history
        last_s = math.floor(at_s / reading_s) * reading_s
        oldest_s = last_s - window_s
        while len(history) > 1 and history[1][0] <= oldest_s - reading_s:
            history.popleft()
        samples = self._samples
        if len(history) == 1 and history[0][0] <= oldest_s - reading_s:
            samples.clear()
            values = history[0][1:]
            return tuple([_sample(each, used_bytes, *values, None, power_w) for each in (max(0.0, oldest_s), last_s)])
        while samples and samples[0].at_s <= oldest_s:
            samples.popleft()
        next_s = samples[-1].at_s + reading_s if samples else max(0.0, oldest_s + reading_s)
        while next_s <= last_s:
            samples.append(_sample(next_s, used_bytes, *self.mean(next_s - reading_s, next_s), None, power_w))
            next_s += reading_s
        return tuple(samples)

    def forget(self, until_s: float) -> None:
        """Nobody will ask for what was before."""
        history = self._history
        while len(history) > 1 and history[1][0] <= until_s:
            history.popleft()

    @property
    def changed_s(self) -> float:
        """When it began to do what it does now."""
        return self._history[-1][0]

    def mean(self, from_s: float, to_s: float) -> Values:
        """Mean activity of that interval."""
        smact = smocc = drama = 0.0
        end_s = to_s
        for since_s, its_smact, its_smocc, its_drama in reversed(self._history):
            if since_s >= end_s:
                continue
            part_s = end_s - (since_s if since_s > from_s else from_s)
            smact, smocc, drama = smact + its_smact * part_s, smocc + its_smocc * part_s, drama + its_drama * part_s
            end_s = since_s
            if since_s <= from_s:
                break
        width_s = to_s - from_s
        return smact / width_s, smocc / width_s, drama / width_s
