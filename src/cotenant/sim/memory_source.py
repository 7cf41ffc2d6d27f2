"""Sources of the memory estimates that a simulated scheduler gets: none, the truth, users, or estimators.

Our own estimator also estimates the SM activity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cotenant.core.errors import UnknownName
from cotenant.core.estimate import Estimate, SmactInterval
from cotenant.core.fast_constructor import fast_constructor
from cotenant.core.job import Job, JobSpec, Queued
from cotenant.sim.trace import JobProfile, Trace

_job: Callable[..., Job] = fast_constructor(Job)
_queued: Callable[..., Queued] = fast_constructor(Queued)

OURS = "cotenant"

MemorySource = Callable[[JobProfile], int | None]


def _reported(name: str) -> MemorySource:
    return lambda profile: profile.reported_bytes.get(name)


_SOURCES: Mapping[str, MemorySource] = {
    "none": lambda _profile: None,
    "oracle": lambda profile: profile.peak_bytes,
    "declared": _reported("declared"),
    "horus": _reported("horus"),
    "faketensor": _reported("faketensor"),
    "gpumemnet": _reported("gpumemnet"),
    OURS: _reported(OURS),
}


def estimators() -> tuple[str, ...]:
    """Names of all sources, sorted."""
    return tuple(sorted(_SOURCES))


def reported_bytes(profile: JobProfile, estimator: str) -> int | None:
    """Estimated bytes of a job with this profile; None if the estimator has no estimate.

    Raises:
        UnknownName: there is no such estimator.
    """
    check_estimator(estimator)
    return _SOURCES[estimator](profile)


def check_estimator(estimator: str) -> None:
    """Check that there is such an estimator.

    Raises:
        UnknownName: there is none.
    """
    if estimator not in _SOURCES:
        raise UnknownName("estimator", estimator, _SOURCES)


@dataclass(frozen=True, slots=True)
class _SharedParts:
    """What all jobs of one kind share."""

    spec: JobSpec
    estimate: Estimate | None
    error: str | None


class JobFactory:
    """Makes jobs as a daemon has them once their estimates are ready; jobs of one kind share their parts.

    Attributes:
        estimator: the source of memory estimates, one of `estimators()`.
    """

    def __init__(
        self,
        trace: Trace,
        estimator: str,
        *,
        max_slowdown: float | None = None,
        movable: Callable[[int], bool] | None = None,
    ) -> None:
        check_estimator(estimator)
        self.estimator = estimator
        self._trace = trace
        self._bound = max_slowdown
        self._movable = movable
        self._shared: dict[tuple[int, int, int, int], _SharedParts] = {}

    def __call__(self, number: int) -> Job:
        """The job with that number in the trace; ids count from 1."""
        trace = self._trace
        key = (trace.profile_of[number], trace.gpus[number], trace.user_of[number], trace.workload_of[number])
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = self._make(*key)
        at_s = trace.submit_s[number]
        spec = shared.spec
        if self._movable is not None and self._movable(number):
            spec = replace(spec, checkpoint_signal="TERM")
        return _job(number + 1, spec, at_s, _queued(at_s), shared.estimate, shared.error)

    def _make(self, profile_index: int, gpus: int, user_index: int, workload_index: int) -> _SharedParts:
        trace = self._trace
        name = trace.workloads[workload_index] if workload_index >= 0 else "job"
        spec = JobSpec(
            command=("python", f"{name}.py"),
            workdir="/",
            env={},
            user=trace.users[user_index] if user_index >= 0 else "user",
            uid=1000 + max(0, user_index),
            name=name,
            gpus=gpus,
            max_slowdown=self._bound,
        )
        profile = trace.profiles[profile_index] if profile_index >= 0 else None
        estimated = reported_bytes(profile, self.estimator) if profile is not None else None
        if profile is None or estimated is None:
            return _SharedParts(spec, None, f"`{self.estimator}` has no estimate")
        if self.estimator == "declared":
            return _SharedParts(replace(spec, declared_bytes=estimated), None, "declared")
        smact = profile.reported_smact if self.estimator == OURS else None
        return _SharedParts(spec, _estimate(estimated, self.estimator, smact), None)


def _estimate(peak_bytes: int, estimator: str, smact: SmactInterval | None) -> Estimate:
    return Estimate(
        peak_allocated_bytes=None,
        peak_reserved_bytes=peak_bytes,
        context_bytes=0,
        margin_bytes=0,
        coverage=0.99,
        estimator=estimator,
        version="published",
        gpu="A100-40GB",
        smact=None if smact is None else smact.expected,
        smact_low=None if smact is None else smact.low,
        smact_high=None if smact is None else smact.high,
    )
