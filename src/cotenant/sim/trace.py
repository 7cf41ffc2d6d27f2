"""Traces: when jobs are submitted, how long they run alone, and what they do to a GPU.

A trace of a year has a million jobs, so it is stored as columns, and jobs of the same kind share one `JobProfile`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant.core.errors import UsageError
from cotenant.core.estimate import SmactInterval
from cotenant.core.fast_constructor import fast_constructor, fast_replace

SECOND_GROWTH_S = 200.0
"""Published first peaks cover the first 200 s; a workload with a larger peak reaches it after that."""

MAX_S = 1e10
"""Three hundred years: beyond, a float cannot represent the end of a short job."""

MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """What a kind of job does to each of its GPUs when it runs alone.

    Attributes:
        workload: its name in tables of measured pairs, and its key in a history.
        first_peak_bytes: held once it trains, context included; `peak_bytes`: from `SECOND_GROWTH_S` on.
        smact, smocc, drama, utilization: mean while it trains; ratios.
        measured: False if the values were drawn or derived.
        reported_bytes: estimates of its peak, by estimator; None if there is no estimate.
        reported_smact: our estimate of its SM activity; None if there is none.
    """

    workload: str
    first_peak_bytes: int
    peak_bytes: int
    smact: float
    smocc: float | None = None
    drama: float | None = None
    utilization: float | None = None
    measured: bool = True
    reported_bytes: Mapping[str, int | None] = field(default_factory=dict)
    reported_smact: SmactInterval | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        submit_s: time since the first submission of the trace.
        duration_s: run time alone on the GPUs of the trace, from launch to end.
        profile: None if the trace does not say what the job does to a GPU.
        user: user or group that submitted it; empty if unknown.
        failed: it ended by itself, unsuccessfully, after `duration_s`.
        workload: its name in the source, if that is known without a profile.
    """

    submit_s: float
    duration_s: float
    gpus: int = 1
    profile: JobProfile | None = None
    user: str = ""
    failed: bool = False
    workload: str = ""


_trace_job: Callable[..., TraceJob] = fast_constructor(TraceJob)


class Trace:
    """Jobs in order of submission, as columns; job numbers count from 0.

    Attributes:
        name, source: for reports; `notes`: what was left out or assumed, for people.
        submit_s, duration_s, gpus, failed: one value per job.
        profile_of, user_of, workload_of: index into `profiles`, `users` and `workloads`; -1 if there is none.
    """

    def __init__(self, name: str, jobs: Iterable[TraceJob], *, source: str = "", notes: Sequence[str] = ()) -> None:
        self.name = name
        self.source = source
        self.notes = tuple(notes)
        self.submit_s = array("d")
        self.duration_s = array("d")
        self.gpus = array("i")
        self.failed = array("b")
        self.profile_of = array("i")
        self.user_of = array("i")
        self.workload_of = array("i")
        self.profiles: list[JobProfile] = []
        self.users: list[str] = []
        self.workloads: list[str] = []
        self._fill(jobs)

    def _fill(self, jobs: Iterable[TraceJob]) -> None:
        profiles: dict[str, int] = {}
        users: dict[str, int] = {}
        workloads: dict[str, int] = {}
        last_s = 0.0
        for job in jobs:
            if not (0.0 <= job.submit_s <= MAX_S and 0.0 < job.duration_s <= MAX_S and 1 <= job.gpus <= MAX_GPUS):
                raise UsageError(
                    f"job {len(self.submit_s)} of trace `{self.name}` submits at {job.submit_s:g} s, runs "
                    f"{job.duration_s:g} s on {job.gpus} GPUs: not a job",
                    hint=f"times are in seconds, up to {MAX_S:g}; GPUs from 1 to {MAX_GPUS:,}",
                )
            if job.submit_s < last_s:
                raise UsageError(f"trace `{self.name}` is not sorted by submission", hint="sort its jobs first")
            last_s = job.submit_s
            self.submit_s.append(job.submit_s)
            self.duration_s.append(job.duration_s)
            self.gpus.append(job.gpus)
            self.failed.append(job.failed)
            self.user_of.append(_index(users, job.user, self.users.append) if job.user else -1)
            name = job.workload or (job.profile.workload if job.profile else "")
            self.workload_of.append(_index(workloads, name, self.workloads.append) if name else -1)
            if job.profile is None:
                self.profile_of.append(-1)
                continue
            key = job.profile.workload
            index = profiles.get(key)
            if index is None:
                index = profiles[key] = len(self.profiles)
                self.profiles.append(job.profile)
            elif self.profiles[index] is not job.profile and self.profiles[index] != job.profile:
                raise UsageError(f"trace `{self.name}` has two profiles named `{key}`")
            self.profile_of.append(index)

    def __len__(self) -> int:
        return len(self.submit_s)

    def __getitem__(self, number: int) -> TraceJob:
        """The job with that number."""
        profile, user, name = self.profile_of[number], self.user_of[number], self.workload_of[number]
        return _trace_job(
            submit_s=self.submit_s[number],
            duration_s=self.duration_s[number],
            gpus=self.gpus[number],
            profile=self.profiles[profile] if profile >= 0 else None,
            user=self.users[user] if user >= 0 else "",
            failed=bool(self.failed[number]),
            workload=self.workloads[name] if name >= 0 else "",
        )

    def __iter__(self) -> Iterator[TraceJob]:
        return (self[number] for number in range(len(self)))

    @property
    def has_profiles(self) -> bool:
        """Whether every job has a profile, which sharing a GPU requires."""
        return all(index >= 0 for index in self.profile_of)

    @property
    def work_gpu_s(self) -> float:
        """GPU seconds of all jobs, each run alone."""
        return sum(duration * gpus for duration, gpus in zip(self.duration_s, self.gpus, strict=True))

    @property
    def span_s(self) -> float:
        """First to last submission."""
        return self.submit_s[-1] - self.submit_s[0] if self.submit_s else 0.0

    def digest(self) -> str:
        """16 hexadecimal digits that are equal for equal jobs."""
        found = hashlib.sha256()
        for column in (self.submit_s, self.duration_s, self.gpus, self.failed, self.profile_of):
            found.update(column.tobytes())
        for profile in self.profiles:
            found.update(repr((profile.workload, profile.first_peak_bytes, profile.peak_bytes, profile.smact)).encode())
        return found.hexdigest()[:16]

    def derived(self, jobs: Iterable[TraceJob], *, name: str | None = None, note: str | None = None) -> Trace:
        """A trace of these jobs with the source and the notes of this one."""
        notes = (*self.notes, note) if note else self.notes
        return Trace(name or self.name, jobs, source=self.source, notes=notes)


def from_zero(jobs: Iterable[TraceJob]) -> list[TraceJob]:
    """The jobs in order of submission, the first submitted at 0."""
    ordered = sorted(jobs, key=lambda job: job.submit_s)
    first_s = ordered[0].submit_s if ordered else 0.0
    if first_s == 0.0:
        return ordered
    return [fast_replace(job, submit_s=job.submit_s - first_s) for job in ordered]


def _index(known: dict[str, int], name: str, add: Callable[[str], None]) -> int:
    index = known.get(name)
    if index is None:
        index = known[name] = len(known)
        add(name)
    return index
