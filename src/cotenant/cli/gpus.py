"""`cotenant gpus`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from cotenant.cli import sparkline
from cotenant.cli.common import Format, Json, NoHeader, Socket, new_client
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.slurm_options import parse_option
from cotenant.core.units import format_bytes, parse_duration
from cotenant.daemon.client import Client

COLUMNS = (
    Column(key="gpu", title="GPU", right=True),
    Column(key="name", title="NAME"),
    Column(key="total", title="TOTAL", right=True),
    Column(key="used", title="USED", right=True),
    Column(key="promised", title="PROMISED", right=True),
    Column(key="strangers", title="STRANGERS", right=True),
    Column(key="available", title="AVAILABLE", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="power", title="POWER", right=True),
    Column(key="residents", title="RESIDENTS"),
)


History = Annotated[
    str | None,
    typer.Option("--history", metavar="TIME", help="The past instead: 10 (minutes), 2:00:00, 1-00:00."),
]


def command(
    *,
    history: History = None,
    form: Format = None,
    no_header: NoHeader = False,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """The GPUs: what is in use, what is promised, and who lives there.

    AVAILABLE is what may still be promised: the total less the memory of strangers and, for each resident, the
    larger of its promise and what it was seen to use. A dash there means that it cannot be told, and that nothing
    is admitted. RESIDENTS are jobs, as ID:NAME.

    With --history: what was read of them over that time, up to now. The last quarter of an hour is known by the second,
    three days by the minute; a blank is a time in which nothing was read.

      cotenant gpus
      cotenant gpus --history 2:00:00
      cotenant gpus --no-header --format gpu,available
    """
    past_s = parse_option("--history", history, parse_duration)
    client = new_client(socket)
    if past_s is not None:
        _print_past(client, past_s, form=form, header=not no_header, json=json)
        return
    found = client.gpus()
    if json:
        emit_json({"gpus": found})
        return
    print_table([_row(each) for each in found], COLUMNS, only=form, header=not no_header)


def _print_past(client: Client, past_s: float, *, form: str | None, header: bool, json: bool) -> None:
    found = client.gpu_history(past_s)
    if json:
        emit_json({"gpus": found})
        return
    ends = [each["at_s"] + each["seconds"] for gpu in found for each in gpu["points"]]
    if not ends:
        note("nothing was read in that time; minutes are known once they are over")
    until_s = max(ends, default=0.0)
    lines = [line for gpu in found for line in sparkline.history_rows(gpu, since_s=until_s - past_s, until_s=until_s)]
    print_table(lines, sparkline.COLUMNS, only=form, header=header)


def _row(gpu: Mapping[str, Any]) -> dict[str, str]:
    return {
        "gpu": str(gpu["index"]),
        "name": gpu["name"] + (f" MIG {gpu['mig_profile']}" if gpu["mig_profile"] else ""),
        "total": format_bytes(gpu["memory_total_bytes"]),
        "used": format_bytes(gpu["used_bytes"]),
        "promised": format_bytes(gpu["promised_bytes"]),
        "strangers": format_bytes(gpu["foreign_bytes"]),
        "available": format_bytes(gpu["available_bytes"]),
        "smact": "-" if gpu["smact"] is None else f"{gpu['smact']:.2f}",
        "power": "-" if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W",
        "residents": " ".join(f"{each['job_id']}:{each['name']}" for each in gpu["residents"]) or "-",
    }
