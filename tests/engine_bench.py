"""An engine with real processes that records all reported events."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from builders import a_spec
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef
from cotenant.engines import create

TIMEOUT_S = 60
ENV = {"PATH": os.environ["PATH"]}
IGNORES_TERM = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")


def ref(job_id=1, attempt=1):
    return AttemptRef(job_id=job_id, attempt=attempt)


class Bench:
    """An engine that records all reported events."""

    def __init__(self, name, folder):
        self.engine = create(name, folder)
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

    def output(self, job_id=1):
        return Path(self.engine.log_paths(ref(job_id))[0])


def wait_until(holds):
    """Poll `holds` until it is true, for state that only files or processes show."""
    give_up_s = time.monotonic() + TIMEOUT_S
    while not (found := holds()):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
    return found


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextlib.contextmanager
def opened(name, folder):
    """The engine of that name; on exit its attempts are stopped."""
    bench = Bench(name, folder)
    yield bench
    for event in [event for event in bench.reported if isinstance(event, AttemptStarted)]:
        bench.engine.stop(ref(event.job_id, event.attempt), reason="end of the test", grace_s=0)
        bench.wait(AttemptExited, event.job_id)
    bench.engine.close()
