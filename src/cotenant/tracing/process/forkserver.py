"""A tracing process that has torch loaded already and forks one copy of itself for every script.

Over the socket comes the path of an errand, a JSON file: `request`, `answer`, `log`, `workdir`, `env`. Back go, one
message each, `{"ready": [[path, mtime_ns], ...]}` once, which must stay as they are, or `{"unfit": reason}`; then
`{"pid": N}` and `{"code": N}` for every errand, the code negative for a signal. When the other end closes, this process
ends.
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

from cotenant.tracing.process.provenance import site_folders

MAX_MESSAGE_BYTES = 4096
_PRELOADED = (
    "process.session",
    "device.cuda_api",
    "device.libtorch_patch",
    "distributed.process_groups",
    "sandbox.torch_save",
    "mode",
    "operators.attention",
    "operators.missing_cuda_kernels",
)
"""Our modules that import most of what the others need."""

_PRELOADED_WHEN_IDLE = ("torch._dynamo", "torch.distributed.tensor", "numpy", "scipy.stats", "scipy.optimize")
"""What most scripts import by way of their libraries, torchvision and transformers above all, and what keeps nothing
that a trace replaces: no function of `os` or `torch.cuda` under a name of its own. A test looks."""
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""Source: prctl(2)."""


def serve(number: int) -> NoReturn:
    """Run errands until the other end of the socket `number` closes."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # so that nothing a script started outlives its errand
    with socket.socket(fileno=number) as link:
        found = _preload()
        _send(link, found)
        if "unfit" in found:
            os._exit(0)
        _freeze()
        later = list(_PRELOADED_WHEN_IDLE)
        while errand := link.recv(MAX_MESSAGE_BYTES):
            pid = os.fork()
            if pid == 0:
                link.close()
                _run(Path(os.fsdecode(errand)), libc)
            _send(link, {"pid": pid})
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            _kill_descendants(pid)
            _send(link, {"code": code})
            while later and not select.select([link], [], [], 0)[0]:
                _preload_one(later)
    os._exit(0)


def _freeze() -> None:
    """Keep the collector of a copy from copying pages that it shares with us."""
    gc.collect()
    gc.freeze()


def _preload_one(later: list[str]) -> None:
    """Import the first of `later`, if it is installed. This process ends if that starts a thread: a fork keeps one."""
    with contextlib.suppress(Exception):
        importlib.import_module(later.pop(0))
    if not later:
        with contextlib.suppress(Exception):
            inspect.getmodule(compile("", "a file that no module has", "exec"))  # lists those of all modules, once
        _freeze()
    if _threads() != 1:
        os._exit(0)


def _threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def _preload() -> dict[str, Any]:
    """Import what every trace imports; which torch that is, or why this process is of no use."""
    try:
        import torch

        for each in _PRELOADED:
            importlib.import_module(f"cotenant.tracing.{each}")
        from cotenant.tracing.operators.builtin import all_operators

        all_operators()  # their modules, and those of plug-ins, are imported here once
    except Exception as error:  # noqa: BLE001 - a trace in a process of its own tells it better
        return {"unfit": f"{type(error).__name__}: {error}"}
    threads = _threads()
    if threads != 1:
        return {"unfit": f"{threads} threads run after the import of torch, and a fork keeps one"}
    path = Path(torch.__file__).with_name("version.py")
    folders = [Path(each) for each in site_folders(sys.path)]  # which change when a package comes, goes or is renewed
    return {"ready": [[str(each), each.stat().st_mtime_ns] for each in (path, *folders)]}


def _run(errand: Path, libc: ctypes.CDLL) -> NoReturn:
    try:
        told = json.loads(errand.read_text())
        os.setsid()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        log = os.open(told["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for target in (1, 2):
            os.dup2(log, target)
        os.close(log)
        os.chdir(told["workdir"])
        os.environ.clear()
        os.environ.update(told["env"])
        random.seed()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()

        from cotenant.tracing.process.session import main

        main(told["request"], told["answer"])
    except BaseException:  # noqa: BLE001 - whatever it was, this must not go on as a nursery
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(1)


def _kill_descendants(pid: int) -> None:
    """Kill what an errand left: its group, and then children until there are none."""
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
    with contextlib.suppress(OSError):  # the other end may have gone, which the next read says
        link.send(json.dumps(message).encode())
