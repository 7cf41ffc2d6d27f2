"""The ASGI application of the page: its routes, the guard in front of them, and errors as pages."""

from __future__ import annotations

import logging
import mimetypes
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from cotenant.core.errors import CotenantError, NoSuchJob, NotPermitted, UsageError
from cotenant.reporting.style import STYLE
from cotenant.web.daemon_client import TokenRefused
from cotenant.web.guard import HEADERS, TooManyRequests
from cotenant.web.pages.actions import ActionPages
from cotenant.web.pages.history import HistoryPage
from cotenant.web.pages.job import JobPage
from cotenant.web.pages.jobs import JobsPage
from cotenant.web.pages.log import LogPage
from cotenant.web.pages.login import LoginPages
from cotenant.web.pages.now import NowPage
from cotenant.web.pages.replay import ReplayPages
from cotenant.web.pages.submit import SubmitPages
from cotenant.web.pages.usage import UsagePage
from cotenant.web.site import Site, event, see_other
from cotenant.web.templating import STATIC

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRoute:
    """A page. `pattern`: of its path; `is_open`: without a session too."""

    method: str
    pattern: re.Pattern[str]
    handler: Handler
    is_open: bool = False


class PageNotFound(CotenantError):
    """There is no such page."""


class WebApplication:
    """Answers the requests of browsers."""

    def __init__(self, site: Site, login: LoginPages) -> None:
        self._site = site
        self._static = _static_files()
        self._routes = _routes(site, login)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        request = Request(scope, receive, send)
        request.scope.setdefault("state", {})
        try:
            response = await self._response(request)
        except ClientDisconnect:
            return
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        try:
            self._site.guard.check_host(request)
            path = request.url.path
            if request.method in ("GET", "HEAD") and path in self._static:
                content, media_type = self._static[path]
                return Response(content, media_type=media_type, headers={"cache-control": "max-age=300"})
            session = self._site.guard.session_of(request)
            self._site.guard.check_rate(request, session)
            route, parameters = self._find(request)
            if session is not None:
                request.state.session = session
            elif not route.is_open:
                return _unknown_session(request)
            if request.method == "POST":
                self._site.guard.check_origin(request)
            request.scope["path_params"] = parameters
            return await route.handler(request)
        except TokenRefused:
            return self._logged_out(request)
        except CotenantError as error:
            return self._error(request, error)
        except ClientDisconnect:
            raise
        except Exception as error:
            logger.exception("a page failed", extra={"fields": {"path": request.url.path}})
            return self._error(request, CotenantError(f"the page failed ({type(error).__name__})"))

    def _find(self, request: Request) -> tuple[PageRoute, dict[str, str | int]]:
        method = "GET" if request.method == "HEAD" else request.method
        for route in self._routes:
            match = route.pattern.fullmatch(request.url.path)
            if match and route.method == method:
                found = match.groupdict()
                return route, {name: int(text) if name == "job_id" else text for name, text in found.items()}
        raise PageNotFound("there is no such page")

    def _logged_out(self, request: Request) -> Response:
        """The daemon knows the session's token no more."""
        self._site.sessions.end(self._site.session(request))
        response = see_other("/login")
        self._site.guard.delete_cookie(response)
        return response

    def _error(self, request: Request, error: CotenantError) -> Response:
        status, title = _status(error)
        return self._site.page("error.html", request, status=status, error=error, title=title, is_there=status != 404)


def _unknown_session(request: Request) -> Response:
    """To the login; a stream of events lets its page load itself again, which leads there."""
    if "text/event-stream" in request.headers.get("accept", ""):

        async def gone() -> AsyncIterator[bytes]:
            yield event("gone", {})

        return StreamingResponse(gone(), media_type="text/event-stream")
    return see_other("/login")


def _status(error: CotenantError) -> tuple[int, str]:
    """The HTTP status, and the title of the page."""
    for kind, status, title in (
        (TooManyRequests, 429, "Too many requests"),
        (NoSuchJob, 404, "No such job"),
        (PageNotFound, 404, "No such page"),
        (NotPermitted, 403, "Not permitted"),
        (UsageError, 400, "That does not work"),
    ):
        if isinstance(error, kind):
            return status, title
    return (503, "The daemon does not answer") if error.exit_code == 3 else (500, "Failed")


def _routes(site: Site, login: LoginPages) -> tuple[PageRoute, ...]:
    now, job, log, actions = NowPage(site), JobPage(site), LogPage(site), ActionPages(site)
    usage, history, submit, jobs = UsagePage(site), HistoryPage(site), SubmitPages(site), JobsPage(site)
    replay = ReplayPages(site)
    job_path, verb = r"/jobs/(?P<job_id>[0-9]{1,15})", "(?P<verb>cancel|hold|release|requeue|change)"
    draft = "/submit/(?P<key>[A-Za-z0-9_-]{1,40})"

    def route(method: str, pattern: str, handler: Handler, *, is_open: bool = False) -> PageRoute:
        return PageRoute(method=method, pattern=re.compile(pattern), handler=handler, is_open=is_open)

    return (
        route("GET", "/login", login.show, is_open=True),
        route("POST", "/login", login.login, is_open=True),
        route("GET", "/open", login.open, is_open=True),
        route("POST", "/logout", login.logout),
        route("GET", "/", now.show),
        route("GET", "/now/events", now.events),
        route("GET", "/jobs", jobs.show),
        route("GET", job_path, job.show),
        route("GET", f"{job_path}/events", job.events),
        route("GET", f"{job_path}/log", log.show),
        route("GET", f"{job_path}/log/events", log.events),
        route("GET", f"{job_path}/{verb}", actions.ask),
        route("POST", f"{job_path}/{verb}", actions.do),
        route("GET", "/usage", usage.show),
        route("GET", r"/usage\.csv", usage.export),
        route("GET", "/history", history.show),
        route("POST", "/history/replay", replay.begin),
        route("GET", "/history/replay/(?P<key>[A-Za-z0-9_-]{1,40})", replay.show),
        route("GET", "/history/replay/(?P<key>[A-Za-z0-9_-]{1,40})/report", replay.report),
        route("GET", "/submit", submit.show),
        route("POST", "/submit", submit.preview),
        route("GET", draft, submit.draft),
        route("POST", draft, submit.submit),
    )


def _static_files() -> dict[str, tuple[bytes, str]]:
    """The static files by path, in memory."""
    found = {
        f"/static/{path.name}": (path.read_bytes(), mimetypes.guess_type(path.name)[0] or "application/octet-stream")
        for path in STATIC.iterdir()
        if path.is_file()
    }
    style, media_type = found["/static/page.css"]
    found["/static/page.css"] = (STYLE.encode() + b"\n" + style, media_type)
    return found
