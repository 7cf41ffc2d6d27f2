"""Tokens: who may use the daemon over the network, each as one user. Only their digests are kept.

A token is `cot_ID_SECRET`: the id is no secret and stands in lists and logs, the secret is 256 random bits, which a
plain SHA-256 guards as well as a slow hash would.
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
from cotenant.osutil import atomic

SCHEMA = 1
SECRET_BYTES = 32
MAX_TOKENS = 1000
MAX_NAME_CHARS = 100
_FORM = re.compile(r"cot_([0-9a-f]{8})_([A-Za-z0-9_-]{20,100})")
_NO_DIGEST = "0" * 64

MAX_FAILURES = 10
FAILURE_WINDOW_S = 60.0
MAX_TRACKED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is kept of a token.

    Attributes:
        uid: who its holder is.
        admin: it carries the admin's rights of its user, if they have any; otherwise it has none.
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
    """The tokens of one daemon, in a file that only its user may read. Methods may be called from any thread.

    `now` is the wall clock, in seconds since 1970: a token expires at a date.

    Raises:
        BackendError: the file cannot be read, is damaged, or is not ours alone.
    """

    def __init__(self, path: Path, *, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._now = now
        self._lock = threading.Lock()
        self._tokens = {each.id: each for each in _read(path)}

    def create(self, uid: int, name: str, *, admin: bool = False, lifetime_s: float | None = None) -> tuple[Token, str]:
        """A new token of `uid`, and its text, which is told this once.

        Raises:
            UsageError: no such name or time can be, or there are too many.
            BackendError: it cannot be kept.
        """
        if len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise UsageError(f"the name of a token may have {MAX_NAME_CHARS} printable characters")
        if lifetime_s is not None and not 0 < lifetime_s < 2**40:
            raise UsageError(
                f"a token cannot last {lifetime_s:g} s", hint="write e.g. --expires 30-0, which is 30 days"
            )
        with self._lock:
            if len(self._tokens) >= MAX_TOKENS:
                raise UsageError(f"there are {MAX_TOKENS} tokens already", hint="revoke some: cotenant token list")
            now_s = self._now()
            secret = secrets.token_urlsafe(SECRET_BYTES)
            found = Token(
                id=_new_id(self._tokens),
                uid=uid,
                name=name,
                admin=admin,
                sha256=_digest(secret),
                created_at_s=now_s,
                expires_at_s=None if lifetime_s is None else now_s + lifetime_s,
            )
            self._keep({**self._tokens, found.id: found})
        return found, f"cot_{found.id}_{secret}"

    def all(self) -> list[Token]:
        """Every token, oldest first, those that have expired included."""
        return sorted(self._tokens.values(), key=lambda each: (each.created_at_s, each.id))

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
        """Forget a token: it opens nothing from now on.

        Raises:
            UsageError: there is none of this id.
            BackendError: that cannot be kept; the token is still good.
        """
        with self._lock:
            found = self.get(token_id)
            self._keep({key: each for key, each in self._tokens.items() if key != token_id})
        return found

    def find(self, text: str) -> Token | None:
        """The token that `text` is, unless it has expired; takes as long for a wrong secret as for the right one."""
        form = _FORM.fullmatch(text)
        token_id, secret = (form[1], form[2]) if form else ("", "")
        kept = self._tokens.get(token_id)
        same = hmac.compare_digest(_digest(secret), _NO_DIGEST if kept is None else kept.sha256)
        return kept if same and kept is not None and self._is_good(kept) else None

    def check(self, token_id: str) -> None:
        """See that a token which opened a request is still good.

        Raises:
            NotPermitted: it has been revoked, or has expired.
        """
        kept = self._tokens.get(token_id)
        if kept is None or not self._is_good(kept):
            raise NotPermitted(f"token {token_id} is no longer good")

    def _is_good(self, token: Token) -> bool:
        return token.expires_at_s is None or self._now() < token.expires_at_s

    def _keep(self, tokens: dict[str, Token]) -> None:
        """Put the file there, whole or not at all, before anybody is told."""
        told = {"schema": SCHEMA, "tokens": [asdict(token) for token in tokens.values()]}
        try:
            atomic.write_text(self._path, json.dumps(told, indent=1), durable=True)
        except OSError as error:
            raise BackendError(f"cannot write `{self._path}`: {error.strerror}") from error
        self._tokens = tokens


def token_id_of(text: str) -> str | None:
    """The id in a token's text, whether there is such a token or not; None if it is no token's text."""
    form = _FORM.fullmatch(text)
    return form[1] if form else None


class TokenThrottle:
    """Who has shown bad tokens of late, by address and token id, so that nobody can go on guessing.

    Good tokens from the same address go on working, as long as nobody guesses at theirs from there. `now`: monotonic
    seconds.
    """

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: OrderedDict[tuple[str, str | None], deque[float]] = OrderedDict()

    def refuses(self, address: str, token_id: str | None) -> bool:
        """Whether so many were bad within a minute that this one is not even looked at."""
        times = self._seen.get((address, token_id))
        while times and times[0] <= self._now() - FAILURE_WINDOW_S:
            times.popleft()
        return times is not None and len(times) >= MAX_FAILURES

    def add(self, address: str, token_id: str | None) -> None:
        """One was bad."""
        key = (address, token_id)
        self._seen.setdefault(key, deque(maxlen=MAX_FAILURES)).append(self._now())
        self._seen.move_to_end(key)
        while len(self._seen) > MAX_TRACKED:
            self._seen.popitem(last=False)


def _new_id(taken: dict[str, Token]) -> str:
    while (found := secrets.token_hex(4)) in taken:
        pass
    return found


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _read(path: Path) -> list[Token]:
    hint = "mend or remove it; without it, there are no tokens"
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise BackendError(f"`{path}` is open to others", hint=f"chown and chmod 600 it, or {hint}")
            told = json.load(file)
        if told["schema"] != SCHEMA:
            raise BackendError(f"`{path}` is of schema {told['schema']}, wanted {SCHEMA}", hint=hint)
        return [_token(each) for each in told["tokens"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BackendError(f"cannot read `{path}`: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"`{path}` is damaged: {error}", hint=hint) from error


def _token(told: dict[str, object]) -> Token:
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
        if not isinstance(told[key], kind):  # type: ignore[arg-type]  # a type or a tuple of types
            raise TypeError(f"`{key}` of a token is {told[key]!r}")
    return Token(**{key: told[key] for key in kinds})  # type: ignore[arg-type]  # as checked
