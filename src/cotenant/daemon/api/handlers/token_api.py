"""Handlers of `/v1/tokens`. They answer on the unix socket only: no token can make, list or revoke tokens."""

from __future__ import annotations

import asyncio
import os
import pwd
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import UsageError
from cotenant.daemon.api.context import Handlers, peer_of
from cotenant.daemon.api.requests import json_response, read_object
from cotenant.daemon.api.schemas.json_objects import TokenView
from cotenant.daemon.api.submission.job_specs import user_name
from cotenant.daemon.api.views.job_words import rfc3339
from cotenant.daemon.auth.tokens import Token
from cotenant.daemon.auth.unix_socket import Peer

_FIELDS = {"name": str, "admin": bool, "lifetime_s": (int, float, type(None)), "user": (str, type(None))}


class TokenApi(Handlers):
    """One method per route."""

    async def create(self, request: Request) -> Response:
        access, peer = self._context.access, peer_of(request)
        access.check_local(peer, "make tokens")
        body = await read_object(request)
        _check(body)
        uid = self._uid_of(peer, body.get("user"))
        if body.get("admin"):
            access.check_admin(peer, "make a token with an admin's rights")
        token, text = await asyncio.to_thread(
            self._context.tokens.create,
            uid,
            body.get("name", ""),
            admin=body.get("admin", False),
            lifetime_s=body.get("lifetime_s"),
        )
        if uid != peer.uid or token.admin:
            access.note(peer, f"token {token.id} for uid {uid}")
        return json_response({"token": {**_view(token), "text": text}}, status=201)

    async def list(self, request: Request) -> Response:
        peer = peer_of(request)
        self._context.access.check_local(peer, "list tokens")
        visible = [token for token in self._context.tokens.all() if self._may_see(peer, token)]
        return json_response({"tokens": [_view(token) for token in visible]})

    async def revoke(self, request: Request) -> Response:
        access, peer = self._context.access, peer_of(request)
        access.check_local(peer, "revoke tokens")
        token_id = request.path_params["token_id"]
        token = self._context.tokens.get(token_id)
        if not self._may_see(peer, token):
            # The same answer as for an unknown token, so that the answer does not reveal which tokens exist.
            raise UsageError(f"no token `{token_id}`", hint="see `cotenant token list`")
        await asyncio.to_thread(self._context.tokens.revoke, token_id)
        if token.uid != peer.uid:
            access.note(peer, f"token {token_id} of uid {token.uid} revoked")
        return json_response({"token": _view(token)})

    def _may_see(self, peer: Peer, token: Token) -> bool:
        return token.uid == peer.uid or self._context.access.is_admin(peer)

    def _uid_of(self, peer: Peer, user: str | None) -> int:
        """The owner of a new token: the peer, or the user that an admin names."""
        access = self._context.access
        if not access.many:
            if user is not None and user != user_name(access.own_uid):
                raise UsageError(f"this daemon serves `{user_name(access.own_uid)}` alone")
            return access.own_uid
        uid = peer.uid
        if user is not None:
            try:
                uid = pwd.getpwnam(user).pw_uid
            except KeyError as error:
                raise UsageError(f"this machine has no user `{user}`") from error
        if uid != peer.uid:
            access.check_admin(peer, "make a token for another user")
        if uid == 0 and os.geteuid() == 0:
            raise UsageError(
                "there are no tokens for root: jobs submitted with one would run as root",
                hint="name a user with --user; those of `access.admins` may have --admin",
            )
        return uid


def _check(body: dict[str, Any]) -> None:
    for key, value in body.items():
        if key not in _FIELDS or not isinstance(value, _FIELDS[key]):  # type: ignore[arg-type]  # a type or a tuple
            raise UsageError(f"`{key}` of a token cannot be {value!r} (known: {', '.join(_FIELDS)})")


def _view(token: Token) -> TokenView:
    return {
        "id": token.id,
        "user": user_name(token.uid),
        "name": token.name,
        "admin": token.admin,
        "created_at": rfc3339(token.created_at_s),
        "expires_at": rfc3339(token.expires_at_s),
    }
