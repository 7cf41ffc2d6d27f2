"""Readings of one simulated GPU, computed from its changes when a policy looks, not by ticking."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.gpu import GpuSample

_sample: Callable[..., GpuSample] = fast_constructor(GpuSample)

Activity = tuple[float, float, float]
"""SMACT, SMOCC and DRAMA; ratios."""


class GpuReadings:
    """Activity of one GPU since its oldest change that a window can reach. A reading is the mean since the last one."""

    __slots__ = ("_changes", "_samples")

    def __init__(self) -> None:
        self._changes: deque[tuple[float, float, float, float]] = deque([(0.0, 0.0, 0.0, 0.0)])
        self._samples: deque[GpuSample] = deque()

    def change(self, at_s: float, smact: float, smocc: float, drama: float) -> None:
        """Set the activity from `at_s` on; `at_s` does not decrease from call to call."""
        changes = self._changes
        if changes[-1][0] == at_s:
            changes[-1] = (at_s, smact, smocc, drama)
        else:
            changes.append((at_s, smact, smocc, drama))

    def window(
        self, at_s: float, window_s: float, reading_s: float, *, used_bytes: int, power_w: float
    ) -> tuple[GpuSample, ...]:
        """Readings of the last `window_s` at multiples of `reading_s`; new ones get these bytes and watts.

        Of a GPU that has not changed for a whole window only both ends are given: all readings between are equal.
        """
        changes = self._changes
        last_s = math.floor(at_s / reading_s) * reading_s
        oldest_s = last_s - window_s
        while len(changes) > 1 and changes[1][0] <= oldest_s - reading_s:
            changes.popleft()
        samples = self._samples
        if len(changes) == 1 and changes[0][0] <= oldest_s - reading_s:
            samples.clear()
            activity = changes[0][1:]
            ends = (max(0.0, oldest_s), last_s)
            return tuple([_sample(end_s, used_bytes, *activity, None, power_w) for end_s in ends])
        while samples and samples[0].at_s <= oldest_s:
            samples.popleft()
        next_s = samples[-1].at_s + reading_s if samples else max(0.0, oldest_s + reading_s)
        while next_s <= last_s:
            samples.append(_sample(next_s, used_bytes, *self.mean(next_s - reading_s, next_s), None, power_w))
            next_s += reading_s
        return tuple(samples)

    def mean_since(self, since_s: float, at_s: float, oldest_s: float) -> Activity:
        """Mean activity from `since_s` to now, `at_s`. No later mean begins before `oldest_s`."""
        changes = self._changes
        while len(changes) > 1 and changes[1][0] <= oldest_s:
            changes.popleft()
        changed_s, smact, smocc, drama = changes[-1]
        if since_s >= at_s or changed_s <= since_s:
            return smact, smocc, drama
        return self.mean(since_s, at_s)

    def mean(self, from_s: float, to_s: float) -> Activity:
        """Mean activity between two times."""
        smact = smocc = drama = 0.0
        end_s = to_s
        for since_s, its_smact, its_smocc, its_drama in reversed(self._changes):
            if since_s >= end_s:
                continue
            part_s = end_s - (since_s if since_s > from_s else from_s)
            smact, smocc, drama = smact + its_smact * part_s, smocc + its_smocc * part_s, drama + its_drama * part_s
            end_s = since_s
            if since_s <= from_s:
                break
        width_s = to_s - from_s
        return smact / width_s, smocc / width_s, drama / width_s
