"""Several policies on the same trace, once as it is and on bootstraps of it, side by side."""

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
    """Everything that runs under comparison share."""

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
        """What was left out or assumed of the trace and of the GPUs, for people."""
        said = gpu_speeds.note(self.cluster, self.config.reference_gpu)
        return self.trace.notes if said is None else (*self.trace.notes, said)

    def run(self, policy: str, trace: Trace | None = None) -> SimulationResult:
        """One run under the policy of that name, on another trace if one is given."""
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
    """One policy: its run on the trace itself, and the figures of the bootstraps."""

    policy: str
    run: SimulationResult
    metrics: SimMetrics
    samples: tuple[SimMetrics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """All results; the first is the baseline if it is among the policies."""

    experiment: Experiment
    bootstrap: int
    results: tuple[PolicyResult, ...]

    def baseline(self) -> PolicyResult | None:
        """The result that others are compared with, or None."""
        return next((result for result in self.results if result.policy == BASELINE), None)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values: seconds, joules, ratios; None where there is nothing."""
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
        told: dict[str, Any] = {
            "policy": result.policy,
            "digest": result.run.digest(),
            "wall_s": result.run.wall_s,
            "metrics": {name: _plain(getattr(result.metrics, name)) for name in NAMES},
        }
        if result.samples:
            told["intervals"] = {
                name: {"mean": _plain(each.mean), "low": _plain(each.low), "high": _plain(each.high)}
                for name, each in intervals(result.samples).items()
            }
        baseline = self.baseline()
        if baseline is not None:
            told["change"] = {name: self.change(result, name) for name in CHANGES}
        return told

    def change(self, result: PolicyResult, name: str) -> dict[str, float | None] | None:
        """Change of a figure against the baseline: on the trace itself, and over the bootstraps, pair by pair."""
        baseline = self.baseline()
        if baseline is None:
            return None
        told = {"trace": _plain(changes([result.metrics], [baseline.metrics], name)[0])}
        if result.samples:
            found = interval(changes(result.samples, baseline.samples, name))
            told |= {"mean": _plain(found.mean), "low": _plain(found.low), "high": _plain(found.high)}
        return told


def evaluate(
    experiment: Experiment,
    policies: Sequence[str],
    *,
    bootstrap: int = 0,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _text: None,
) -> Evaluation:
    """Every policy on the trace and on `bootstrap` resamples of it, the same for all."""
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
