"""The original logs of Helios and Acme: Slurm accounting tables with nearly the same columns.

Sources: S-Lab-System-Group/HeliosData, README, `cluster_log.csv`; InternLM/AcmeTrace, README, `trace_seren.csv` and
`trace_kalos.csv`.
"""

from __future__ import annotations

from pathlib import Path

from cotenant.sim.trace import Trace, TraceJob
from cotenant.sim.traces.formats import TraceFormat
from cotenant.sim.traces.rows import Collected, columns_of, rows, stem

WANTED = ("job_id", "user", "gpu_num", "state", "submit_time", "duration")

HELIOS_EXAMPLE = """\
job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue
1,u1,vcA,1,4,1,COMPLETED,2020-04-01 00:04:00,2020-04-01 00:05:00,2020-04-01 01:05:00,3600,60
2,u2,vcA,8,32,1,FAILED,2020-04-01 00:10:30,2020-04-01 00:10:30,2020-04-01 00:12:30,120,0
3,u2,vcB,0,16,1,COMPLETED,2020-04-01 00:11:00,2020-04-01 00:11:00,2020-04-01 00:12:00,60,0
"""

ACME_EXAMPLE = """\
job_id,user,node_num,gpu_num,cpu_num,type,state,submit_time,start_time,end_time,duration,queue,gpu_time
a1,u1,1,8,120,Evaluation,COMPLETED,2023-03-01 00:00:10+08:00,2023-03-01 00:00:12,2023-03-01 00:05:12,300,2,2400
a2,u1,32,256,3840,Pretrain,FAILED,2023-03-01 00:01:00+08:00,2023-03-01 00:03:00,2023-03-01 01:03:00,3600,120,921600
a3,u2,1,1,15,Debug,CANCELLED,2023-03-01 00:02:00+08:00,,,0,0,0
"""


def _recognizes_helios(_path: Path, head: str) -> bool:
    titles = columns_of(head)
    return all(column in titles for column in WANTED) and "vc" in titles


def _recognizes_acme(_path: Path, head: str) -> bool:
    titles = columns_of(head)
    return all(column in titles for column in WANTED) and "type" in titles


def read(path: Path) -> Trace:
    """Read the jobs that ran on GPUs."""
    found = Collected()
    for row in rows(path, wanted=WANTED):
        gpus, duration_s, submit_s = row.number("gpu_num"), row.number("duration"), row.time_s("submit_time")
        if not gpus:
            found.skip("requests no GPU")
        elif not duration_s or duration_s <= 0 or submit_s is None:
            found.skip("never ran")
        else:
            found.add(
                TraceJob(
                    submit_s=submit_s,
                    duration_s=duration_s,
                    gpus=int(gpus),
                    user=row.text("vc") or row.text("user"),
                    failed=row.text("state").upper() in ("FAILED", "NODE_FAIL"),
                    workload=row.text("type"),
                )
            )
    return found.trace(stem(path), path)


HELIOS = TraceFormat(
    about="the original Helios logs, cluster_log.csv",
    recognizes=_recognizes_helios,
    read=read,
    example=HELIOS_EXAMPLE,
    example_name="cluster_log.csv",
)
ACME = TraceFormat(
    about="the original Acme logs, trace_seren.csv and trace_kalos.csv",
    recognizes=_recognizes_acme,
    read=read,
    example=ACME_EXAMPLE,
    example_name="trace_seren.csv",
)
