"""The agent of a host: `python -m cotenant.hosts.agent --state-dir DIR`, started through srun, ssh or nothing.

It runs the local engine and reads the GPUs, reads orders from stdin, and writes messages to stdout; `messages` has
both. It ends at the end of stdin. Runners and their jobs go on; the next agent adopts them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from cotenant import gpus
from cotenant.core import codec
from cotenant.core.errors import BackendError, CotenantError, DiskFullError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.job import AttemptExit, JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, GpuBackend
from cotenant.engines.attempt_dir import AttemptDir
from cotenant.engines.local import LocalEngine
from cotenant.engines.output_budget import OutputBudget
from cotenant.gpus.visible import VisibleGpus
from cotenant.hosts.messages import MAX_LINE_BYTES, VERSION, MalformedMessage, line_of, pair_of, parsed, ref_of

END_ENV = "SLURM_JOB_END_TIME"
"""When the allocation around an agent ends, in seconds since the epoch, by sbatch(1); Slurm 22.05 does not set it."""
RETRY_S = 5.0
"""How often an attempt is tried for which the disk has no room."""
SIM_SERVER_ENV = "COTENANT_SIM_SERVER"
"""Folder of a simulated server, whose GPUs the agent then reads and its jobs use."""


class Agent:
    """Serves one daemon."""

    def __init__(
        self,
        state_dir: Path,
        orders: IO[bytes],
        output: IO[bytes],
        *,
        tick_s: float,
        budget: OutputBudget,
        visible: str | None = None,
    ) -> None:
        simulated = os.environ.get(SIM_SERVER_ENV)
        end = os.environ.get(END_ENV, "")
        self._ends_at_s = float(end) if end.isdecimal() else None
        self._env = {} if simulated is None else {SIM_SERVER_ENV: simulated}
        options = gpus.BackendOptions(simulated_dir=None if simulated is None else Path(simulated))
        self._backend: GpuBackend = gpus.create("nvml" if simulated is None else "simulated", options)
        if visible is not None:
            self._backend = VisibleGpus(self._backend, visible)
        self._engine = LocalEngine(state_dir)
        self._engine.output_budget = budget
        self._root = state_dir.resolve() / "attempts"
        self._orders, self._output = orders, output
        self._tick_s = tick_s
        self._lock = threading.Lock()
        self._launching = threading.RLock()  # held while attempts of `_without_room` are started or given up
        self._without_room: dict[AttemptRef, Mapping[str, Any]] = {}  # the orders, until the disk has room for them
        self._retry_due_s = 0.0
        self._closing = threading.Event()

    def run(self) -> None:
        """Serve until the end of the orders."""
        self._engine.start(self._report)
        self._send({"say": "hello", "version": VERSION, "node": node_name(), **self._reading()})
        sampling = threading.Thread(target=self._sample, name="samples", daemon=True)
        sampling.start()
        try:
            while line := self._orders.readline(MAX_LINE_BYTES + 1):
                self._obey(parsed(line))
        finally:
            self._closing.set()
            sampling.join(timeout=5.0)
            self._engine.close()
            self._backend.close()

    def _sample(self) -> None:
        while not self._closing.wait(self._tick_s):
            self._retry()
            try:
                self._send({"say": "sample", **self._reading()})
            except CotenantError as error:  # the daemon sees that no sample comes
                print(f"the GPUs cannot be read: {error}", file=sys.stderr)

    def _reading(self) -> dict[str, Any]:
        listed, samples = self._backend.inventory(), self._backend.sample(time.time())
        pids = {process.pid for sample in samples.values() for process in sample.processes}
        owners = self._engine.owners(pids) if pids else {}
        return {
            "gpus": [replace(gpu, available_until_s=self._ends_at_s) for gpu in listed],
            "samples": samples,
            "owners": {str(pid): pair_of(ref) for pid, ref in owners.items()},
            "clock_s": time.time(),
        }

    def _obey(self, order: Mapping[str, Any]) -> None:
        what = order.get("do")
        if what == "launch":
            self._launch(order)
        elif what == "recover":
            for ref in [ref_of(value) for value in order["refs"]]:
                self._recover(ref)
        elif what == "stop":
            self._stop(ref_of(order["ref"]), order)
        elif what == "pause":
            self._engine.pause(ref_of(order["ref"]))
        elif what == "resume":
            self._engine.resume(ref_of(order["ref"]))
        elif what == "signal":
            number, target, uid = order["number"], order["target"], order["uid"]
            count = self._engine.send_signal(ref_of(order["ref"]), number, target, uid=uid)
            self._send({"say": "answer", "id": order["id"], "count": count})
        else:
            raise MalformedMessage(f"found the order `{str(what)[:40]}`, which this version does not know")

    def _launch(self, order: Mapping[str, Any]) -> None:
        """Start an attempt; one that finds no room on the disk is not to blame, and waits for it."""
        spec: JobSpec = codec.decode(JobSpec, order["spec"])
        placement: Placement = codec.decode(Placement, order["placement"])
        ref = AttemptRef(job_id=placement.job_id, attempt=order["attempt"])
        with self._launching:
            try:
                self._engine.launch(spec, ref.attempt, placement, {**order["env"], **self._env})
            except DiskFullError as error:
                if ref not in self._without_room:
                    print(f"job {ref.job_id} waits for room on the disk: {error.message}", file=sys.stderr)
                self._without_room[ref] = order
                return
            except BackendError as error:
                self._report_end(ref, "not-started", detail=error.message)
            self._without_room.pop(ref, None)

    def _retry(self) -> None:
        """Try the attempts that found no room."""
        if not self._without_room or time.monotonic() < self._retry_due_s:
            return
        self._retry_due_s = time.monotonic() + RETRY_S
        with self._launching:
            for order in list(self._without_room.values()):
                self._launch(order)

    def _stop(self, ref: AttemptRef, order: Mapping[str, Any]) -> None:
        with self._launching:
            is_waiting = self._without_room.pop(ref, None) is not None
        if is_waiting:
            self._report_end(ref, "stopped", detail=order["reason"])
            return
        self._engine.stop(ref, reason=order["reason"], grace_s=order["grace_s"], checkpoint=order["checkpoint"])

    def _recover(self, ref: AttemptRef) -> None:
        (found,) = self._engine.recover([ref])
        if found.started is not None:
            self._report(found.started)
        if found.exited is not None:
            self._report(found.exited)
        elif (self._attempt_dir(ref).read("claim") or {}).get("by") == "engine":
            self._report_end(ref, "never-ran", detail="its agent ended before it started")

    def _attempt_dir(self, ref: AttemptRef) -> AttemptDir:
        return AttemptDir(self._root, ref)

    def _report(self, event: AttemptStarted | AttemptExited) -> None:
        pair = [event.job_id, event.attempt]
        if isinstance(event, AttemptStarted):
            self._send({"say": "started", "ref": pair, "started_at_s": event.at_s, "runner": event.process})
        else:
            result = {**codec.encode(event.exit), "ended_at_s": event.at_s}
            self._send({"say": "ended", "ref": pair, "result": result})

    def _report_end(self, ref: AttemptRef, reason: Any, *, detail: str) -> None:
        end = AttemptExit(exit_code=None, signal=None, reason=reason, detail=detail)
        result = {**codec.encode(end), "ended_at_s": time.time()}
        self._send({"say": "ended", "ref": pair_of(ref), "result": result})

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock, contextlib.suppress(BrokenPipeError):  # stdin ends as well
            self._output.write(line_of(message))
            self._output.flush()


def node_name() -> str:
    """Slurm's name of this node, which is unique where several nodes are one machine; else the host name."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def main(argv: Sequence[str] | None = None) -> int:
    """Run an agent over stdin and stdout."""
    parser = argparse.ArgumentParser(prog="python -m cotenant.hosts.agent", allow_abbrev=False)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--tick-s", type=float, default=1.0)
    parser.add_argument("--max-file-bytes", type=int)
    parser.add_argument("--max-user-bytes", type=int)
    parser.add_argument("--allocated", action="store_true", help="only the GPUs in CUDA_VISIBLE_DEVICES")
    options = parser.parse_args(argv)
    # The descriptors 0 and 1 of all that it starts are /dev/null: a job must not talk to the daemon.
    orders, output = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)
    try:
        budget = OutputBudget(options.max_file_bytes, options.max_user_bytes)
        # Slurm sets it in a step; where devices are not confined, the driver lists those of other users, too.
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "") if options.allocated else None
        if visible == "":
            print("error: the allocation has no GPU: CUDA_VISIBLE_DEVICES is empty", file=sys.stderr)
            return 1
        Agent(options.state_dir, orders, output, tick_s=options.tick_s, budget=budget, visible=visible).run()
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
