"""The simulator's default interference model, by GPU type and sharing mode."""

from __future__ import annotations

import functools
import math
import random
import zlib
from collections.abc import Mapping, Sequence

from cotenant.core.gpu import Sharing
from cotenant.sim.interference import tables
from cotenant.sim.interference.model import DEFAULT_GPU, Ceiling, Collocation, Combine, Origin, PairCosts, TrueActivity
from cotenant.sim.interference.sharing import mps_speeds, on_slice, slice_speed
from cotenant.sim.interference.sources import MeasuredCosts, SmactCosts


class StandardInterference:
    """Speeds on any GPU under any sharing mode.

    Time slicing uses the measured pair, else the fit of that GPU type if it knows both jobs, else the law of SM
    activity, which is fitted on an A100 and assumed for other GPUs. MPS and MIG use the rules of `sharing.py`.
    `pairs` adds or replaces measured pairs, by GPU family.
    """

    def __init__(
        self,
        *,
        combine: Combine = "additive",
        ceiling: Ceiling = "multiprocessors",
        pairs: Mapping[str, Mapping[tuple[str, str], float]] | None = None,
    ) -> None:
        self._combine: Combine = combine
        self._ceiling: Ceiling = ceiling
        self._pairs = dict(pairs or {})
        self._models: dict[str, Collocation] = {}

    def speeds(
        self, members: Sequence[TrueActivity], gpu_type: str = DEFAULT_GPU, sharing: Sharing = "time-sliced"
    ) -> list[float]:
        """Speed of each job, relative to alone on a whole GPU of that type."""
        if sharing == "mps":
            return mps_speeds(members)
        if sharing == "mig":
            alone = [slice_speed(member, gpu_type) for member in members]
            if len(members) < 2:
                return alone
            together = self._model(gpu_type).speeds([on_slice(member, gpu_type) for member in members])
            return [slice_part * part for slice_part, part in zip(alone, together, strict=True)]
        return self._model(gpu_type).speeds(members)

    def origin(
        self, victim: TrueActivity, partner: TrueActivity, gpu_type: str = DEFAULT_GPU, sharing: Sharing = "time-sliced"
    ) -> Origin:
        """The origin of the cost of `partner` to `victim`."""
        if sharing in ("mps", "mig"):
            return "assumed"
        return self._model(gpu_type).cost(victim, partner).origin

    def _model(self, gpu_type: str) -> Collocation:
        family = tables.family_of(gpu_type)
        if family not in self._models:
            self._models[family] = Collocation(self._sources(family), combine=self._combine, ceiling=self._ceiling)
        return self._models[family]

    def _sources(self, family: str) -> list[PairCosts]:
        sources: list[PairCosts] = []
        if family in self._pairs:
            sources.append(MeasuredCosts(self._pairs[family]))
        if family in tables.FILES:
            sources += [MeasuredCosts(tables.measured(family)), tables.fits()[family]]
        sources.append(SmactCosts("fitted" if family == "A100" else "assumed"))
        return sources


@functools.cache
def standard(combine: Combine = "additive", ceiling: Ceiling = "multiprocessors") -> StandardInterference:
    """The model with all shipped tables."""
    return StandardInterference(combine=combine, ceiling=ceiling)


def draw_sensitivity(seed: int, job_id: int, sd: float) -> float:
    """A job's sensitivity, hidden from policies: log-normal with median 1; 1 if `sd` is 0."""
    if sd <= 0:
        return 1.0
    rng = random.Random(zlib.crc32(f"sensitivity {seed} {job_id}".encode()))  # noqa: S311 - no secret
    return math.exp(sd * rng.gauss(0.0, 1.0))
