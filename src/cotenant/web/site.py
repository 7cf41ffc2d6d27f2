"""What the pages share: the daemon, the feeds, the templates, and the session of a request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse

import cotenant
from cotenant.core.errors import CotenantError, NotPermitted
from cotenant.web.daemon_client import DaemonClient
from cotenant.web.feeds import Feed, Feeds, PollBudget
from cotenant.web.guard import Guard, TooManyRequests, read_form
from cotenant.web.sessions import MAX_STREAMS, Session, SessionStore

HEARTBEAT_S = 15.0
"""A stream without news sends a comment, so that a browser that is gone is noticed."""
STATUS_POLLS = 30
"""The daemon's own state is read once in so many polls of another feed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The parts of one server.

    Attributes:
        is_local: the pages are of the user that the kernel names, and there is no login.
        read_only: nothing is submitted or changed.
        environment: variables of jobs that are submitted here; None: those of a login of the session's user.
        closing: set when the server ends; streams end then.
    """

    daemon: DaemonClient
    feeds: Feeds
    reads: PollBudget
    sessions: SessionStore
    guard: Guard
    templates: Environment
    environment: Mapping[str, str] | None
    closing: asyncio.Event
    is_local: bool
    read_only: bool

    def session(self, request: Request) -> Session:
        """The session of a request that passed the login."""
        session: Session = request.state.session
        return session

    def page(self, template: str, request: Request, *, status: int = 200, **values: Any) -> Response:
        """A page from a template."""
        session: Session | None = getattr(request.state, "session", None)
        text = self.templates.get_template(template).render(
            path=request.url.path,
            csrf="" if session is None else session.csrf,
            is_logged_in=session is not None,
            is_local=self.is_local,
            read_only=self.read_only,
            version=cotenant.__version__,
            **values,
        )
        return HTMLResponse(text, status_code=status)

    async def form(self, request: Request, *, changes: bool = True) -> dict[str, str]:
        """The fields of a form of ours. `changes`: it changes jobs of the daemon.

        Raises:
            NotPermitted: it does not carry the CSRF token of the session, or it changes something on read-only pages.
        """
        fields = await read_form(request)
        if not self.session(request).is_csrf_token(fields.pop("csrf", "")):
            raise NotPermitted("this form is of another session", hint="load the page again")
        if changes and self.read_only:
            raise NotPermitted("these pages are read-only")
        return fields

    async def read(self, request: Request, path: str, **query: Any) -> dict[str, Any]:
        """An answer of the daemon to the session, within the share that all such reads have of the daemon's time."""
        async with self.reads.turn():
            return await self.daemon.get(path, self.session(request).token, **query)

    def feed(self, request: Request, *key: Any, fetch: Any) -> Feed:
        """The feed that all sessions with the same rights share."""
        session = self.session(request)
        return self.feeds.get((session.identity, *key), fetch)

    def stream(self, request: Request, events: AsyncIterator[bytes]) -> Response:
        """Server-sent events; ends with the session, or when the server closes.

        Raises:
            TooManyRequests: the session has too many open.
        """
        session = self.session(request)
        if session.streams >= MAX_STREAMS:
            raise TooManyRequests(f"{session.streams} pages of this session are live", hint="close some of them")
        headers = {"x-accel-buffering": "no"}
        return StreamingResponse(self._guarded(session, events), media_type="text/event-stream", headers=headers)

    async def _guarded(self, session: Session, events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        session.streams += 1
        closing: asyncio.Future[Any] = asyncio.ensure_future(self.closing.wait())
        pending: asyncio.Future[Any] | None = None
        try:
            yield b"retry: 2000\n\n"
            while self.sessions.is_alive(session):
                if pending is None:
                    pending = asyncio.ensure_future(anext_of(events))
                done, _ = await asyncio.wait(
                    {pending, closing}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if closing in done:
                    return
                if pending in done:
                    finished, pending = pending, None
                    try:
                        yield finished.result()
                    except StopAsyncIteration:
                        return
                    except CotenantError:
                        break  # the page loads itself again, and says why
                else:
                    yield b": still here\n\n"
            yield event("gone", {})
        finally:
            session.streams -= 1
            closing.cancel()
            if pending is not None:
                pending.cancel()


async def anext_of(events: AsyncIterator[bytes]) -> bytes:
    """The next event: `anext` returns an awaitable that `asyncio.ensure_future` does not take."""
    return await events.__anext__()


def event(name: str, value: Any) -> bytes:
    """A server-sent event with a JSON value."""
    return f"event: {name}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n".encode()


def see_other(path: str) -> Response:
    """Go on to another page with GET."""
    return RedirectResponse(path, status_code=303)
