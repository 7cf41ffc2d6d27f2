"""What an attempt does in which company, added up sample by sample."""

from __future__ import annotations

import math

from cotenant.core.gpu import GpuSample
from cotenant.core.job import Spell

MOST_SPELLS = 12
LEAST_S = 10.0
MEASURES = ("smact", "smocc", "drama")


class _Sum:
    __slots__ = ("seconds", "steps", "steps_s", "sums")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.sums = dict.fromkeys(MEASURES, 0.0)
        self.steps = 0.0
        self.steps_s = 0.0


class Spells:
    """Of one attempt."""

    def __init__(self) -> None:
        self._sums: dict[tuple[int, ...], _Sum] = {}

    def note(self, mates: tuple[int, ...], seconds: float, sample: GpuSample, steps_hz: float | None) -> None:
        """It was with `mates` for `seconds`, at the end of which the GPU looked like `sample`.

        A measure that is missing once is missing in the mean: the rest would stand for another time.
        """
        found = self._sums.get(mates)
        if found is None:
            if len(self._sums) >= 4 * MOST_SPELLS:
                del self._sums[min(self._sums, key=lambda each: self._sums[each].seconds)]
            found = self._sums[mates] = _Sum()
        found.seconds += seconds
        for name in MEASURES:
            value = getattr(sample, name)
            found.sums[name] += math.nan if value is None else value * seconds
        if steps_hz is not None and 0 < steps_hz < math.inf:
            found.steps += steps_hz * seconds
            found.steps_s += seconds

    def longest(self) -> tuple[Spell, ...]:
        """The longest, longest first; short ones and the many are left out."""
        longest = sorted(self._sums.items(), key=lambda each: (-each[1].seconds, each[0]))
        return tuple(_spell(mates, found) for mates, found in longest[:MOST_SPELLS] if found.seconds >= LEAST_S)


def _spell(mates: tuple[int, ...], found: _Sum) -> Spell:
    means = {name: _known(found.sums[name] / found.seconds) for name in MEASURES}
    steps_hz = found.steps / found.steps_s if found.steps_s else None
    return Spell(mates=mates, seconds=found.seconds, steps_hz=steps_hz, **means)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
