"""Lists of jobs: filtered by state, user and name, newest first. One file for each page."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.daemon.api.views.states import SHORT
from cotenant.web.site import Site

MAX_JOBS = 100


class JobsPage:
    """The page of all jobs."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        chosen = {name: request.query_params.get(name, "").strip() or None for name in ("states", "user", "name")}
        query: dict[str, Any] = {"last": MAX_JOBS, **chosen}
        if query["states"] not in (None, *SHORT):
            query["states"] = None
        answer = await self._site.read(request, "/v1/jobs", **query)
        return self._site.page(
            "jobs.html",
            request,
            jobs=list(reversed(answer["jobs"])),
            counts=answer["counts"],
            chosen=chosen,
            states=list(SHORT),
            most=MAX_JOBS,
        )
