"""What every request passes: the host that it names, its rate, its session, its CSRF token; and headers of answers.

- `Host`: a page of another site whose name was rebound to this address has that site's name there. Addresses cannot be
  rebound, so they pass.
- The session cookie is HttpOnly and SameSite=Strict, so no other site's form or script sends it. Forms carry a CSRF
  token besides, and a request that a browser says another site made is refused whatever it carries.
- The Content-Security-Policy allows this server's own script and style files, and nothing inline.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.parse
from collections.abc import Callable, Collection
from http.cookies import CookieError, SimpleCookie

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import NotPermitted, UsageError
from cotenant.web.sessions import RateLimit, Session, SessionStore

MAX_FORM_BYTES = 256 * 1024

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # `no-referrer` would make browsers send `Origin: null` with our own forms (Fetch, "append a request `Origin`").
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class TooManyRequests(NotPermitted):
    """The session or the address sends more requests than one may."""


class Guard:
    """The checks of one server.

    Args:
        hosts: names of this machine that a request may have in its `Host`, besides `localhost` and addresses.
        cookie: name of the session cookie. Cookies are shared by the ports of a host, so it has the port in it.
        is_tls: browsers send the cookie over TLS only.
    """

    def __init__(self, sessions: SessionStore, hosts: Collection[str], *, cookie: str, is_tls: bool) -> None:
        self._sessions = sessions
        self._hosts = frozenset(host.lower() for host in hosts)
        self._cookie = f"__Host-{cookie}" if is_tls else cookie
        self._is_tls = is_tls
        self._rates = RateLimit()

    def check_host(self, request: Request) -> None:
        """Refuse a request for another host.

        Raises:
            NotPermitted: its `Host` names neither an address nor this machine.
        """
        shown = request.headers.get("host", "")
        try:
            name = (urllib.parse.urlsplit(f"//{shown}").hostname or "").lower().rstrip(".")
        except ValueError:
            name = ""
        if name == "localhost" or name in self._hosts or _is_address(name):
            return
        raise NotPermitted("this is not the page of that host", hint="name it in [web] hosts, or open it by address")

    def check_rate(self, request: Request, session: Session | None) -> None:
        """Refuse a request too many.

        Raises:
            TooManyRequests: it is.
        """
        address = request.client.host if request.client is not None else ""
        if not self._rates.admits(f"address {address}" if session is None else session.key):
            raise TooManyRequests("too many requests", hint="wait a few seconds")

    def session_of(self, request: Request) -> Session | None:
        """The session of the request's cookie."""
        try:
            found = SimpleCookie(request.headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return None
        return None if found is None else self._sessions.find(found.value)

    def check_origin(self, request: Request) -> None:
        """Refuse a change that another site's page requests.

        Raises:
            NotPermitted: the browser says so.
        """
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            raise NotPermitted("another site sent this form")
        origin = request.headers.get("origin")
        if origin is not None and urllib.parse.urlsplit(origin).netloc != request.headers.get("host"):
            raise NotPermitted("another site sent this form")

    def set_cookie(self, response: Response, session: Session) -> None:
        """Let the browser name the session."""
        age_s = int(self._sessions.lifetime_s)
        response.set_cookie(
            self._cookie, session.key, max_age=age_s, path="/", secure=self._is_tls, httponly=True, samesite="strict"
        )

    def delete_cookie(self, response: Response) -> None:
        """Let the browser forget the session."""
        response.delete_cookie(self._cookie, path="/", secure=self._is_tls, httponly=True, samesite="strict")


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; of several with one name, the last.

    Raises:
        UsageError: the body is no form, or longer than `MAX_FORM_BYTES`.
    """
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > MAX_FORM_BYTES:
            raise UsageError(f"the form is longer than {MAX_FORM_BYTES // 1024} KiB")
    try:
        pairs = urllib.parse.parse_qsl(data.decode("ascii"), keep_blank_values=True, max_num_fields=200)
    except ValueError as error:
        raise UsageError("the request is no form") from error
    return dict(pairs)


def machine_names(own_names: Callable[[], Collection[str]] | None = None) -> set[str]:
    """Names of this machine: its host name, short and long."""
    names = {socket.gethostname(), socket.getfqdn()} if own_names is None else set(own_names())
    return {name for name in (*names, *(name.partition(".")[0] for name in names)) if name}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True
