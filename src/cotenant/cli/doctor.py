"""`cotenant doctor`: what works on this machine."""

from __future__ import annotations

import dataclasses

from cotenant.cli.common import LocalConnection, local_connection_options
from cotenant.cli.options import cli_command, json_option
from cotenant.cli.output import emit_json
from cotenant.daemon.config.paths import socket_path


@cli_command()
@json_option
@local_connection_options
def command(*, json: bool, connection: LocalConnection) -> int:
    """Check what works on this machine and what is missing, and print what to do. Nothing is changed.

    Exit code 1 if there is a problem; 0 otherwise, warnings included.

      cotenant doctor
    """
    from cotenant.daemon.doctor import examine

    found = []
    for diagnosis in examine(socket_path() if connection.socket is None else connection.socket.absolute()):
        found.append(diagnosis)
        if not json:
            print(f"{diagnosis.grade:<9} {diagnosis.subject:<12} {diagnosis.detail}")
            if diagnosis.advice:
                print(f"{'':<9} {'':<12} -> {diagnosis.advice}")
    if json:
        emit_json({"findings": [dataclasses.asdict(diagnosis) for diagnosis in found]})
    return int(any(diagnosis.grade == "problem" for diagnosis in found))
