"""`cotenant history --by`: sums by user, and what is known of each kind of work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.cli.output import Column, print_table
from cotenant.core.units import format_bytes, format_duration, format_energy

USER_COLUMNS = (
    Column(key="user", title="USER"),
    Column(key="jobs", title="JOBS", right=True),
    Column(key="gpu_hours", title="GPU-H", right=True),
    Column(key="own_hours", title="OWN-H", right=True),
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
    Column(key="sensitivity", title="SUFFERS", right=True),
    Column(key="aggressiveness", title="INFLICTS", right=True),
    Column(key="workload", title="WORK"),
)


def print_users(rows: Sequence[Mapping[str, Any]], *, form: str | None, header: bool) -> None:
    """A line for each user."""
    print_table([_user(each) for each in rows], USER_COLUMNS, only=form, header=header)


def print_workloads(rows: Sequence[Mapping[str, Any]], *, form: str | None, header: bool) -> None:
    """A line for each kind of work, and below it one for each company that it was in."""
    lines = []
    for each in rows:
        lines.append(_work(each))
        lines += [_beside(company) for company in each["co_runs"]]
    print_table(lines, WORKLOAD_COLUMNS, only=form, header=header)


def ratio(value: float | None) -> str:
    """Two digits, or a dash."""
    return "-" if value is None else f"{value:.2f}"


def _user(told: Mapping[str, Any]) -> dict[str, str]:
    return {
        "user": told["user"],
        "jobs": str(told["jobs"]),
        "gpu_hours": f"{told['gpu_s'] / 3600:.2f}",
        "own_hours": f"{told['gpu_share_s'] / 3600:.2f}",
        "smact": ratio(told["smact"]),
        "memory": format_bytes(told["mean_bytes"]),
        "power": "-" if told["power_w"] is None else f"{told['power_w']:.0f} W",
        "kwh": "-" if told["energy_j"] is None else f"{told['energy_j'] / 3.6e6:.3f}",
        "idle": f"{told['idle_energy_j'] / told['energy_j']:.0%}" if told["energy_j"] else "-",
    }


def _work(told: Mapping[str, Any]) -> dict[str, str]:
    need = told["need_bytes"] or told["min_bytes"]
    return {
        "runs": str(told["runs"]),
        "need": format_bytes(need) + ("" if told["is_certain"] or need is None else "?"),
        "time": format_duration(told["duration_s"]),
        "smact": ratio(told["smact"]),
        "rate": _rate(told["steps_hz"]),
        "sensitivity": _times(told["sensitivity"]),
        "aggressiveness": _times(told["aggressiveness"]),
        "workload": told["workload"],
    }


def _beside(company: Mapping[str, Any]) -> dict[str, str]:
    """Its rate in one company, and how many times as long it took there, under SUFFERS."""
    return {
        "runs": "",
        "need": "",
        "time": format_duration(company["seconds"]),
        "smact": "",
        "rate": _rate(company["steps_hz"]),
        "sensitivity": _times(company["slowdown"]),
        "aggressiveness": "",
        "workload": "  beside " + " and ".join(each or "work without a name" for each in company["workloads"]),
    }


def _rate(steps_hz: float | None) -> str:
    return "-" if steps_hz is None else f"{steps_hz:.3g}"


def _times(factor: float | None) -> str:
    return "-" if factor is None else f"x{factor:.2f}"


def usage_cells(usage: Mapping[str, Any] | None) -> dict[str, str]:
    """What one job used, for a table of jobs."""
    if usage is None:
        return {"gpu_hours": "-", "smact": "-", "energy": "-"}
    return {
        "gpu_hours": f"{usage['gpu_s'] / 3600:.2f}",
        "smact": ratio(usage["smact"]),
        "energy": format_energy(usage["energy_j"]),
    }
