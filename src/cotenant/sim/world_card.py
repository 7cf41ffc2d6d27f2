"""One GPU of a simulated world: who is on it, what it has done so far, and how a policy sees it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from cotenant.core.gpu import GpuSample, GpuSnapshot, Resident
from cotenant.core.job import Job
from cotenant.core.placement import Placement
from cotenant.scheduling.interference import Activity as Known
from cotenant.sim.cluster import Slot
from cotenant.sim.interference import Activity
from cotenant.sim.jobs import Profile
from cotenant.sim.power import PowerModel
from cotenant.sim.world_speeds import NOBODY, Company, company

_UNKNOWN = Known()

LEAST_SPELL_S = 10.0
"""What an attempt did for less long says nothing, as in the daemon."""


class Live:
    """An attempt that has been placed and has not ended.

    Attributes:
        number: of the job in the trace.
        work_s: what it has to do once its launch delay is over, in seconds alone on the GPUs it has.
        done_s: how much of that is done at `since_s`; since then it runs at `speed`.
        pace: of the slowest GPU it has, over that of the GPUs whose run times the trace has.
        links: part of its speed that is left by the network between its GPUs.
        seen_s: the first reading that shows it, infinity before it works.
        next_s: the work at which something happens next: it grows, or it ends.
        version: of its newest event in the queue; older ones are stale.
        busy: part of the time in which a GPU that it has alone has work.
        known: what a history knows of its work by now; None without a history.
    """

    __slots__ = (
        "active",
        "activity",
        "activity_id",
        "busy",
        "cards",
        "company",
        "company_since_s",
        "delay_s",
        "done_s",
        "grown",
        "held_bytes",
        "job",
        "known",
        "links",
        "next_s",
        "number",
        "pace",
        "placed_s",
        "placement",
        "profile",
        "resident",
        "seen_s",
        "since_s",
        "speed",
        "version",
        "work_s",
    )

    def __init__(self, number: int, job: Job, placement: Placement, cards: list[Card], placed_s: float) -> None:
        self.number = number
        self.job = job
        self.placement = placement
        self.cards = cards
        self.placed_s = placed_s
        self.profile: Profile | None = None
        self.activity: Activity | None = None
        self.activity_id = -1
        self.busy = 0.0
        self.delay_s = 0.0
        self.work_s = 0.0
        self.done_s = 0.0
        self.since_s = placed_s
        self.speed = 1.0
        self.links = 1.0
        self.pace = 1.0
        self.active = False
        self.seen_s = math.inf
        self.grown = True
        self.next_s = 0.0
        self.held_bytes = 0
        self.version = 0
        self.resident: Resident | None = None
        self.known: Callable[[], Known] | None = None
        self.company: dict[tuple[int, ...], list[float]] = {}  # for a history, see `learner`
        self.company_since_s = placed_s

    def seen_as(self, at_s: float) -> Resident:
        """The attempt as the readings up to `at_s` show it."""
        found = self.resident
        known = _UNKNOWN if self.known is None else self.known()
        if known.smact is None and self.known is not None:
            known = known._replace(smact=self._seen_alone(at_s))
        if found is None or (found.seen_at_s is None and at_s >= self.seen_s) or found.smact != known.smact:
            seen = at_s >= self.seen_s
            found = self.resident = Resident(
                job_id=self.job.id,
                attempt=len(self.job.attempts) + 1,
                promised_bytes=self.placement.promised_bytes,
                observed_bytes=self.held_bytes if seen else None,
                sharing=self.placement.sharing,
                placed_at_s=self.placed_s,
                seen_at_s=self.seen_s if seen else None,
                slowdown_bound=self.job.spec.slowdown_bound,
                gpus=len(self.cards),
                workload=known.workload,
                smact=known.smact,
            )
        return found

    def _seen_alone(self, at_s: float) -> float | None:
        """SM activity while it had its first GPU to itself, if it did so for long enough."""
        sums = self.company.get((self.job.id,))
        seconds, smact_s = (sums[0], sums[1]) if sums is not None else (0.0, 0.0)
        if self.active and len(self.cards[0].active) == 1:
            seconds += at_s - self.company_since_s
            smact_s += self.cards[0].smact * (at_s - self.company_since_s)
        return round(smact_s / seconds, 2) if seconds >= LEAST_SPELL_S else None


class Totals(NamedTuple):
    """What a GPU did from the start of a run to its end.

    Attributes:
        busy_s: with an attempt on it; `active_s`: with one at work.
        memory_byte_s, smact_s, smocc_s, drama_s: integrals over time.
        shared_s: with more than one attempt on it.
    """

    busy_s: float
    active_s: float
    shared_s: float
    memory_byte_s: float
    smact_s: float
    smocc_s: float
    drama_s: float
    energy_j: float


class Moment(NamedTuple):
    """A GPU from `at_s` on, until its next moment."""

    at_s: float
    residents: int
    held_bytes: int
    smact: float
    power_w: float


class Card:
    """A GPU during a run. `advance` is called before anything of it changes, `settle` after it."""

    __slots__ = (
        "_history",
        "_idle_w",
        "_power",
        "_readings",
        "_waiting_w",
        "active",
        "active_s",
        "busy_s",
        "company",
        "down",
        "drama",
        "drama_s",
        "energy_j",
        "gpu",
        "gpu_type",
        "held_bytes",
        "memory_byte_s",
        "moments",
        "moved_s",
        "moves",
        "moving_until_s",
        "power_w",
        "residents",
        "server",
        "shared_s",
        "since_s",
        "smact",
        "smact_s",
        "smocc",
        "smocc_s",
        "total_bytes",
    )

    def __init__(self, slot: Slot, power: PowerModel, *, record: bool) -> None:
        self.gpu = slot.gpu
        self.gpu_type = slot.gpu_type
        self.server = slot.server
        self.total_bytes = slot.gpu.memory_total_bytes
        self.residents: list[Live] = []
        self.active: list[Live] = []
        self.company: Company = NOBODY  # `active`, at the speeds of the model; a gang may be slower
        self.down = False
        self.since_s = 0.0
        self.held_bytes = 0
        self.smact = self.smocc = self.drama = 0.0
        self._power = power
        self._waiting_w = power.watts(1, 0.0)
        self.power_w = self._idle_w = power.watts(0, 0.0)
        self.busy_s = self.active_s = self.shared_s = 0.0
        self.memory_byte_s = self.smact_s = self.smocc_s = self.drama_s = self.energy_j = 0.0
        self.moving_until_s = -math.inf
        self.moved_s = 0.0  # first reading that shows its newest change; `moves` counts the changes
        self.moves = 0
        self._history: deque[tuple[float, float, float, float]] = deque([(0.0, 0.0, 0.0, 0.0)])
        self._readings: deque[GpuSample] = deque()
        self.moments: list[Moment] | None = [Moment(0.0, 0, 0, 0.0, self.power_w)] if record else None

    def advance(self, at_s: float) -> None:
        """Add what happened since the last call."""
        passed_s = at_s - self.since_s
        if passed_s <= 0.0:
            return
        self.since_s = at_s
        residents = len(self.residents)
        if residents:
            self.busy_s += passed_s
            if residents > 1:
                self.shared_s += passed_s
            if self.active:
                self.active_s += passed_s
                self.memory_byte_s += self.held_bytes * passed_s
                self.smact_s += self.smact * passed_s
                self.smocc_s += self.smocc * passed_s
                self.drama_s += self.drama * passed_s
        self.energy_j += self.power_w * passed_s

    def settle(self, at_s: float) -> None:
        """Work out activity and power from who is at work now, after `advance` and the change of `company`."""
        now = self.company
        for each, speed in zip(self.active, now.speeds, strict=True):
            if each.speed != speed:  # its gang waits for it on another GPU
                now = company([each.activity for each in self.active], tuple([each.speed for each in self.active]))
                break
        _, self.smact, self.smocc, self.drama, working = now
        self.power_w = self._power.watts(len(self.residents), working)
        history = self._history
        if history[-1][0] == at_s:
            history[-1] = (at_s, self.smact, self.smocc, self.drama)
        else:
            history.append((at_s, self.smact, self.smocc, self.drama))
        if self.moments is not None:
            self.moments.append(Moment(at_s, len(self.residents), self.held_bytes, self.smact, self.power_w))

    def was_alone(self, live: Live, at_s: float, held_bytes: int) -> None:
        """Add a whole attempt that had the GPU to itself and ends now."""
        self.advance(live.placed_s)  # idle until then
        active_s = max(0.0, at_s - live.placed_s - live.delay_s)
        activity = live.activity
        smact = activity.smact if activity is not None else 0.0
        self.busy_s += at_s - live.placed_s
        self.active_s += active_s
        self.memory_byte_s += held_bytes * active_s
        self.smact_s += smact * active_s
        if activity is not None:
            self.smocc_s += (activity.smocc or 0.0) * active_s
            self.drama_s += (activity.drama or 0.0) * active_s
        waiting_w, working_w = self._waiting_w, self._power.watts(1, live.busy)
        self.energy_j += waiting_w * (at_s - live.placed_s - active_s) + working_w * active_s
        self.since_s = at_s
        self.power_w = self._idle_w
        if self.moments is not None:
            self.moments.append(Moment(live.placed_s, 1, 0, 0.0, waiting_w))
            self.moments.append(Moment(at_s - active_s, 1, held_bytes, smact, working_w))
            self.moments.append(Moment(at_s, 0, 0, 0.0, self.power_w))

    def totals(self) -> Totals:
        """What it did until the last `advance`."""
        return Totals(
            self.busy_s,
            self.active_s,
            self.shared_s,
            self.memory_byte_s,
            self.smact_s,
            self.smocc_s,
            self.drama_s,
            self.energy_j,
        )

    def snapshot(self, at_s: float, *, window_s: float, reading_s: float) -> GpuSnapshot:
        """The GPU as a policy sees it at `at_s`, with readings of the last `window_s`."""
        return GpuSnapshot(
            gpu=self.gpu,
            samples=self._samples(at_s, window_s, reading_s),
            residents=tuple([each.seen_as(at_s) for each in self.residents]),
            strangers_bytes=None if self.down else 0,
        )

    def _samples(self, at_s: float, window_s: float, reading_s: float) -> tuple[GpuSample, ...]:
        """Readings at multiples of `reading_s`, worked out from the changes and not by ticking.

        A GPU that has not changed for a whole window shows its ends only: all readings between them are the same.
        """
        history = self._history
        last_s = math.floor(at_s / reading_s) * reading_s
        oldest_s = last_s - window_s
        while len(history) > 1 and history[1][0] <= oldest_s - reading_s:
            history.popleft()
        readings = self._readings
        if len(history) == 1 and history[0][0] <= oldest_s - reading_s:
            readings.clear()
            values = history[0][1:]
            return (self._sample(max(0.0, oldest_s), values), self._sample(last_s, values))
        while readings and readings[0].at_s <= oldest_s:
            readings.popleft()
        next_s = readings[-1].at_s + reading_s if readings else max(0.0, oldest_s + reading_s)
        while next_s <= last_s:
            readings.append(self._sample(next_s, self._mean(next_s - reading_s, next_s)))
            next_s += reading_s
        return tuple(readings)

    def mean_activity(self, at_s: float, window_s: float) -> tuple[float, float, float]:
        """Mean SMACT, SMOCC and DRAMA since its newest attempt was seen, but not further back than `window_s`."""
        since_s = at_s - window_s
        for each in self.active:
            if since_s < each.seen_s <= at_s:
                since_s = each.seen_s
        history = self._history
        while len(history) > 1 and history[1][0] <= at_s - window_s:
            history.popleft()
        if since_s >= at_s or history[-1][0] <= since_s:
            return self.smact, self.smocc, self.drama
        return self._mean(since_s, at_s)

    def _mean(self, from_s: float, to_s: float) -> tuple[float, float, float]:
        """Mean activity of that interval."""
        smact = smocc = drama = 0.0
        end_s = to_s
        for since_s, *values in reversed(self._history):
            if since_s >= end_s:
                continue
            part_s = end_s - max(since_s, from_s)
            smact, smocc, drama = smact + values[0] * part_s, smocc + values[1] * part_s, drama + values[2] * part_s
            end_s = since_s
            if since_s <= from_s:
                break
        width_s = to_s - from_s
        return smact / width_s, smocc / width_s, drama / width_s

    def _sample(self, at_s: float, values: tuple[float, float, float]) -> GpuSample:
        return GpuSample(
            at_s=at_s,
            used_bytes=self.held_bytes,
            smact=values[0],
            smocc=values[1],
            drama=values[2],
            power_w=self.power_w,
        )
