"""Bounds what one user, and all users together, store in the journal by submitting jobs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from cotenant.core.errors import JournalError, NotPermitted
from cotenant.core.job import JobSpec
from cotenant.core.ports import Journal
from cotenant.core.units import MiB, format_bytes
from cotenant.daemon.config.schema import LimitsSection
from cotenant.scheduling.manager import Manager

CHECK_S = 2.0
"""How old the size of the journal may be that a submission is checked with."""


class StorageQuota:
    """The limits of the section `[limits]`. Used in the control loop's thread only."""

    def __init__(self, limits: LimitsSection, manager: Manager, journal: Journal) -> None:
        self._limits = limits
        self._manager = manager
        self._journal = journal
        self._at_most: dict[int, int] = {}  # by uid, never less than what the user's unfinished jobs take
        self._journal_bytes = 0
        self._checked_s = -CHECK_S

    def check(self, specs: Sequence[JobSpec]) -> None:
        """Check that `specs`, all of one user, may be stored, and count them.

        Raises:
            NotPermitted: the user's unfinished jobs would take too much.
            JournalError: the journal is too large, or cannot be read.
        """
        self._check_journal()
        uid, size_bytes = specs[0].uid, stored_bytes(specs)
        limit_bytes = int(self._limits.user_mib * MiB)
        total = self._at_most.get(uid, 0) + size_bytes
        if total > limit_bytes or uid not in self._at_most:
            unfinished = [job.spec for job in self._manager.jobs.values() if job.spec.uid == uid and not job.is_done]
            total = stored_bytes(unfinished) + size_bytes
        if total > limit_bytes:
            raise NotPermitted(
                f"the commands and environments of your unfinished jobs would take {format_bytes(total)},"
                f" {format_bytes(limit_bytes)} are allowed",
                hint="leave out variables with --export, or submit one array: its environment counts once",
            )
        self._at_most[uid] = total

    def _check_journal(self) -> None:
        now_s = time.monotonic()
        if now_s - self._checked_s >= CHECK_S:
            self._journal_bytes, self._checked_s = self._journal.size_bytes(), now_s
        limit_bytes = int(self._limits.journal_mib * MiB)
        if self._journal_bytes > limit_bytes:
            raise JournalError(
                f"the journal takes {format_bytes(self._journal_bytes)}, {format_bytes(limit_bytes)} are allowed",
                hint="an admin makes room: cotenant prune --all-users --older-than 7-0; or raises [limits] journal_mib",
            )


def stored_bytes(specs: Iterable[JobSpec]) -> int:
    """Characters in the commands and environments of `specs`; an environment that they share counts once."""
    seen: set[int] = set()
    found = 0
    for spec in specs:
        found += sum(map(len, spec.command))
        if id(spec.env) not in seen:
            seen.add(id(spec.env))
            found += sum(map(len, spec.env)) + sum(map(len, spec.env.values()))
    return found
