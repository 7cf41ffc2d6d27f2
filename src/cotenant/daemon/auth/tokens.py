"""Tokens that authenticate users over the network. Only digests of their secrets are stored.

A token is `cot_ID_SECRET`. The id is public and appears in lists and logs. The secret has 256 random bits, so a plain
SHA-256 is as safe as a slow password hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cotenant.core.errors import BackendError, NotPermitted, UsageError
from cotenant.core.text import check_text
from cotenant.osutil import atomic

SCHEMA = 1
SECRET_BYTES = 32
MAX_TOKENS = 1000
MAX_TOKENS_OF_USER = 100
"""So that nobody takes the tokens of others."""
MAX_NAME_CHARS = 100
_FORM = re.compile(r"cot_([0-9a-f]{8})_([A-Za-z0-9_-]{20,100})")
_NO_DIGEST = "0" * 64

MAX_FAILURES = 10
FAILURE_WINDOW_S = 60.0
MAX_TRACKED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """The stored part of a token.

    Attributes:
        uid: the user that its holder acts as.
        admin: whether its holder has the admin rights of the user, if the user has any.
        sha256: of the secret, in hex.
        expires_at_s: seconds since 1970, or None.
    """

    id: str
    uid: int
    name: str
    admin: bool
    sha256: str
    created_at_s: float
    expires_at_s: float | None


class TokenStore:
    """The tokens of a daemon, in a file that only its user may read. Thread-safe.

    `now` is the wall clock, in seconds since 1970: a token expires at a date.

    Raises:
        BackendError: the file cannot be read, is damaged, or is not ours alone.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._tokens = {token.id: token for token in _read(path)}

    def create(self, uid: int, name: str, *, admin: bool = False, lifetime_s: float | None = None) -> tuple[Token, str]:
        """Create a token of `uid`; returns it with its text, which cannot be recovered later.

        Raises:
            UsageError: the name or the lifetime is invalid, or there are `MAX_TOKENS` already, or
                `MAX_TOKENS_OF_USER` of this user. Expired ones do not count.
            BackendError: the file cannot be written.
        """
        check_text("the name of the token", name, "label")
        if len(name) > MAX_NAME_CHARS:
            raise UsageError(f"the name of the token has {len(name)} characters, wanted at most {MAX_NAME_CHARS}")
        if lifetime_s is not None and not 0 < lifetime_s < 2**40:
            raise UsageError(
                f"a token cannot last {lifetime_s:g} s", hint="write e.g. --expires 30-0, which is 30 days"
            )
        with self._lock:
            others = self._tokens
            if len(others) >= MAX_TOKENS:
                others = {key: token for key, token in others.items() if self._is_valid(token)}
            of_user = sum(token.uid == uid and self._is_valid(token) for token in others.values())
            if len(others) >= MAX_TOKENS or of_user >= MAX_TOKENS_OF_USER:
                found = (
                    f"you have {of_user} tokens" if of_user >= MAX_TOKENS_OF_USER else f"there are {MAX_TOKENS} tokens"
                )
                raise UsageError(f"{found} already", hint="revoke some: cotenant token list")
            now_s = self._now()
            secret = secrets.token_urlsafe(SECRET_BYTES)
            token = Token(
                id=_new_id(self._tokens),
                uid=uid,
                name=name,
                admin=admin,
                sha256=_digest(secret),
                created_at_s=now_s,
                expires_at_s=None if lifetime_s is None else now_s + lifetime_s,
            )
            self._save({**others, token.id: token})
        return token, f"cot_{token.id}_{secret}"

    def all(self) -> list[Token]:
        """Every token, oldest first, including expired ones."""
        return sorted(self._tokens.values(), key=lambda token: (token.created_at_s, token.id))

    def get(self, token_id: str) -> Token:
        """The token of this id.

        Raises:
            UsageError: there is none.
        """
        found = self._tokens.get(token_id)
        if found is None:
            raise UsageError(f"no token `{token_id[:MAX_NAME_CHARS]}`", hint="see `cotenant token list`")
        return found

    def revoke(self, token_id: str) -> Token:
        """Delete a token.

        Raises:
            UsageError: there is none of this id.
            BackendError: the file cannot be written; the token stays valid.
        """
        with self._lock:
            found = self.get(token_id)
            self._save({key: token for key, token in self._tokens.items() if key != token_id})
        return found

    def find(self, text: str) -> Token | None:
        """The valid token with this text, or None. Takes as long for a wrong secret as for the right one."""
        form = _FORM.fullmatch(text)
        token_id, secret = (form[1], form[2]) if form else ("", "")
        token = self._tokens.get(token_id)
        same = hmac.compare_digest(_digest(secret), _NO_DIGEST if token is None else token.sha256)
        return token if same and token is not None and self._is_valid(token) else None

    def check(self, token_id: str) -> None:
        """Check that the token of a running request is still valid.

        Raises:
            NotPermitted: it was revoked, or it expired.
        """
        token = self._tokens.get(token_id)
        if token is None or not self._is_valid(token):
            raise NotPermitted(f"token {token_id} is no longer valid")

    def _is_valid(self, token: Token) -> bool:
        return token.expires_at_s is None or self._now() < token.expires_at_s

    def _save(self, tokens: dict[str, Token]) -> None:
        """Replace the file before the change takes effect."""
        content = {"schema": SCHEMA, "tokens": [asdict(token) for token in tokens.values()]}
        try:
            atomic.write_text(self._path, json.dumps(content, indent=1), durable=True)
        except OSError as error:
            raise BackendError(f"cannot write `{self._path}`: {error.strerror}") from error
        self._tokens = tokens


