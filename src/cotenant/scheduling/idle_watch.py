"""Finds attempts that hold GPUs and compute nothing, notifies their users, and acts if the administrator wants it.

An attempt is idle once readings of all its GPUs have shown next to no activity for `after_s` in a row. The activity of
a GPU is its SM activity, or its utilization where that is not read; it bounds what each resident does. On a shared GPU
that is busy, an attempt is idle if the driver reports the SM time of processes there, and none for it.

In doubt it is not idle:

- while it starts, until `warmup_s` after its start; while it is being stopped, or saves its state at the end of a time
  slice; while it is paused; and while it reports steps.
- Time counts between two readings that are not further apart than readings stay fresh. After `MAX_GAP_S` without such
  a pair, or without a reading of the activity, the count begins anew.
- It computes again once readings have shown activity for `RESUME_S` in a row. One reading ends neither state, but it
  puts off an action until the attempt has been idle for the whole time again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cotenant.core.events import AttemptBusy, AttemptIdle, AttemptSample, Command, ReportIdleness, ServerSampled, Stop
from cotenant.core.gpu import GpuSample
from cotenant.core.job import Job, Running
from cotenant.core.units import format_duration

IdleAction = Literal["notify", "park", "cancel"]

MAX_GAP_S = 60.0
"""A longer time without readings breaks the row."""
RESUME_S = 10.0

IDLE_STOP = "idle for"
"""How the reason begins for which the daemon stops an idle attempt."""
PARKED = "parked: idle for"
"""The same where the job then goes back to the queue, on hold."""

_Key = tuple[int, int]
"""Job id and attempt number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdlePolicy:
    """When an attempt is idle, and what is done about it.

    Attributes:
        action: `notify`: its user is notified, and its state says so; `park`: it is also stopped, and its job is held
            until its user releases it; `cancel`: its job is also cancelled.
        max_activity: an activity below this is none; ratio.
        after_s: idle for so long in a row.
        warmup_s: after its start it is not judged: it imports, loads and compiles.
        grace_s: between the first notice and the action.
    """

    action: IdleAction = "notify"
    max_activity: float = 0.01
    after_s: float = 1800.0
    warmup_s: float = 600.0
    grace_s: float = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleStatus:
    """A live job that computes nothing on its GPUs.

    Attributes:
        idle_s: for so long.
        action: what the administrator wants done about it.
        stop_in_s: seconds until it is stopped if it goes on like this, or None.
    """

    idle_s: float
    action: IdleAction
    stop_in_s: float | None

    @property
    def next_text(self) -> str:
        """What will be done about it, for people: ``, or `cancelled in 12:00 unless it computes`."""
        if self.stop_in_s is None:
            return ""
        verb = "parked" if self.action == "park" else "cancelled"
        return f"{verb} in {format_duration(self.stop_in_s)} unless it computes"


@dataclass(slots=True)
class _IdleRow:
    """Readings in a row.

    Attributes:
        last_s: time of the newest that counted.
        since_s: when the idle ones began.
        idle_s, active_s: seconds of GPU time that idle ones, or others, cover in a row; one of them is 0.
    """

    last_s: float
    since_s: float
    idle_s: float = 0.0
    active_s: float = 0.0

    def add(self, before_s: float, at_s: float, *, pace: float, idle: bool) -> None:
        seconds = (at_s - before_s) * pace
        if idle:
            if not self.idle_s:
                self.since_s = before_s
            self.idle_s, self.active_s = self.idle_s + seconds, 0.0
        else:
            self.active_s, self.idle_s = self.active_s + seconds, 0.0
        self.last_s = at_s


