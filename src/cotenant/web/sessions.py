"""Sessions of browsers: cookies, CSRF tokens, and rates of requests. In memory: after a restart, users log in again.

A session of the network holds the user's token; the cookie is a random name for it, so the token is in no browser.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from cotenant.daemon.auth.tokens import token_id_of

MAX_SESSIONS = 10_000
MAX_SESSIONS_OF_TOKEN = 50
"""So that nobody ends the sessions of others by logging in again and again."""
MAX_STREAMS = 16
"""Streams of events that one session may hold open: one for each tab."""
BURST = 60
REQUESTS_PER_S = 15.0


@dataclass(slots=True, kw_only=True)
class Session:
    """A browser that is logged in.

    Attributes:
        token: of the daemon; None where the kernel says who this process, and so its only user, is.
        drafts: previews of jobs that the submit page makes, by random id.
        replays: those of the history page, by random id.
    """

    key: str
    token: str | None
    expires_at_s: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    streams: int = 0
    drafts: OrderedDict[str, Any] = field(default_factory=OrderedDict)
    replays: OrderedDict[str, Any] = field(default_factory=OrderedDict)

    @property
    def identity(self) -> Hashable:
        """What feeds are shared by: sessions with the same token see the same."""
        return self.token

    @property
    def label(self) -> str:
        """The token's id, for logs."""
        return "socket" if self.token is None else token_id_of(self.token) or "?"

    def is_csrf_token(self, text: str) -> bool:
        """Whether `text` is what this session's forms carry."""
        return hmac.compare_digest(self.csrf.encode(), text.encode())


class SessionStore:
    """All sessions. `lifetime_s`: of each; `now`: monotonic seconds."""

    def __init__(self, lifetime_s: float, *, now: Callable[[], float] = time.monotonic) -> None:
        self.lifetime_s = lifetime_s
        self._now = now
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def create(self, token: str | None) -> Session:
        """A new session; the oldest of the same token ends beyond its maximum, and of all beyond `MAX_SESSIONS`."""
        of_token = [session for session in self._sessions.values() if session.token == token]
        for oldest in of_token[: max(0, len(of_token) + 1 - MAX_SESSIONS_OF_TOKEN)]:
            self.end(oldest)
        session = Session(key=secrets.token_urlsafe(32), token=token, expires_at_s=self._now() + self.lifetime_s)
        self._sessions[session.key] = session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def find(self, key: str) -> Session | None:
        """The session of a cookie; None if there is none, or it has expired."""
        session = self._sessions.get(key)
        if session is not None and session.expires_at_s <= self._now():
            self.end(session)
            return None
        return session

    def end(self, session: Session) -> None:
        """Forget a session."""
        self._sessions.pop(session.key, None)

    def is_alive(self, session: Session) -> bool:
        """Whether it has neither ended nor expired."""
        return self.find(session.key) is session


class OneTimeKey:
    """A key that opens one session: `cotenant web` hands it to the user's browser."""

    def __init__(self) -> None:
        self.text: str | None = secrets.token_urlsafe(32)

    def use(self, text: str) -> bool:
        """Whether `text` is the key; it is used up then."""
        if self.text is None or not hmac.compare_digest(self.text.encode(), text.encode()):
            return False
        self.text = None
        return True


class RateLimit:
    """Token buckets by session or address: `BURST` requests at once, then `REQUESTS_PER_S`."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def admits(self, key: str) -> bool:
        """Count a request; False if it is one too many."""
        now_s = self._now()
        left, at_s = self._buckets.pop(key, (float(BURST), now_s))
        left = min(float(BURST), left + (now_s - at_s) * REQUESTS_PER_S)
        admitted = left >= 1.0
        self._buckets[key] = (left - 1.0 if admitted else left, now_s)
        while len(self._buckets) > MAX_SESSIONS:
            self._buckets.popitem(last=False)
        return admitted