def token_id_of(text: str) -> str | None:
    """The id in the text of a token, whether or not it exists; None if the text is malformed."""
    form = _FORM.fullmatch(text)
    return form[1] if form else None


class TokenThrottle:
    """Counts bad tokens by address, so that guessing costs neither log lines nor work.

    Only bad tokens are throttled: a good one opens from any address, whoever guesses there. With 256 random bits, the
    throttle is no part of what makes guessing hopeless. `now`: monotonic seconds.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: OrderedDict[str, deque[float]] = OrderedDict()

    def refuses(self, address: str) -> bool:
        """Whether `MAX_FAILURES` attempts from there failed within `FAILURE_WINDOW_S`."""
        times = self._seen.get(address)
        while times and times[0] <= self._now() - FAILURE_WINDOW_S:
            times.popleft()
        return times is not None and len(times) >= MAX_FAILURES

    def add(self, address: str) -> None:
        """Count a failed attempt."""
        self._seen.setdefault(address, deque(maxlen=MAX_FAILURES)).append(self._now())
        self._seen.move_to_end(address)
        while len(self._seen) > MAX_TRACKED:
            self._seen.popitem(last=False)


def _new_id(taken: dict[str, Token]) -> str:
    while (found := secrets.token_hex(4)) in taken:
        pass
    return found


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(path: Path) -> list[Token]:
    hint = "repair or remove it; without it, there are no tokens"
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise BackendError(f"`{path}` is open to others", hint=f"chown and chmod 600 it, or {hint}")
            content = json.load(file)
        if content["schema"] != SCHEMA:
            raise BackendError(f"`{path}` is of schema {content['schema']}, wanted {SCHEMA}", hint=hint)
        return [_token(entry) for entry in content["tokens"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackendError(f"cannot read `{path}`: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"`{path}` is damaged: {error}", hint=hint) from error


def _token(entry: dict[str, object]) -> Token:
    kinds = {
        "id": str,
        "uid": int,
        "name": str,
        "admin": bool,
        "sha256": str,
        "created_at_s": (int, float),
        "expires_at_s": (int, float, type(None)),
    }
    for key, kind in kinds.items():
        if not isinstance(entry[key], kind):  # type: ignore[arg-type]  # a type or a tuple of types
            raise TypeError(f"`{key}` of a token is {entry[key]!r}")
    return Token(**{key: entry[key] for key in kinds})  # type: ignore[arg-type]  # as checked
