"""The calls that make, list and revoke tokens. Only on the unix socket: no token makes others or outlives its end."""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import UsageError
from cotenant.daemon.api.job_specs import user_name
from cotenant.daemon.api.requests import json_response, read_object
from cotenant.daemon.api.views import rfc3339
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import Token, TokenStore
from cotenant.daemon.auth.unix_socket import Peer

_FIELDS = {"name": str, "admin": bool, "lifetime_s": (int, float, type(None)), "user": (str, type(None))}


class TokenApi:
    """One method for every route."""

    def __init__(self, tokens: TokenStore, access: AccessPolicy) -> None:
        self._tokens = tokens
        self._access = access

    async def create(self, request: Request) -> Response:
        peer: Peer = request.state.peer
        self._access.check_local(peer, "make tokens")
        told = await read_object(request)
        _check(told)
        uid = self._uid_of(peer, told.get("user"))
        if told.get("admin"):
            self._access.check_admin(peer, "make a token with an admin's rights")
        token, text = await asyncio.to_thread(
            self._tokens.create,
            uid,
            told.get("name", ""),
            admin=told.get("admin", False),
            lifetime_s=told.get("lifetime_s"),
        )
        if uid != peer.uid or token.admin:
            self._access.note(peer, f"token {token.id} for uid {uid}")
        return json_response({"token": {**_view(token), "text": text}}, status=201)

    async def list(self, request: Request) -> Response:
        peer: Peer = request.state.peer
        self._access.check_local(peer, "list tokens")
        mine = [each for each in self._tokens.all() if self._may(peer, each)]
        return json_response({"tokens": [_view(each) for each in mine]})

    async def revoke(self, request: Request) -> Response:
        peer: Peer = request.state.peer
        self._access.check_local(peer, "revoke tokens")
        token_id = request.path_params["token_id"]
        found = self._tokens.get(token_id)
        if not self._may(peer, found):
            # As if there were none: whose it is, is nobody's business.
            raise UsageError(f"no token `{token_id}`", hint="see `cotenant token list`")
        await asyncio.to_thread(self._tokens.revoke, token_id)
        if found.uid != peer.uid:
            self._access.note(peer, f"token {token_id} of uid {found.uid} revoked")
        return json_response({"token": _view(found)})

    def _may(self, peer: Peer, token: Token) -> bool:
        return token.uid == peer.uid or self._access.is_admin(peer)

    def _uid_of(self, peer: Peer, user: str | None) -> int:
        """Whose the token will be: the one who asks, or who an admin names."""
        if not self._access.many:
            if user is not None and user != user_name(self._access.own_uid):
                raise UsageError(f"this daemon serves `{user_name(self._access.own_uid)}` alone")
            return self._access.own_uid
        uid = peer.uid
        if user is not None:
            try:
                uid = pwd.getpwnam(user).pw_uid
            except KeyError as error:
                raise UsageError(f"this machine knows no user `{user}`") from error
        if uid != peer.uid:
            self._access.check_admin(peer, "make a token for another user")
        if uid == 0 and os.geteuid() == 0:
            raise UsageError(
                "there are no tokens for root: what is submitted with one would run as root",
                hint="name a user with --user; those of `access.admins` may have --admin",
            )
        return uid


def _check(told: dict[str, Any]) -> None:
    for key, value in told.items():
        if key not in _FIELDS or not isinstance(value, _FIELDS[key]):  # type: ignore[arg-type]  # a type or some
            raise UsageError(f"`{key}` of a token cannot be {value!r} (known: {', '.join(_FIELDS)})")


def _view(token: Token) -> dict[str, Any]:
    expires = token.expires_at_s
    return {
        "id": token.id,
        "user": user_name(token.uid),
        "name": token.name,
        "admin": token.admin,
        "created_at": rfc3339(token.created_at_s),
        "expires_at": None if expires is None else rfc3339(expires),
    }
