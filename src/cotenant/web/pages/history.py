"""History: the attempts of the last hours or days as bars on GPUs, with out-of-memory failures and restarts marked."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.codec import decode
from cotenant.core.job import Attempt, Job
from cotenant.scheduling.checkpoints import is_moved
from cotenant.scheduling.policies import POLICIES
from cotenant.web.drawings.gantt import MOVED, GanttBar, Mark, gantt
from cotenant.web.site import Site
from cotenant.web.templating import gpu_label, seconds_of

SPANS = {"1": "an hour", "6": "6 hours", "24": "a day", "72": "3 days", "168": "a week"}
PAGE_JOBS = 200
"""Jobs of one request: the daemon decides nothing while it writes an answer."""
MAX_JOBS = 4000
"""Newest jobs that are looked at."""
MAX_GPUS = 64
WIDTH_PER_SPAN = {"1": 1236, "6": 1236, "24": 1500, "72": 2400, "168": 3600}


class HistoryPage:
    """The page."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        span = request.query_params.get("hours", "6")
        span = span if span in SPANS else "6"
        end_s = time.time()
        begin_s = end_s - float(span) * 3600
        gpus = (await self._site.read(request, "/v1/gpus"))["gpus"]
        status = await self._site.read(request, "/v1/status")
        jobs, is_cut = await jobs_since(self._site, request, begin_s)
        bars = [bar for job in jobs for bar in _bars(job, begin_s, end_s)]
        used = {bar.gpu_uuid for bar in bars}
        begin_s = _begin_s(bars, begin_s, end_s)
        shown = [gpu for gpu in gpus if len(gpus) <= MAX_GPUS or gpu["uuid"] in used][:MAX_GPUS]
        labels = {gpu["uuid"]: gpu_label(gpu) for gpu in shown}
        marks = list(_marks(status, jobs, begin_s))
        return self._site.page(
            "history.html",
            request,
            span=span,
            spans=SPANS,
            chart=gantt(
                labels,
                [bar for bar in bars if bar.gpu_uuid in labels],
                marks,
                begin_s,
                end_s,
                WIDTH_PER_SPAN[span],
            ),
            events=sorted(_events(status, jobs, begin_s), key=lambda entry: entry[0], reverse=True)[:100],
            left_out=len(gpus) - len(shown),
            is_cut=is_cut,
            policy=status["policy"],
            policies=[name for name in POLICIES.names() if name != status["policy"]],
        )


async def jobs_since(site: Site, request: Request, since_s: float) -> tuple[list[Job], bool]:
    """Of the newest jobs those that started, and ended since or not at all; and whether older ones are left out."""
    newest = (await site.read(request, "/v1/jobs", last=1))["jobs"]
    after = first = max(0, newest[-1]["id"] - MAX_JOBS) if newest else 0
    found: list[Job] = []
    query = {"records": 1, "since_s": f"{since_s:.0f}", "limit": PAGE_JOBS}
    while True:
        page = (await site.read(request, "/v1/jobs", after=after, **query))["jobs"]
        jobs: list[Job] = [decode(Job, job) for job in page]
        found += [job for job in jobs if job.attempts]
        if len(page) < PAGE_JOBS:
            return found, first > 0
        after = jobs[-1].id


def _begin_s(bars: list[GanttBar], begin_s: float, end_s: float) -> float:
    """Where the chart begins: shortly before the first run, if nothing ran before that."""
    first_s = min((bar.begin_s for bar in bars), default=begin_s)
    return max(begin_s, first_s - 0.02 * (end_s - first_s))


def _bars(job: Job, begin_s: float, end_s: float) -> Iterator[GanttBar]:
    for attempt in job.attempts:
        if attempt.started_at_s is None:
            continue
        until_s = end_s if attempt.ended_at_s is None else attempt.ended_at_s
        if until_s < begin_s:
            continue
        text = f"{job.id} {job.spec.name}"
        for uuid in attempt.placement.gpu_uuids:
            yield GanttBar(uuid, job.id, text, attempt.started_at_s, until_s, _end(attempt))


def _end(attempt: Attempt) -> str:
    """How an attempt ended, in one word."""
    end = attempt.exit
    if end is None:
        return "running"
    if is_moved(attempt):
        return MOVED
    if end.oom.exception or end.oom.message:
        return "oom"
    return "completed" if end.exit_code == 0 else "failed"


def _marks(status: Mapping[str, Any], jobs: list[Job], begin_s: float) -> Iterator[Mark]:
    started_s = seconds_of(status["started_at"])
    if started_s is not None and started_s > begin_s:
        yield Mark(started_s, "mark-restart", "the daemon started")
    for job in jobs:
        for attempt in job.attempts:
            if _end(attempt) == "oom" and attempt.ended_at_s is not None and attempt.ended_at_s > begin_s:
                yield Mark(attempt.ended_at_s, "mark-oom", f"job {job.id} {job.spec.name} ran out of memory")


def _events(status: Mapping[str, Any], jobs: list[Job], begin_s: float) -> Iterator[tuple[float, int | None, str, str]]:
    """Moments worth reading: (seconds since 1970, job, its name, what happened)."""
    started_s = seconds_of(status["started_at"])
    if started_s is not None and started_s > begin_s:
        yield started_s, None, "", "the daemon started"
    for job in jobs:
        for attempt in job.attempts:
            end = _end(attempt)
            if attempt.ended_at_s is not None and attempt.ended_at_s > begin_s and end in ("oom", "failed"):
                what = "ran out of memory" if end == "oom" else f"attempt {attempt.number} failed"
                yield attempt.ended_at_s, job.id, job.spec.name, what
