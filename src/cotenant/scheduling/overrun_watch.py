"""Acts on attempts that outgrow their promise before a neighbor fails: `[scheduling] overrun`.

An attempt is an offender if it has held more than its promise and a margin, for some samples in a row, while memory
that was promised to its neighbors is missing. Where the GPU has room for all promises, it may hold what it likes.

`pause` prevents further growth. It frees nothing, and a user may resume processes of their own. `stop` frees what was
promised to others; the job is retried with what it was seen to need, without precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from cotenant.core.events import Command, Pause, Resume, Stop
from cotenant.core.gpu import GpuSnapshot, Resident
from cotenant.core.units import format_bytes
from cotenant.scheduling.overrun import OVERRUN_STOP, tolerated_bytes

OverrunAction = Literal["report", "pause", "stop"]

_Key = tuple[int, int]
"""Job id and attempt number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverrunPolicy:
    """When to act on an attempt that outgrows its promise, and how.

    Attributes:
        action: `report`: `explain` and the events of both jobs say so; `pause`: suspend its processes while promises
            are at risk; `stop`: stop it and retry it with what it was seen to need. MPS clients are never paused.
        margin: share of the promise that it may exceed it by.
        samples: in so many samples in a row.
    """

    action: OverrunAction = "report"
    margin: float = 0.1
    samples: int = 3


@dataclass(frozen=True, slots=True)
class Offense:
    """A resident that exceeds its promise for long enough, and how much its neighbors miss of theirs."""

    resident: Resident
    gpu_uuid: str
    missing_bytes: int
    neighbors: tuple[_Key, ...]

    @property
    def text(self) -> str:
        """The reason for people."""
        held, promised = format_bytes(self.resident.observed_bytes or 0), format_bytes(self.resident.promised_bytes)
        return f"{OVERRUN_STOP}: held {held}, {promised} promised, neighbors miss {format_bytes(self.missing_bytes)}"


class OverrunWatch:
    """Counts from sample to sample for how long each resident has been an offender, and gives the commands."""

    def __init__(self, policy: OverrunPolicy, *, stop_grace_s: float) -> None:
        self._policy = policy
        self._grace_s = stop_grace_s
        self._counts: dict[tuple[str, _Key], int] = {}  # samples in a row, by GPU and attempt
        self._paused: set[_Key] = set()
        self._stopped_at_s: dict[_Key, float] = {}

    def is_paused(self, job_id: int, attempt: int) -> bool:
        """Whether the attempt is paused."""
        return (job_id, attempt) in self._paused

    @property
    def is_undecided(self) -> bool:
        """Whether an attempt has exceeded its promise, but not yet in enough samples."""
        return any(count < self._policy.samples for count in self._counts.values())

    def commands(self, gpus: Callable[[], Iterable[GpuSnapshot]], at_s: float) -> list[Command]:
        """What to do after a sample; call it once for each."""
        if self._policy.action == "report":
            return []
        offenses = self.observe(gpus())
        return list(self._stops(offenses, at_s) if self._policy.action == "stop" else self._pauses(offenses, at_s))

    def observe(self, gpus: Iterable[GpuSnapshot]) -> list[Offense]:
        """The offenses of this sample, on each GPU the largest excess first."""
        counts: dict[tuple[str, _Key], int] = {}
        offenses = []
        for gpu in gpus:
            missing_bytes = _missing_bytes(gpu)
            for resident in _offenders(gpu, self._policy.margin) if missing_bytes > 0 else ():
                key = (gpu.gpu.uuid, _key(resident))
                counts[key] = self._counts.get(key, 0) + 1
                if counts[key] >= self._policy.samples:
                    neighbors = tuple(_key(other) for other in gpu.residents if other is not resident)
                    offenses.append(Offense(resident, gpu.gpu.uuid, missing_bytes, neighbors))
        self._counts = counts
        return offenses

    def _pauses(self, offenses: Iterable[Offense], at_s: float) -> Iterator[Command]:
        """Attempts are paused for a neighbor that runs, so that two gangs never wait for each other."""
        able = [offense for offense in offenses if offense.resident.sharing != "mps"]
        able.sort(key=lambda offense: _key(offense.resident) not in self._paused)
        paused: dict[_Key, Offense] = {}
        for offense in able:
            if any(neighbor not in paused for neighbor in offense.neighbors):
                paused.setdefault(_key(offense.resident), offense)
        for key, offense in paused.items():
            if key not in self._paused:
                yield Pause(at_s=at_s, cause=offense.text, job_id=key[0], attempt=key[1])
        for key in sorted(self._paused - paused.keys()):
            yield Resume(at_s=at_s, cause="all promises fit again", job_id=key[0], attempt=key[1])
        self._paused = set(paused)

    def _stops(self, offenses: Iterable[Offense], at_s: float) -> Iterator[Command]:
        """The largest excess of each GPU only: without it, the promises of all others may fit."""
        worst: dict[str, Offense] = {}
        for offense in offenses:
            worst.setdefault(offense.gpu_uuid, offense)
        sent: dict[_Key, float] = {}
        for offense in worst.values():
            key = _key(offense.resident)
            if key in sent:  # a gang, for another of its GPUs
                continue
            sent_at_s = self._stopped_at_s.get(key)
            if sent_at_s is None or at_s - sent_at_s >= 6 * self._grace_s:
                yield Stop(at_s=at_s, cause=offense.text, job_id=key[0], attempt=key[1], grace_s=self._grace_s)
                sent_at_s = at_s
            sent[key] = sent_at_s
        self._stopped_at_s = sent


def _key(resident: Resident) -> _Key:
    return resident.job_id, resident.attempt


def _missing_bytes(gpu: GpuSnapshot) -> int:
    """By how much promises and what is held exceed the memory of the GPU; 0 while foreign use is unknown."""
    if gpu.foreign_bytes is None:
        return 0
    held = sum(resident.held_bytes for resident in gpu.residents)
    return max(0, gpu.foreign_bytes + held - gpu.gpu.memory_total_bytes)


def _offenders(gpu: GpuSnapshot, margin: float) -> list[Resident]:
    """Residents beyond their promise and its margin, the largest excess first; none if there is no other resident."""
    if len(gpu.residents) < 2:
        return []
    found = [
        resident
        for resident in gpu.residents
        if (resident.observed_bytes or 0) > tolerated_bytes(resident.promised_bytes, margin)
    ]
    return sorted(
        found, key=lambda resident: (resident.promised_bytes - (resident.observed_bytes or 0), resident.job_id)
    )
