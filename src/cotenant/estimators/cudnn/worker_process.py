"""Runs the process that queries cuDNN, and keeps what it answered before it failed."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MAX_CPU_S = 20
"""Limit on the CPU time of one process: a loaded machine takes longer for the same queries."""
TIMEOUT_S = 120.0
"""Limit on its elapsed time, for one that waits."""
_MAX_CRASHES = 3
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReply:
    """What the worker answered.

    Attributes:
        version: of cuDNN; 0: it did not load.
        plans: workspaces of the plans by query, in the order of queries; None where a query has no answer.
        failure: why a query has none; empty: all have one.
    """

    version: int
    plans: Sequence[list[int] | None]
    failure: str = ""


def run_worker(
    worker: Sequence[str], request: Mapping[str, Any], null_gpu: str, *, cpu_s: int, timeout_s: float
) -> WorkerReply:
    """The reply to all `calls` of `request`; `null_gpu`: `nullgpu.device.device_text`. Never raises.

    A query that crashes the process has no answer; another process goes on behind it, until the third crash.
    """
    plans: list[list[int] | None] = []
    calls, version, failure, crashes = request["calls"], 0, "", 0
    while len(plans) < len(calls) and crashes < _MAX_CRASHES:
        text, last, has_crashed = _run(worker, {**request, "calls": calls[len(plans) :]}, null_gpu, cpu_s, timeout_s)
        found, fresh, is_reply = _parsed(text, len(calls) - len(plans))
        version = version or found
        plans += fresh
        if len(plans) == len(calls):
            break
        failure = last or "its reply has fewer answers than queries"
        if not is_reply:
            failure = last or "its reply cannot be read"
        if not found or not has_crashed:
            break
        plans.append(None)
        crashes += 1
    plans += [None] * (len(calls) - len(plans))
    return WorkerReply(version=version, plans=plans, failure=failure)


def _run(
    worker: Sequence[str], request: Mapping[str, Any], null_gpu: str, cpu_s: int, timeout_s: float
) -> tuple[str, str, bool]:
    """What the worker printed, why it failed (empty: it did not), and whether it crashed."""
    # A process that sees a GPU would open its context, some hundred MiB of its memory.
    env = {"CUDA_VISIBLE_DEVICES": "", "CUDNN_LOGLEVEL_DBG": "0"}
    env |= {"COTENANT_NULL_GPU": null_gpu, "COTENANT_NULL_GPU_LOG": "0"}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            worker, stdin=pipe, stdout=pipe, stderr=pipe, text=True, errors="replace", env={**os.environ, **env}
        )
    except OSError as error:
        return "", f"its process did not start: {error.strerror or error}", False
    with process:
        with contextlib.suppress(OSError, ValueError):  # it has ended, or a lower limit holds
            resource.prlimit(process.pid, resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
        try:
            text, errors = process.communicate(json.dumps(request), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
            return text, f"it did not end within {timeout_s:g} s", False
        except (OSError, ValueError) as error:
            process.kill()
            return "", f"its process could not be read: {error}", False
    if process.returncode == -signal.SIGXCPU:
        return text, f"it took more than {cpu_s} s of CPU time", False
    if process.returncode < 0:
        return text, f"it crashed with {_signal_name(-process.returncode)}", True
    if process.returncode:
        last = errors.strip().rsplit("\n", 1)[-1][:_SHOWN_CHARACTERS]
        return text, last if last.isprintable() and last else f"it ended with exit code {process.returncode}", True
    return text, "", False


def _signal_name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def _parsed(text: str, count: int) -> tuple[int, list[list[int] | None], bool]:
    """Version and at most `count` complete answers in what the worker printed; whether all of it can be read."""
    first, *lines = text.splitlines()[: count + 1] or [""]
    plans: list[list[int] | None] = []
    try:
        version = json.loads(first)["version"]
        if type(version) is not int or version <= 0:
            return 0, [], False
        for line in lines:
            sizes = json.loads(line)
            if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
                return version, plans, False
            plans.append(sizes)
    except (ValueError, LookupError, TypeError, RecursionError):
        return (version, plans, False) if plans else (0, [], False)
    return version, plans, True
