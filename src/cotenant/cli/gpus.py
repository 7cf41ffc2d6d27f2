"""`cotenant gpus`: the GPUs, now or over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.cli import sparkline
from cotenant.cli.common import Connection, TableOptions, connection_options, table_options
from cotenant.cli.options import cli_command, cli_option, json_option
from cotenant.cli.output import Column, emit_json, note
from cotenant.cli.parameter_types import Parsed
from cotenant.core.units import format_bytes, parse_duration
from cotenant.daemon.client import Client

COLUMNS = (
    Column(key="gpu", title="GPU", right=True),
    Column(key="name", title="NAME"),
    Column(key="total", title="TOTAL", right=True),
    Column(key="used", title="USED", right=True),
    Column(key="promised", title="PROMISED", right=True),
    Column(key="foreign", title="FOREIGN", right=True),
    Column(key="available", title="AVAILABLE", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="power", title="POWER", right=True),
    Column(key="residents", title="RESIDENTS"),
)


@cli_command()
@cli_option(
    "--history",
    "history_s",
    type=Parsed("duration", parse_duration),
    metavar="TIME",
    help="Show the past TIME instead: 10 (minutes), 2:00:00, 1-00:00.",
)
@table_options
@json_option
@connection_options
def command(*, history_s: float | None, table: TableOptions, json: bool, connection: Connection) -> None:
    """List GPUs: memory in use and promised, activity, resident jobs.

    AVAILABLE is what can still be promised: the total, less FOREIGN (memory of processes that are not jobs), and less,
    for each resident job, the larger of its promise and its use. A dash means that it is unknown; nothing is admitted
    there. RESIDENTS are jobs, as ID:NAME, with `(idle)` if they compute nothing, and the number of other users' jobs.

    --history shows memory, SM activity, power and energy over TIME until now. The last 15 minutes are known by the
    second, three days by the minute; a blank is an interval without a reading.

      cotenant gpus
      cotenant gpus --history 2:00:00
      cotenant gpus --no-header --format gpu,available
    """
    client = connection.client()
    if history_s is not None:
        _print_history(client, history_s, table, json=json)
        return
    gpus = client.gpus()
    if json:
        emit_json({"gpus": gpus})
    else:
        table.print([_row(gpu) for gpu in gpus], COLUMNS)
        pilot = client.status().get("pilot")
        if pilot is not None and pilot["message"]:
            note(pilot["message"])


def _print_history(client: Client, history_s: float, table: TableOptions, *, json: bool) -> None:
    gpus = client.gpu_history(history_s)
    if json:
        emit_json({"gpus": gpus})
        return
    ends_s = [point["at_s"] + point["seconds"] for gpu in gpus for point in gpu["points"]]
    if not ends_s:
        note("no readings in that time; a minute is known once it is over")
    until_s = max(ends_s, default=0.0)
    rows = [row for gpu in gpus for row in sparkline.history_rows(gpu, since_s=until_s - history_s, until_s=until_s)]
    table.print(rows, sparkline.COLUMNS)


def _row(gpu: Mapping[str, Any]) -> dict[str, str]:
    return {
        "gpu": str(gpu["index"]),
        "name": _name(gpu),
        "total": format_bytes(gpu["memory_total_bytes"]),
        "used": format_bytes(gpu["used_bytes"]),
        "promised": format_bytes(gpu["promised_bytes"]),
        "foreign": format_bytes(gpu["foreign_bytes"]),
        "available": format_bytes(gpu["available_bytes"]),
        "smact": "-" if gpu["smact"] is None else f"{gpu['smact']:.2f}",
        "power": "-" if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W",
        "residents": _residents(gpu["residents"]),
    }


def _name(gpu: Mapping[str, Any]) -> str:
    """The model, behind the host where there are several."""
    host = f"{gpu['server']}: " if gpu.get("server") else ""
    instance = f" MIG {gpu['mig_profile']}" if gpu["mig_profile"] else ""
    return f"{host}{gpu['name']}{instance}"


def _residents(residents: Sequence[Mapping[str, Any]]) -> str:
    """`17:bert 2 of others`; a dash for none."""
    own = [
        f"{job['job_id']}:{job['name']}{'' if job['idle_s'] is None else '(idle)'}"
        for job in residents
        if job["job_id"] is not None
    ]
    hidden = len(residents) - len(own)
    return " ".join([*own, *([f"{hidden} of others"] if hidden else [])]) or "-"
