"""Latency of an estimate: in new processes, in a warm process with torch loaded, and from a cached trace.

    python -m benchmarks.estimator.estimate_latency [--quick] [--write]

Scripts of `examples/` are estimated end to end. `new`: `cotenant estimate --no-cache`, including the start of all
interpreters. `warm`: an estimator with a fork server, as in the daemon, after a first request. `cached`: the same
request again, with the trace in the cache. Seconds are the minimum of several runs; CPU seconds cover all processes.
Memory is the peak RSS of any process.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks._lib import timed_report
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import MiB
from cotenant.estimators.trace_cache import TraceCache
from cotenant.estimators.traced import TracedEstimator
from cotenant.tracing.process.forkserver_client import ForkServerClient

ROOT = Path(__file__).resolve().parents[2]
GPU = "A100-40GB"
JOBS = {
    "mlp": ("mlp.py",),
    "cifar": ("cifar.py",),
    "resnet50": ("resnet50.py", "--batch-size", "64"),
    "mobilenet_v2": ("mobilenet_v2.py",),
    "efficientnet_b0": ("efficientnet_b0.py",),
    "xception": ("xception.py",),
    "bert_mlm": ("bert_mlm.py",),
    "gpt2": ("gpt2.py",),
    "hf_trainer_bf16": ("hf_trainer_bf16.py",),
}
QUICK_JOBS = {"mlp": ("mlp.py",)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Wall time and CPU time."""

    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], object], repeats: int, other_pid: int | None = None) -> Latency:
    """Minimum over `repeats`; CPU time is that of this process, its reaped children, and process `other_pid`."""
    found = []
    for _ in range(repeats):
        began, began_s = _cpu_seconds(other_pid), time.perf_counter()
        work()
        found.append((time.perf_counter() - began_s, _cpu_seconds(other_pid) - began))
    return Latency(seconds=min(time_s for time_s, _ in found), cpu_seconds=min(time_s for _, time_s in found))


def _cpu_seconds(other_pid: int | None) -> float:
    """CPU seconds including reaped children, also those of `other_pid`. Source: proc(5), `/proc/PID/stat`."""
    seconds = sum(os.times()[:4])
    if other_pid is not None:
        fields = Path(f"/proc/{other_pid}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def measure(jobs: Mapping[str, tuple[str, ...]], repeats: int) -> list[str]:
    """One table row per script, and the medians."""
    rows: dict[str, tuple[Latency, Latency, Latency]] = {}
    env = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, ForkServerClient() as warm:
        loaded = TracedEstimator(forkserver=warm)
        cached = TracedEstimator(forkserver=warm, cache=TraceCache(Path(folder)))
        for name, (script, *args) in jobs.items():
            path = str(ROOT / "examples" / script)
            request = EstimateRequest(command=(path, *args), workdir=str(ROOT), env=env, gpu=GPU)
            words = [sys.executable, "-m", "cotenant", "estimate", path, "--no-cache", "--gpu", GPU, "--", *args]
            loaded.estimate(request)
            cached.estimate(request)
            rows[name] = (
                timed(lambda words=words: subprocess.run(words, check=True, stdout=subprocess.DEVNULL), repeats),  # type: ignore[misc]
                timed(lambda request=request: loaded.estimate(request), repeats, warm.pid),  # type: ignore[misc]
                timed(lambda request=request: cached.estimate(request), repeats),  # type: ignore[misc]
            )
            print(name, *(f"{latency.seconds:.2f}" for latency in rows[name]), file=sys.stderr, flush=True)
    lines = [
        "| script | new, s | CPU s | warm, s | CPU s | cached, s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            f"| {name} | {new.seconds:.2f} | {new.cpu_seconds:.2f} | {warmed.seconds:.2f} | {warmed.cpu_seconds:.2f} "
            f"| {again.seconds:.2f} |"
            for name, (new, warmed, again) in rows.items()
        ),
    ]
    waits = [statistics.median(row[i].seconds for row in rows.values()) for i in range(3)]
    cpu = [statistics.median(row[i].cpu_seconds for row in rows.values()) for i in range(2)]
    lines.append(f"| **median** | {waits[0]:.2f} | {cpu[0]:.2f} | {waits[1]:.2f} | {cpu[1]:.2f} | {waits[2]:.2f} |")
    peak_rss = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return [*lines, "", f"Peak RSS of any process: {peak_rss / MiB:.0f} MiB."]


def main() -> int:
    def lines(quick: bool) -> list[str]:
        return measure(QUICK_JOBS, 1) if quick else measure(JOBS, 3)

    return timed_report.run(__doc__, "estimate_latency", "Latency of an estimate", lines)


if __name__ == "__main__":
    sys.exit(main())
