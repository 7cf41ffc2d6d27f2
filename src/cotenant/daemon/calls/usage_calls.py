"""The calls that tell of the past: of the GPUs, and of what users and kinds of work have used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import UsageError
from cotenant.core.job import Job
from cotenant.daemon.access.rights import Access
from cotenant.daemon.calls.queries import Selection
from cotenant.daemon.calls.requests import json_answer, number_in
from cotenant.daemon.calls.usage_views import by_user, by_work, past_view
from cotenant.daemon.loop import Loop
from cotenant.gpus.history import GpuHistory
from cotenant.scheduling.manager import Manager

Sums = Callable[[list[Job], Manager], list[dict[str, Any]]]


class UsageCalls:
    """One method for every route."""

    def __init__(self, loop: Loop, access: Access, past: GpuHistory, now: Callable[[], float]) -> None:
        self._loop = loop
        self._access = access
        self._past = past
        self._now = now

    async def past(self, request: Request) -> Response:
        """Of all GPUs over the last `seconds`; no job is named in it."""
        seconds = number_in(request, "seconds", 600.0)
        if not seconds > 0:
            raise UsageError(f"`seconds` is {seconds:g}, wanted a number above zero")
        now_s = self._now()
        gpus = await self._ask(lambda manager: [each.gpu for each in manager.snapshot(now_s).gpus])
        points = await asyncio.to_thread(self._past.since, now_s - seconds, now_s)
        return json_answer({"gpus": past_view(points, gpus)})

    async def usage(self, request: Request) -> Response:
        """Sums over the jobs that the peer may see, by `user` or by `work`."""
        by = request.query_params.get("by", "user")
        sums: dict[str, Sums] = {"user": by_user, "work": by_work}
        if by not in sums:
            raise UsageError(f"`by` is `{by}`, wanted `user` or `work`")
        selection = Selection.of(request.query_params)
        access, peer = self._access, request.state.peer

        def look(manager: Manager) -> list[dict[str, Any]]:
            visible = [job for job in manager.jobs.values() if access.may_see(peer, job)]
            return sums[by](selection.of_jobs(visible), manager)

        return json_answer({"usage": await self._ask(look)})

    async def _ask(self, question: Callable[[Manager], list[Any]]) -> list[Any]:
        return await asyncio.wrap_future(self._loop.ask(question))
