"""Attempts on other hosts, each of which has an agent with the local engine.

The state folder is on a file system that all hosts see. So the claim of an attempt decides, wherever it is read,
whether it ever runs, and output and results are files that the daemon can read. Only the host of an attempt knows
whether its processes live; while it is silent, nothing is decided about them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cotenant.core import codec
from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, RecoveredAttempt, SignalTarget
from cotenant.engines.attempt_dir import AttemptDir, launch_error, process_id_of
from cotenant.hosts.attempt_ends import as_loss, is_doubtful, last_end
from cotenant.hosts.gpu_listing import HostGpus
from cotenant.hosts.link import HostLink, note_node
from cotenant.hosts.messages import MalformedMessage, is_number, pair_of, ref_of
from cotenant.hosts.orders import Answers, OpenAttempt
from cotenant.osutil import atomic

logger = logging.getLogger(__name__)

EventListener = Callable[[AttemptStarted | AttemptExited], None]
CAUSE = "agent"
MIN_SILENCE_S = 3.0
"""A host is silent after three missed samples, at least this long."""


class HostsEngine:
    """Engine and GPU backend of all hosts: `commands` start their agents, by name of the host."""

    name = "hosts"

    def __init__(self, state_dir: Path, commands: Mapping[str, Sequence[str]], *, tick_s: float) -> None:
        self._folder = folder = state_dir.resolve() / "hosts"
        self._root = state_dir.resolve() / "attempts"
        try:
            for made in (folder, self._root):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise BackendError(f"cannot create `{error.filename}`: {error.strerror}") from error
        self._silent_after_s = max(3 * tick_s, MIN_SILENCE_S)
        # Replaced as a whole, under the lock, so that it can be iterated over without.
        self._links = {host: self._link(host, command) for host, command in commands.items()}
        self._configured = frozenset(commands)
        self._retired: frozenset[str] = frozenset()  # of these, those that admit nothing more
        self._is_connected = False
        self._lock = threading.Lock()
        self._open: dict[AttemptRef, OpenAttempt] = {}
        self._doubted: dict[AttemptRef, AttemptExited] = {}
        self.on_doubt: Callable[[], None] = lambda: None
        self._on_event: EventListener | None = None
        self._answers = Answers()
        self._gpus = HostGpus()

    # -- engine

    def start(self, on_event: EventListener) -> None:
        """Remember the listener; hosts are connected after `recover`, which gets the attempts to look for."""
        self._on_event = on_event

    def connect(self) -> None:
        """Start the agents. Their messages are read against the attempts that `recover` got."""
        self._is_connected = True
        for link in self._links.values():
            link.start()

    # -- hosts that come and go

    def add_host(self, host: str, command: Sequence[str]) -> None:
        """Add a host in an allocation. One that was there before, with attempts, is added before `recover`."""
        link = self._link(host, command)
        with self._lock:
            self._links = {**self._links, host: link}
        if self._is_connected:
            link.start()

    def set_end(self, host: str, at_s: float | None) -> None:
        """When the allocation of a host ends; None: never. Jobs that would not have ended by then are not placed."""
        self._gpus.set_end(host, at_s)

    def retire_host(self, host: str, *, even_used: bool = False) -> bool:
        """List the GPUs of a host no more, and launch nothing there; False if it has attempts, which stay.

        An attempt that is launched there all the same, because its GPUs were listed when that was decided, waits for
        `drop_host`, which ends it as one that never ran.
        """
        with self._lock:
            if not even_used and any(found.host == host for found in self._open.values()):
                return False
            self._retired |= {host}
            link = self._links.get(host)
        if link is not None and self._is_connected:
            link.close()
        return True

    def drop_host(self, host: str, why: str) -> None:
        """Remove a retired host whose allocation has ended: its attempts that have no end of their own are lost.

        Not before the scheduler has seen an inventory without its GPUs: it would place the same jobs there again.

        Raises:
            BackendError: an end cannot be written; call it again.
        """
        with self._lock:
            refs = [ref for ref, found in self._open.items() if found.host == host]
        for ref in refs:
            event = last_end(AttemptDir(self._root, ref), why, CAUSE)
            with self._lock:
                self._doubted.pop(ref, None)
                is_open = self._open.pop(ref, None) is not None
            if is_open:
                self._emit(event)
        with self._lock:
            self._links = {name: link for name, link in self._links.items() if name != host}
            self._retired -= {host}

    def doubted(self) -> frozenset[AttemptRef]:
        """Attempts whose ends may be those of their allocation: Slurm signals all processes when it ends one."""
        with self._lock:
            return frozenset(self._doubted)

    def believe(self, host: str, refs: Iterable[AttemptRef]) -> None:
        """Report those of the doubted ends that are of a host: its allocation goes on, so they are the jobs' own."""
        for ref in refs:
            with self._lock:
                found = self._open.get(ref)
                event = self._doubted.pop(ref, None) if found is not None and found.host == host else None
                if event is not None:
                    del self._open[ref]
            if event is not None:
                self._emit(event)

    def _doubt(self, ref: AttemptRef, event: AttemptExited) -> None:
        with self._lock:
            if ref in self._open:
                self._doubted.setdefault(ref, event)
        self.on_doubt()

    def has_attempts(self, host: str) -> bool:
        """Whether attempts are open on a host."""
        with self._lock:
            return any(found.host == host for found in self._open.values())

    def is_heard(self, host: str) -> bool:
        """Whether the agent of a host has ever listed its GPUs, since it was added."""
        link = self._links.get(host)
        return link is not None and link.reading()[0] is not None

    def complaint(self, host: str) -> str:
        """`: ` and what the agent of a host complained of last; empty if there is nothing."""
        link = self._links.get(host)
        return "" if link is None else link.complaint()

    def _link(self, host: str, command: Sequence[str]) -> HostLink:
        return HostLink(
            host,
            command,
            self._folder / f"{host}.log",
            silent_after_s=self._silent_after_s,
            on_up=self._greet,
            on_message=self._hear,
        )

    # -- attempts

    def launch(self, spec: JobSpec, attempt: int, placement: Placement, env: Mapping[str, str]) -> None:
        """Order the agent of the host with the placement's GPUs to start an attempt; a silent one gets it later.

        Raises:
            DiskFullError: the disk of the shared files is full.
            BackendError: the GPUs are of no host or of several, or the order cannot be written.
        """
        ref = AttemptRef(job_id=placement.job_id, attempt=attempt)
        host = self._gpus.host_of(placement.gpu_uuids)
        order = {
            "do": "launch",
            "spec": codec.encode(spec),
            "attempt": attempt,
            "placement": codec.encode(placement),
            "env": dict(env),
        }
        note = self._note(ref)
        if note.exists():
            return
        try:
            note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Durable, and before the order: the next daemon must know which host has the attempt.
            atomic.write_bytes(str(note), host.encode(), durable=True)
        except OSError as error:
            raise launch_error(f"cannot write `{note}`", error) from error
        with self._lock:
            self._open[ref] = OpenAttempt(host=host, order=order, since_s=time.time())
            link = None if host in self._retired else self._links.get(host)
        if link is None:
            return
        try:
            link.send(order)
        except BackendError:
            with self._lock:
                del self._open[ref]
            raise

    def stop(self, ref: AttemptRef, *, reason: str, grace_s: float, checkpoint: bool = False) -> None:
        """Order an attempt to be stopped; the agent of a silent host gets the order when it is back."""
        order = {"do": "stop", "reason": reason, "grace_s": grace_s, "checkpoint": checkpoint}
        with self._lock:
            found = self._open.get(ref)
            if found is not None:
                found.stop = order = {**order, "ref": pair_of(ref)}
            link = None if found is None else self._links.get(found.host)
        if link is not None:
            link.send(order)

    def pause(self, ref: AttemptRef) -> None:
        """Suspend an attempt."""
        self._send(ref, {"do": "pause"})

    def resume(self, ref: AttemptRef) -> None:
        """Let a paused attempt continue."""
        self._send(ref, {"do": "resume"})

    def send_signal(self, ref: AttemptRef, number: int, target: SignalTarget, *, uid: int) -> int:
        """Signal processes of an attempt; 0 if its host does not answer in time."""
        with self._lock:
            found = self._open.get(ref)
        if found is None:
            return 0
        order_id = self._answers.expect(found.host)
        if not self._send(ref, {"do": "signal", "id": order_id, "number": number, "target": target, "uid": uid}):
            self._answers.forget(order_id)
            return 0
        return self._answers.wait(order_id)

    def recover(self, refs: Iterable[AttemptRef]) -> tuple[RecoveredAttempt, ...]:
        """What the shared files show of attempts of an earlier daemon; their agents report the rest later."""
        return tuple(self._recovered(ref) for ref in refs)

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """The attempts of processes in samples, by the pids that `sample` gave them."""
        return self._gpus.owners(pids)

    def log_paths(self, ref: AttemptRef) -> tuple[str, str]:
        """Files with the attempt's standard output and error, on the shared file system."""
        attempt_dir = AttemptDir(self._root, ref)
        spec = attempt_dir.read("spec.json") or {}
        return str(spec.get("stdout", attempt_dir.stdout_path)), str(spec.get("stderr", attempt_dir.stderr_path))

    def close(self) -> None:
        """End the agents. Attempts go on."""
        for link in self._links.values():
            link.close()

    # -- GPU backend

    def inventory(self) -> tuple[Gpu, ...]:
        """GPUs of all hosts that have been heard of, also of silent ones, in the order of the configuration."""
        return self._gpus.inventory(self._links, self._retired)

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """The newest samples of hosts that are not silent."""
        self.inventory()
        with self._lock:
            hosts = {ref: found.host for ref, found in self._open.items()}
        return self._gpus.sample(at_s, self._links, hosts)

    # -- attempts

    def _note(self, ref: AttemptRef) -> Path:
        return self._root / str(ref.job_id) / f"{ref.attempt}.host"

    def _send(self, ref: AttemptRef, order: Mapping[str, Any]) -> bool:
        with self._lock:
            found = self._open.get(ref)
            link = None if found is None else self._links.get(found.host)
        return link is not None and link.send({**order, "ref": pair_of(ref)})

    def _recovered(self, ref: AttemptRef) -> RecoveredAttempt:
        attempt_dir = AttemptDir(self._root, ref)
        with self._lock:
            if ref in self._open:  # its end goes to the listener, who may not get it twice
                return RecoveredAttempt(ref=ref, started=attempt_dir.started(CAUSE), exited=None)
        try:
            host = self._note(ref).read_text()
        except OSError:
            host = ""
        try:
            buried = attempt_dir.tombstone()
        except OSError as error:
            raise BackendError(f"cannot read or write `{attempt_dir.path}`: {error.strerror}") from error
        exited = attempt_dir.exited(CAUSE)
        runner = attempt_dir.runner()
        if exited is not None and is_doubtful(exited) and host in self._links and host not in self._configured:
            with self._lock:
                self._open[ref] = OpenAttempt(host=host, order=None, since_s=0.0, start_reported=True)
                self._doubted[ref] = exited
            return RecoveredAttempt(ref=ref, started=attempt_dir.started(CAUSE), exited=None)
        if exited is not None or buried or runner is None:
            exited = None if exited is None else as_loss(exited)
            return RecoveredAttempt(ref=ref, started=attempt_dir.started(CAUSE), exited=exited)
        # It was claimed, so it runs or ran, on a host that says more when its agent is there.
        started = attempt_dir.started(CAUSE)
        if host in self._links:
            with self._lock:
                self._open[ref] = OpenAttempt(host=host, order=None, since_s=0.0, start_reported=started is not None)
        else:
            fields = {"job": ref.job_id, "host": host}
            logger.warning("a job runs on a host that the configuration has no more", extra={"fields": fields})
        if started is None:
            started = AttemptStarted(
                at_s=time.time(), cause=CAUSE, job_id=ref.job_id, attempt=ref.attempt, process=runner
            )
        return RecoveredAttempt(ref=ref, started=started, exited=None)

    def _greet(self, link: HostLink, node: str) -> None:
        """Send a new agent all open attempts of its host. An attempt that was launched already is not launched."""
        with self._lock:
            found = {ref: item for ref, item in self._open.items() if item.host == link.host}
        note_node(self._folder / f"{link.host}.node", node, is_used=bool(found))
        for item in found.values():
            if item.order is not None:
                link.send(item.order)
        pairs = [pair_of(ref) for ref in found]
        for first in range(0, len(pairs), 1000):  # a line has a limit
            link.send({"do": "recover", "refs": pairs[first : first + 1000]})
        for item in found.values():
            if item.stop is not None:
                link.send(item.stop)

    def _hear(self, link: HostLink, message: Mapping[str, Any]) -> None:
        """What an agent says of an attempt of its own host; of any other it has nothing to say."""
        if message.get("say") == "answer":
            self._answers.take(link.host, message)
            return
        ref = ref_of(message.get("ref"))
        with self._lock:
            found = self._open.get(ref)
        if found is None or found.host != link.host:
            return  # it has ended: two agents may report the same
        if message.get("say") == "started":
            at_s, process = message.get("started_at_s"), process_id_of(message.get("runner"))
            if not is_number(at_s) or process is None:
                raise MalformedMessage("a start has no time or no process")
            self._report_start(link, ref, found, at_s, process)
        elif message.get("say") == "ended":
            result = message.get("result")
            event = AttemptDir(self._root, ref).exited_by(result, CAUSE) if isinstance(result, dict) else None
            if event is None:
                raise MalformedMessage("an end has no result")
            event = as_loss(event, is_ordered=found.stop is not None)
            if link.host not in self._configured and is_doubtful(event):
                self._doubt(ref, replace(event, at_s=link.our_time(event.at_s, not_before_s=found.since_s)))
                return
            with self._lock:
                if self._open.pop(ref, None) is None:
                    return  # its host was dropped meanwhile
            self._emit(replace(event, at_s=link.our_time(event.at_s, not_before_s=found.since_s)))
        else:
            raise MalformedMessage(f"found `{str(message.get('say'))[:40]}`, wanted started, ended or answer")

    def _report_start(self, link: HostLink, ref: AttemptRef, found: OpenAttempt, at_s: float, process: Any) -> None:
        found.order = None
        if found.start_reported:
            return
        found.start_reported = True
        found.since_s = link.our_time(at_s, not_before_s=found.since_s)
        self._emit(
            AttemptStarted(at_s=found.since_s, cause=CAUSE, job_id=ref.job_id, attempt=ref.attempt, process=process)
        )

    def _emit(self, event: AttemptStarted | AttemptExited) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # a bug of the listener must not end the link
            logger.exception("listener failed on %s", type(event).__name__)
