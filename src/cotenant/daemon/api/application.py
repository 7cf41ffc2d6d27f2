"""The ASGI application: routes, access control, and errors as JSON.

It takes the requests and responses of Starlette, and not its routing: `starlette.applications.Starlette` passes each
request through six layers that this API does not need, a tenth of the CPU time of a submission (0.375 to 0.342 ms).
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cotenant.core.errors import CotenantError, UsageError
from cotenant.daemon.api.context import ApiContext, peer_of
from cotenant.daemon.api.requests import error_response
from cotenant.daemon.api.routes import PATH_KINDS, PATH_PARAMETER, ROUTES, Route
from cotenant.daemon.auth.permissions import AccessPolicy

logger = logging.getLogger(__name__)

Handler = Callable[[Any, Request], Awaitable[Response]]


class Application:
    """Answers the calls of `routes`. It expects the peer of every request in `scope["state"]["peer"]`.

    `methods_of` has the object whose method a route's handler is, by its class.
    """

    def __init__(self, routes: tuple[Route, ...], methods_of: Mapping[type[Any], Any], access: AccessPolicy) -> None:
        self._access = access
        self._methods_of = methods_of
        self._methods = sorted({route.method for route in routes})
        self._by_path: dict[tuple[str, str], Route] = {}
        self._by_pattern: list[tuple[re.Pattern[str], Route]] = []
        for route in routes:
            if PATH_PARAMETER.search(route.path):
                self._by_pattern.append((_pattern(route.path), route))
            else:
                self._by_path[route.method, route.path] = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive, send)
        began_s = time.process_time()
        response = await self._response(request)
        # What the web page limits itself by. Other work of the daemon in this time counts too: it is an upper bound.
        spent_ms = 1000 * (time.process_time() - began_s)
        response.raw_headers.append((b"server-timing", b"cpu;dur=%.2f" % spent_ms))
        await response(scope, receive, send)

    async def _response(self, request: Request) -> Response:
        """The answer of the route behind the check that the daemon serves the peer; exceptions become JSON."""
        scope = request.scope
        try:
            found = self._find(scope["method"], scope["path"])
            self._access.admit(peer_of(request))
            if found is None:
                return self._no_such_call(scope["method"], scope["path"])
            route, scope["path_params"] = found
            return await route.handler(self._methods_of[route.handlers], request)
        except CotenantError as error:
            return error_response(error)
        except ClientDisconnect:  # no failure, and logged as one, any user could fill the daemon's disk
            return Response(status_code=400)
        except Exception as error:
            logger.exception("request failed", extra={"fields": {"path": scope["path"]}})
            return error_response(CotenantError(f"the daemon failed on this request ({type(error).__name__})"))

    def _find(self, method: str, path: str) -> tuple[Route, dict[str, Any]] | None:
        """The route of a call, and the parameters in its path; None without one."""
        wanted = "GET" if method == "HEAD" else method  # the server leaves out the body of the answer
        route = self._by_path.get((wanted, path))
        if route is not None:
            return route, {}
        for pattern, route in self._by_pattern:
            if route.method == wanted and (match := pattern.fullmatch(path)):
                kinds = dict(PATH_PARAMETER.findall(route.path))
                return route, {name: PATH_KINDS[kinds[name]].type(text) for name, text in match.groupdict().items()}
        return None

    def _no_such_call(self, method: str, path: str) -> Response:
        """404, or 405 where the path takes other methods. Source: RFC 9110, sections 15.5.5 and 15.5.6."""
        methods = [method for method in self._methods if self._find(method, path) is not None]
        hint = f"`{path}` takes {', '.join(methods)}" if methods else None
        error = UsageError(f"no such call: {method} {path}", hint=hint)
        response = error_response(error, status=405 if methods else 404)
        if methods:
            response.headers["allow"] = ", ".join(methods)
        return response


def application(context: ApiContext) -> Application:
    """The application over the daemon's parts."""
    return Application(ROUTES, {kind: kind(context) for kind in {route.handlers for route in ROUTES}}, context.access)


def _pattern(path: str) -> re.Pattern[str]:
    """`/v1/jobs/{job_id:int}` as a regular expression with the group `job_id`."""
    return re.compile(PATH_PARAMETER.sub(lambda found: f"(?P<{found[1]}>{PATH_KINDS[found[2]].pattern})", path))
