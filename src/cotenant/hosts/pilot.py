"""The pilot: requests allocations of a workload manager while jobs wait, and gives them back. `pilot_decision` decides.

A turn first reads the state of the allocations. While the workload manager does not answer, nothing is decided.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cotenant.core.errors import CotenantError
from cotenant.core.units import format_duration
from cotenant.hosts.allocations import AllocationNote, AllocationNotes, AllocationReport, AllocationSource
from cotenant.hosts.engine import HostsEngine
from cotenant.hosts.keeper import ALLOCATION_ENDED
from cotenant.hosts.pilot_decision import QUEUED, AllocationStatus, Phase, PilotLimits, Record, decide

logger = logging.getLogger(__name__)

ACCEPTED_WITHIN_S = 60.0
"""A request that is not listed so long after it was made was not accepted. One that is after all ends itself."""
MISSES = 2
"""Answers in a row without an allocation that was accepted, until it is believed to be forgotten, so over."""
CLOSE_TIMEOUT_S = 15.0
MIN_POLL_S = 1.0
"""Between two questions at least, however many jobs fail."""

SchedulerView = Callable[[], tuple[Mapping[int, float], frozenset[str]]]
"""Gives the jobs that could be placed if there were GPUs, and the hosts of the GPUs that may be used.

The jobs are ids with time limits in seconds, 0 for a job without.
"""


@dataclass(slots=True, kw_only=True)
class _Allocation:
    """An allocation as this daemon sees it.

    Attributes:
        end_word: how it ended, while its host has not been dropped yet; empty: it goes on.
    """

    note: AllocationNote
    since_s: float
    phase: Phase = "requested"
    report: AllocationReport | None = None
    refusal: str = ""
    idle_since_s: float | None = None
    misses: int = 0
    end_word: str = ""

    def status(self, now_s: float) -> AllocationStatus:
        """What a decision sees of it."""
        ends_at_s = self.note.ends_at_s
        return AllocationStatus(
            name=self.note.name,
            phase=self.phase,
            since_s=self.since_s,
            idle_since_s=self.idle_since_s,
            left_s=math.inf if ends_at_s is None else ends_at_s - now_s,
        )


class Pilot:
    """One pilot of one daemon.

    Args:
        keeper, agent: words of the commands that run in an allocation; the keeper's get `--note FILE`.
    """

    def __init__(
        self,
        engine: HostsEngine,
        source: AllocationSource,
        folder: Path,
        limits: PilotLimits,
        *,
        keeper: Sequence[str],
        agent: Sequence[str],
        poll_s: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._engine, self._source, self._limits = engine, source, limits
        self._notes = AllocationNotes(folder)
        self._keeper, self._agent = list(keeper), list(agent)
        self._poll_s, self._now = poll_s, now
        self._allocations: dict[str, _Allocation] = {}
        self._record = Record(is_tried=self._notes.is_tried)
        self._failure = self._trouble = ""
        self._scheduler_view: SchedulerView = lambda: ({}, frozenset())
        self._set_supply: Callable[[str, float], None] = lambda _why, _longest_s: None
        self._longest_s = math.inf  # for which a job can have GPUs: what the newest allocation had left at first
        self._seen: frozenset[int] = frozenset()
        self._closing, self._wake = threading.Event(), threading.Event()
        engine.on_doubt = self._wake.set
        self._thread = threading.Thread(target=self._run, name="pilot", daemon=True)
        for note in self._notes.read():
            self._allocations[note.name] = _Allocation(note=note, since_s=self._now())
            if note.host and not note.is_returned:  # before `recover`, which looks for its host
                self._add_host(note)

    def start(self, scheduler_view: SchedulerView, set_supply: Callable[[str, float], None]) -> None:
        """Start the thread. After every turn it calls `set_supply`, with the values of a `Supply`."""
        self._scheduler_view, self._set_supply = scheduler_view, set_supply
        self._thread.start()

    def close(self) -> None:
        """Stop, and give back what has no attempts. Allocations with attempts stay for the next daemon."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():  # one of Slurm's commands hangs
            return
        for allocation in list(self._allocations.values()):
            if allocation.note.job_id and not allocation.note.is_returned:
                self._attempt(self._give_back, allocation)

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.clear()
            self._attempt(self.turn)
            self._closing.wait(min(self._poll_s, MIN_POLL_S))
            self._wake.wait(max(0.0, self._poll_s - MIN_POLL_S))

    def _attempt(self, function: Callable[..., object], *arguments: Any) -> None:
        try:
            function(*arguments)
        except CotenantError as error:
            self._say_trouble(error.message)
        except Exception as error:  # a bug, or a control loop that is over, must not end the thread
            logger.exception("the pilot failed")
            self._say_trouble(f"{type(error).__name__}: {error}")

    def turn(self) -> None:
        """Check all allocations once; request more, or give some back.

        Raises:
            BackendError: the workload manager does not answer, or a note cannot be written.
        """
        now_s = self._now()
        doubted = self._engine.doubted()  # before the question: what it answers is newer than these ends
        reports = self._source.report(list(self._allocations)) if self._allocations else {}
        self._say_trouble("")
        if math.isinf(self._longest_s):
            lengths_s = [
                report.length_s
                for name, report in reports.items()
                # The limit of one that is used may have been changed since, which says nothing of the next.
                if report.length_s is not None and not self._allocations[name].note.is_usable
            ]
            self._longest_s = min(lengths_s, default=math.inf)
        for allocation in list(self._allocations.values()):
            report = reports.get(allocation.note.name)
            self._follow(allocation, report)
            if report is not None and report.state == "running":
                self._engine.believe(allocation.note.host, doubted)
        # Attempts before jobs: a job that is placed between the two is not waiting beside an allocation that it uses.
        used = {item.note.name for item in self._allocations.values() if self._engine.has_attempts(item.note.host)}
        waiting, listed = self._scheduler_view()
        for allocation in list(self._allocations.values()):
            # The scheduler would place the same jobs there again, so not before it has seen that the host is retired.
            if allocation.end_word and allocation.note.host not in listed:
                self._drop(allocation)
        # A job that has just been submitted may be placed by now where there are GPUs already.
        limits_s = [limit_s for job_id, limit_s in waiting.items() if job_id in self._seen or not self._allocations]
        self._seen = frozenset(waiting)
        for allocation in self._allocations.values():
            self._watch_idleness(allocation, allocation.note.name in used, len(limits_s), now_s)
        statuses = [item.status(now_s) for item in self._allocations.values()]
        decision = decide(self._limits, limits_s, statuses, self._record, now_s)
        for name in decision.silent:
            silent = self._allocations[name]
            self._failed(
                f"{self._called(silent.note)}: its agent never answered{self._engine.complaint(silent.note.host)}"
            )
            self._give_back(silent)
        for name in decision.give_back:
            idle = self._allocations[name]
            left_s = idle.status(now_s).left_s
            has_time = any(limit_s <= left_s for limit_s in limits_s)
            is_unused = idle.phase == "ready" and not idle.note.is_used
            if self._give_back(idle) and is_unused and has_time:
                self._failed(f"no waiting job could use the GPUs of {self._called(idle.note)}")
        for name in decision.too_short:
            self._give_back(self._allocations[name])
        for _ in range(decision.requests):
            if not self._request():
                break
        self._set_supply(self._why_waiting() if waiting else "", self._longest_s)

    # -- what became of an allocation

    def _follow(self, allocation: _Allocation, report: AllocationReport | None) -> None:
        note = allocation.note
        if report is None:
            if note.job_id:
                allocation.misses += 1
                if allocation.misses >= MISSES:
                    self._ended(allocation, "it is no longer listed")
            elif allocation.refusal or self._now() - note.requested_at_s > ACCEPTED_WITHIN_S:
                self._failed(allocation.refusal or "a request was never accepted")
                self._forget(note.name)
            return
        allocation.report, allocation.misses = report, 0
        if note.job_id != report.job_id:
            note = allocation.note = self._notes.write(note, job_id=report.job_id)
        if report.state == "ended":
            self._ended(allocation, report.word)
        elif report.state == "stopping":
            self._enter(allocation, "released")
            if note.host:  # an agent that Slurm has forgotten would start more
                self._engine.retire_host(note.host, even_used=True)
        elif note.is_returned:
            self._enter(allocation, "released")
            if report.state != "ending":
                self._source.cancel(note)
        elif report.state == "pending":
            self._enter(allocation, "pending")
        elif report.state == "running":
            self._follow_running(allocation, report)

    def _follow_running(self, allocation: _Allocation, report: AllocationReport) -> None:
        note = allocation.note
        if note.ends_at_s != report.ends_at_s:
            note = allocation.note = self._notes.write(note, ends_at_s=report.ends_at_s)
            if note.host:
                self._engine.set_end(note.host, note.ends_at_s)
        host = f"{report.node}.{report.job_id}"
        # A slurmctld that has forgotten an allocation may give its number to the next: not before the first is over.
        is_free = all(item.note.host != host for item in self._allocations.values())
        if not note.host and report.node and is_free:
            note = allocation.note = self._notes.write(note, host=host)
            logger.info("an allocation has started", extra={"fields": {"job": note.job_id, "host": note.host}})
            self._add_host(note)
        if not note.is_usable and self._engine.is_heard(note.host):
            note = allocation.note = self._notes.write(note, is_usable=True)
            self._longest_s = max(0.0, allocation.status(self._now()).left_s)
            self._notes.set_tried()
            self._record, self._failure = Record(is_tried=True), ""
        self._enter(allocation, "ready" if note.is_usable else "starting")

    def _ended(self, allocation: _Allocation, word: str) -> None:
        if allocation.note.host:
            self._engine.retire_host(allocation.note.host, even_used=True)
        self._enter(allocation, "released")
        allocation.end_word = word

    def _drop(self, allocation: _Allocation) -> None:
        note, word = allocation.note, allocation.end_word
        if note.host:
            self._engine.drop_host(note.host, f"{ALLOCATION_ENDED}: {self._called(note)}, {word}")
            self._engine.set_end(note.host, None)
        logger.info("an allocation has ended", extra={"fields": {"job": note.job_id, "word": word}})
        if not note.is_usable and not note.is_returned:
            self._failed(f"{self._called(note)} ended before it gave GPUs: {word}")
        self._forget(note.name)

    def _watch_idleness(self, allocation: _Allocation, is_used: bool, waiting: int, now_s: float) -> None:
        note = allocation.note
        if allocation.phase == "ready":
            is_needed = is_used
            if is_needed and not note.is_used:
                allocation.note = self._notes.write(note, is_used=True)
        else:
            is_needed = waiting > 0
        if is_needed:
            allocation.idle_since_s = None
        elif allocation.idle_since_s is None:
            allocation.idle_since_s = now_s

    def _enter(self, allocation: _Allocation, phase: Phase) -> None:
        if allocation.phase != phase:
            allocation.phase, allocation.since_s, allocation.idle_since_s = phase, self._now(), None

    def _add_host(self, note: AllocationNote) -> None:
        self._engine.set_end(note.host, note.ends_at_s)  # before it is listed
        self._engine.add_host(note.host, [*self._source.launcher(note), *self._agent])

    def _forget(self, name: str) -> None:
        self._notes.remove(name)
        del self._allocations[name]

    # -- requesting and giving back

    def _request(self) -> bool:
        """Request one; returns whether it was accepted."""
        note = self._notes.new(self._now())
        allocation = self._allocations[note.name] = _Allocation(note=note, since_s=self._now())
        command = [*self._keeper, "--note", str(self._notes.path(note.name))]
        try:
            job_id = self._source.request(note.name, command, self._notes.folder / f"{note.name}.log")
        except CotenantError as error:
            allocation.refusal = error.message  # the next turn sees whether it was accepted all the same
            return False
        allocation.note = self._notes.write(note, job_id=job_id)
        logger.info("an allocation was requested", extra={"fields": {"job": job_id}})
        return True

    def _give_back(self, allocation: _Allocation) -> bool:
        """Give an allocation back; False if it has attempts by now, and stays."""
        note = allocation.note
        if note.host and not self._engine.retire_host(note.host):
            return False
        allocation.note = self._notes.write(note, is_returned=True)
        self._enter(allocation, "released")
        self._source.cancel(note)
        logger.info("an allocation was given back", extra={"fields": {"job": note.job_id}})
        return True

    def _failed(self, why: str) -> None:
        self._failure = why
        self._record = replace(self._record, failures=self._record.failures + 1, failed_at_s=self._now())
        fields = {"why": why, "failures": self._record.failures, "paused": self._record.is_paused}
        logger.warning("the pilot got no GPUs", extra={"fields": fields})

    # -- what it says

    def status(self) -> dict[str, Any]:
        """For people and programs: `state`, a sentence, and the allocations."""
        allocations = [
            {
                "job_id": item.note.job_id or None,
                "state": item.phase,
                "reason": item.report.reason if item.report is not None and item.phase == "pending" else "",
                "host": item.note.host or None,
                "ends_at_s": item.note.ends_at_s,
            }
            for item in list(self._allocations.values())
        ]
        state = "unreachable" if self._trouble else "paused" if self._record.is_paused else "on"
        return {"state": state, "message": self._why_waiting(), "allocations": allocations}

    def _why_waiting(self) -> str:
        if self._trouble:
            return f"the pilot cannot go on: {self._trouble}"
        if self._record.is_paused:
            return (
                f"the pilot is paused after {self._record.failures} failures, the last: {self._failure}; "
                "start the daemon again to go on"
            )
        under_way = [self._text(item) for item in list(self._allocations.values()) if item.phase in QUEUED]
        if under_way:
            more = f", and {len(under_way) - 1} more" if len(under_way) > 1 else ""
            return f"waiting for an allocation of {self._source.manager}: {under_way[0]}{more}"
        if self._record.failures:
            return (
                f"the pilot got no GPUs: {self._failure}; it tries again after {format_duration(self._limits.retry_s)}"
            )
        held = [item for item in list(self._allocations.values()) if item.phase == "ready"]
        if len(held) >= self._limits.max_allocations:
            return f"the pilot has all {len(held)} allocations that it may have"
        return ""

    def _text(self, item: _Allocation) -> str:
        called = self._called(item.note)
        if item.phase == "pending" and item.report is not None:
            return f"{called} is pending ({item.report.reason or 'None'})"
        if item.phase == "starting":
            return f"{called} starts on {item.note.host.rpartition('.')[0]}"
        return f"{called} was requested" if item.note.job_id else "it was requested"

    def _called(self, note: AllocationNote) -> str:
        return f"{self._source.noun} {note.job_id}"

    def _say_trouble(self, why: str) -> None:
        if why != self._trouble:
            self._trouble = why
            if why:
                logger.warning("the pilot cannot go on", extra={"fields": {"why": why}})
