"""Logging in: with a token over the network, or with the key that `cotenant web` hands to the user's browser."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import NotPermitted
from cotenant.daemon.auth.tokens import FAILURE_WINDOW_S, TokenThrottle, token_id_of
from cotenant.web.daemon_client import TokenRefused
from cotenant.web.guard import TooManyRequests, read_form
from cotenant.web.sessions import OneTimeKey
from cotenant.web.site import Site, see_other


class LoginPages:
    """The pages of people who are not logged in, and the logout.

    Args:
        key: what opens the session of `cotenant web`; None where users log in with tokens.
        on_open: called once the key has been used.
    """

    def __init__(self, site: Site, key: OneTimeKey | None, on_open: Callable[[], None] = lambda: None) -> None:
        self._site = site
        self._key = key
        self._on_open = on_open
        self._bad = TokenThrottle()

    async def show(self, request: Request) -> Response:
        return self._site.page("login.html", request, problem=None)

    async def login(self, request: Request) -> Response:
        if self._site.is_local:
            raise NotPermitted("there is no login here", hint="open the address that `cotenant web` printed")
        address = request.client.host if request.client is not None else ""
        if self._bad.refuses(address):
            raise TooManyRequests("too many bad tokens from your address", hint=f"wait {FAILURE_WINDOW_S:g} s")
        token = (await read_form(request)).get("token", "").strip()
        try:
            if token_id_of(token) is None:  # what is no token at all may hold what no header can
                return self._refused(request, address, "this token is not good")
            await self._site.daemon.get("/v1/status", token)
        except TokenRefused as error:
            return self._refused(request, address, error.message)
        response = see_other("/")
        self._site.guard.set_cookie(response, self._site.sessions.create(token))
        return response

    def _refused(self, request: Request, address: str, problem: str) -> Response:
        self._bad.add(address)
        return self._site.page("login.html", request, status=403, problem=problem)

    async def logout(self, request: Request) -> Response:
        form = await read_form(request)
        session = self._site.session(request)
        if not session.is_csrf_token(form.get("csrf", "")):
            raise NotPermitted("this form is of another session", hint="load the page again")
        self._site.sessions.end(session)
        response = see_other("/login")
        self._site.guard.delete_cookie(response)
        return response

    async def open(self, request: Request) -> Response:
        """Open the session of `cotenant web`.

        The answer is a page that goes on by itself: a redirect of a navigation that a file or another program began
        counts as theirs, and a SameSite=Strict cookie would not be sent with it.
        """
        if self._key is None or not self._key.use(request.query_params.get("key", "")):
            raise NotPermitted("this address was used before", hint="run `cotenant web` again")
        response = self._site.page("opened.html", request)
        self._site.guard.set_cookie(response, self._site.sessions.create(None))
        self._on_open()
        return response
