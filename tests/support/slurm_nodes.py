"""Nodes of a Slurm on one machine that fail: everything that runs on one of them ends at once."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

from cotenant.core.ports import AttemptRef
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.osutil import procfs


def kill_node(folder: Path, node: str, state_dir: Path | None = None) -> None:
    """Kill what runs on a node of the Slurm in `folder`, also attempts of the daemon with `state_dir`."""
    stopped: set[int] = set()
    # A look at /proc takes a while, and what is forked meanwhile would survive: until a look finds nothing new.
    while found := _all_of(node, state_dir, folder) - stopped:
        for pid in sorted(found, reverse=True):  # a job before its runner, or it would end and nobody write it down
            _send(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        _send(pid, signal.SIGKILL)


def _all_of(node: str, state_dir: Path | None, folder: Path) -> set[int]:
    found = processes_of(node, state_dir, folder)
    with contextlib.suppress(OSError, ValueError):
        found.add(int((folder / f"slurmd.{node}.pid").read_text()))
    return found


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def processes_of(
    node: str, state_dir: Path | None = None, folder: Path | None = None, variable: str | None = None
) -> set[int]:
    """Slurm's steps on a node and all below them; runners have environments of their own and outlive their agent.

    `folder`: of one Slurm; otherwise nodes of that name of any. `variable`: `NAME=value` that only its processes have.
    """
    found = set() if state_dir is None else set(_runners(node, state_dir / "attempts"))
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            variables = path.read_bytes().split(b"\0")
            is_here = folder is None or f"SLURM_CONF={folder}/slurm.conf".encode() in variables
            is_here = is_here and (variable is None or variable.encode() in variables)
            if is_here and f"SLURMD_NODENAME={node}".encode() in variables:
                found |= {int(path.parent.name), *_step(int(path.parent.name))}
    return found.union(*(procfs.descendants(pid) for pid in found))


def _runners(node: str, attempts: Path) -> Iterator[int]:
    for note in attempts.glob("*/*.host"):
        ref = AttemptRef(job_id=int(note.parent.name), attempt=int(note.stem))
        attempt_dir = AttemptDir(attempts, ref)
        if note.read_text().partition(".")[0] == node and attempt_dir.read("result.json") is None:
            yield from (process.pid for process in attempt_dir.recorded_processes() if procfs.is_alive(process))


def _step(pid: int) -> Iterator[int]:
    """The process of Slurm that watches a process, if it does."""
    stat = procfs.read_stat(pid)
    with contextlib.suppress(OSError):
        if stat is not None and b"slurmstepd" in Path(f"/proc/{stat.parent}/cmdline").read_bytes():
            yield stat.parent
