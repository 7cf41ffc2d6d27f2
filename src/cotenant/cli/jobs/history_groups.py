"""`cotenant history --by`: sums by user, and what was learned of each workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.cli.common import TableOptions
from cotenant.cli.output import Column
from cotenant.core.units import format_bytes, format_duration, format_energy

USER_COLUMNS = (
    Column(key="user", title="USER"),
    Column(key="jobs", title="JOBS", right=True),
    Column(key="gpu_hours", title="GPU-H", right=True),
    Column(key="share_hours", title="SHARE-H", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="memory", title="MEMORY", right=True),
    Column(key="power", title="POWER", right=True),
    Column(key="kwh", title="KWH", right=True),
    Column(key="idle", title="IDLE", right=True),
)
WORKLOAD_COLUMNS = (
    Column(key="runs", title="RUNS", right=True),
    Column(key="need", title="NEEDS", right=True),
    Column(key="time", title="TIME", right=True),
    Column(key="smact", title="SMACT", right=True),
    Column(key="rate", title="STEPS/S", right=True),
    Column(key="sensitivity", title="SENSITIVITY", right=True),
    Column(key="aggressiveness", title="AGGRESSIVENESS", right=True),
    Column(key="workload", title="WORKLOAD"),
)


def print_users(users: Sequence[Mapping[str, Any]], table: TableOptions) -> None:
    """Print one line for each user."""
    table.print([_user_row(user) for user in users], USER_COLUMNS)


def print_workloads(workloads: Sequence[Mapping[str, Any]], table: TableOptions) -> None:
    """Print one line for each workload, and below it one for each set of workloads that it ran beside."""
    rows = []
    for workload in workloads:
        rows.append(_workload_row(workload))
        rows += [_co_run_row(co_run) for co_run in workload["co_runs"]]
    table.print(rows, WORKLOAD_COLUMNS)


def usage_cells(usage: Mapping[str, Any] | None) -> dict[str, str]:
    """What one job used, for a table of jobs."""
    if usage is None:
        return {"gpu_hours": "-", "smact": "-", "energy": "-"}
    return {
        "gpu_hours": f"{usage['gpu_s'] / 3600:.2f}",
        "smact": _ratio(usage["smact"]),
        "energy": format_energy(usage["energy_j"]),
    }


def _user_row(user: Mapping[str, Any]) -> dict[str, str]:
    return {
        "user": user["user"],
        "jobs": str(user["jobs"]),
        "gpu_hours": f"{user['gpu_s'] / 3600:.2f}",
        "share_hours": f"{user['gpu_share_s'] / 3600:.2f}",
        "smact": _ratio(user["smact"]),
        "memory": format_bytes(user["mean_bytes"]),
        "power": "-" if user["power_w"] is None else f"{user['power_w']:.0f} W",
        "kwh": "-" if user["energy_j"] is None else f"{user['energy_j'] / 3.6e6:.3f}",
        "idle": f"{user['idle_energy_j'] / user['energy_j']:.0%}" if user["energy_j"] else "-",
    }


def _workload_row(workload: Mapping[str, Any]) -> dict[str, str]:
    need = workload["need_bytes"] or workload["min_bytes"]
    return {
        "runs": str(workload["runs"]),
        "need": format_bytes(need) + ("" if workload["is_certain"] or need is None else "?"),
        "time": format_duration(workload["duration_s"]),
        "smact": _ratio(workload["smact"]),
        "rate": _rate(workload["steps_hz"]),
        "sensitivity": _factor(workload["sensitivity"]),
        "aggressiveness": _factor(workload["aggressiveness"]),
        "workload": workload["workload"],
    }


def _co_run_row(co_run: Mapping[str, Any]) -> dict[str, str]:
    """The workload's rate beside others, and under SENSITIVITY its slowdown there."""
    return {
        "runs": "",
        "need": "",
        "time": format_duration(co_run["seconds"]),
        "smact": "",
        "rate": _rate(co_run["steps_hz"]),
        "sensitivity": _factor(co_run["slowdown"]),
        "aggressiveness": "",
        "workload": "  beside " + " and ".join(name or "an unnamed workload" for name in co_run["workloads"]),
    }


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _rate(steps_hz: float | None) -> str:
    return "-" if steps_hz is None else f"{steps_hz:.3g}"


def _factor(factor: float | None) -> str:
    return "-" if factor is None else f"x{factor:.2f}"
