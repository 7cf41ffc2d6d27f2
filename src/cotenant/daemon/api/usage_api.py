"""The calls that tell of the past: of the GPUs, and of what users and kinds of work have used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.daemon.api.queries import JobFilter
from cotenant.daemon.api.requests import json_response, read_number
from cotenant.daemon.api.usage_json import by_user, by_workload, history_view
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.control_loop import ControlLoop
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling.manager import Manager

Aggregate = Callable[[list[Job], Manager], list[dict[str, Any]]]


class UsageApi:
    """One method for every route."""

    def __init__(self, loop: ControlLoop, access: AccessPolicy, past: GpuTimeSeries, now: Callable[[], float]) -> None:
        self._loop = loop
        self._access = access
        self._past = past
        self._now = now

    async def history(self, request: Request) -> Response:
        """Of all GPUs over the last `seconds`; no job is named in it."""
        seconds = read_number(request, "seconds", 600.0)
        if not seconds > 0:
            raise UsageError(f"`seconds` is {seconds:g}, wanted a number above zero")
        now_s = self._now()
        gpus = await self._ask(lambda manager: [each.gpu for each in manager.snapshot(now_s).gpus])
        points = await asyncio.to_thread(self._past.since, now_s - seconds, now_s)
        return json_response({"gpus": history_view(points, gpus)})

    async def usage(self, request: Request) -> Response:
        """Sums over the jobs that the peer may see, by `user` or by `work`."""
        by = request.query_params.get("by", "user")
        sums: dict[str, Aggregate] = {"user": by_user, "workload": by_workload}
        if by not in sums:
            raise UsageError(f"`by` is `{by}`, wanted `user` or `work`")
        selection = JobFilter.of(request.query_params)
        access, peer = self._access, request.state.peer

        def look(manager: Manager) -> list[dict[str, Any]]:
            visible = [job for job in manager.jobs.values() if access.may_see(peer, job)]
            return sums[by](selection.of_jobs(visible), manager)

        return json_response({"usage": await self._ask(look)})

    async def _ask(self, question: Callable[[Manager], list[Any]]) -> list[Any]:
        return await asyncio.wrap_future(self._loop.query(question))
