"""The process of one replay: jobs as JSON on stdin, the simulator's report as HTML on stdout.

It is a process of its own, with limits on its time and memory: a replay takes seconds of CPU, which pages do not wait
for. What it fails with is one line on stderr.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cotenant.core.codec import decode
from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.job import Job
from cotenant.core.units import GiB
from cotenant.gpu_specs import all_gpu_specs, gpu_spec_for_nvml

GPU_NAMES = frozenset(spec.name for spec in all_gpu_specs())
CPU_S = 120
MAX_BYTES = 4 * GiB
"""Of address space: numpy and its BLAS reserve some of it for threads."""


def main() -> int:
    """Replay; the exit code."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    task: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    try:
        text = _report(task)
    except CotenantError as error:
        sys.stderr.write(error.message + "\n")
        return error.exit_code
    except MemoryError:
        sys.stderr.write(f"the replay needs more than {MAX_BYTES // GiB} GiB of memory\n")
        return 1
    sys.stdout.buffer.write(text.encode())
    return 0


def _report(task: Mapping[str, Any]) -> str:
    from cotenant.sim import cluster
    from cotenant.sim.engine.config import SimulationConfig
    from cotenant.sim.evaluation import Experiment, evaluate
    from cotenant.sim.limits.makespan_limits import makespan_limits
    from cotenant.sim.report.page import report
    from cotenant.sim.traces.journal import of_jobs

    jobs: list[Job] = [decode(Job, job) for job in task["jobs"]]
    experiment = Experiment(
        trace=of_jobs(jobs, task["name"]),
        cluster=cluster.parse(cluster_text(task["gpus"])),
        config=SimulationConfig(record=True),
    )
    evaluation = evaluate(experiment, task["policies"], bootstrap=0, seed=0)
    return report(evaluation, makespan_limits(evaluation)).text()


def cluster_text(gpus: Sequence[Mapping[str, Any]]) -> str:
    """The GPUs of a daemon as the simulator takes them, e.g. `4xA100-40GB`.

    Raises:
        UsageError: some are MIG instances.
    """
    counts: dict[str, int] = {}
    for gpu in gpus:
        if gpu["mig_profile"] is not None:
            hint = "replay its journal with cotenant simulate --from-journal"
            raise UsageError(f"this server has MIG instances, whose layout the API does not give; {hint}")
        spec = gpu_spec_for_nvml(gpu["name"], gpu["memory_total_bytes"])
        if spec is not None:
            name = spec.name
        elif gpu["name"] in GPU_NAMES:  # a simulated GPU has the name of the table
            name = gpu["name"]
        else:
            name = f"GPU-{max(1, round(gpu['memory_total_bytes'] / GiB))}GB"
        counts[name] = counts.get(name, 0) + 1
    return ",".join(f"{count}x{name}" for name, count in counts.items())


if __name__ == "__main__":
    sys.exit(main())
