"""A fork server: a process with torch loaded, which forks for every script that is to be traced.

A request on the socket is the path of a JSON file with `request`, `answer`, `log`, `workdir` and `env`. The server
sends `{"ready": [[path, mtime_ns], ...]}` once, the files that must not change while it serves, or
`{"unfit": reason}`; then for every request `{"pid": N}` and `{"code": N}`, the exit code, negative for a signal. It
ends when the socket closes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import json
import os
import random
import select
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from cotenant.tracing.process.garbage_collection import hide_objects
from cotenant.tracing.process.provenance import note_preloaded, site_folders

MAX_MESSAGE_BYTES = 4096
_PRELOADED = (
    "process.session",
    "device.cuda_api",
    "device.libtorch_patch",
    "device.memory_limit",
    "distributed.process_groups",
    "sandbox.torch_save",
    "mode",
    "operators.attention",
    "operators.missing_cuda_kernels",
)
"""Our modules that import most of the others."""

_PRELOADED_WHEN_IDLE = (
    "torch._dynamo",
    "torch.distributed.tensor",
    "torch.nn.attention.flex_attention",
    "torch.profiler._cupti_monitor",
    "numpy",
    "scipy.stats",
    "scipy.optimize",
)
"""Modules that most scripts import through torchvision, transformers and other libraries, and two of PyTorch that every
trace imports. None of them may hold the original of something that a trace replaces, such as a function of `os` or
`torch.cuda`; a test checks that."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2)."""


def serve(number: int) -> NoReturn:
    """Serve requests until the other end of the socket `number` closes."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # descendants of a script become our children, and end with it
    with socket.socket(fileno=number) as link:
        status = _preload()
        _send(link, status)
        if "unfit" in status:
            os._exit(0)
        _hide_objects()
        later = list(_PRELOADED_WHEN_IDLE)
        while request := link.recv(MAX_MESSAGE_BYTES):
            pid = os.fork()
            if pid == 0:
                link.close()
                _run(Path(os.fsdecode(request)), libc)
            _send(link, {"pid": pid})
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _kill_descendants(pid)
            _send(link, {"code": code})
            while later and not select.select([link], [], [], 0)[0]:
                _preload_one(later)
    os._exit(0)


def _hide_objects() -> None:
    gc.collect()
    hide_objects()
    note_preloaded()


def _preload_one(later: list[str]) -> None:
    """Import the first of `later`, if it is installed. End if that starts a thread: a fork has one only."""
    with contextlib.suppress(Exception):
        importlib.import_module(later.pop(0))
    if not later:
        with contextlib.suppress(Exception):
            inspect.getmodule(compile("", "no such file", "exec"))  # fills inspect's cache of files
        _hide_objects()
    if _threads() != 1:
        os._exit(0)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def import_tracer() -> None:
    """Import what every trace imports, for the forks of this process; shape functions of plug-ins, too.

    Raises:
        ImportError: torch, or one of its modules, cannot be imported.
        PluginError: see `all_operators`.
    """
    for name in _PRELOADED:
        importlib.import_module(f"cotenant.tracing.{name}")
    from cotenant.tracing.operators.builtin import all_operators
    from cotenant.tracing.patches.catalog import import_providers

    all_operators()
    import_providers()


def _preload() -> dict[str, Any]:
    """Import what every trace imports; the message with which the server answers."""
    try:
        import torch

        import_tracer()
    except Exception as error:  # noqa: BLE001 - a trace in a new process has the better message
        return {"unfit": f"{type(error).__name__}: {error}"}
    threads = _threads()
    if threads != 1:
        return {"unfit": f"{threads} threads run after the import of torch, and a fork has one"}
    path = Path(torch.__file__).with_name("version.py")
    folders = [Path(name) for name in site_folders(sys.path)]  # they change when a package is installed or removed
    return {"ready": [[str(watched), watched.stat().st_mtime_ns] for watched in (path, *folders)]}


def _run(request_path: Path, libc: ctypes.CDLL) -> NoReturn:
    try:
        request = json.loads(request_path.read_text())
        # A process group of its own, which `_kill_descendants` can end; prctl(2): a fork does not inherit PDEATHSIG.
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        os.chdir(request["workdir"])
        os.environ.clear()
        os.environ.update(request["env"])
        # All forks begin with one state of the generators: two scripts would draw the same numbers.
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()

        from cotenant.tracing.process.session import main

        main(request["request"], request["answer"])
    except BaseException:  # noqa: BLE001 - a fork must never return to the server's loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1)


def _kill_descendants(pid: int) -> None:
    """Kill what a script left behind: its process group, then children until there are none."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            for child in listing.read_text().split() if listing.exists() else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
            os.waitpid(-1, 0)


def _send(link: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the other end may be closed; the next read shows it
        link.send(json.dumps(message).encode())
