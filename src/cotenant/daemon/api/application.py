"""The HTTP API on the daemon's sockets: its calls, who may make them, and errors as JSON."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cotenant.core.errors import CotenantError, UsageError
from cotenant.daemon.api.handlers import ApiContext, Handlers, LogPaths
from cotenant.daemon.api.requests import error_response
from cotenant.daemon.api.token_api import TokenApi
from cotenant.daemon.api.usage_api import UsageApi
from cotenant.daemon.auth.permissions import AccessPolicy

__all__ = ["ApiContext", "LogPaths", "application"]

logger = logging.getLogger(__name__)

_CHANGES = ("cancel", "hold", "release", "requeue", "update")

Handler = Callable[[Request], Awaitable[Response]]


def application(server: ApiContext) -> Starlette:
    """The ASGI application. Every request carries the peer in `request.state.peer`."""
    calls = Handlers(server)
    sums = UsageApi(server.loop, server.access, server.gpu_history, server.now)
    tokens = TokenApi(server.tokens, server.access)
    told: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/jobs", calls.submit),
        ("GET", "/v1/jobs", calls.jobs),
        ("GET", "/v1/ids", calls.ids),
        ("GET", "/v1/jobs/{job_id:int}", calls.job),
        ("GET", "/v1/jobs/{job_id:int}/explain", calls.explain),
        ("GET", "/v1/jobs/{job_id:int}/events", calls.events),
        ("GET", "/v1/jobs/{job_id:int}/logs", calls.logs),
        ("GET", "/v1/jobs/{job_id:int}/wait", calls.wait),
        *(("POST", f"/v1/jobs/{{job_id:int}}/{kind}", calls.change) for kind in _CHANGES),
        ("GET", "/v1/gpus", calls.gpus),
        ("GET", "/v1/gpus/history", sums.history),
        ("GET", "/v1/usage", sums.usage),
        ("GET", "/v1/status", calls.status),
        ("POST", "/v1/shutdown", calls.shutdown),
        ("POST", "/v1/tokens", tokens.create),
        ("GET", "/v1/tokens", tokens.list),
        ("POST", "/v1/tokens/{token_id:str}/revoke", tokens.revoke),
        ("GET", "/metrics", calls.metrics),
    ]
    routes = [
        Route(path, _guarded(handler, server.access), methods=[method], name=f"{method} {path}")
        for method, path, handler in told
    ]
    return Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})


def _guarded(handler: Handler, access: AccessPolicy) -> Handler:
    """`handler` for those who may; errors become JSON."""

    async def handle(request: Request) -> Response:
        try:
            access.admit(request.state.peer)
            return await handler(request)
        except CotenantError as error:
            return error_response(error)
        except Exception as error:
            logger.exception("request failed", extra={"fields": {"path": request.url.path}})
            return error_response(CotenantError(f"the daemon failed on this request ({type(error).__name__})"))

    return handle


async def _unknown(request: Request, _: Exception) -> Response:
    return error_response(UsageError(f"no such call: {request.method} {request.url.path}"))
