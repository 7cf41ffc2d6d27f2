"""CPU time per operator in the tracer, compared with PyTorch's FakeTensorMode.

    python -m benchmarks.estimator.operator_speed [--quick] [--write]

The operators are the most frequent ones of generation, rollouts and training. Both sides make the same calls on the
same shapes without gradients, in separate processes, one after the other. A call includes PyTorch's dispatch and, in
the tracer, the recording of its storages. FakeTensorMode uses its cache, as by default. Times are CPU microseconds of
the thread, the minimum of many short runs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._lib import timed_report

GPU = {"name": "A100", "total_bytes": 40 * 2**30, "capability": [8, 0], "sm_count": 108, "count": 1}
RUNS, QUICK_RUNS = 60, 3
CALLS_A_RUN = 20


def make_calls() -> dict[str, Callable[[], object]]:
    """Name -> call, on tensors of a fake GPU."""
    import torch

    functional = torch.nn.functional
    x, table = torch.randn(4, 8, 64, device="cuda"), torch.randn(100, 64, device="cuda")
    rows, square = torch.randn(32, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    bias, ids = torch.randn(64, device="cuda"), torch.zeros(4, 8, dtype=torch.int64, device="cuda")
    images, kernel = torch.randn(2, 8, 16, 16, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    part = torch.randn(4, 8, 192, device="cuda")[..., :64]
    return {
        "view": lambda: x.view(32, 64),
        "view of a part": lambda: part.view(4, 8, 8, 8),
        "transpose": lambda: x.transpose(1, 2),
        "slice": lambda: x[:, 1:3],
        "detach": x.detach,
        "add": lambda: x + x,
        "add a row": lambda: x + bias,
        "multiply by 2": lambda: x * 2,
        "add in place": lambda: x.add_(1),
        "sum": x.sum,
        "softmax": lambda: x.softmax(-1),
        "gelu": lambda: functional.gelu(x),
        "cat": lambda: torch.cat([x, x]),
        "addmm": lambda: torch.addmm(bias, rows, square),
        "layer_norm": lambda: functional.layer_norm(x, (64,)),
        "embedding": lambda: functional.embedding(ids, table),
        "conv2d": lambda: functional.conv2d(images, kernel, padding=1),
        "zeros": lambda: torch.zeros(4, 4, device="cuda"),
    }


def time_calls(runs: int) -> dict[str, float]:
    """Name -> microseconds per call."""
    import torch

    found = {}
    with torch.no_grad():
        for name, call in make_calls().items():
            call()
            times = []
            for _ in range(runs):
                began_s = time.thread_time()
                for _ in range(CALLS_A_RUN):
                    call()
                times.append(time.thread_time() - began_s)
            found[name] = min(times) / CALLS_A_RUN * 1e6
    return found


def side(name: str, runs: int, folder: str) -> None:
    """Measure one side in this process and print its times as JSON."""
    import torch

    torch.set_num_threads(1)
    if name == "FakeTensorMode":
        from torch._subclasses.fake_tensor import FakeTensorMode

        from cotenant.tracing.device import libtorch_patch

        libtorch_patch.install(1)  # indexing needs a device guard for CUDA, which a CPU build lacks
        with FakeTensorMode():
            print(json.dumps(time_calls(runs)))
        return
    from cotenant.tracing.process.session import TracingSession

    request: dict[str, Any] = {"program": {}, "gpu": GPU, "options": {}}
    with TracingSession(request, Path(folder, "answer")).mode:
        print(json.dumps(time_calls(runs)), flush=True)
        os._exit(0)  # the tracing process ends in the same way


def measure(runs: int) -> list[str]:
    """One table row per operator, and the median ratio."""
    sides = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("FakeTensorMode", "tracer"):
            words = [sys.executable, "-m", "benchmarks.estimator.operator_speed", "--side", name, str(runs), folder]
            sides.append(json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    theirs, ours = sides
    ratios = [theirs[name] / ours[name] for name in ours]
    middle = f"{statistics.median(theirs.values()):.1f} | {statistics.median(ours.values()):.1f}"
    return [
        "| call | FakeTensorMode, us | tracer, us | ratio |",
        "| --- | ---: | ---: | ---: |",
        *(f"| {name} | {theirs[name]:.1f} | {ours[name]:.1f} | {theirs[name] / ours[name]:.1f} |" for name in ours),
        f"| **median** | {middle} | {statistics.median(ratios):.1f} |",
    ]


def main() -> int:
    if sys.argv[1:2] == ["--side"]:
        side(sys.argv[2], int(sys.argv[3]), sys.argv[4])
        return 0
    return timed_report.run(
        __doc__,
        "operator_speed",
        "An operator in the tracer and in FakeTensorMode",
        lambda quick: measure(QUICK_RUNS if quick else RUNS),
    )


if __name__ == "__main__":
    sys.exit(main())
