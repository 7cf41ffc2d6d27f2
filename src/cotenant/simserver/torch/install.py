"""Gives torch the simulated GPUs in CUDA_VISIBLE_DEVICES. Called once, right after torch was imported."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotenant.allocator import parse_options, rules_for, settings_text
from cotenant.core.errors import CotenantError
from cotenant.estimators.replay_input import blas_of, conv_of, make_software_stack
from cotenant.gpu_specs import GpuSpec, gpu_spec
from cotenant.simserver.server import Attachment, SimulatedServer
from cotenant.simserver.torch.process_gpus import ProcessGpu, ProcessGpus
from cotenant.simserver.torch.step_throttle import StepThrottle

UNLIMITED_STEPS = sys.maxsize
CUDNN_VERSION = 91900
MAX_AUTOGRAD_WAIT_S = 2.0


def install() -> None:
    """Patch this process, or end it with an error if its GPUs are not available.

    Not modeled: values computed on the GPU, and the time of a computation (see `StepThrottle`).
    """
    try:
        _install()
    except CotenantError as error:
        sys.stderr.write(f"error: no simulated GPU for this job: {error}\n")
        sys.exit(2)


def _install() -> None:
    server = SimulatedServer.open(Path(os.environ["COTENANT_SIM_SERVER"]))
    uuids = [server.gpu(server.index_of(part)).uuid for part in os.environ["CUDA_VISIBLE_DEVICES"].split(",")]
    model = gpu_spec(server.gpu(server.index_of(uuids[0])).model.replace("/", ":"))
    pace = StepThrottle.of(os.environ)

    import torch

    from cotenant.simserver.torch.recorder import AllocatingRecorder
    from cotenant.tracing.process.session import TracingSession

    version = torch.__version__.split("+")[0]
    conf = settings_text(os.environ, version)
    stack = make_software_stack(version, conf, os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    stack = replace(stack, caches_cublas=os.environ.get("TORCH_CUBLAS_WORKSPACE_CACHE") == "1")

    def make(device: int, attachment: Attachment) -> ProcessGpu:
        return ProcessGpu(device, attachment, parse_options(conf, version), rules_for(version), model.usable_bytes)

    label = Path(sys.argv[0]).name if sys.argv and sys.argv[0] else "python"
    gpus = ProcessGpus(server, uuids, make, context_bytes=model.context.typical_bytes, label=label)
    session = TracingSession(
        {
            "gpu": _gpu_fields(model, len(uuids)),
            # The job writes its own files and has network access; only checkpoints of fake tensors go to `scratch`.
            "options": {
                "steps": UNLIMITED_STEPS,
                "cudnn_version": CUDNN_VERSION,
                "sandbox": False,
                "allow_network": True,
            },
            "scratch": str(Path(tempfile.gettempdir(), f"cotenant-live-{os.getpid()}")),
        },
        Path(os.devnull),
        recorder=lambda: AllocatingRecorder(gpus, blas=blas_of(model, stack), conv=conv_of(model), pace=pace),
    )
    _patch_memory_queries(torch, gpus)
    _exit_without_destructors()
    session.mode.__enter__()
    _trial_at_first_backward(torch, session)


def _trial_at_first_backward(torch: Any, session: Any) -> None:
    """Delay the trial backward pass: during the import of torch its thread would wait for the import lock."""
    backward = torch.autograd.backward

    def first(*args: Any, **kwargs: Any) -> Any:
        torch.autograd.backward = backward
        with session.recorder.paused():
            session.mode.grad_accumulation.learn()
        return backward(*args, **kwargs)

    torch.autograd.backward = first


def _exit_without_destructors() -> None:
    """Exit without running the static destructors of libtorch: autograd's threads cannot be joined, which aborts.

    glibc's `on_exit` calls `_exit` with the exit status after Python has cleaned up. Before that, wait until the
    autograd threads are idle: a thread that takes the GIL while the interpreter is finalized aborts the process, too.
    """
    atexit.register(_wait_for_autograd)
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc only
        libc.on_exit(libc._exit, None)


def _wait_for_autograd() -> None:
    """Wait until no autograd thread has run for 20 ms, at most `MAX_AUTOGRAD_WAIT_S`."""
    end_s = time.monotonic() + MAX_AUTOGRAD_WAIT_S
    quiet = 0
    before = _autograd_activity()
    while before and quiet < 2 and time.monotonic() < end_s:
        time.sleep(0.01)  # releases the GIL
        now = _autograd_activity()
        quiet = quiet + 1 if now == before and all("S (sleeping)" in state for state in now) else 0
        before = now


def _autograd_activity() -> list[str]:
    """State and context switches of each autograd thread."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            # Named by torch/csrc/autograd/engine.cpp, `Engine::thread_init`: `pt_autograd_N`.
            if (task / "comm").read_text().startswith("pt_autograd"):
                lines = (task / "status").read_text().splitlines()
                found.append(
                    " ".join(line for line in lines if line.startswith(("State", "voluntary", "nonvoluntary")))
                )
    return found


def _gpu_fields(model: GpuSpec, count: int) -> dict[str, Any]:
    return {
        "name": model.nvml_names[0] if model.nvml_names else model.name,
        "total_bytes": model.usable_bytes,
        "capability": model.compute_capability,
        "sm_count": model.sm_count,
        "count": count,
    }


def _patch_memory_queries(torch: Any, gpus: ProcessGpus) -> None:
    """Let torch.cuda report the memory of the simulated GPU."""
    current = torch.cuda.current_device

    def of(device: Any) -> ProcessGpu:
        if device is None:
            return gpus[current()]
        return gpus[device if isinstance(device, int) else torch.device(device).index or 0]

    def reserved(device: Any = None) -> int:
        return of(device).driver.reserved_bytes

    def max_reserved(device: Any = None) -> int:
        return of(device).driver.peak_reserved_bytes

    def info(device: Any = None) -> tuple[int, int]:
        gpu = of(device)
        return gpu.free_bytes, gpu.allocator.total_bytes or 0

    for name, value in {
        "memory_reserved": reserved,
        "max_memory_reserved": max_reserved,
        "mem_get_info": info,
    }.items():
        setattr(torch.cuda, name, value)
        # Libraries import these from where they are defined.
        setattr(torch.cuda.memory, name, value)
