"""`cotenant simulate --forecast`: the queue of a live daemon, played forward."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli.common import new_client
from cotenant.cli.output import Column, emit_json, print_table
from cotenant.cli.slurm_options import parse_option
from cotenant.core.gpu import Gpu
from cotenant.core.units import format_duration, parse_duration

if TYPE_CHECKING:
    from cotenant.sim.forecast import ForecastInput

NOW_S = 1.0


def print_forecast(
    names: Sequence[str] | None,
    options: Mapping[str, Mapping[str, object]],
    *,
    socket: Path | None,
    assume: str,
    seed: int,
    json: bool,
) -> None:
    """For every waiting job: seconds until it starts, under each policy, as it is and with one more GPU.

    Without `names`, the policy is the daemon's, with the options given here or their defaults.
    """
    from cotenant.scheduling import policies
    from cotenant.sim import forecast
    from cotenant.sim.engine.config import SimulationConfig

    assumed_s = parse_option("--default-runtime", assume, parse_duration)
    client = new_client(socket)
    jobs, gpus = client.records(), [_gpu(each) for each in client.gpus()]
    found = forecast.forecast_input(jobs, gpus, at_s=time.time(), assumed_s=assumed_s)
    config = SimulationConfig(seed=seed)
    rows = []
    for name in names or [str(client.status()["policy"])]:
        policy = policies.create(name, options.get(name))
        now = forecast.forecast_starts(found, policy, config=config)
        more = forecast.forecast_starts(forecast.with_extra_gpu(found), policy, config=config) if gpus else {}
        rows.append((name, now, more))
    if json:
        emit_json(_told(found, rows))
    else:
        _print(found, rows)


def _gpu(view: Mapping[str, Any]) -> Gpu:
    return Gpu(
        uuid=view["uuid"],
        index=view["index"],
        name=view["name"],
        memory_total_bytes=view["memory_total_bytes"],
        mig_parent=view["mig_parent"],
        mig_profile=view["mig_profile"],
    )


_Rows = Sequence[tuple[str, Mapping[int, float | None], Mapping[int, float | None]]]


def _told(found: ForecastInput, rows: _Rows) -> dict[str, Any]:
    return {
        "running": len(found.placed),
        "jobs": [
            {
                "id": each.job.id,
                "name": each.job.spec.name,
                "duration_s": each.duration_s,
                "known_from": each.known_from,
                "starts_in_s": {name: now[each.job.id] for name, now, _ in rows},
                "starts_in_with_one_more_gpu_s": {name: more.get(each.job.id) for name, _, more in rows},
            }
            for each in found.waiting
        ],
    }


def _print(found: ForecastInput, rows: _Rows) -> None:
    if not found.waiting:
        print(f"no job waits; {len(found.placed)} run")
        return
    columns = [
        Column(key="id", title="JOB", right=True),
        Column(key="name", title="NAME"),
        Column(key="runs", title="RUNS FOR", right=True),
    ]
    for name, _, _ in rows:
        columns.append(Column(key=name, title=name.upper(), right=True))
        columns.append(Column(key=f"{name}+1", title="+1 GPU", right=True))
    lines = []
    for each in found.waiting:
        known = "" if each.known_from == "history" else f" ({each.known_from})"
        line = {"id": str(each.job.id), "name": each.job.spec.name, "runs": format_duration(each.duration_s) + known}
        for name, now, more in rows:
            line[name] = _when(now[each.job.id])
            line[f"{name}+1"] = _when(more.get(each.job.id))
        lines.append(line)
    print_table(lines, columns)


def _when(start_s: float | None) -> str:
    if start_s is None:
        return "never"
    return "now" if start_s < NOW_S else f"in {format_duration(start_s)}"
