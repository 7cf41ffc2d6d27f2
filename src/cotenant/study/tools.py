"""Monitoring tools whose cost `cotenant study overhead` measures. A new one is one line in `MONITORING_TOOLS`.

Another distribution adds one by an entry point of the group `cotenant.monitoring_tools`; its target is a
`MonitoringTool`. Every tool runs unprivileged, writes into the folder of its run only, and touches no process and no
DCGM group of others.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.registry import Registry
from cotenant.measurement.campaign import HISTORY_ENTRIES, PROBE

PROFILER = Path(__file__).parent / "jobs" / "torch_profiler.py"
NO_TOOL = "none"
DCGM_FIELDS = "203,204,1001,1002,1003,1004,1005,1007"
"""Utilization, copy utilization, graphics engine, SM, SM occupancy, tensor, DRAM and FP32 activity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a tool's command may need to know.

    Attributes:
        folder: of this run; the tool writes here. job: the job's command, `python script args`.
        scratch: a folder with a short path, for sockets (unix(7) allows 107 bytes); removed after the run.
    """

    folder: Path
    job: tuple[str, ...]
    scratch: Path

    @property
    def output(self) -> str:
        """Path of the tool's file."""
        return str(self.folder / "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitoringTool:
    """A tool, beside the job in a process of its own or around it.

    Attributes:
        title: its name in tables.
        around: whether `command` runs the job; else it runs beside the job, from before its start to after its end, and
            ends on SIGINT.
        program: found on the PATH, or the tool is missing; empty if Python is all it needs.
        command: argv for a run; standard output goes to `tool.out` in the run's folder.
        needs_gpu: whether it measures nothing without an NVIDIA driver.
        is_ready: whether a tool beside the job has started up; None for one that is ready at once.
        job_failure: how the job failed in a tool around it that ended with 0, empty if it did not; None for a tool that
            ends as the job does.
    """

    title: str
    command: Callable[[Run], Sequence[str]]
    around: bool = False
    program: str = ""
    needs_gpu: bool = False
    is_ready: Callable[[Run], bool] | None = None
    job_failure: Callable[[Run], str] | None = None

    def missing(self) -> str:
        """Why the tool cannot run here; empty if it can."""
        if self.program and shutil.which(self.program) is None:
            return f"no `{self.program}` on the PATH"
        if self.needs_gpu and not Path("/proc/driver/nvidia/version").exists():
            return "no NVIDIA driver on this machine"
        return ""


def _monitor(run: Run) -> Sequence[str]:
    driver = Path("/proc/driver/nvidia/version").exists()
    gpus = ("--backend", "nvml") if driver else ("--simulate", "1xA100-40GB")
    folders = ("--state-dir", str(run.folder / "daemon"), "--socket", str(run.scratch / "socket"))
    return (sys.executable, "-m", "cotenant", "daemon", *gpus, *folders)


def _probe(run: Run) -> Sequence[str]:
    python, script, *args = run.job
    request = {
        "program": {"kind": "script", "target": script, "args": args},
        "steps": sys.maxsize,  # to the script's own end
        "warmup_steps": 0,
        "history_entries": HISTORY_ENTRIES,
        "history_path": f"{run.output}.history.json.gz",
    }
    path = run.folder / "probe.json"
    path.write_text(json.dumps(request), encoding="utf-8")
    return (python, str(PROBE), str(path), f"{run.output}.json")


def _failure_in_probe(run: Run) -> str:
    try:
        answer = json.loads(Path(f"{run.output}.json").read_text(encoding="utf-8"))
        return f"{answer['outcome']}: {answer['message']}" if answer["outcome"] in ("error", "oom") else ""
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "the probe wrote no answer"


def _smi(_: Run) -> Sequence[str]:
    fields = "timestamp,utilization.gpu,utilization.memory,memory.used,power.draw,clocks.sm"
    return ("nvidia-smi", f"--query-gpu={fields}", "--format=csv", "-l", "1")


NO_MONITORING = MonitoringTool(title="no tool", command=lambda run: run.job, around=True)

MONITORING_TOOLS: Registry[MonitoringTool] = Registry(
    "monitoring tool",
    "cotenant.monitoring_tools",
    {
        NO_TOOL: NO_MONITORING,
        "top": MonitoringTool(title="top", program="top", command=lambda _: ("top", "-b", "-i", "-d", "1")),
        "ps": MonitoringTool(
            title="ps, every 5 s",
            program="ps",
            command=lambda _: ("sh", "-c", "while :; do ps -eo pid,pcpu,rss,comm; sleep 5; done"),
        ),
        "iostat": MonitoringTool(title="iostat", program="iostat", command=lambda _: ("iostat", "-x", "1")),
        "nvidia-smi": MonitoringTool(title="nvidia-smi", program="nvidia-smi", needs_gpu=True, command=_smi),
        "dcgmi": MonitoringTool(
            title="dcgmi dmon",
            program="dcgmi",
            needs_gpu=True,
            command=lambda _: ("dcgmi", "dmon", "-e", DCGM_FIELDS, "-d", "1000"),
        ),
        "nsys": MonitoringTool(
            title="Nsight Systems",
            program="nsys",
            around=True,
            command=lambda run: ("nsys", "profile", "--force-overwrite", "true", "-o", run.output, *run.job),
        ),
        "torch-profiler": MonitoringTool(
            title="PyTorch profiler",
            around=True,
            command=lambda run: (run.job[0], str(PROFILER), f"{run.output}.json", *run.job[1:]),
        ),
        "monitor": MonitoringTool(
            title="cotenant daemon", command=_monitor, is_ready=lambda run: (run.scratch / "socket").exists()
        ),
        "probe": MonitoringTool(title="cotenant probe", around=True, command=_probe, job_failure=_failure_in_probe),
    },
)


def default_names() -> tuple[str, ...]:
    """The tools of table 3.2, and ours; a study without a list runs these."""
    return (NO_TOOL, "top", "nvidia-smi", "dcgmi", "nsys", "torch-profiler", "monitor", "probe")


def run_environment() -> dict[str, str]:
    """Environment of jobs and tools: ours, offline, without the variables of a study around this one."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "WANDB_MODE": "disabled"}
    return {**os.environ, **offline, "PYTHONUNBUFFERED": "1"}
