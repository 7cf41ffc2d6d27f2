"""What an attempt does in which company, added up sample by sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.core.gpu import GpuSample
from cotenant.core.job import CoRun

MAX_CO_RUNS = 12
MIN_CO_RUN_S = 10.0
MEASURES = ("smact", "smocc", "drama")
MIN_READ_SHARE = 0.8
"""A measure that was read in less of the time than this has no mean: the rest may have been another time."""


class _Sum:
    __slots__ = ("read_s", "seconds", "steps", "steps_s", "sums")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sums = dict.fromkeys(MEASURES, 0.0)
        self.read_s = dict.fromkeys(MEASURES, 0.0)
        self.steps = 0.0
        self.steps_s = 0.0


class CoRunAccumulator:
    """Of one attempt. Companies that it had for less than `least_s` are not told of.

    Attributes:
        gpu_memory_bytes: memory of its GPU; None before that was told.
    """

    def __init__(self, *, least_s: float = MIN_CO_RUN_S) -> None:
        self.gpu_memory_bytes: int | None = None
        self._least_s = least_s
        self._sums: dict[tuple[int, ...], _Sum] = {}
        self._mates: tuple[int, ...] | None = None
        self._since_s = math.inf
        self._noted_s = -math.inf

    def note(
        self,
        neighbor_ids: tuple[int, ...],
        seconds: float,
        sample: GpuSample,
        steps_hz: float | None,
        steps_s: float | None = None,
    ) -> None:
        """It was with `mates` for `seconds`, at the end of which the GPU looked like `sample`.

        Its step rate is over the last `steps_s`, None standing for `seconds`; one that reaches back into another
        company is left out.
        """
        began_s = sample.at_s - seconds
        if neighbor_ids != self._mates or began_s > self._noted_s + 1e-6:
            self._mates, self._since_s = neighbor_ids, began_s
        self._noted_s = sample.at_s
        found = self._sums.get(neighbor_ids)
        if found is None:
            if len(self._sums) >= 4 * MAX_CO_RUNS:
                del self._sums[min(self._sums, key=lambda each: self._sums[each].seconds)]
            found = self._sums[neighbor_ids] = _Sum()
        found.seconds += seconds
        for name in MEASURES:
            value = getattr(sample, name)
            if value is not None and math.isfinite(value):
                found.sums[name] += value * seconds
                found.read_s[name] += seconds
        span_s = seconds if steps_s is None else steps_s
        one_company = steps_s is None or 0 < steps_s <= sample.at_s - self._since_s + 1e-6
        if one_company and steps_hz is not None and 0 < steps_hz < math.inf:
            found.steps += steps_hz * span_s
            found.steps_s += span_s

    def longest(self) -> tuple[CoRun, ...]:
        """The longest, longest first; short ones and the many are left out."""
        longest = sorted(self._sums.items(), key=lambda each: (-each[1].seconds, each[0]))
        kept = [each for each in longest[:MAX_CO_RUNS] if each[1].seconds >= self._least_s]
        return tuple([self._spell(neighbor_ids, found) for neighbor_ids, found in kept])

    def smact_of(self, neighbor_ids: tuple[int, ...]) -> float | None:
        """Mean SM activity in that company, to two digits; None where it is not known, or of too short a time."""
        found = self._sums.get(neighbor_ids)
        if found is None or found.seconds < self._least_s:
            return None
        smact = self._spell(neighbor_ids, found).smact
        return None if smact is None else round(smact, 2)

    def now(self) -> CoRun | None:
        """That of the company it was with last; None if that is too short to say anything."""
        found = None if self._mates is None else self._sums.get(self._mates)
        if found is None or self._mates is None or found.seconds < self._least_s:
            return None
        return self._spell(self._mates, found)

    def _spell(self, neighbor_ids: tuple[int, ...], found: _Sum) -> CoRun:
        means: Mapping[str, float | None] = {
            name: found.sums[name] / found.read_s[name]
            if found.read_s[name] >= MIN_READ_SHARE * found.seconds
            else None
            for name in MEASURES
        }
        steps_hz = found.steps / found.steps_s if found.steps_s else None
        return CoRun(
            neighbor_ids=neighbor_ids,
            seconds=found.seconds,
            steps_hz=steps_hz,
            gpu_memory_bytes=self.gpu_memory_bytes,
            **means,
        )

    def state(self) -> list[list[Any]]:
        """All of it as plain values."""
        return [
            [neighbor_ids, each.seconds, list(each.sums.values()), list(each.read_s.values()), each.steps, each.steps_s]
            for neighbor_ids, each in self._sums.items()
        ]

    def restore(self, state: Sequence[Sequence[Any]]) -> None:
        """Add to nothing what `state` says.

        Raises:
            ValueError, TypeError: it is no such state.
        """
        for neighbor_ids, seconds, sums, read_s, steps, steps_s in state:
            found = _Sum()
            found.seconds, found.steps, found.steps_s = float(seconds), float(steps), float(steps_s)
            found.sums = _floats(sums)
            found.read_s = _floats(read_s)
            self._sums[tuple(int(each) for each in neighbor_ids)] = found


def _floats(values: Sequence[Any]) -> dict[str, float]:
    return {name: float(value) for name, value in zip(MEASURES, values, strict=True)}
