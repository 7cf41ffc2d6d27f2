"""Two traces of Alibaba: PAI 2020 (`pai_task_table.csv`) and openb 2023 (`openb_pod_list_*.csv`).

Source: alibaba/clusterdata, cluster-trace-gpu-v2020 and cluster-trace-gpu-v2023, README. Both have jobs that ask for
parts of a GPU; neither says how much GPU memory they use. A part is taken as that share of an A100-40GB's memory and
of its SMs, which is what the share means where such jobs are packed; a job of several whole GPUs gets none.
"""

from __future__ import annotations

import functools
from pathlib import Path

from cotenant.core.units import MiB
from cotenant.sim.trace import JobProfile, Trace, TraceJob
from cotenant.sim.traces.rows import Collected, TraceFormat, TraceRow, columns_of, head, rows, stem

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
NOTE = "a part of a GPU is taken as that share of its memory and of its SM activity"

TASKS = """\
9e04f3,tensorflow,1,Terminated,4550879.0,4551416.0,600.0,29.297,50.0,MISC
5adf8b,worker,4,Failed,4550900.0,4560900.0,600.0,29.297,100.0,V100
5adf8b,ps,2,Terminated,4550900.0,4560900.0,600.0,29.297,,
77a0c1,evaluator,1,Running,4550950.0,,600.0,29.297,25.0,T4
"""

PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
openb-pod-0000,12000,16384,1,1000,,LS,Running,0,12537496,0.0
openb-pod-0001,6000,12288,1,460,,LS,Failed,427061,12902960,427061.0
openb-pod-0002,88000,327680,8,1000,,Burstable,Succeeded,1558592,1558992,1558592.0
openb-pod-0003,4000,8192,0,0,,BE,Succeeded,1558600,1558700,1558601.0
"""


def _recognizes_tasks(path: Path, first: str) -> bool:
    titles = columns_of(first)
    named = all(each in titles for each in ("inst_num", "plan_gpu", "start_time"))
    return named or ("task" in path.name and "pai" in path.name and len(titles) == len(TASK_COLUMNS))


def _recognizes_pods(_path: Path, first: str) -> bool:
    titles = columns_of(first)
    return "gpu_milli" in titles and ("creation_time" in titles or "submit_s" in titles)


def read_tasks(path: Path) -> Trace:
    """The tasks that ran on GPUs; each is a job, submitted when it started, for that is all the table says."""
    named = "plan_gpu" in columns_of(head(path))
    found = Collected()
    for row in rows(path, columns=None if named else TASK_COLUMNS):
        _add_task(found, row)
    return found.trace(stem(path), path, NOTE, "a task counts as submitted when it started")


def _add_task(found: Collected, row: TraceRow) -> None:
    start_s, end_s, percent = row.number("start_time"), row.number("end_time"), row.number("plan_gpu")
    if not percent:
        found.skip("asks for no GPU")
        return
    if start_s is None or end_s is None or end_s <= start_s:
        found.skip("no run time")
        return
    instances = int(row.number("inst_num") or 1)
    each_milli = round(percent * 10)
    whole = max(1, -(-each_milli // 1000))
    found.add(
        TraceJob(
            submit_s=start_s,
            duration_s=end_s - start_s,
            gpus=whole * instances,
            profile=share_profile(each_milli) if each_milli < 1000 else None,
            failed=row.text("status") == "Failed",
            user=row.text("job_name"),
            workload="" if each_milli < 1000 else row.text("task_name"),
        )
    )


def read_pods(path: Path) -> Trace:
    """The pods with GPUs whose creation and deletion are known."""
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
        found.skip("asks for no GPU")
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
    """A job that asked for so many thousandths of a GPU."""
    size = WHOLE_BYTES * milli // 1000
    return JobProfile(
        workload=f"share-{milli}", first_peak_bytes=size, peak_bytes=size, smact=milli / 1000, measured=False
    )


FORMATS = (
    TraceFormat(
        name="pai",
        about="the original task table of PAI 2020, pai_task_table.csv, with or without its titles",
        recognizes=_recognizes_tasks,
        read=read_tasks,
        example=TASKS,
        example_name="pai_task_table.csv",
    ),
    TraceFormat(
        name="openb",
        about="the original pod lists of openb 2023, openb_pod_list_*.csv",
        recognizes=_recognizes_pods,
        read=read_pods,
        example=PODS,
        example_name="openb_pod_list_default.csv",
    ),
)
