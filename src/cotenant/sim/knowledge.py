"""What a simulated scheduler is told of a job: nothing, the truth, or what users or estimators said.

All tell its memory; our own estimate tells its SM activity too, where it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cotenant.core.errors import UnknownName
from cotenant.core.estimate import Estimate
from cotenant.core.job import Job, JobSpec, Queued
from cotenant.core.making import maker
from cotenant.sim.jobs import Profile, Trace

_job: Callable[..., Job] = maker(Job)
_queued: Callable[..., Queued] = maker(Queued)

OURS = "cotenant"

TellBytes = Callable[[Profile], int | None]


def _told(name: str) -> TellBytes:
    return lambda profile: profile.told_bytes.get(name)


_TELLERS: Mapping[str, TellBytes] = {
    "none": lambda _profile: None,
    "oracle": lambda profile: profile.peak_bytes,
    "declared": _told("declared"),
    "horus": _told("horus"),
    "faketensor": _told("faketensor"),
    "gpumemnet": _told("gpumemnet"),
    OURS: _told(OURS),
}


def estimators() -> tuple[str, ...]:
    """Names of all that can be told, sorted."""
    return tuple(sorted(_TELLERS))


def told_bytes(profile: Profile, estimator: str) -> int | None:
    """Bytes that a job of this profile is said to need; None where that cannot be said.

    Raises:
        UnknownName: there is no such estimator.
    """
    check(estimator)
    return _TELLERS[estimator](profile)


def check(estimator: str) -> None:
    """Whether there is such an estimator.

    Raises:
        UnknownName: there is not.
    """
    if estimator not in _TELLERS:
        raise UnknownName("estimator", estimator, _TELLERS)


@dataclass(frozen=True, slots=True)
class _Shared:
    """What all jobs of one kind have in common, made once."""

    spec: JobSpec
    estimate: Estimate | None
    error: str | None


class JobMaker:
    """Jobs as a daemon would have them once their estimates are there; jobs of one kind share all that can be.

    Attributes:
        estimator: which of `estimators()` tells the memory.
    """

    def __init__(self, trace: Trace, estimator: str, *, slowdown_bound: float | None = None) -> None:
        check(estimator)
        self.estimator = estimator
        self._trace = trace
        self._bound = slowdown_bound
        self._shared: dict[tuple[int, int, int, int], _Shared] = {}

    def __call__(self, number: int) -> Job:
        """The job of that number in the trace, submitted when the trace says; ids count from 1."""
        trace = self._trace
        key = (trace.profile_of[number], trace.gpus[number], trace.user_of[number], trace.workload_of[number])
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = self._make(*key)
        at_s = trace.submit_s[number]
        return _job(number + 1, shared.spec, at_s, _queued(at_s), shared.estimate, shared.error)

    def _make(self, profile_index: int, gpus: int, user_index: int, workload_index: int) -> _Shared:
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
            slowdown_bound=self._bound,
        )
        profile = trace.profiles[profile_index] if profile_index >= 0 else None
        told = told_bytes(profile, self.estimator) if profile is not None else None
        if profile is None or told is None:
            return _Shared(spec, None, f"`{self.estimator}` cannot tell")
        if self.estimator == "declared":
            return _Shared(replace(spec, declared_bytes=told), None, "declared")
        smact = profile.told_smact if self.estimator == OURS else None
        return _Shared(spec, _estimate(told, self.estimator, smact), None)


def _estimate(told: int, estimator: str, smact: float | None) -> Estimate:
    return Estimate(
        peak_allocated_bytes=None,
        peak_reserved_bytes=told,
        context_bytes=0,
        margin_bytes=0,
        coverage=0.99,
        estimator=estimator,
        version="published",
        gpu="A100-40GB",
        smact=smact,
    )
