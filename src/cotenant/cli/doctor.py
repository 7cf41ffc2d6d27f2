"""`cotenant doctor`."""

from __future__ import annotations

import dataclasses

from cotenant.cli.common import Json, LocalSocket
from cotenant.cli.output import emit_json
from cotenant.daemon.config.paths import socket_path


def command(*, json: Json = False, socket: LocalSocket = None) -> int:
    """What works on this machine, what is missing, and what to do about it. Nothing is changed.

    Exit code 1 if something is in the way, 0 otherwise, warnings included.

    $ cotenant doctor
    """
    from cotenant.daemon.doctor import examine

    found = []
    for each in examine(socket_path() if socket is None else socket.absolute()):
        found.append(each)
        if not json:
            print(f"{each.grade:<9} {each.subject:<12} {each.detail}")
            if each.advice:
                print(f"{'':<9} {'':<12} -> {each.advice}")
    if json:
        emit_json({"findings": [dataclasses.asdict(each) for each in found]})
    return int(any(each.grade == "problem" for each in found))
