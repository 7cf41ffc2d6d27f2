"""Serving the page: the parts of a server, for the daemon's process and for `cotenant web`."""

from __future__ import annotations

import asyncio
import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path

from cotenant.daemon.auth.network import TcpListener
from cotenant.daemon.config.schema import WebSection
from cotenant.daemon.remote_address import RemoteAddress
from cotenant.web.application import WebApplication
from cotenant.web.daemon_client import DaemonClient
from cotenant.web.feeds import READ_SHARE, Feeds, PollBudget
from cotenant.web.guard import Guard, machine_names
from cotenant.web.pages.login import LoginPages
from cotenant.web.sessions import OneTimeKey, SessionStore
from cotenant.web.site import Site
from cotenant.web.templating import make_environment

NOBODY = "nobody"


class WebServer:
    """A server of the page, listening.

    Args:
        key: opens the session of the user whom the kernel names; None: users log in with tokens.
        environment: variables of jobs that are submitted; None: those of a login.
        on_open: called when `key` is used.

    Raises:
        UsageError, BackendError: it cannot listen.
    """

    def __init__(
        self,
        settings: WebSection,
        *,
        socket_file: Path | None,
        remote: RemoteAddress | None = None,
        key: OneTimeKey | None = None,
        environment: Mapping[str, str] | None = None,
        on_open: Callable[[], None] = lambda: None,
    ) -> None:
        self._listener = TcpListener(settings, "web")
        self.closing = asyncio.Event()
        daemon = DaemonClient(socket_file, remote)
        self._feeds = Feeds(PollBudget(spent_s=lambda: daemon.spent_s))
        is_tls = self._listener.tls is not None
        port = self._listener.socket.getsockname()[1]
        sessions = SessionStore(settings.session_s)
        named = [name.strip() for name in settings.hosts.split(",") if name.strip()]
        site = Site(
            daemon=daemon,
            feeds=self._feeds,
            reads=PollBudget(READ_SHARE, lambda: daemon.spent_s),
            sessions=sessions,
            guard=Guard(sessions, {*machine_names(), *named}, cookie=f"cotenant_{port}", is_tls=is_tls),
            templates=make_environment(),
            environment=environment,
            closing=self.closing,
            is_local=key is not None,
            read_only=settings.read_only,
        )
        self._application = WebApplication(site, LoginPages(site, key, on_open))

    @property
    def url(self) -> str:
        """Its address for browsers on this machine."""
        return self._listener.url

    async def serve(self) -> None:
        """Serve until `closing`."""
        try:
            await self._listener.serve(self._application, self.closing)
        finally:
            self._feeds.close()


def drop_rights() -> None:
    """Become `nobody`, with no groups. Call it once the server listens, and everything is imported."""
    nobody = pwd.getpwnam(NOBODY)
    os.setgroups([])
    os.setresgid(nobody.pw_gid, nobody.pw_gid, nobody.pw_gid)
    os.setresuid(nobody.pw_uid, nobody.pw_uid, nobody.pw_uid)
