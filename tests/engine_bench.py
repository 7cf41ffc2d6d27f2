"""An engine with real processes that records all reported events."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from unittest import mock

from builders import a_spec
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.engines import ENGINES, create
from cotenant.hosts.engine import HostsEngine
from cotenant.simserver.server import SimulatedServer

NAMES = (*ENGINES.names(), HostsEngine.name)
TIMEOUT_S = 120
ENV = {"PATH": os.environ["PATH"]}
IGNORES_TERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")


def ref(job_id=1, attempt=1):
    return AttemptRef(job_id=job_id, attempt=attempt)


def engine_of(name, folder):
    """The engine of that name, with its files in a folder; that of hosts has one host, which is this machine."""
    return OneHostEngine(folder) if name == HostsEngine.name else create(name, folder)


class OneHostEngine(HostsEngine):
    """An agent over pipes, with the GPUs that `Bench.launch` names; started once it is known what to ask it for."""

    def __init__(self, folder):
        gpus = folder / "gpus"
        if not gpus.exists():
            uuids = SimulatedServer.create(gpus, "2xA100-40GB").uuids
            for file in gpus.glob("*.json"):
                file.write_text(file.read_text().replace(uuids[0], "GPU-a").replace(uuids[1], "GPU-b"))
        agent = (sys.executable, "-m", "cotenant.hosts.agent", "--state-dir", str(folder), "--tick-s", "0.1")
        with mock.patch("cotenant.hosts.engine.MIN_SILENCE_S", TIMEOUT_S):  # a slow agent is not started again
            super().__init__(folder, {"here": ("env", f"COTENANT_SIM_SERVER={gpus}", *agent)}, tick_s=0.1)

    def recover(self, refs):
        found = super().recover(refs)
        self._connect_once()
        return found

    def launch(self, *arguments):
        self._connect_once()
        wait_until(self.inventory)
        super().launch(*arguments)

    def _connect_once(self):
        if not self._is_connected:
            self.connect()


class Bench:
    """An engine that records all reported events."""

    def __init__(self, name, folder):
        self.engine = engine_of(name, folder)
        self.reported = []
        self.changed = threading.Condition()
        self.engine.start(self.report)

    def report(self, event):
        with self.changed:
            self.reported.append(event)
            self.changed.notify_all()

    def launch(self, *command, job_id=1, attempt=1, env=None, **spec):
        spec = a_spec(**{"command": command, "uid": os.getuid(), "env": ENV, **spec})
        placement = Placement(
            job_id=job_id, gpu_uuids=("GPU-a", "GPU-b"), sharing="time-sliced", promised_bytes=3 * 2**30
        )
        self.engine.launch(spec, attempt, placement, env or {})

    def events(self, kind, job_id=1):
        return [event for event in self.reported if isinstance(event, kind) and event.job_id == job_id]

    def wait(self, kind, job_id=1):
        with self.changed:
            assert self.changed.wait_for(lambda: self.events(kind, job_id), TIMEOUT_S), self.reported
        return self.events(kind, job_id)[0]

    def end(self, job_id=1):
        """The end of an attempt of an earlier daemon, known at once or told by its host."""
        (found,) = self.engine.recover([ref(job_id)])
        return found.exited or self.wait(AttemptExited, job_id)

    def output(self, job_id=1):
        return Path(self.engine.log_paths(ref(job_id))[0])


def wait_until(holds):
    """Poll `holds` until it is true, for state that only files or processes show."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    return found


@contextlib.contextmanager
def opened(name, folder):
    """The engine of that name; on exit its attempts are stopped."""
    bench = Bench(name, folder)
    yield bench
    for event in [event for event in bench.reported if isinstance(event, AttemptStarted)]:
        bench.engine.stop(ref(event.job_id, event.attempt), reason="end of the test", grace_s=0)
        bench.wait(AttemptExited, event.job_id)
    bench.engine.close()
