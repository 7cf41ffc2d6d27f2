"""Completes the reports of an engine with what services and telemetry know of the attempt.

A module of its own: it only reads, and its failure costs the evidence but not the report.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from cotenant.core.events import AttemptExited, AttemptStarted, EstimateReady, RepartitionEnded
from cotenant.core.job import Job
from cotenant.daemon.messages import Report
from cotenant.daemon.services.base import AttemptService
from cotenant.scheduling.manager import Manager

logger = logging.getLogger(__name__)


class EvidenceCollector:
    """Used in the control loop's thread only.

    `running_jobs` returns the jobs with an attempt at the moment, `wall` the time on the clock that runners use.
    """

    def __init__(
        self,
        manager: Manager,
        services: AttemptService,
        now: Callable[[], float],
        running_jobs: Callable[[], list[Job]],
        wall: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._services = services
        self._now = now
        self._running_jobs = running_jobs
        self._wall = wall

    def complete(self, report: Report) -> Report:
        """`report` with its evidence, or as it came if the collection fails."""
        if isinstance(report, (EstimateReady, RepartitionEnded)):
            return report
        try:
            return self._completed(report)
        except Exception:
            logger.exception("the evidence of an attempt is lost", extra={"fields": {"job": report.job_id}})
            return report

    def _completed(self, report: AttemptStarted | AttemptExited) -> AttemptStarted | AttemptExited:
        """`report` on the daemon's clock, with what services and telemetry know of an exit.

        A runner stamps its reports with the wall clock, which may have been set since the daemon started: a start that
        seemed a day old would exceed any time limit. The clock may also have been set between the start and the end, so
        an attempt ends as long after its start as its runner measured; if both are in one batch, by the same clock.
        """
        job = self._manager.jobs.get(report.job_id)
        attempt = None if job is None else job.last_attempt
        if job is not None and attempt is not None and attempt.number == report.attempt:
            since_s = attempt.placed_at_s if attempt.started_at_s is None else attempt.started_at_s
            now_s = self._now()
            at_s = report.at_s + now_s - self._wall()
            elapsed_s = report.exit.elapsed_s if isinstance(report, AttemptExited) else None
            if elapsed_s is not None and attempt.started_at_s is not None:
                at_s = since_s + elapsed_s
            report = dataclasses.replace(report, at_s=min(max(at_s, since_s), max(now_s, since_s)))
            if isinstance(report, AttemptExited):
                report = self._services.ended(job, attempt, report, self._running_jobs)
        return self._manager.with_telemetry(report) if isinstance(report, AttemptExited) else report
