"""`cotenant demo --only slurm`: one list of jobs on a real Slurm, on whole GPUs and as a pack."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from cotenant.cli.demo_text import comparison_line
from cotenant.core.units import format_bytes, format_duration
from cotenant.demo.published import PublishedJob
from cotenant.demo.run_summary import change_text
from cotenant.demo.slurm_cluster import GPUS, MODEL
from cotenant.demo.slurm_runs import Show, SlurmRun, slurm_demo

TIME_SCALE = 150.0
LIMIT_S = 600.0
LINE_EVERY_S = 10.0
"""Wall-clock time between two lines of progress."""
WAYS = ("whole GPUs", "pack")


def show_slurm(jobs: Sequence[PublishedJob], say: Callable[[str], None], *, time_scale: float) -> dict[str, Any]:
    """Run the jobs in both ways, and compare; returns what `--json` prints.

    Raises:
        CotenantError: there is no Slurm here, or it fails.
    """
    low = next((job for job in jobs if job.declared_mib), None)
    with slurm_demo(time_scale=time_scale) as demo:
        nodes = demo.cluster.nodes
        say(f"{demo.version()}: slurmctld and {len(nodes)} nodes of {GPUS} simulated {MODEL} each.")
        say(f"{len(jobs)} jobs of a published trace, all queued at once; time passes {time_scale:.0f} times faster.")
        if low is not None:
            say(
                f"{low.workload} declares {format_bytes(low.reported_bytes)} "
                f"but needs {format_bytes(low.measured_bytes)}, on purpose."
            )
        say(f"\n1. {len(jobs)} x sbatch --gres=gpu:N: each job has its GPUs to itself.")
        whole = demo.run_whole(jobs, _progress(len(jobs), say), limit_s=LIMIT_S)
        say(f"\n2. srun -N {len(nodes)} --gres=gpu:{GPUS} cotenant pack jobs.txt: jobs share GPUs where memory allows.")
        packed = demo.run_packed(jobs, _progress(len(jobs), say), limit_s=LIMIT_S)
    _compare(whole, packed, say)
    say(f"\nStarting a job takes real time, which counts {time_scale:.0f} times over in both columns.")
    return {"whole_gpus": _run_json(whole), "pack": _run_json(packed)}


def _progress(total: int, say: Callable[[str], None]) -> Show:
    due_s = 0.0

    def show(elapsed_s: float, ended: int) -> None:
        nonlocal due_s
        if time.monotonic() >= due_s or ended == total:
            due_s = time.monotonic() + LINE_EVERY_S
            say(f"   {format_duration(elapsed_s):>6}  {ended:2d} of {total} ended")

    return show


def _compare(whole: SlurmRun, packed: SlurmRun, say: Callable[[str], None]) -> None:
    say("\n" + comparison_line("", *WAYS, "change"))
    for what, whole_s, packed_s in (
        ("makespan", whole.makespan_s, packed.makespan_s),
        ("mean JCT", whole.mean_jct_s, packed.mean_jct_s),
    ):
        say(comparison_line(what, format_duration(whole_s), format_duration(packed_s), change_text(whole_s, packed_s)))
    say(comparison_line("out of memory", str(whole.ooms), str(packed.ooms), ""))
    before, after = (f"{run.jobs - len(run.failed)} of {run.jobs}" for run in (whole, packed))
    say(comparison_line("jobs completed", before, after, ""))
    for way, run in zip(WAYS, (whole, packed), strict=True):
        for sentence in (*run.recoveries, *run.failed):
            say(f"\n{way}: {sentence}.")


def _run_json(run: SlurmRun) -> dict[str, Any]:
    fields = dataclasses.asdict(run)
    del fields["ended_s"]
    return {**fields, "mean_jct_s": run.mean_jct_s}
