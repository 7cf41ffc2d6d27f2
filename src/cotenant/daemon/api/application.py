"""The ASGI application: routes, access control, and errors as JSON."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from cotenant.core.errors import CotenantError, UsageError
from cotenant.daemon.api.context import ApiContext
from cotenant.daemon.api.requests import error_response
from cotenant.daemon.api.routes import ROUTES
from cotenant.daemon.auth.permissions import AccessPolicy

logger = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]


def application(context: ApiContext) -> Starlette:
    """The application. It expects the peer of every request in `request.state.peer`."""
    handlers = {kind: kind(context) for kind in {route.handlers for route in ROUTES}}
    routes = [
        StarletteRoute(
            route.path,
            _guarded(partial(route.handler, handlers[route.handlers]), context.access),
            methods=[route.method],
            name=f"{route.method} {route.path}",
        )
        for route in ROUTES
    ]
    return Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})


def _guarded(handler: Handler, access: AccessPolicy) -> Handler:
    """`handler` behind the check that the daemon serves the peer; exceptions become JSON."""

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
