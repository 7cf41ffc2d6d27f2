"""Compares policies on the same trace and on the same bootstraps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cotenant.gpus.power_model import PowerModel
from cotenant.sim import gpu_speeds
from cotenant.sim.cluster import Cluster
from cotenant.sim.engine.config import SimulationConfig
from cotenant.sim.interference import Interference
from cotenant.sim.metrics import NAMES, SimMetrics, changes, interval, intervals, metrics_of
from cotenant.sim.simulate import SimulationResult, simulate
from cotenant.sim.trace import Trace
from cotenant.sim.traces.transforms import manifest, resampled

BASELINE = "exclusive"
CHANGES = ("makespan_s", "jct_mean_s", "jct_p95_s", "wait_mean_s", "energy_j")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What all compared runs share."""

    trace: Trace
    cluster: Cluster
    config: SimulationConfig
    estimator: str = "oracle"
    interference: Interference | None = None
    max_slowdown: float | None = None
    options: Mapping[str, Mapping[str, object]] | None = None
    power_of: Callable[[str], PowerModel] | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out or assumed about the trace and the GPUs, for people."""
        note = gpu_speeds.note(self.cluster, self.config.reference_gpu)
        return self.trace.notes if note is None else (*self.trace.notes, note)

    def run(self, policy: str, trace: Trace | None = None) -> SimulationResult:
        """Run the policy of that name, on another trace if one is given."""
        return simulate(
            trace or self.trace,
            self.cluster,
            policy,
            options=(self.options or {}).get(policy),
            estimator=self.estimator,
            interference=self.interference,
            config=self.config,
            max_slowdown=self.max_slowdown,
            power_of=self.power_of,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """One policy: its run on the trace, and the metrics of its bootstraps."""

    policy: str
    run: SimulationResult
    metrics: SimMetrics
    samples: tuple[SimMetrics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The results of all policies; `exclusive` is the baseline."""

    experiment: Experiment
    bootstrap: int
    results: tuple[PolicyResult, ...]

    def baseline(self) -> PolicyResult | None:
        """The result of the baseline policy; None if it was not run."""
        return next((result for result in self.results if result.policy == BASELINE), None)

    def as_json(self) -> dict[str, Any]:
        """Plain values in seconds, joules and ratios; None for NaN."""
        experiment = self.experiment
        return {
            "trace": manifest(experiment.trace),
            "cluster": {
                "text": experiment.cluster.text,
                "gpus": len(experiment.cluster),
                "reference_gpu": gpu_speeds.reference_type(experiment.cluster, experiment.config.reference_gpu),
                "note": gpu_speeds.note(experiment.cluster, experiment.config.reference_gpu),
            },
            "estimator": experiment.estimator,
            "seed": experiment.config.seed,
            "bootstrap": self.bootstrap,
            "policies": [self._one(result) for result in self.results],
        }

    def _one(self, result: PolicyResult) -> dict[str, Any]:
        values: dict[str, Any] = {
            "policy": result.policy,
            "digest": result.run.digest(),
            "wall_s": result.run.wall_s,
            "metrics": {name: _plain(getattr(result.metrics, name)) for name in NAMES},
        }
        if result.samples:
            values["intervals"] = {
                name: {"mean": _plain(found.mean), "low": _plain(found.low), "high": _plain(found.high)}
                for name, found in intervals(result.samples).items()
            }
        baseline = self.baseline()
        if baseline is not None:
            values["change"] = {name: self.change(result, name) for name in CHANGES}
        return values

    def change(self, result: PolicyResult, name: str) -> dict[str, float | None] | None:
        """Relative change of a metric against the baseline: on the trace, and over the paired bootstraps."""
        baseline = self.baseline()
        if baseline is None:
            return None
        values = {"trace": _plain(changes([result.metrics], [baseline.metrics], name)[0])}
        if result.samples:
            found = interval(changes(result.samples, baseline.samples, name))
            values |= {"mean": _plain(found.mean), "low": _plain(found.low), "high": _plain(found.high)}
        return values


def evaluate(
    experiment: Experiment,
    policies: Sequence[str],
    *,
    bootstrap: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> Evaluation:
    """Run every policy on the trace and on the same `bootstrap` resamples of it."""
    traces = [resampled(experiment.trace, seed=seed * 100_003 + number) for number in range(bootstrap)]
    results = []
    for policy in policies:
        run = experiment.run(policy)
        progress(f"{policy}: {len(experiment.trace)} jobs in {run.wall_s:.2f} s")
        samples = tuple(metrics_of(experiment.run(policy, trace)) for trace in traces)
        results.append(PolicyResult(policy=policy, run=run, metrics=metrics_of(run), samples=samples))
    return Evaluation(experiment=experiment, bootstrap=bootstrap, results=tuple(results))


def _plain(value: float) -> float | None:
    return None if value != value else value  # noqa: PLR0124 - NaN is the one value that differs from itself
