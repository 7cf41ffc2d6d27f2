"""References to jobs as people write them, and filters of a list of jobs."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cotenant.core.errors import NoSuchJob, UsageError
from cotenant.core.job import Done, Held, Job, Queued
from cotenant.daemon.api.views.job_words import state_name

_REF = re.compile(r"(\d{1,15})(?:_(?:(\d{1,10})|\[(\d{1,10})-(\d{1,10})\]))?")


def resolve_ids(refs: Iterable[str], jobs: Mapping[int, Job]) -> list[int]:
    """Ids for `17`, the task `17_3`, the tasks `17_[3-5]`; `17` of an array is all of its tasks.

    Raises:
        UsageError: a reference is malformed.
        NoSuchJob: a job does not exist.
    """
    found: dict[int, None] = {}
    for ref in refs:
        match = _REF.fullmatch(ref) if ref.isascii() else None
        if match is None:
            raise UsageError(f"`{ref}` is not a job id", hint="write `17`, or `17_3` for a task of an array")
        ids = _matching(match, jobs)
        if not ids:
            raise NoSuchJob(f"no job {ref}", hint="see `cotenant ls`")
        found.update(dict.fromkeys(ids))
    return list(found)


def _matching(match: re.Match[str], jobs: Mapping[int, Job]) -> list[int]:
    number, one, first, last = (None if group is None else int(group) for group in match.groups())
    head = jobs.get(number or 0)
    if head is None:
        return []
    array = head.spec.array
    if array is None or array.array_id != head.id:
        return [head.id] if one is None and first is None else []
    low, high = (one, one) if one is not None else (first, last)
    tasks = []
    job_id = head.id
    # The tasks of an array have consecutive ids.
    while (job := jobs.get(job_id)) is not None and job.spec.array is not None and job.spec.array.array_id == head.id:
        if low is None or high is None or low <= job.spec.array.index <= high:
            tasks.append(job_id)
        job_id += 1
    return tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Filters of a list of jobs; None and False filter nothing.

    Attributes:
        active: 1: only jobs that are not done
        over: 1: only jobs that are done
        states: names of states, separated by commas
        user: login name or uid
        name: name of the job; `*`, `?` and `[...]` match as in file names
        since_s, until_s: jobs that ended in this interval, and unfinished ones; seconds since 1970
        after: only jobs with a larger id
        limit: only the oldest n jobs; with `after`, the next page
        last: only the newest n jobs
        max_waiting: of the pending and held jobs, only the oldest n
        max_done: of the done jobs, only the newest n
    """

    active: bool = False
    over: bool = False
    states: frozenset[str] | None = None
    user: str | None = None
    name: str | None = None
    since_s: float | None = None
    until_s: float | None = None
    after: int | None = None
    limit: int | None = None
    last: int | None = None
    max_waiting: int | None = None
    max_done: int | None = None

    @staticmethod
    def of(query: Mapping[str, str]) -> JobFilter:
        """The filter in a query string.

        Raises:
            UsageError: a value is invalid.
        """
        states = query.get("states")
        return JobFilter(
            active=query.get("active") == "1",
            over=query.get("over") == "1",
            states=None if states is None else frozenset(states.split(",")),
            user=query.get("user"),
            name=query.get("name"),
            since_s=_seconds(query, "since_s"),
            until_s=_seconds(query, "until_s"),
            after=_count(query, "after"),
            limit=_count(query, "limit"),
            last=_count(query, "last"),
            max_waiting=_count(query, "max_waiting"),
            max_done=_count(query, "max_done"),
        )

    def candidates(self, jobs: Mapping[int, Job]) -> Iterator[Job]:
        """The jobs with an id above `after`, oldest first; a page does not walk over those before it."""
        if self.after is None:
            yield from jobs.values()
            return
        for job_id in range(self.after + 1, max(jobs, default=0) + 1):
            job = jobs.get(job_id)
            if job is not None:
                yield job

    def of_jobs(self, jobs: Iterable[Job]) -> list[Job]:
        """Filter `jobs`, which are ordered by id."""
        taken = (job for job in jobs if self._takes(job))
        if self.max_waiting is None and self.max_done is None:
            found = list(itertools.islice(taken, self.limit))  # stops at the end of the page
        else:
            found = self._shortened(list(taken))[: self.limit]
        return found if self.last is None else found[len(found) - min(self.last, len(found)) :]

    def _shortened(self, jobs: list[Job]) -> list[Job]:
        waiting = [job.id for job in jobs if isinstance(job.state, (Queued, Held))]
        over = [job.id for job in jobs if isinstance(job.state, Done)]
        hidden = set(waiting[self.max_waiting :]) if self.max_waiting is not None else set()
        if self.max_done is not None:
            hidden |= set(over[: max(0, len(over) - self.max_done)])
        return [job for job in jobs if job.id not in hidden] if hidden else jobs

    def _takes(self, job: Job) -> bool:
        done = isinstance(job.state, Done)
        if self.after is not None and job.id <= self.after:
            return False
        if (self.active and done) or (self.over and not done):
            return False
        if self.user is not None and self.user not in (job.spec.user, str(job.spec.uid)):
            return False
        if self.name is not None and self.name != job.spec.name and not fnmatchcase(job.spec.name, self.name):
            return False
        if self.states is not None and state_name(job) not in self.states:
            return False
        if isinstance(job.state, Done):
            if self.since_s is not None and job.state.at_s < self.since_s:
                return False
            return self.until_s is None or job.state.at_s <= self.until_s
        return True


def _count(query: Mapping[str, str], name: str) -> int | None:
    value = _seconds(query, name)
    return None if value is None else int(value)


def _seconds(query: Mapping[str, str], name: str) -> float | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError as error:
        raise UsageError(f"`{name}` is `{text}`, wanted a number") from error
    if not 0 <= value < 1e15:
        raise UsageError(f"`{name}` is `{text}`, wanted a number from 0")
    return value
