"""Trains one configuration: `python -m cotenant.learn.data_collection.train_one ID --answer FILE`.

The process of a measured run. It writes its answer, and keeps its GPU memory until the parent has read the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from cotenant.engines.held_process import HOLD_FD
from cotenant.learn.data_collection.configs import parse_id
from cotenant.learn.datasets.dataset_row import layers_to_text
from cotenant.learn.networks.building import Training, layers_of
from cotenant.osutil import atomic

WARMUP_STEPS = 2
"""Not timed: libraries are loaded and algorithms chosen."""


def main(argv: list[str]) -> int:
    """Train, write the answer, and wait for the parent."""
    _end_with_parent()
    args = _parse(argv)
    config = parse_id(args.config)
    answer: dict[str, Any] = {"layers": layers_to_text(layers_of(config)), "torch": torch.__version__}
    training = Training(config, args.device)
    try:
        answer.update(status="ok", **train(training, steps=args.steps, seconds=args.seconds, device=args.device))
    except torch.OutOfMemoryError as error:
        answer.update(status="oom", message=_first_line(error))
    except Exception as error:  # noqa: BLE001 (whatever a network raises is an answer)
        traceback.print_exception(error)
        is_oom = "CUDA error: out of memory" in str(error)
        answer.update(status="oom" if is_oom else "crash", message=f"{type(error).__name__}: {_first_line(error)}")
    answer.update(_memory(), steps=training.steps)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    answer.update(cpu_s=usage.ru_utime + usage.ru_stime, host_peak_bytes=usage.ru_maxrss * 1024)
    atomic.write_text(args.answer, json.dumps(answer))
    with contextlib.suppress(OSError, KeyError, ValueError):
        os.read(int(os.environ[HOLD_FD]), 1)
    return 0


def train(
    step: Callable[[], torch.Tensor],
    *,
    steps: int,
    seconds: float | None,
    device: str,
    now_s: Callable[[], float] = time.time,
) -> dict[str, Any]:
    """Call `step` for a number of steps or seconds; begin and end of the timed steps, and their median time.

    Each step is followed by a synchronization of the device: kernels run after their launch returns.
    """
    ended: list[float] = []
    while len(ended) < steps if seconds is None else not ended or now_s() - ended[0] < seconds:
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        ended.append(now_s())
    first = min(WARMUP_STEPS, len(ended)) - 1
    times = [after - before for before, after in zip(ended[first:], ended[first + 1 :], strict=False)]
    return {
        "timed_from_s": ended[first],
        "timed_to_s": ended[-1],
        "step_s": statistics.median(times) if times else None,
    }


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cotenant.learn.data_collection.train_one", description=__doc__)
    parser.add_argument("config", help="id of a configuration")
    parser.add_argument("--answer", type=Path, required=True, help="file to write")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps")
    parser.add_argument("--seconds", type=float, help="train so long after the first step, in place of --steps")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args(argv)


def _memory() -> dict[str, Any]:
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "held_bytes": torch.cuda.memory_reserved(),
        "gpu": torch.cuda.get_device_name(),
    }


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["(no message)"])[0][:300]


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
