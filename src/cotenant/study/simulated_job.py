"""A job of `cotenant study collocate` on a simulated GPU: `python simulated_job.py REQUEST ANSWER`.

It reads the same request and writes the same answer as `measurement/probe.py`. The job is a measured workload, named by
its list or by `--workload`; it takes the memory and the activity that were measured, and its steps take as long as its
neighbors on the simulated GPU let them: time-sliced as the published pairs say, under MPS and on a MIG instance as the
simulator's rules do (`sim/interference/sharing.py`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.gpu import Sharing
from cotenant.core.units import format_bytes
from cotenant.measurement.probe import hold, save
from cotenant.measurement.sharing import SIMULATED_SHARING
from cotenant.sim import cluster
from cotenant.sim.interference import Interference, PairTable, TrueActivity, standard
from cotenant.sim.interference.model import DEFAULT_GPU
from cotenant.sim.interference.sharing import slice_speed
from cotenant.sim.workloads import A100_CONTEXT_BYTES, pair_speeds, workload, workloads
from cotenant.simserver.gpu import SimulatedOutOfMemory
from cotenant.simserver.job_progress import JobProgress
from cotenant.simserver.oom_message import out_of_memory_text
from cotenant.simserver.server import SimulatedServer

STEP_S = 0.02
"""Seconds of a step of the job alone."""
LOOK_S = 0.005


def main() -> None:
    """Run the request."""
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        body = run(request)
    except SimulatedOutOfMemory as error:
        body = {
            "outcome": "oom",
            "message": out_of_memory_text(error, Path(__file__), device=0).strip().splitlines()[-1],
        }
    except CotenantError as error:
        body = {"outcome": "error", "message": error.message}
    save(Path(sys.argv[2]), body)
    hold()
    os._exit(0)


def run(request: dict[str, object]) -> dict[str, object]:
    """Train until the request is fulfilled; the answer."""
    program = request["program"]
    assert isinstance(program, dict)
    job = workload(str(request["simulated"]) or workload_name(program["args"]))
    server = SimulatedServer.open(Path(os.environ["COTENANT_SIM_SERVER"]))
    way, _, profile = os.environ.get(SIMULATED_SHARING, "time-sliced").partition(":")
    if profile:
        gpu_type = f"{server.gpu(0).model}/{profile}"
        (slot,) = cluster.parse(f"1x{gpu_type}").slots
        if job.peak_bytes > slot.gpu.memory_total_bytes:
            needs, has = format_bytes(job.peak_bytes), format_bytes(slot.gpu.memory_total_bytes)
            return {"outcome": "oom", "message": f"CUDA out of memory: {needs} on an instance of {has}"}
        shared: Interference = _Instance(gpu_type)
    else:
        shared = _Mps() if way == "mps" else PairTable(pair_speeds())
    attachment = server.attach(server.uuids[0], context_bytes=A100_CONTEXT_BYTES, label=job.name)
    attachment.allocate(job.peak_bytes - A100_CONTEXT_BYTES)
    activity = {"smact": job.smact, "smocc": job.smocc, "drama": job.drama, "utilization": job.utilization}
    attachment.set_activity(**activity)
    shown_speed = 1.0
    progress = JobProgress(shared, [attachment.key], since_s=server.now_s())
    warmup, seconds, steps = int(str(request["warmup_steps"])), request["seconds"], int(str(request["steps"]))
    ended: list[float] = []
    timed_from_s: float | None = None
    first = 0
    while True:
        time.sleep(LOOK_S)
        progress.advance([attachment.changes()], server.now_s())
        if progress.speed != shown_speed:
            shown_speed = progress.speed
            attachment.set_activity(**activity, speed=shown_speed)
        while progress.done_s >= STEP_S * (len(ended) + 1):
            # Progress is linear since the last look: the step ended before now by what is left over, at this speed.
            over_s = (progress.done_s - STEP_S * (len(ended) + 1)) / progress.speed
            ended.append(time.time() - over_s)
        if timed_from_s is None and len(ended) >= warmup:
            if request.get("barrier"):
                _wait_for_others(request)
                progress.advance([attachment.changes()], server.now_s())
                progress.done_s = STEP_S * len(ended)  # the wait was no training
            timed_from_s, first = time.time(), len(ended)
        elif timed_from_s is not None and (
            len(ended) >= first + steps if seconds is None else time.time() - timed_from_s >= float(str(seconds))
        ):
            break
    return {
        "outcome": "ok",
        "message": "",
        "steps": len(ended),
        "step_ended_s": ended,
        # As the probe: the step after the wait does not count.
        "warmup_steps": warmup + bool(request.get("barrier")),
        "peak_reserved_bytes": job.peak_bytes - A100_CONTEXT_BYTES,
    }


class _Mps:
    """Speeds under MPS, by the simulator's rule; it is the same for all GPUs."""

    def speeds(
        self,
        members: Sequence[TrueActivity],
        gpu_type: str = DEFAULT_GPU,
        sharing: Sharing = "mps",  # noqa: ARG002 -- always MPS
    ) -> Sequence[float]:
        return standard().speeds([_measured(member) for member in members], gpu_type, "mps")


class _Instance:
    """Speeds on MIG instances of this type, one for each job: neighbors do not matter."""

    def __init__(self, gpu_type: str) -> None:
        self._gpu_type = gpu_type

    def speeds(
        self,
        members: Sequence[TrueActivity],
        gpu_type: str = DEFAULT_GPU,  # noqa: ARG002 -- its own
        sharing: Sharing = "mig",  # noqa: ARG002
    ) -> Sequence[float]:
        return [slice_speed(_measured(member), self._gpu_type) for member in members]


def _measured(member: TrueActivity) -> TrueActivity:
    """All that was measured of the workload; a simulated GPU records its name and SM activity only."""
    found = workloads().get(member.workload or "")
    if found is None:
        return member
    return TrueActivity(found.name, found.smact, found.smocc, found.drama, found.utilization, found.peak_bytes)


def workload_name(args: Sequence[str]) -> str:
    """The value of `--workload`.

    Raises:
        UsageError: there is none.
    """
    if "--workload" in args[:-1]:
        return args[list(args).index("--workload") + 1]
    raise UsageError(
        "no `--workload NAME` among the arguments",
        hint="a job on a simulated GPU is a measured workload; or set `simulated` in the list",
    )


def _wait_for_others(request: dict[str, object]) -> None:
    Path(str(request["warm_path"])).touch()
    while not Path(str(request["go_path"])).exists():
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
