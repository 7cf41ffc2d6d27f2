"""Fits a Gaussian process to measured pairs of co-located jobs. Needs numpy and scipy (`[sim]`).

The speed of a victim v beside a partner p is a mean plus smooth functions of the traits of v, of p and of both, plus a
random effect of v and one of p. Length scales and weights maximize the posterior of the measurements; `kernel.py`
evaluates the fit without numpy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cotenant.sim.interference.kernel import TERMS, KernelFit, Traits

START_LENGTH = 2.0  # length scale of standardized traits
START_WEIGHTS = {"victim": 0.03, "partner": 0.03, "both": 0.03, "victim_own": 0.002, "partner_own": 0.002}
START_NOISE = 0.001
MIN_NOISE = 1e-5
PRIOR = 0.15  # precision (1 / variance) of the prior on the log hyperparameters, centered on their start


class PairSpeed(NamedTuple):
    """Measured speed of a victim beside a partner, relative to its solo speed."""

    victim: str
    partner: str
    speed: float


class Hyper(NamedTuple):
    """Hyperparameters: the length scale of each trait, the weight of each term, the variance of the noise."""

    lengths: tuple[float, ...]
    weights: tuple[float, ...]
    noise: float


def fit(
    rows: Sequence[PairSpeed],
    traits: Mapping[str, Traits],
    *,
    smact_law: bool,
    hyper: Hyper | None = None,
    iterations: int = 80,
    max_speed: float = 1.0,
) -> tuple[KernelFit, Hyper]:
    """Fit `rows`; `traits` must contain every job in them. Returns the fit and its hyperparameters.

    Speeds are clipped to `max_speed`, since sharing does not speed a job up. With `smact_law` the mean is
    1 / (1 + a SMACT^b) of the partner, with a and b by least squares, and the first trait must be SMACT; otherwise the
    mean is that of the rows. Given `hyper`, the search is skipped.
    """
    import numpy as np

    problem = _Problem(np, rows, traits, max_speed)
    law = _fit_law(np, problem) if smact_law else None
    means = 1.0 / (1.0 + law[0] * problem.smact ** law[1]) if law else np.full(len(rows), problem.speeds.mean())
    residuals = problem.speeds - means
    found = hyper or problem.search(residuals, iterations)
    weights = problem.solve(residuals, found)
    fitted = KernelFit(
        law=law,
        mean=None if law else float(problem.speeds.mean()),
        max_speed=max_speed,
        center=tuple(problem.center.tolist()),
        scale=tuple(problem.scale.tolist()),
        lengths=found.lengths,
        weights=dict(zip(TERMS, found.weights, strict=True)),
        jobs={name: traits[name] for name in problem.names},
        rows=tuple(
            (row.victim, row.partner, float(weight)) for row, weight in zip(rows, weights.tolist(), strict=True)
        ),
    )
    return fitted, found


class _Problem:
    """The measurements as arrays: N rows over n jobs with q traits; the last trait is whether families differ."""

    def __init__(self, np: Any, rows: Sequence[PairSpeed], traits: Mapping[str, Traits], max_speed: float) -> None:
        self.np = np
        self.names = sorted({row.victim for row in rows} | {row.partner for row in rows})
        index = {name: i for i, name in enumerate(self.names)}
        self.victims = np.array([index[row.victim] for row in rows])
        self.partners = np.array([index[row.partner] for row in rows])
        self.speeds = np.array([min(max_speed, row.speed) for row in rows])
        values_nq = np.array([traits[name].values for name in self.names], dtype=float).reshape(len(self.names), -1)
        self.smact = values_nq[self.partners, 0] if values_nq.shape[1] else np.zeros(len(rows))
        self.center = values_nq.mean(axis=0)
        self.scale = np.maximum(values_nq.std(axis=0), 1e-9)
        z_nq = (values_nq - self.center) / self.scale
        families = [traits[name].family for name in self.names]
        differ_nn = np.array([[float(a is None or a != b) for b in families] for a in families])
        np.fill_diagonal(differ_nn, 0.0)
        self.apart = [(z_nq[:, None, k] - z_nq[None, :, k]) ** 2 for k in range(z_nq.shape[1])] + [differ_nn]

    def _similarity(self, log_lengths: Any) -> Any:
        exponents = sum(apart * math.exp(-2.0 * length) for apart, length in zip(self.apart, log_lengths, strict=True))
        return self.np.exp(-0.5 * exponents)

    def _terms(self, log_lengths: Any) -> list[Any]:
        """Covariance of the rows under each term, in the order of `TERMS`, each with weight 1."""
        np, v, p = self.np, self.victims, self.partners
        similarity = self._similarity(log_lengths)
        same = np.eye(len(self.names))
        of_victims, of_partners = similarity[np.ix_(v, v)], similarity[np.ix_(p, p)]
        return [of_victims, of_partners, of_victims * of_partners, same[np.ix_(v, v)], same[np.ix_(p, p)]]

    def start(self) -> Any:
        weights = [math.log(START_WEIGHTS[term]) for term in TERMS]
        lengths = [math.log(START_LENGTH)] * len(self.apart)
        return self.np.array([*lengths, *weights, math.log(START_NOISE)])

    def search(self, residuals: Any, iterations: int) -> Hyper:
        """The hyperparameters with the highest posterior, by L-BFGS-B from a fixed start."""
        from scipy.optimize import minimize

        options = {"maxiter": iterations}
        start = self.start()
        found = minimize(self._misfit, start, args=(residuals,), jac=True, method="L-BFGS-B", options=options)
        q = len(self.apart)
        values = [math.exp(float(log_value)) for log_value in found.x]
        return Hyper(tuple(values[:q]), tuple(values[q:-1]), values[-1])

    def _misfit(self, theta: Any, residuals: Any) -> tuple[float, Any]:
        """Negative log posterior and its gradient with respect to the log hyperparameters."""
        np, q = self.np, len(self.apart)
        weights, noise = np.exp(theta[q:-1]), math.exp(theta[-1])
        terms = [weight * term for weight, term in zip(weights, self._terms(theta[:q]), strict=True)]
        covariance = sum(terms) + (noise + MIN_NOISE) * np.eye(len(residuals))
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(theta)
        inverse = np.linalg.inv(covariance)
        alpha = inverse @ residuals
        off = theta - self.start()
        misfit = 0.5 * residuals @ alpha + np.log(np.diag(lower)).sum() + 0.5 * PRIOR * (off**2).sum()
        slope = 0.5 * (inverse - np.outer(alpha, alpha))
        pulls = [slope * term for term in terms]
        gradient = np.zeros_like(theta)
        gradient[q:-1] = [pull.sum() for pull in pulls]
        gradient[-1] = np.trace(slope) * noise
        by_victim = self._by_job(pulls[0] + pulls[2], self.victims)
        by_partner = self._by_job(pulls[1] + pulls[2], self.partners)
        for k, apart in enumerate(self.apart):
            gradient[k] = ((by_victim + by_partner) * apart).sum() * math.exp(-2.0 * theta[k])
        return float(misfit), gradient + PRIOR * off

    def _by_job(self, pull: Any, jobs: Any) -> Any:
        np = self.np
        member = np.zeros((len(jobs), len(self.names)))
        member[np.arange(len(jobs)), jobs] = 1.0
        return member.T @ pull @ member

    def solve(self, residuals: Any, hyper: Hyper) -> Any:
        """Weight of each row in a prediction."""
        np = self.np
        terms = self._terms([math.log(length) for length in hyper.lengths])
        covariance = sum(weight * term for weight, term in zip(hyper.weights, terms, strict=True))
        return np.linalg.solve(covariance + (hyper.noise + MIN_NOISE) * np.eye(len(residuals)), residuals)


def _fit_law(np: Any, problem: _Problem) -> tuple[float, float]:
    """Fit a and b of 1 / (1 + a SMACT^b) by least squares on a grid with 2 % steps."""
    factors = 0.2 * 1.02 ** np.arange(150)
    powers = 1.0 * 1.02 ** np.arange(110)
    costs = factors[:, None, None] * problem.smact[None, None, :] ** powers[None, :, None]
    errors = ((1.0 / (1.0 + costs) - problem.speeds) ** 2).sum(axis=2)
    i, j = np.unravel_index(int(errors.argmin()), errors.shape)
    return float(factors[i]), float(powers[j])
