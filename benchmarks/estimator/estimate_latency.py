"""How long one waits for an estimate: in new processes, in one that has torch loaded, and from the kept trace.

    python -m benchmarks.estimator.estimate_latency [--quick] [--write]

Each script of `examples/` that trains something different is estimated as a user would, from the outside: `new`, by
`cotenant estimate --no-cache`, all interpreters started for it; `loaded`, by an estimator as the daemon keeps it, after
other requests and some idle seconds; `kept`, by the same once more, when the trace is a file. Seconds are least of
several, since other work on the machine only adds; CPU seconds are of all processes. Memory is the most resident bytes
of any process.
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
class Waited:
    """Seconds on the clock and of CPU."""

    seconds: float
    cpu_seconds: float


def timed(work: Callable[[], object], repeats: int, beside: int | None = None) -> Waited:
    """The least of several runs, by the clock; CPU of this process, of those it waited for, and of process `beside`."""
    found = []
    for _ in range(repeats):
        began, began_s = _cpu_seconds(beside), time.perf_counter()
        work()
        found.append((time.perf_counter() - began_s, _cpu_seconds(beside) - began))
    return Waited(seconds=min(time_s for time_s, _ in found), cpu_seconds=min(time_s for _, time_s in found))


def _cpu_seconds(beside: int | None) -> float:
    """Children that ended included, of `beside` as well. Source: proc(5), `/proc/PID/stat`."""
    seconds = sum(os.times()[:4])
    if beside is not None:
        fields = Path(f"/proc/{beside}/stat").read_text().rpartition(")")[2].split()
        seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def measure(jobs: Mapping[str, tuple[str, ...]], repeats: int) -> list[str]:
    """A line for each job, and medians."""
    rows: dict[str, tuple[Waited, Waited, Waited]] = {}
    env = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, ForkServerClient() as warm:
        loaded = TracedEstimator(forkserver=warm)
        kept = TracedEstimator(forkserver=warm, cache=TraceCache(Path(folder)))
        for name, (script, *args) in jobs.items():
            path = str(ROOT / "examples" / script)
            request = EstimateRequest(command=(path, *args), workdir=str(ROOT), env=env, gpu=GPU)
            words = [sys.executable, "-m", "cotenant", "estimate", path, "--no-cache", "--gpu", GPU, "--", *args]
            loaded.estimate(request)
            kept.estimate(request)
            rows[name] = (
                timed(lambda words=words: subprocess.run(words, check=True, stdout=subprocess.DEVNULL), repeats),  # type: ignore[misc]
                timed(lambda request=request: loaded.estimate(request), repeats, warm.pid),  # type: ignore[misc]
                timed(lambda request=request: kept.estimate(request), repeats),  # type: ignore[misc]
            )
            print(name, *(f"{latency.seconds:.2f}" for latency in rows[name]), file=sys.stderr, flush=True)
    lines = [
        "| script | new, s | CPU s | loaded, s | CPU s | kept trace, s |",
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
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return [*lines, "", f"Most resident bytes of a process: {most / MiB:.0f} MiB."]


def main() -> int:
    def lines(quick: bool) -> list[str]:
        return measure(QUICK_JOBS, 1) if quick else measure(JOBS, 3)

    return timed_report.run(__doc__, "estimate_latency", "The wait for an estimate", lines)


if __name__ == "__main__":
    sys.exit(main())
