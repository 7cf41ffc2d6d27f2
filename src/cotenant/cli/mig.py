"""`cotenant mig`: layouts of MIG instances."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.cli.common import (
    Connection,
    LocalConnection,
    connection_options,
    local_connection_options,
)
from cotenant.cli.options import cli_argument, cli_group, cli_option, json_option
from cotenant.cli.output import emit_json
from cotenant.cli.parameter_types import integer
from cotenant.core import mig
from cotenant.core.errors import NotPermitted, UsageError
from cotenant.core.units import format_bytes
from cotenant.gpus import mig as mig_commands

gpu_argument = cli_argument(
    "gpu", type=integer(minimum=0), metavar="GPU", help="Index of the GPU, as `cotenant gpus` prints it."
)


@cli_group(no_args_is_help=True)
def command() -> None:
    """Plan and create MIG instances: parts of a GPU with memory and SMs of their own.

    $ cotenant mig plan 0
    $ sudo cotenant mig apply 0 4g.20gb 2g.10gb 1g.5gb --yes
    """


@command.command("plan")
@gpu_argument
@json_option
@connection_options
def plan(gpu: int, *, json: bool, connection: Connection) -> None:
    """Propose the layout on which the pending jobs would run best. Nothing is changed.

    cotenant mig plan 0
    """
    client = connection.client()
    profiles = _instance_profiles(_find(client.gpus(), gpu))
    pending = [job for job in client.jobs(active=True) if job["state"] == "PENDING" and job["gpus"] == 1]
    queue = [mig.MigDemand(job_id=job["id"], bytes=job["need_bytes"]) for job in pending if job["need_bytes"]]
    proposed = mig.plan(queue, profiles)
    if json:
        emit_json(_as_json(proposed, waiting=len(pending)))
        return
    _print(proposed, queue, unknown=len(pending) - len(queue))
    print(f"to create it: sudo cotenant mig apply {gpu} {' '.join(mig.profile_names(proposed.layout))} --yes")


@command.command("apply")
@gpu_argument
@cli_argument("profiles", nargs=-1, required=True, metavar="PROFILE...", help="Instances, e.g. `3g.20gb 2g.10gb`.")
@cli_option("--yes", is_flag=True, help="Create them; without it the commands are only printed.")
@json_option
@local_connection_options
def apply(gpu: int, profiles: Sequence[str], *, yes: bool, json: bool, connection: LocalConnection) -> None:
    """Replace the instances of a GPU. The GPU must be in MIG mode, and no process may use it.

    $ cotenant mig apply 0 3g.20gb 3g.20gb
    """
    client = connection.client()
    if client.is_remote:
        raise UsageError("a layout is created on the machine itself", hint="unset COTENANT_HOST; use ssh")
    gpus = client.gpus()
    layout = mig.layout_of(profiles, _instance_profiles(_find(gpus, gpu)))
    views = [view for view in gpus if view["index"] == gpu]
    had_instances = any(view["mig_parent"] is not None for view in views)
    _check_idle(views)
    todo = mig_commands.commands(gpu, layout, had_instances=had_instances)
    if yes:
        if os.geteuid() != 0:
            raise NotPermitted("only root can change MIG layouts", hint="run it with sudo")
        mig_commands.apply(gpu, layout, had_instances=had_instances)
    if json:
        emit_json({"done": yes, "commands": todo})
        return
    for line in todo:
        print(" ".join(line))
    print("done; the daemon finds the instances within a minute" if yes else "nothing was changed; add --yes to do it")


def _find(gpus: Sequence[Mapping[str, Any]], index: int) -> Mapping[str, Any]:
    for gpu in gpus:
        if gpu["index"] == index:
            return gpu
    raise UsageError(f"no GPU {index} (known: {', '.join(sorted({str(gpu['index']) for gpu in gpus})) or 'none'})")


def _instance_profiles(gpu: Mapping[str, Any]) -> tuple[mig.InstanceProfile, ...]:
    from cotenant.gpu_specs import gpu_spec

    spec = gpu_spec(gpu["name"].partition(" MIG ")[0])
    return mig.parse_profiles([(profile.name, profile.memory_bytes) for profile in spec.mig])


def _check_idle(gpus: Sequence[Mapping[str, Any]]) -> None:
    for gpu in gpus:
        if gpu["residents"]:
            jobs = ", ".join(str(resident["job_id"]) for resident in gpu["residents"])
            raise UsageError(f"jobs run on GPU {gpu['index']}: {jobs}", hint="wait for them, or cancel them")
        if gpu["foreign_bytes"] is None:
            raise UsageError(
                f"GPU {gpu['index']} cannot be read, so a process may be using it", hint="see `cotenant doctor`"
            )


def _as_json(proposed: mig.MigPlan, *, waiting: int) -> dict[str, Any]:
    jobs = {place: job_id for job_id, place in proposed.placed}
    instances = [
        {
            "profile": instance.profile.name,
            "start": instance.start,
            "memory_bytes": instance.profile.memory_bytes,
            "job_id": jobs.get(place),
        }
        for place, instance in enumerate(proposed.layout)
    ]
    return {"instances": instances, "placed": len(proposed.placed), "waiting": waiting, "speed": proposed.speed}


def _print(proposed: mig.MigPlan, queue: Sequence[mig.MigDemand], *, unknown: int) -> None:
    demands = {demand.job_id: demand for demand in queue}
    jobs = {place: job_id for job_id, place in proposed.placed}
    for place, instance in enumerate(proposed.layout):
        resident = "free"
        if place in jobs:
            demand = demands[jobs[place]]
            speed = mig.predicted_speed(demand, instance.profile)
            resident = f"job {demand.job_id}: {format_bytes(demand.bytes)}, {speed:.0%} of its speed"
        print(f"{instance.profile.name:<10} {format_bytes(instance.profile.memory_bytes):>9}  {resident}")
    print(f"{len(proposed.placed)} of {len(queue)} pending jobs would run at once", end="")
    print(f"; the memory of {unknown} more is unknown" if unknown else "")
