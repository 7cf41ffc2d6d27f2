"""What a simulated job is: when it came, how long it takes alone, and what it does to a GPU meanwhile.

A trace of a year has a million jobs, so it is columns, and what many jobs have in common is one `JobProfile`.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cotenant.core.errors import UsageError

SECOND_GROWTH_S = 200.0
"""Published first peaks are those of the first 200 s; what a workload takes beyond, it takes after them."""

MAX_S = 1e10
"""Three hundred years: beyond, a float cannot tell a short job's end from its start."""

MAX_GPUS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProfile:
    """What a kind of job does to each of its GPUs, alone.

    Attributes:
        workload: its name in tables of measured pairs, and what a history knows it by.
        first_peak_bytes: held once it trains, context included; `peak_bytes`: from `SECOND_GROWTH_S` on.
        smact, smocc, drama, utilization: mean while it trains; ratios.
        measured: False where the values were drawn or derived from something else.
        reported_bytes: what estimators said of its peak, by estimator; None where one could not tell.
        reported_smact: what our estimate said of its SM activity, a ratio; None where it could not tell.
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
    reported_smact: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace.

    Attributes:
        submit_s: after the first submission of the trace.
        duration_s: alone on the GPUs of the trace, from launch to end.
        profile: None where the trace does not say what the job does to a GPU.
        user: who submitted it, or the group; empty where the trace does not say.
        failed: it ended by itself without success after `duration_s`.
        workload: its name in the source, where that is known without a profile.
    """

    submit_s: float
    duration_s: float
    gpus: int = 1
    profile: JobProfile | None = None
    user: str = ""
    failed: bool = False
    workload: str = ""


class Trace:
    """Jobs in the order of submission, as columns; job numbers count from 0.

    Attributes:
        name, source: for reports; `notes`: what a reader left out or assumed, for people.
        submit_s, duration_s, gpus, failed: one value a job.
        profile_of, user_of, workload_of: index into `profiles`, `users` and `workloads`; -1 where there is none.
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
                raise UsageError(f"trace `{self.name}` is not in the order of submission", hint="sort its jobs first")
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
        """The job of that number."""
        profile, user, name = self.profile_of[number], self.user_of[number], self.workload_of[number]
        return TraceJob(
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
        """Whether it is known of every job what it does to a GPU, as sharing one needs."""
        return all(index >= 0 for index in self.profile_of)

    @property
    def work_gpu_s(self) -> float:
        """GPU seconds of all jobs, each alone."""
        return sum(duration * gpus for duration, gpus in zip(self.duration_s, self.gpus, strict=True))

    @property
    def span_s(self) -> float:
        """First to last submission."""
        return self.submit_s[-1] - self.submit_s[0] if self.submit_s else 0.0

    def digest(self) -> str:
        """Names this very trace: the same jobs give the same 16 hexadecimal digits."""
        found = hashlib.sha256()
        for column in (self.submit_s, self.duration_s, self.gpus, self.failed, self.profile_of):
            found.update(column.tobytes())
        for profile in self.profiles:
            found.update(repr((profile.workload, profile.first_peak_bytes, profile.peak_bytes, profile.smact)).encode())
        return found.hexdigest()[:16]

    def changed(self, jobs: Iterable[TraceJob], *, name: str | None = None, note: str | None = None) -> Trace:
        """A trace of these jobs that says it comes from this one."""
        notes = (*self.notes, note) if note else self.notes
        return Trace(name or self.name, jobs, source=self.source, notes=notes)


def from_zero(jobs: Iterable[TraceJob]) -> list[TraceJob]:
    """Jobs in the order of submission, the first at 0."""
    from dataclasses import replace

    ordered = sorted(jobs, key=lambda each: each.submit_s)
    first_s = ordered[0].submit_s if ordered else 0.0
    if first_s == 0.0:
        return ordered
    return [replace(each, submit_s=each.submit_s - first_s) for each in ordered]


def _index(known: dict[str, int], name: str, add: Callable[[str], None]) -> int:
    index = known.get(name)
    if index is None:
        index = known[name] = len(known)
        add(name)
    return index
