"""`cotenant gpus`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cotenant.cli.common import Format, Json, NoHeader, Socket, new_client
from cotenant.cli.output import Column, emit_json, print_table
from cotenant.core.units import format_bytes

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


def command(*, form: Format = None, no_header: NoHeader = False, json: Json = False, socket: Socket = None) -> None:
    """The GPUs: what is in use, what is promised, and who lives there.

    AVAILABLE is what may still be promised: the total less the memory of strangers and, for each resident, the
    larger of its promise and what it was seen to use. A dash there means that it cannot be told, and that nothing
    is admitted. RESIDENTS are jobs, as ID:NAME.

      cotenant gpus
      cotenant gpus --no-header --format gpu,available
    """
    found = new_client(socket).gpus()
    if json:
        emit_json({"gpus": found})
        return
    print_table([_row(each) for each in found], COLUMNS, only=form, header=not no_header)


def _row(gpu: Mapping[str, Any]) -> dict[str, str]:
    return {
        "gpu": str(gpu["index"]),
        "name": gpu["name"] + (f" MIG {gpu['mig_profile']}" if gpu["mig_profile"] else ""),
        "total": format_bytes(gpu["memory_total_bytes"]),
        "used": format_bytes(gpu["used_bytes"]),
        "promised": format_bytes(gpu["promised_bytes"]),
        "strangers": format_bytes(gpu["strangers_bytes"]),
        "available": format_bytes(gpu["available_bytes"]),
        "smact": "-" if gpu["smact"] is None else f"{gpu['smact']:.2f}",
        "power": "-" if gpu["power_w"] is None else f"{gpu['power_w']:.0f} W",
        "residents": " ".join(f"{each['job_id']}:{each['name']}" for each in gpu["residents"]) or "-",
    }
