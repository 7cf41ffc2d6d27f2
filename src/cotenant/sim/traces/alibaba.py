"""Two traces of Alibaba: PAI 2020 (`pai_task_table.csv`) and openb 2023 (`openb_pod_list_*.csv`).

Both have jobs that request a fraction of a GPU; neither records GPU memory. A fraction is taken as that share of the
memory and SM activity of an A100-40GB, as Alibaba packs such jobs. Jobs of whole GPUs have no profile. Source:
alibaba/clusterdata, cluster-trace-gpu-v2020 and cluster-trace-gpu-v2023, README.
"""

from __future__ import annotations

import functools
from pathlib import Path

from cotenant.core.units import MiB
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.traces.formats import TraceFormat
from cotenant.sim.traces.rows import Collected, TraceRow, columns_of, head, rows, stem

TASK_COLUMNS = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
WHOLE_BYTES = 40960 * MiB
NOTE = "a fraction of a GPU is taken as that share of its memory and SM activity"

PAI_EXAMPLE = """\
9e04f3,tensorflow,1,Terminated,4550879.0,4551416.0,600.0,29.297,50.0,MISC
5adf8b,worker,4,Failed,4550900.0,4560900.0,600.0,29.297,100.0,V100
5adf8b,ps,2,Terminated,4550900.0,4560900.0,600.0,29.297,,
77a0c1,evaluator,1,Running,4550950.0,,600.0,29.297,25.0,T4
"""

OPENB_EXAMPLE = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0.0
openb-pod-0001,6000,12288,1,460,,LS,Failed,427061,12902960,427061.0
openb-pod-0002,88000,327680,8,1000,,Burstable,Succeeded,1558592,1558992,1558592.0
openb-pod-0003,4000,8192,0,0,,BE,Succeeded,1558600,1558700,1558601.0
"""


def _recognizes_tasks(path: Path, first: str) -> bool:
    titles = columns_of(first)
    named = all(column in titles for column in ("inst_num", "plan_gpu", "start_time"))
    return named or ("task" in path.name and "pai" in path.name and len(titles) == len(TASK_COLUMNS))


def _recognizes_pods(_path: Path, first: str) -> bool:
    titles = columns_of(first)
    return "gpu_milli" in titles and ("creation_time" in titles or "submit_s" in titles)


def read_tasks(path: Path) -> Trace:
    """Read the tasks that ran on GPUs, as jobs submitted when they started: the table has no submission times."""
    named = "plan_gpu" in columns_of(head(path))
    found = Collected()
    for row in rows(path, columns=None if named else TASK_COLUMNS):
        _add_task(found, row)
    return found.trace(stem(path), path, NOTE, "a task counts as submitted when it started")


def _add_task(found: Collected, row: TraceRow) -> None:
    start_s, end_s, percent = row.number("start_time"), row.number("end_time"), row.number("plan_gpu")
    if not percent:
        found.skip("requests no GPU")
        return
    if start_s is None or end_s is None or end_s <= start_s:
        found.skip("no run time")
        return
    instances = int(row.number("inst_num") or 1)
    task_milli = round(percent * 10)
    whole = max(1, -(-task_milli // 1000))
    found.add(
        TraceJob(
            submit_s=start_s,
            duration_s=end_s - start_s,
            gpus=whole * instances,
            profile=share_profile(task_milli) if task_milli < 1000 else None,
            failed=row.text("status") == "Failed",
            user=row.text("job_name"),
            workload="" if task_milli < 1000 else row.text("task_name"),
        )
    )


def read_pods(path: Path) -> Trace:
    """Read the pods with GPUs whose creation and deletion times are known."""
    found = Collected()
    ours = "submit_s" in columns_of(head(path))
    for row in rows(path):
        if ours and row.text("variant", "default") != "default":
            found.skip("of another variant than `default`")
            continue
        _add_pod(found, row, ours=ours)
    return found.trace(stem(path), path, NOTE)


def _add_pod(found: Collected, row: TraceRow, *, ours: bool) -> None:
    gpus, milli = row.number("n_gpus" if ours else "num_gpu"), row.number("gpu_milli")
    if not gpus or not milli:
        found.skip("requests no GPU")
        return
    if ours:
        submit_s, duration_s = row.number("submit_s"), row.number("duration_s")
    else:
        submit_s, deleted_s = row.number("creation_time"), row.number("deletion_time")
        duration_s = None if submit_s is None or deleted_s is None else deleted_s - submit_s
    if submit_s is None or duration_s is None or duration_s <= 0:
        found.skip("no run time")
        return
    part = gpus == 1 and milli < 1000
    found.add(
        TraceJob(
            submit_s=submit_s,
            duration_s=duration_s,
            gpus=int(gpus),
            profile=share_profile(int(milli)) if part else None,
            failed=row.text("status" if ours else "pod_phase") == "Failed",
            user=row.text("qos"),
        )
    )


@functools.cache
def share_profile(milli: int) -> JobProfile:
    """The profile of a job that requested `milli` thousandths of a GPU."""
    size = WHOLE_BYTES * milli // 1000
    return JobProfile(
        workload=f"share-{milli}", first_peak_bytes=size, peak_bytes=size, smact=milli / 1000, measured=False
    )


PAI = TraceFormat(
    about="the original task table of PAI 2020, pai_task_table.csv, with or without its titles",
    recognizes=_recognizes_tasks,
    read=read_tasks,
    example=PAI_EXAMPLE,
    example_name="pai_task_table.csv",
)
OPENB = TraceFormat(
    about="the original pod lists of openb 2023, openb_pod_list_*.csv",
    recognizes=_recognizes_pods,
    read=read_pods,
    example=OPENB_EXAMPLE,
    example_name="openb_pod_list_default.csv",
)