class IdleWatch:
    """Counts from sample to sample for how long each attempt has been idle, and gives the commands.

    Args:
        policy: None: idle attempts are not looked for.
        pace: seconds of GPU time per second of the manager's clock; the policy counts GPU time.
    """

    def __init__(
        self, policy: IdlePolicy | None, *, stale_after_s: float, stop_grace_s: float, pace: float = 1.0
    ) -> None:
        self._is_on = policy is not None
        self._policy = policy or IdlePolicy()
        self._stale_after_s = stale_after_s
        self._stop_grace_s = stop_grace_s
        self._pace = pace
        self._read_at_s: dict[str, float] = {}
        self._rows: dict[_Key, _IdleRow] = {}
        self._stopped_at_s: dict[_Key, float] = {}

    def commands(
        self, event: ServerSampled, live: Iterable[Job], *, is_exempt: Callable[[Job], bool] = lambda _: False
    ) -> list[Command]:
        """What to do after a sample of all GPUs; call it once for each.

        `live`: jobs that have an attempt; `is_exempt`: whether one of them is paused, or saves its state.
        """
        if not self._is_on:
            return []
        gaps = self._gaps(event)
        observed: dict[_Key, list[AttemptSample]] = {}
        for own in event.observed:
            observed.setdefault((own.job_id, own.attempt), []).append(own)
        rows, self._rows = self._rows, {}
        found: list[Command] = []
        for job in live:
            attempt = job.attempts[-1]
            if not isinstance(job.state, Running) or attempt.started_at_s is None:
                continue
            key = (job.id, attempt.number)
            warm = (event.at_s - attempt.started_at_s) * self._pace > self._policy.warmup_s
            if not warm or attempt.stop_reason is not None or is_exempt(job):
                continue
            row = self._rows[key] = rows.get(key) or _IdleRow(event.at_s, event.at_s)
            verdict = self._verdict(attempt.placement.gpu_uuids, event.samples, observed.get(key, ()))
            gap_s = max((gaps.get(uuid, math.inf) for uuid in attempt.placement.gpu_uuids), default=math.inf)
            if verdict is not None and 0.0 < gap_s <= self._stale_after_s:
                row.add(event.at_s - gap_s, event.at_s, pace=self._pace, idle=verdict)
            elif event.at_s - row.last_s > MAX_GAP_S:
                row.idle_s = row.active_s = 0.0
                row.last_s = event.at_s
            found += self._changes(job, row, event.at_s)
        self._stopped_at_s = {key: at_s for key, at_s in self._stopped_at_s.items() if key in self._rows}
        return found

    def status(self, job: Job, at_s: float) -> IdleStatus | None:
        """For how long a live job has been idle, and what follows; None if it is not."""
        since_s = job.attempts[-1].idle_since_s
        return None if since_s is None else self._status(job, max(0.0, at_s - since_s))

    def _status(self, job: Job, idle_s: float) -> IdleStatus:
        row = self._rows.get((job.id, len(job.attempts)))
        stop_in_s = None
        if self._is_on and self._policy.action != "notify" and row is not None:
            stop_in_s = max(0.0, self._policy.after_s + self._policy.grace_s - row.idle_s) / self._pace
        return IdleStatus(idle_s=idle_s, action=self._policy.action, stop_in_s=stop_in_s)

    def state(self) -> list[Any]:
        """The counts as plain values, for `restore`."""
        return [[*key, row.last_s, row.since_s, row.idle_s] for key, row in self._rows.items()]

    def restore(self, state: Iterable[Sequence[Any]]) -> None:
        """Continue from `state`.

        Raises:
            ValueError, TypeError: it did not come from `state()`.
        """
        rows = {
            (int(job_id), int(number)): _IdleRow(float(last_s), float(since_s), float(idle_s))
            for job_id, number, last_s, since_s, idle_s in state
        }
        self._rows = rows

    def _gaps(self, event: ServerSampled) -> dict[str, float]:
        """Seconds since the reading before, by UUID of the GPUs that were read twice."""
        gaps = {}
        for uuid, sample in event.samples.items():
            before = self._read_at_s.get(uuid)
            if before is not None:
                gaps[uuid] = sample.at_s - before
            self._read_at_s[uuid] = sample.at_s
        return gaps

    def _verdict(
        self, uuids: Iterable[str], samples: Mapping[str, GpuSample], own: Sequence[AttemptSample]
    ) -> bool | None:
        """Whether an attempt is idle on all its GPUs; None if a reading is missing, and the others are idle."""
        if any((seen.steps_hz or 0.0) > 0.0 for seen in own):
            return False
        shares = {seen.gpu_uuid: seen.sm for seen in own}
        verdict: bool | None = True
        for uuid in uuids:
            sample = samples.get(uuid)
            activity = activity_of(sample)
            if sample is None or activity is None:
                verdict = None
            elif activity >= self._policy.max_activity and not self._is_others(sample, shares.get(uuid)):
                return False
        return verdict

    def _is_others(self, sample: GpuSample, share: float | None) -> bool:
        """Whether the activity of a GPU is that of other processes, by the SM time that the driver reports.

        Drivers that report none give zeros for all.
        """
        reports = any((process.sm or 0.0) > 0.0 for process in sample.processes)
        return reports and share is not None and 0.0 <= share < self._policy.max_activity

    def _changes(self, job: Job, row: _IdleRow, at_s: float) -> Iterator[Command]:
        attempt = job.attempts[-1]
        key = (job.id, attempt.number)
        if attempt.idle_since_s is None:
            if row.idle_s >= self._policy.after_s:
                cause = self._notice(job, row)
                idle = AttemptIdle(at_s=at_s, cause=cause, job_id=key[0], attempt=key[1], idle_since_s=row.since_s)
                yield ReportIdleness(at_s=at_s, cause=cause, spec=job.spec, event=idle)
            return
        if row.active_s >= RESUME_S:
            since_s, cause = attempt.idle_since_s, "it computes again"
            busy = AttemptBusy(at_s=at_s, cause=cause, job_id=key[0], attempt=key[1], idle_since_s=since_s)
            yield ReportIdleness(at_s=at_s, cause=cause, spec=job.spec, event=busy)
            return
        if self._policy.action == "notify" or row.idle_s < self._policy.after_s + self._policy.grace_s:
            return
        sent_at_s = self._stopped_at_s.get(key)
        if sent_at_s is None or at_s - sent_at_s >= 6 * self._stop_grace_s:
            self._stopped_at_s[key] = at_s
            prefix = PARKED if self._policy.action == "park" else IDLE_STOP
            cause = f"{prefix} {format_duration(row.idle_s)}, {self._limit_text}"
            yield Stop(at_s=at_s, cause=cause, job_id=key[0], attempt=key[1], grace_s=self._stop_grace_s)

    def _notice(self, job: Job, row: _IdleRow) -> str:
        """What its user should know: the finding, and what will be done about it."""
        next_text = self._status(job, row.idle_s).next_text
        then = f", {next_text}" if next_text else ""
        return f"{self._limit_text} for {format_duration(row.idle_s)}{then}"

    @property
    def _limit_text(self) -> str:
        return f"activity below {100 * self._policy.max_activity:.3g} %"


def activity_of(sample: GpuSample | None) -> float | None:
    """SM activity of a GPU, or its utilization where that is not read; None where neither is."""
    for value in () if sample is None else (sample.smact, sample.utilization):
        if value is not None and 0.0 <= value < math.inf:
            return value
    return None
