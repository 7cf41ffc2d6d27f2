"""`cotenant mig`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from cotenant.cli.common import Json, LocalSocket, Socket, new_client
from cotenant.cli.main import new_app
from cotenant.cli.output import emit_json
from cotenant.core.errors import NotPermitted, UsageError
from cotenant.core.units import format_bytes
from cotenant.gpus import mig

GpuIndex = Annotated[int, typer.Argument(metavar="GPU", min=0, help="Index of the GPU, as `cotenant gpus` shows it.")]

app = new_app(no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Cut a GPU into instances of its own memory and SMs: propose a layout, and make it.

    $ cotenant mig plan 0
    $ sudo cotenant mig apply 0 4g.20gb 2g.10gb 1g.5gb --yes
    """


@app.command("plan")
def plan(gpu: GpuIndex, *, json: Json = False, socket: Socket = None) -> None:
    """The layout on which the waiting jobs would run best. Nothing is changed.

    cotenant mig plan 0
    """
    client = new_client(socket)
    target = _find(client.gpus(), gpu)
    slices = _slices(target)
    waiting = [each for each in client.jobs(active=True) if each["state"] == "PENDING" and each["gpus"] == 1]
    queue = [mig.MigDemand(job_id=each["id"], bytes=each["need_bytes"]) for each in waiting if each["need_bytes"]]
    found = mig.plan(queue, slices)
    if json:
        emit_json(_as_json(found, waiting=len(waiting)))
        return
    _print(found, queue, unknown=len(waiting) - len(queue))
    print(f"to make it: sudo cotenant mig apply {gpu} {' '.join(mig.profile_names(found.layout))} --yes")


@app.command("apply")
def apply(
    gpu: GpuIndex,
    profiles: Annotated[list[str], typer.Argument(metavar="PROFILE...", help="Instances, e.g. `3g.20gb 2g.10gb`.")],
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this the commands are only shown.")] = False,
    json: Json = False,
    socket: LocalSocket = None,
) -> None:
    """Remove the instances of a GPU and make these. The GPU must be in MIG mode and nobody may use it.

    $ cotenant mig apply 0 3g.20gb 3g.20gb
    """
    client = new_client(socket)
    if client.is_remote:
        raise UsageError("a layout is made on the machine itself", hint="unset COTENANT_HOST; use ssh")
    found = client.gpus()
    target = _find(found, gpu)
    layout = mig.layout_of(profiles, _slices(target))
    instances = [each for each in found if each["index"] == gpu and each["mig_parent"] is not None]
    _check_idle([each for each in found if each["index"] == gpu])
    todo = mig.commands(gpu, layout, had_instances=bool(instances))
    if yes:
        if os.geteuid() != 0:
            raise NotPermitted("MIG layouts are for root to make", hint="run it with sudo")
        mig.apply(gpu, layout, had_instances=bool(instances))
    if json:
        emit_json({"done": yes, "commands": todo})
        return
    for each in todo:
        print(" ".join(each))
    print("done; the daemon sees the instances within a minute" if yes else "nothing was changed; add --yes to do it")


def _find(gpus: Sequence[Mapping[str, Any]], index: int) -> Mapping[str, Any]:
    for each in gpus:
        if each["index"] == index:
            return each
    raise UsageError(f"no GPU {index} (known: {', '.join(sorted({str(each['index']) for each in gpus})) or 'none'})")


def _slices(gpu: Mapping[str, Any]) -> tuple[mig.InstanceProfile, ...]:
    from cotenant.gpu_specs import gpu_spec

    card = gpu_spec(gpu["name"].partition(" MIG ")[0])
    return mig.parse_profiles([(each.name, each.memory_bytes) for each in card.mig])


def _check_idle(gpus: Sequence[Mapping[str, Any]]) -> None:
    for each in gpus:
        if each["residents"]:
            jobs = ", ".join(str(resident["job_id"]) for resident in each["residents"])
            raise UsageError(f"jobs run on GPU {each['index']}: {jobs}", hint="wait for them, or cancel them")
        if each["foreign_bytes"] is None:
            raise UsageError(f"GPU {each['index']} cannot be read, so somebody may be using it")


def _as_json(found: mig.MigPlan, *, waiting: int) -> dict[str, Any]:
    jobs = {place: job_id for job_id, place in found.placed}
    instances = [
        {
            "profile": each.kind.name,
            "start": each.start,
            "memory_bytes": each.kind.memory_bytes,
            "job_id": jobs.get(place),
        }
        for place, each in enumerate(found.layout)
    ]
    return {"instances": instances, "placed": len(found.placed), "waiting": waiting, "speed": found.speed}


def _print(found: mig.MigPlan, queue: Sequence[mig.MigDemand], *, unknown: int) -> None:
    needs = {each.job_id: each for each in queue}
    jobs = {place: job_id for job_id, place in found.placed}
    for place, each in enumerate(found.layout):
        who = "free"
        if place in jobs:
            need = needs[jobs[place]]
            speed = mig.predicted_speed(need, each.kind)
            who = f"job {need.job_id}: {format_bytes(need.bytes)}, {speed:.0%} of its speed"
        print(f"{each.kind.name:<10} {format_bytes(each.kind.memory_bytes):>9}  {who}")
    print(f"{len(found.placed)} of {len(queue)} waiting jobs would run at once", end="")
    print(f"; {unknown} more have no known memory need" if unknown else "")
