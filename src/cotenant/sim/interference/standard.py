"""The interference model that the simulator uses: all that is known, by kind of GPU and of sharing."""

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
    """Speeds on any GPU under any sharing.

    Time slicing: the measured pair, else the fit of that kind of GPU where it knows both jobs, else the law of SM
    activity, fitted on an A100 and assumed of other GPUs. MPS and MIG: rules, see `sharing.py`. `pairs` adds or
    replaces measured pairs, by kind of GPU.
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
        """Speed of each, as a part of its speed alone on a whole GPU of that type."""
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
        """How it is known what `partner` costs `victim`."""
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
    """The model with all tables that ship with the package."""
    return StandardInterference(combine=combine, ceiling=ceiling)


def draw_sensitivity(seed: int, job_id: int, sd: float) -> float:
    """What multiplies a job's cost of company and no policy can see: log-normal with median 1; 1 where `sd` is 0."""
    if sd <= 0:
        return 1.0
    drawn = random.Random(zlib.crc32(f"sensitivity {seed} {job_id}".encode()))  # noqa: S311 - no secret
    return math.exp(sd * drawn.gauss(0.0, 1.0))
