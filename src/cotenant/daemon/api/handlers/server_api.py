"""Handlers of the server itself: GPUs, usage, status, metrics, shutdown, and the description of this API."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.daemon.api.context import Handlers, peer_of
from cotenant.daemon.api.queries import JobFilter
from cotenant.daemon.api.requests import json_response, read_number
from cotenant.daemon.api.submission.job_specs import user_name
from cotenant.daemon.api.submission.sharing_modes import available_modes
from cotenant.daemon.api.views.gpu_views import GpuViews
from cotenant.daemon.api.views.job_views import counts
from cotenant.daemon.api.views.job_words import rfc3339
from cotenant.daemon.api.views.metrics import CONTENT_TYPE
from cotenant.daemon.api.views.usage_json import by_day, by_user, by_workload, history_view
from cotenant.scheduling.manager import Manager

MAX_GPUS = 1_000_000
"""Without a `limit`, all GPUs."""
AGGREGATES: Mapping[str, Callable[[list[Job], Manager, float], Any]] = {
    "user": by_user,
    "day": by_day,
    "workload": by_workload,
}


class ServerApi(Handlers):
    """One method per route."""

    async def gpus(self, request: Request) -> Response:
        access, peer = self._context.access, peer_of(request)

        first, limit = int(read_number(request, "first", 0)), read_number(request, "limit", MAX_GPUS)

        wants_totals = request.query_params.get("totals") == "1"
        may_see = functools.partial(access.may_see, peer)

        def answer(manager: Manager) -> dict[str, Any]:
            views = GpuViews(manager, self._context.now())
            return {
                "gpus": views.gpus(may_see=may_see, first=first, limit=int(limit)),
                "totals": views.totals(may_see=may_see) if wants_totals else None,
            }

        return json_response(await self._query(answer))

    async def gpu_history(self, request: Request) -> Response:
        seconds = read_number(request, "seconds", 600.0)
        if not seconds > 0:
            raise UsageError(f"`seconds` is {seconds:g}, wanted a number above zero")
        now_s = self._context.now()
        named = request.query_params.get("uuids")
        wanted = None if named is None else frozenset(named.split(","))
        inventory = await self._query(lambda manager: manager.gpus)
        gpus = [gpu for gpu in inventory if wanted is None or gpu.uuid in wanted]
        points = await asyncio.to_thread(self._context.gpu_history.since, now_s - seconds, now_s, wanted)
        return json_response({"gpus": history_view(points, gpus)})

    async def usage(self, request: Request) -> Response:
        by = request.query_params.get("by", "user")
        if by not in AGGREGATES:
            raise UsageError(f"`by` is `{by}`, wanted {', '.join(f'`{name}`' for name in AGGREGATES)}")
        job_filter = JobFilter.of(request.query_params)
        access, peer = self._context.access, peer_of(request)

        def answer(manager: Manager) -> Any:
            visible = [job for job in manager.jobs.values() if access.may_see(peer, job)]
            return AGGREGATES[by](job_filter.of_jobs(visible), manager, self._context.now())

        return json_response({"usage": await self._query(answer)})

    async def status(self, request: Request) -> Response:
        access, peer = self._context.access, peer_of(request)
        jobs = await self._query(
            lambda manager: counts(job for job in manager.jobs.values() if access.may_see(peer, job))
        )
        error = self._context.loop.journal_error
        return json_response(
            {
                **self._context.info,
                "caller": {"name": user_name(peer.uid), "uid": peer.uid, "admin": access.is_admin(peer)},
                "sharing_modes": available_modes(self._context.refusals()),
                "jobs": jobs,
                "pilot": _pilot_view(self._context.pilot()),
                "journal_error": None if error is None else error.message,
            }
        )

    async def metrics(self, request: Request) -> Response:
        # The series name jobs of all users. Prometheus can scrape a port of its own: [metrics] listen.
        self._context.access.check_admin(peer_of(request), "read the metrics here")
        text = await asyncio.to_thread(self._context.metrics.text)
        return Response(text, media_type=CONTENT_TYPE)

    async def shutdown(self, request: Request) -> Response:
        self._context.access.check_admin(peer_of(request), "end the daemon")
        self._context.access.note(peer_of(request), "shutdown")
        self._context.stop()
        return json_response({"pid": os.getpid()})

    async def openapi(self, request: Request) -> Response:
        del request
        from cotenant.daemon.api.openapi_document import openapi

        return json_response(openapi())


def _pilot_view(status: dict[str, Any] | None) -> dict[str, Any] | None:
    """The status of a pilot with times as all answers have them."""
    if status is None:
        return None
    allocations = [
        {**{name: value for name, value in item.items() if name != "ends_at_s"}, "ends_at": rfc3339(item["ends_at_s"])}
        for item in status["allocations"]
    ]
    return {**status, "allocations": allocations}
