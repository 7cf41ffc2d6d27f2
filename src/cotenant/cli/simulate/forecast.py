"""`cotenant simulate --forecast`: when the pending jobs of a running daemon will start."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cotenant.cli.common import Connection
from cotenant.cli.output import Column, emit_json, print_table
from cotenant.cli.simulate.options import ForecastOptions, PolicyOptions
from cotenant.core.gpu import Gpu
from cotenant.core.units import format_duration

if TYPE_CHECKING:
    from cotenant.sim.forecast import ForecastInput

NOW_S = 1.0
"""A job that starts sooner is said to start now."""


def print_forecast(
    policy: PolicyOptions, options: ForecastOptions, connection: Connection, *, seed: int, json: bool
) -> None:
    """Print for every pending job the time until it starts, under each policy, as it is and with one more GPU.

    If no policy is named, it is the daemon's, with the options given here or their defaults.
    """
    from cotenant.scheduling import policies
    from cotenant.sim import forecast
    from cotenant.sim.engine.config import SimulationConfig

    settings = policy.settings(policy.names)
    client = connection.client()
    jobs, gpus = client.records(), [_gpu(view) for view in client.gpus()]
    queue = forecast.forecast_input(jobs, gpus, at_s=time.time(), assumed_s=options.default_runtime_s)
    config = SimulationConfig(seed=seed)
    columns = []
    for name in policy.names or [str(client.status()["policy"])]:
        chosen = policies.create(name, settings.get(name))
        now = forecast.forecast_starts(queue, chosen, config=config)
        more = forecast.forecast_starts(forecast.with_extra_gpu(queue), chosen, config=config) if gpus else {}
        columns.append((name, now, more))
    if json:
        emit_json(_as_json(queue, columns))
    else:
        _print(queue, columns)


def _gpu(view: Mapping[str, Any]) -> Gpu:
    return Gpu(
        uuid=view["uuid"],
        index=view["index"],
        name=view["name"],
        memory_total_bytes=view["memory_total_bytes"],
        mig_parent=view["mig_parent"],
        mig_profile=view["mig_profile"],
    )


_Columns = Sequence[tuple[str, Mapping[int, float | None], Mapping[int, float | None]]]
"""For each policy: seconds until each job starts, and the same with one more GPU; None: never."""


def _as_json(queue: ForecastInput, columns: _Columns) -> dict[str, Any]:
    return {
        "running": len(queue.placed),
        "jobs": [
            {
                "id": pending.job.id,
                "name": pending.job.spec.name,
                "duration_s": pending.duration_s,
                "duration_source": pending.duration_source,
                "starts_in_s": {name: now[pending.job.id] for name, now, _ in columns},
                "starts_in_with_one_more_gpu_s": {name: more.get(pending.job.id) for name, _, more in columns},
            }
            for pending in queue.waiting
        ],
    }


def _print(queue: ForecastInput, columns: _Columns) -> None:
    if not queue.waiting:
        print(f"no pending jobs; {len(queue.placed)} running")
        return
    table = [
        Column(key="id", title="JOB", right=True),
        Column(key="name", title="NAME"),
        Column(key="runs", title="RUNS FOR", right=True),
    ]
    for name, _, _ in columns:
        table.append(Column(key=name, title=name.upper(), right=True))
        table.append(Column(key=f"{name}+1", title="+1 GPU", right=True))
    rows = []
    for pending in queue.waiting:
        job, source = pending.job, "" if pending.duration_source == "history" else f" ({pending.duration_source})"
        row = {"id": str(job.id), "name": job.spec.name, "runs": format_duration(pending.duration_s) + source}
        for name, now, more in columns:
            row[name] = _when(now[job.id])
            row[f"{name}+1"] = _when(more.get(job.id))
        rows.append(row)
    print_table(rows, table)


def _when(start_s: float | None) -> str:
    if start_s is None:
        return "never"
    return "now" if start_s < NOW_S else f"in {format_duration(start_s)}"
