"""`cotenant doctor`: what works on this machine, and what a trace replaces in torch."""

from __future__ import annotations

import dataclasses

from cotenant.cli.common import LocalConnection, TableOptions, local_connection_options
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import Column, emit_json
from cotenant.core.errors import UsageError
from cotenant.daemon.config.paths import socket_path

PATCH_COLUMNS = (
    Column(key="phase", title="PHASE"),
    Column(key="target", title="TARGET"),
    Column(key="present", title="PRESENT"),
    Column(key="reason", title="REASON"),
)


@cli_command()
@cli_option("--patches", is_flag=True, help="List what a trace replaces in torch and in other libraries, and why.")
@json_option
@local_connection_options
def command(*, patches: bool, json: bool, connection: LocalConnection) -> int:
    """Check what works on this machine and what is missing, and print what to do. Nothing is changed.

    Exit code 1 if there is a problem; 0 otherwise, warnings included.

    --patches lists the functions that a trace replaces in the installed torch and in other libraries. PRESENT is `no`
    if this version has none of that name, and `-` if the library is not loaded.

      cotenant doctor
      cotenant doctor --patches
    """
    if patches:
        _print_patches(json=json)
        return 0
    from cotenant.daemon.doctor import examine

    found = []
    for diagnosis in examine(socket_path() if connection.socket is None else connection.socket.absolute()):
        found.append(diagnosis)
        if not json:
            print(f"{diagnosis.severity:<9} {diagnosis.subject:<12} {diagnosis.detail}")
            if diagnosis.advice:
                print(f"{'':<9} {'':<12} -> {diagnosis.advice}")
    if json:
        emit_json({"findings": [dataclasses.asdict(diagnosis) for diagnosis in found]})
    return int(any(diagnosis.severity == "problem" for diagnosis in found))


def _print_patches(*, json: bool) -> None:
    """Print the patches of a trace.

    Raises:
        UsageError: torch is not installed.
    """
    from cotenant.tracing.patches.catalog import list_patches

    try:
        patches = list_patches()
    except ImportError as error:
        raise UsageError(
            f"the patches cannot be listed: {error}", hint="install the extra `torch`: pip install 'cotenant[torch]'"
        ) from error
    if json:
        emit_json({"patches": [dataclasses.asdict(patch) for patch in patches]})
        return
    answers = {True: "yes", False: "no", None: "-"}
    rows = [
        {"phase": patch.phase, "target": patch.target, "present": answers[patch.is_present], "reason": patch.reason}
        for patch in patches
    ]
    TableOptions().print(rows, PATCH_COLUMNS)
