"""`cotenant token`: tokens for the daemon on the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.cli.common import LocalConnection, TableOptions, local_connection_options, table_options
from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import Column, emit_json, hint, note
from cotenant.cli.parameter_types import Parsed
from cotenant.core.units import parse_duration

COLUMNS = (
    Column(key="id", title="TOKEN"),
    Column(key="user", title="USER"),
    Column(key="name", title="NAME"),
    Column(key="admin", title="ADMIN"),
    Column(key="created", title="CREATED"),
    Column(key="expires", title="EXPIRES"),
)


@cli_group(no_args_is_help=True)
def command() -> None:
    """Create, list and revoke tokens. A token lets its holder use the daemon over the network, as one user.

    The daemon listens on the network if its configuration has `[tcp] listen`. Tokens are created and revoked on the
    daemon's machine, through its socket.

    $ cotenant token create --name laptop --expires 30-0
    $ COTENANT_HOST=gpu1 COTENANT_TOKEN=cot_... cotenant ls
    """


@command.command("create")
@cli_option("--name", default="", metavar="TEXT", show_default=False, help="Name of the token, to recognize it by.")
@cli_option(
    "--expires",
    "lifetime_s",
    type=Parsed("duration", parse_duration),
    metavar="TIME",
    help="Lifetime: HH:MM:SS; 30-0 is 30 days. Without it, the token never expires.",
)
@cli_option("--admin", is_flag=True, help="Give it your admin rights.")
@cli_option("--user", metavar="NAME", help="Create it for another user; admins only.")
@json_option
@local_connection_options
def create(
    *, name: str, lifetime_s: float | None, admin: bool, user: str | None, json: bool, connection: LocalConnection
) -> None:
    """Create a token and print it, only this once. The daemon stores a hash of it.

    $ cotenant token create --name laptop > token; chmod 600 token
    """
    client = connection.client()
    token = client.create_token(name=name, admin=admin, user=user, lifetime_s=lifetime_s)
    if json:
        emit_json({"token": token})
        return
    print(token["text"])
    until = "until it is revoked" if token["expires_at"] is None else f"until {token['expires_at']}"
    note(f"token {token['id']} acts as {token['user']}{' and admin' if admin else ''}, {until}; it is not shown again")
    status = client.status()
    address, page = status["tcp"], status["web"]
    if page is not None:
        hint(f"in a browser: {page}")
    if address is None and page is None:
        note("warning: this daemon does not listen on the network; set `[tcp] listen` in its configuration")
    elif address is not None:
        hint(f"elsewhere: put it into ~/.config/cotenant/token, then cotenant ls --host ADDRESS (here {address})")


@command.command("list")
@table_options
@json_option
@local_connection_options
def list_tokens(*, table: TableOptions, json: bool, connection: LocalConnection) -> None:
    """List your tokens; admins see all.

    cotenant token list
    """
    tokens = connection.client().tokens()
    if json:
        emit_json({"tokens": tokens})
    else:
        table.print([_row(token) for token in tokens], COLUMNS)


@command.command("revoke")
@cli_argument("tokens", nargs=-1, required=True, metavar="TOKEN...", help="Ids, as `cotenant token list` prints them.")
@json_option
@local_connection_options
def revoke(tokens: Sequence[str], *, json: bool, connection: LocalConnection) -> None:
    """Revoke tokens, at once.

    cotenant token revoke 3f2a91c0
    """
    client = connection.client()
    revoked = [client.revoke_token(token_id) for token_id in tokens]
    if json:
        emit_json({"tokens": revoked})
        return
    for token in revoked:
        print(f"token {token['id']} is revoked")


def _row(token: Mapping[str, Any]) -> dict[str, str]:
    return {
        "id": token["id"],
        "user": token["user"],
        "name": token["name"] or "-",
        "admin": "yes" if token["admin"] else "no",
        "created": token["created_at"],
        "expires": token["expires_at"] or "-",
    }
