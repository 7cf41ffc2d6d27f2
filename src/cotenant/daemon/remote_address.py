"""The address of a daemon on another machine, and the token for it. Standard library only.

`$COTENANT_HOST` names it: `gpu1:7411`, `https://gpu1:7411`, `http://127.0.0.1:7411`. Without a scheme it is TLS, except
for addresses of this very machine, where an ssh tunnel ends. `$COTENANT_CA` is a file of certificates to trust, besides
those of the system. The token is in `$COTENANT_TOKEN`, or in a file: `$COTENANT_TOKEN_FILE`, else
`~/.config/cotenant/token`.
"""

from __future__ import annotations

import os
import stat
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.core.errors import UsageError
from cotenant.daemon.config.paths import config_files

if TYPE_CHECKING:
    import http.client
    import ssl

PORT = 7411
MAX_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteAddress:
    """Address and token of a daemon. `ca_file`: certificates to trust besides the system's, or None."""

    host: str
    port: int
    tls: bool
    token: str
    ca_file: str | None = None

    @property
    def url(self) -> str:
        """The address as a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request."""
        return {"authorization": f"Bearer {self.token}"}

    def connection(self, timeout_s: float | None) -> http.client.HTTPConnection:
        """A new connection, not yet open."""
        import http.client  # a local command does without it, see `unix_http`

        context = self.tls_context()
        if context is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)
        return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)

    def tls_context(self) -> ssl.SSLContext | None:
        """What to connect with; None: without TLS.

        Raises:
            UsageError: `ca_file` is no file of certificates.
        """
        if not self.tls:
            return None
        import ssl

        context = ssl.create_default_context()
        if self.ca_file is not None:
            try:
                context.load_verify_locations(self.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise UsageError(f"`$COTENANT_CA` is `{self.ca_file}`, no file of certificates ({error})") from error
        return context


def remote_from_env(env: Mapping[str, str] = os.environ) -> RemoteAddress | None:
    """The daemon that `$COTENANT_HOST` names; None if it is unset.

    Raises:
        UsageError: it is not an address, or there is no token, or other users can read the token file.
    """
    named = env.get("COTENANT_HOST")
    if not named:
        return None
    host, port, tls = parse_address(named)
    return RemoteAddress(host=host, port=port, tls=tls, token=_token(env), ca_file=env.get("COTENANT_CA") or None)


def parse_address(text: str) -> tuple[str, int, bool]:
    """Parse `text` into host, port, and whether to use TLS.

    Raises:
        UsageError: it is not an address.
    """
    wrong = UsageError(
        f"`{text}` is not the address of a daemon", hint=f"write HOST, HOST:{PORT} or https://HOST:{PORT}"
    )
    if not text.isprintable() or " " in text:  # `urlsplit` strips some of these silently
        raise wrong
    try:
        parts = urllib.parse.urlsplit(text if "://" in text else f"//{text}")
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
    except ValueError as error:
        raise wrong from error
    if not host or parts.scheme not in ("", "http", "https") or parts.path not in ("", "/"):
        raise wrong
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise wrong
    tls = parts.scheme == "https" or (not parts.scheme and not _is_here(host))
    return host, PORT if port is None else port, tls


def _is_here(host: str) -> bool:
    import ipaddress

    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _token(env: Mapping[str, str]) -> str:
    token = env.get("COTENANT_TOKEN", "").strip()
    if not token:
        token = _token_in(env)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError("the token contains characters that no token has", hint="copy it again; it begins with `cot_`")
    return token


def _token_in(env: Mapping[str, str]) -> str:
    named = env.get("COTENANT_TOKEN_FILE")
    path = Path(named) if named else config_files(env)[-1].with_name("token")
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise UsageError(f"`{path}` can be read by others", hint=f"chmod 600 {path}; and revoke that token")
            return file.read(MAX_TOKEN_BYTES).decode(errors="replace").strip()
    except FileNotFoundError as error:
        raise UsageError(
            "no token for the daemon on the network",
            hint=f"put one into $COTENANT_TOKEN or {path}; `cotenant token create` makes it, on the machine itself",
        ) from error
    except OSError as error:
        raise UsageError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from error
