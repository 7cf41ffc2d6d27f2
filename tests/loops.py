"""A `ControlLoop` with a journal and an engine that tests control."""

from __future__ import annotations

import threading
import time

from builders import a_gpu, a_spec
from cotenant.core.codec import CodecError, to_json
from cotenant.core.errors import BackendError, DiskFullError, JournalError
from cotenant.core.events import AttemptExited, AttemptPlaced, AttemptStarted, EstimateReady, ServerSampled
from cotenant.core.gpu import GpuSample
from cotenant.core.job import AttemptExit, ProcessId
from cotenant.daemon.control_loop import ControlLoop
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.services.base import AttemptService
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager
from cotenant.store.memory import MemoryJournal

TIMEOUT_S = 60
PROCESS = ProcessId(pid=1, start_ticks=1, boot_id="b")


class Disk(MemoryJournal):
    """An in-memory journal whose disk can be full or fail; it counts transactions."""

    def __init__(self):
        super().__init__()
        self.full = False
        self.has_room = True  # for the space that is set aside
        self.failing = False  # syncs fail: writes do not reach the disk
        self.syncs = 0
        self.transactions = []
        self.on_disk = 0  # number of `transactions` that would survive a power cut

    def append(self, events, *, durable=True):
        if self.full:
            raise JournalError("disk full", hint="free some space")
        for event in events:
            try:
                to_json(event)
            except (ValueError, CodecError) as error:  # as SqliteJournal does
                raise JournalError(f"cannot write an event down: {error}") from error
        self.transactions.append(list(events))
        super().append(events)
        if durable:
            self.sync()

    def restore_reserve(self):
        return self.has_room

    def is_writable(self):
        return not (self.full or self.failing)

    def sync(self):
        self.syncs += 1
        if self.failing:
            raise JournalError("the disk fails", hint="look after it")
        self.on_disk = len(self.transactions)

    @property
    def is_synced(self):
        return self.on_disk == len(self.transactions)


class Engine:
    """Records its calls, and whether the journal had the placement durably at each launch."""

    name = "fake"

    def __init__(self, disk):
        self.disk = disk
        self.launched = []
        self.stopped = []
        self.paused = []
        self.broken = False
        self.committed_at_launch = []

    def launch(self, spec, attempt, placement, env):
        if self.broken:
            raise BackendError("no room for a runner")
        if not self.disk.has_room:
            raise DiskFullError("no room for a folder")
        is_journaled = any(isinstance(event, AttemptPlaced) for event in self.disk.replay())
        self.committed_at_launch.append(is_journaled and self.disk.is_synced)
        self.launched.append((placement.job_id, attempt, dict(env)))

    def stop(self, ref, *, reason, grace_s, checkpoint=False):
        self.stopped.append((ref.job_id, ref.attempt, reason))

    def pause(self, ref):
        self.paused.append(("pause", ref.job_id))

    def resume(self, ref):
        self.paused.append(("resume", ref.job_id))


class Services(AttemptService):
    """Sets one variable for every attempt; calls `on_job_done` for jobs that are done."""

    def __init__(self):
        self.on_job_done = lambda job: None

    def prepare(self, spec, placement):
        return {"SIM": "1"}

    def job_done(self, job):
        self.on_job_done(job)


class Bench:
    """A loop over one GPU with a frozen clock."""

    def __init__(self, disk=None):
        self.disk = Disk() if disk is None else disk
        self.engine = Engine(self.disk)
        self.manager = Manager(policies.create("most-memory", {}))
        self.exits = 0
        self.failed = threading.Event()
        self.inbox = Inbox()
        self.estimates = Declares(self.inbox)
        self.services = Services()
        self.loop = ControlLoop(
            manager=self.manager,
            journal=self.disk,
            engine=self.engine,
            now=lambda: 10.0,
            wall=lambda: 10.0,
            tick_s=0.05,
            inbox=self.inbox,
            estimates=self.estimates,
            services=self.services,
            on_exit=self.on_exit,
            on_failure=self.failed.set,
        )

    def on_exit(self):
        self.exits += 1

    def start(self):
        self.loop.start([], [])
        return self

    def sample(self, used=0):
        gpu = a_gpu()
        samples = {gpu.uuid: GpuSample(at_s=10.0, used_bytes=used, smact=0.0)}
        self.inbox.put_sample(ServerSampled(at_s=10.0, cause="test", gpus=(gpu,), samples=samples, observed=()))

    def submit(self, *specs):
        return self.loop.submit(specs or [a_spec(declared_bytes=2**30)]).result(TIMEOUT_S)

    def state(self, job_id):
        return self.loop.query(lambda manager: manager.jobs[job_id].state).result(TIMEOUT_S)

    def turn(self):
        """Wait until the loop has processed all earlier events and their consequences."""
        for _ in range(3):
            self.loop.query(lambda _: None).result(TIMEOUT_S)

    def until(self, holds):
        """Run turns of the loop until `holds()`."""
        give_up_s = time.monotonic() + TIMEOUT_S
        while not holds():
            assert time.monotonic() < give_up_s, "the condition never became true"
            self.turn()
            time.sleep(0.01)


class Declares:
    """An estimate pool without estimates: jobs declare their memory."""

    def __init__(self, inbox):
        self.inbox = inbox
        self.cancelled = []

    def request(self, job_id, spec):
        self.inbox.put(EstimateReady(at_s=10.0, cause="t", job_id=job_id, estimate=None, error="none"))

    def cancel(self, job_id):
        self.cancelled.append(job_id)


def exited(job_id, code=0, attempt=1, reason="exited"):
    end = AttemptExit(exit_code=code, signal=None, reason=reason)
    return AttemptExited(at_s=11.0, cause="t", job_id=job_id, attempt=attempt, exit=end, peak_observed_bytes={})


def started(job_id, attempt=1):
    return AttemptStarted(at_s=10.5, cause="t", job_id=job_id, attempt=attempt, process=PROCESS)
