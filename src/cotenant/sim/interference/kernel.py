"""Evaluates a fit to measured pairs, for pairs that were not measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cotenant.sim.interference.model import PairCost, TrueActivity

TERMS = ("victim", "partner", "both", "victim_own", "partner_own")
MIN_SPEED = 0.05
MAX_CACHED_JOBS = 1_000


class Traits(NamedTuple):
    """Inputs of a fit: numbers, and the family (model and data set) of the job if known."""

    values: tuple[float, ...]
    family: str | None = None


class _JobTerms(NamedTuple):
    """What the speed of a pair takes from one of its jobs, whichever the other one is.

    Attributes:
        likeness: to each job of the fit, 0..1.
        as_victim, as_partner: the weights of those jobs in that role, summed by likeness.
        beside: for each job of the fit, the weights of its measured partners, summed by likeness.
    """

    likeness: list[float]
    as_victim: float
    as_partner: float
    beside: list[float]


class KernelFit:
    """Speeds of pairs from a fit; `benchmarks/_lib/interference_fitting.py` defines the parameters.

    Jobs are looked up by name, else by activity if the fit was made on activity (`by_activity`).
    """

    def __init__(
        self,
        *,
        law: tuple[float, float] | None,
        mean: float | None,
        center: tuple[float, ...],
        scale: tuple[float, ...],
        lengths: tuple[float, ...],
        weights: Mapping[str, float],
        jobs: Mapping[str, Traits],
        rows: tuple[tuple[str, str, float], ...],
        by_activity: bool = False,
        max_speed: float = 1.0,
    ) -> None:
        self.max_speed = max_speed
        self.law, self.mean, self.by_activity = law, mean, by_activity
        self.center, self.scale, self.lengths, self.weights = center, scale, lengths, dict(weights)
        self.jobs, self.rows = dict(jobs), rows
        self._names = list(jobs)
        index = {name: i for i, name in enumerate(self._names)}
        self._at = [self._scaled(self.jobs[name]) for name in self._names]
        n = len(self._names)
        self._victims = [0.0] * n
        self._partners = [0.0] * n
        self._pairs: list[dict[int, float]] = [{} for _ in range(n)]
        for victim, partner, weight in rows:
            v, p = index[victim], index[partner]
            self._victims[v] += weight
            self._partners[p] += weight
            self._pairs[v][p] = self._pairs[v].get(p, 0.0) + weight
        self._index = index
        self._terms_of: dict[tuple[str | None, Traits], _JobTerms] = {}

    def _scaled(self, traits: Traits) -> tuple[float, ...]:
        return tuple(
            (value - center) / scale / length
            for value, center, scale, length in zip(traits.values, self.center, self.scale, self.lengths, strict=False)
        )

    def _likeness(self, name: str | None, traits: Traits) -> list[float]:
        """Similarity of this job to each job of the fit, 0..1."""
        at = self._scaled(traits)
        family = 0.5 / self.lengths[-1] ** 2
        found: list[float] = []
        for other, there in zip(self._names, self._at, strict=True):
            apart = 0.5 * sum((a - b) ** 2 for a, b in zip(at, there, strict=True))
            if other != name and (traits.family is None or traits.family != self.jobs[other].family):
                apart += family
            found.append(math.exp(-apart))
        return found

    def _terms(self, name: str | None, traits: Traits) -> _JobTerms:
        """Cached: fifty workloads make thousands of pairs."""
        terms = self._terms_of.get((name, traits))
        if terms is None:
            like = self._likeness(name, traits)
            terms = _JobTerms(
                like,
                sum(w * k for w, k in zip(self._victims, like, strict=True)),
                sum(w * k for w, k in zip(self._partners, like, strict=True)),
                [sum(weight * like[p] for p, weight in row.items()) for row in self._pairs],
            )
            if len(self._terms_of) >= MAX_CACHED_JOBS:
                self._terms_of.clear()
            self._terms_of[name, traits] = terms
        return terms

    def speed(self, victim: str | None, victim_is: Traits, partner: str | None, partner_is: Traits) -> float:
        """Speed of the victim beside the partner; unknown names are ignored."""
        mean = self.mean
        if mean is None:
            factor, power = self.law or (0.0, 1.0)
            mean = 1.0 / (1.0 + factor * partner_is.values[0] ** power)
        weights = self.weights
        of_victim, of_partner = self._terms(victim, victim_is), self._terms(partner, partner_is)
        total = weights["victim"] * of_victim.as_victim
        total += weights["partner"] * of_partner.as_partner
        for like, beside in zip(of_victim.likeness, of_partner.beside, strict=True):
            total += weights["both"] * like * beside
        if victim in self._index:
            total += weights["victim_own"] * self._victims[self._index[victim]]
        if partner in self._index:
            total += weights["partner_own"] * self._partners[self._index[partner]]
        return min(self.max_speed, max(MIN_SPEED, mean + total))

    def cost(self, victim: TrueActivity, partner: TrueActivity) -> PairCost | None:
        """The fitted cost; None if one of the jobs is known neither by name nor by activity."""
        victim_is, partner_is = self._traits(victim), self._traits(partner)
        if victim_is is None or partner_is is None:
            return None
        speed = self.speed(victim.workload, victim_is, partner.workload, partner_is)
        return PairCost(max(0.0, 1.0 / speed - 1.0), "fitted")

    def _traits(self, job: TrueActivity) -> Traits | None:
        if job.workload is not None and job.workload in self.jobs:
            return self.jobs[job.workload]
        return activity_traits(job) if self.by_activity else None

    def to_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return {
            "law": self.law,
            "mean": self.mean,
            "by_activity": self.by_activity,
            "max_speed": self.max_speed,
            "center": self.center,
            "scale": self.scale,
            "lengths": self.lengths,
            "weights": self.weights,
            "jobs": {name: [traits.family, *traits.values] for name, traits in self.jobs.items()},
            "rows": [[self._index[v], self._index[p], weight] for v, p, weight in self.rows],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> KernelFit:
        """The fit that `to_json` gave."""
        jobs = {name: Traits(tuple(values), family) for name, (family, *values) in data["jobs"].items()}
        names = list(jobs)
        return cls(
            law=tuple(data["law"]) if data["law"] else None,
            mean=data["mean"],
            center=tuple(data["center"]),
            scale=tuple(data["scale"]),
            lengths=tuple(data["lengths"]),
            weights=data["weights"],
            jobs=jobs,
            rows=tuple((names[v], names[p], weight) for v, p, weight in data["rows"]),
            by_activity=data["by_activity"],
            max_speed=data.get("max_speed", 1.0),
        )


def activity_traits(job: TrueActivity, family: str | None = None) -> Traits | None:
    """SMACT, SMOCC, DRAMA, utilization and the logarithm of its MiB, in this order; None if one is unknown."""
    if job.smocc is None or job.drama is None or job.utilization is None or not job.memory_bytes:
        return None
    return Traits((job.smact, job.smocc, job.drama, job.utilization, math.log(job.memory_bytes / 2**20)), family)
