"""`cotenant token`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cotenant.cli.common import Format, Json, LocalSocket, NoHeader, new_client
from cotenant.cli.main import new_app
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.slurm_options import parse_option
from cotenant.core.units import parse_duration

COLUMNS = (
    Column(key="id", title="TOKEN"),
    Column(key="user", title="USER"),
    Column(key="name", title="NAME"),
    Column(key="admin", title="ADMIN"),
    Column(key="created", title="CREATED"),
    Column(key="expires", title="EXPIRES"),
)

app = new_app(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Tokens open the daemon on the network, `[tcp]` in its configuration. Each acts as one user.

    They are made and revoked on the machine of the daemon, over its socket.

    $ cotenant token create --name laptop --expires 30-0
    $ COTENANT_HOST=gpu1 COTENANT_TOKEN=cot_... cotenant ls
    """


@app.command("create")
def create(
    *,
    name: Annotated[str, typer.Option("--name", metavar="TEXT", help="What it is for, to know it again.")] = "",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="TIME", help="Good for so long: HH:MM:SS, 30-0 is 30 days.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="With your rights as an admin; otherwise without.")] = False,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME", help="For another user; admins only.")] = None,
    json: Json = False,
    socket: LocalSocket = None,
) -> None:
    """Make a token and print it, this once. What is kept of it does not give it back.

    $ cotenant token create --name laptop > token; chmod 600 token
    """
    lifetime_s = parse_option("--expires", expires, parse_duration)
    client = new_client(socket)
    made = client.create_token(name=name, admin=admin, user=user, lifetime_s=lifetime_s)
    if json:
        emit_json({"token": made})
        return
    print(made["text"])
    until = "until it is revoked" if made["expires_at"] is None else f"until {made['expires_at']}"
    note(f"token {made['id']} acts as {made['user']}{' and admin' if admin else ''}, {until}; it is not shown again")
    where = client.status()["tcp"]
    if where is None:
        note("warning: this daemon is not on the network; its configuration can change that: [tcp] listen")
    else:
        note(f"hint: elsewhere: put it into ~/.config/cotenant/token, then cotenant ls --host ADDRESS (here {where})")


@app.command("list")
def list_tokens(
    *, form: Format = None, no_header: NoHeader = False, json: Json = False, socket: LocalSocket = None
) -> None:
    """List your tokens; for an admin, all.

    cotenant token list
    """
    found = new_client(socket).tokens()
    if json:
        emit_json({"tokens": found})
        return
    print_table([_row(each) for each in found], COLUMNS, only=form, header=not no_header)


@app.command("revoke")
def revoke(
    tokens: Annotated[list[str], typer.Argument(metavar="TOKEN...", help="Ids, as `cotenant token list` shows them.")],
    *,
    json: Json = False,
    socket: LocalSocket = None,
) -> None:
    """Make tokens worthless, at once.

    cotenant token revoke 3f2a91c0
    """
    client = new_client(socket)
    gone = [client.revoke_token(each) for each in tokens]
    if json:
        emit_json({"tokens": gone})
        return
    for each in gone:
        print(f"token {each['id']} is revoked")


def _row(token: dict[str, Any]) -> dict[str, str]:
    return {
        "id": token["id"],
        "user": token["user"],
        "name": token["name"] or "-",
        "admin": "yes" if token["admin"] else "no",
        "created": token["created_at"],
        "expires": token["expires_at"] or "-",
    }
