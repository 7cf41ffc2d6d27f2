"""Allocations of Ray for a pilot: detached actors that hold GPUs, through a bridge process."""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from importlib import util
from pathlib import Path
from typing import Any

from cotenant.core.errors import BackendError, UsageError
from cotenant.hosts.allocations import AllocationNote, AllocationReport
from cotenant.hosts.keeper import mark_of

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 75.0
"""Longer than Ray's own: a driver whose head is gone ends itself after 60 s (gcs_rpc_server_reconnect_timeout_s)."""
KEEPER_S = 10.0
"""A keeper whose actor has died needs its grace to stop attempts, and at most this besides."""
HEAD_LOSS_S = 60.0
"""Workers of a cluster whose head is gone live so long; a new head does not know of them."""
ADDRESS = "auto"
HINT = "`ray status` on this machine says whether it is up; a daemon must run on one of its nodes"
KINDS: Mapping[str, tuple[type, ...]] = {
    "address": (str,),
    "num_gpus": (int,),
    "num_cpus": (int, float),
    "memory": (int, float),
    "accelerator_type": (str,),
    "resources": (dict,),
}
"""Keys of `[pilot.ray]`: the cluster, and options of an actor by Ray's names."""
KIND_NAMES = {str: "text", int: "a whole number", float: "a number", dict: "a table"}


class RayAllocations:
    """Allocations of one cluster.

    Args:
        options: of the actors.
        notes: folder of the pilot's notes.
        grace_s: between SIGTERM and SIGKILL for the attempts of an allocation that ends.
    """

    manager, noun = "Ray", "actor"

    def __init__(self, address: str, options: Mapping[str, Any], notes: Path, *, grace_s: float) -> None:
        self._address, self._options, self._notes, self._grace_s = address, dict(options), notes, grace_s
        # Not in the state folder: that may be on a network file system, and its path too long for a socket.
        self._folder = Path(tempfile.mkdtemp(prefix="cotenant-ray-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._socket = self._folder / "bridge.sock"
        self._lock = threading.Lock()
        self._bridge: subprocess.Popen[bytes] | None = None
        self._gone_since_s: dict[str, float] = {}

    def request(self, name: str, command: list[str], log: Path) -> str:
        """Create an actor with `command` beside it."""
        words = [*command, "--held"]
        return str(self._call("request", name=name, keeper=words, log=str(log), options=self._options)["id"])

    def report(self, names: Iterable[str]) -> Mapping[str, AllocationReport]:
        """What Ray says of actors. One that has died is ending until its attempts are stopped."""
        wanted = list(names)
        found = self._call("report", names=wanted, options=self._options)["found"]
        reports = {name: self._report_of(name, found.get(name)) for name in wanted}
        return {name: report for name, report in reports.items() if report is not None}

    def cancel(self, note: AllocationNote) -> None:
        """End an actor, after its attempts."""
        self._call("cancel", name=note.name)

    def launcher(self, note: AllocationNote) -> list[str]:
        """A relay to an agent beside the actor."""
        return [sys.executable, "-m", "cotenant.ray.link", str(self._socket), note.name]

    def _report_of(self, name: str, seen: Mapping[str, Any] | None) -> AllocationReport | None:
        if seen is not None and seen["state"] != "ended":
            self._gone_since_s.pop(name, None)
            return AllocationReport(
                job_id=seen["id"], state=seen["state"], word=seen["state"], reason=seen["reason"], node=seen["node"]
            )
        try:
            saved_id = mark_of(self._notes / f"{name}.json").read_text()
        except OSError:
            saved_id = ""
        if seen is None and not saved_id:
            return None
        now_s = time.monotonic()
        limit_s = self._grace_s + KEEPER_S + (HEAD_LOSS_S if seen is None else 0.0)
        is_over = not saved_id or now_s - self._gone_since_s.setdefault(name, now_s) > limit_s
        known = {"id": saved_id, "reason": "Ray does not know it any more"} if seen is None else seen
        return AllocationReport(job_id=known["id"], state="ended" if is_over else "ending", word=known["reason"])

    # -- bridge

    def _call(self, what: str, **fields: Any) -> Any:
        """The answer of the bridge, which is started if there is none.

        Raises:
            BackendError: Ray cannot be reached, or refuses.
        """
        with self._lock:
            self._start()
            try:
                with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as source:
                    connection.settimeout(ANSWER_TIMEOUT_S)
                    connection.connect(str(self._socket))
                    connection.sendall(json.dumps({"do": what, **fields}).encode() + b"\n")
                    line = source.readline()
            except TimeoutError as error:
                self._end()
                raise BackendError(f"Ray has not answered within {ANSWER_TIMEOUT_S:g} s", hint=HINT) from error
            except OSError as error:
                raise BackendError(f"the connection to Ray is lost: {error.strerror}", hint=HINT) from error
        if not line:
            raise BackendError("the connection to Ray is lost: is its head up?", hint=HINT)
        answer = json.loads(line)
        if "error" in answer:
            raise BackendError(f"Ray: {answer['error']}")
        return answer

    def _start(self) -> None:
        if self._bridge is not None and self._bridge.poll() is None:
            return
        self._end()
        log = self._folder / "bridge.log"
        with log.open("wb") as output:
            bridge = subprocess.Popen(
                [sys.executable, "-m", "cotenant.ray.bridge", self._address, str(self._socket)],
                cwd=self._folder,  # `python -m` finds modules in its working directory
                stdin=subprocess.PIPE,  # whose end ends it
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        self._bridge = bridge
        assert bridge.stdout is not None
        readable, _, _ = select.select([bridge.stdout], [], [], START_TIMEOUT_S)
        if not readable or not os.read(bridge.stdout.fileno(), 64):
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            self._end()
            why = said[-1].removeprefix("error: ")[:200] if readable and said else f"no answer in {START_TIMEOUT_S:g} s"
            raise BackendError(f"the Ray cluster `{self._address}` cannot be reached: {why}", hint=HINT)

    def _end(self) -> None:
        bridge, self._bridge = self._bridge, None
        if bridge is not None:
            for pipe in (bridge.stdin, bridge.stdout):
                if pipe is not None:
                    pipe.close()
            bridge.kill()
            bridge.wait()


def open_allocations(settings: Mapping[str, object], notes: Path, *, grace_s: float) -> RayAllocations:
    """The allocations of the cluster that `[pilot.ray]` names.

    Raises:
        UsageError: Ray is not installed, or a key or value is not one of `[pilot.ray]`.
    """
    for name, value in settings.items():
        if name not in KINDS:
            raise UsageError(f"`pilot.ray` has no key `{name}` (known: {', '.join(KINDS)})")
        if isinstance(value, bool) or not isinstance(value, KINDS[name]):
            wanted = " or ".join(KIND_NAMES[kind] for kind in KINDS[name])
            raise UsageError(f"`pilot.ray.{name}` is {value!r}, wanted {wanted}")
    options = {"num_gpus": 1, **settings}
    address = str(options.pop("address", ADDRESS))
    if not isinstance(options["num_gpus"], int) or options["num_gpus"] < 1:
        raise UsageError(f"`pilot.ray.num_gpus` is {options['num_gpus']}, wanted whole GPUs, at least 1")
    if util.find_spec("ray") is None:
        raise UsageError("`pilot.ray` needs Ray in the daemon's Python", hint="pip install 'cotenant[ray]'")
    return RayAllocations(address, options, notes, grace_s=grace_s)
