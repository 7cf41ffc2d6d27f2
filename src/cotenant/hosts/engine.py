"""Attempts on other hosts, each of which has an agent with the local engine.

The state folder is on a file system that all hosts see. So the claim of an attempt decides, wherever it is read,
whether it ever runs, and output and results are files that the daemon can read. Only the host of an attempt knows
whether its processes live; while it is silent, nothing is decided about them.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cotenant.core import codec
from cotenant.core.errors import BackendError
from cotenant.core.events import AttemptExited, AttemptStarted
from cotenant.core.gpu import Gpu, GpuSample
from cotenant.core.job import JobSpec
from cotenant.core.placement import Placement
from cotenant.core.ports import AttemptRef, RecoveredAttempt, SignalTarget
from cotenant.engines.attempt_dir import AttemptDir, process_id_of
from cotenant.hosts.link import HostLink
from cotenant.hosts.messages import PID_BITS, MalformedMessage, is_number, ref_of
from cotenant.osutil import atomic

logger = logging.getLogger(__name__)

EventListener = Callable[[AttemptStarted | AttemptExited], None]
CAUSE = "agent"
ANSWER_TIMEOUT_S = 10.0
MIN_SILENCE_S = 3.0
"""A host is silent after three missed samples, at least this long."""


@dataclass(slots=True, kw_only=True)
class _OpenAttempt:
    """An attempt that has not ended.

    Attributes:
        order: the order to launch it, until its start is known; None for one of an earlier daemon.
        stop: the order to stop it, if there is one: the next agent gets it again.
        since_s: no time of its host is before this.
    """

    host: str
    order: Mapping[str, Any] | None
    since_s: float
    stop: Mapping[str, Any] | None = None
    start_reported: bool = False


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
        silent_after_s = max(3 * tick_s, MIN_SILENCE_S)
        self._links = {
            host: HostLink(
                host,
                command,
                folder / f"{host}.log",
                silent_after_s=silent_after_s,
                on_up=self._greet,
                on_message=self._hear,
            )
            for host, command in commands.items()
        }
        self._lock = threading.Lock()
        self._open: dict[AttemptRef, _OpenAttempt] = {}
        self._on_event: EventListener | None = None
        self._ids = itertools.count(1)
        self._answers: dict[int, tuple[str, int | None]] = {}
        self._answered = threading.Condition(self._lock)
        self._listed: tuple[Gpu, ...] = ()
        self._owners: Mapping[int, AttemptRef] = {}
        self._warned_of: set[str] = set()

    # -- engine

    def start(self, on_event: EventListener) -> None:
        """Remember the listener; hosts are connected after `recover`, which says what to ask them for."""
        self._on_event = on_event

    def connect(self) -> None:
        """Start the agents. What they tell needs the attempts that `recover` got."""
        for link in self._links.values():
            link.start()

    def launch(self, spec: JobSpec, attempt: int, placement: Placement, env: Mapping[str, str]) -> None:
        """Order the agent of the host with the placement's GPUs to start an attempt; a silent one gets it later.

        Raises:
            BackendError: the GPUs are of no host or of several, or the order cannot be written.
        """
        ref = AttemptRef(job_id=placement.job_id, attempt=attempt)
        host = self._host_of(placement.gpu_uuids)
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
            # Durable, and before the order: the next daemon must know whom to ask.
            atomic.write_bytes(str(note), host.encode(), durable=True)
        except OSError as error:
            raise BackendError(f"cannot write `{note}`: {error.strerror}") from error
        with self._lock:
            self._open[ref] = _OpenAttempt(host=host, order=order, since_s=time.time())
        try:
            self._links[host].send(order)
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
                found.stop = order = {**order, "ref": _pair(ref)}
        if found is not None:
            self._links[found.host].send(order)

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
            number_of_order = next(self._ids)
            if found is not None:
                self._answers[number_of_order] = (found.host, None)
        order = {"do": "signal", "id": number_of_order, "number": number, "target": target, "uid": uid}
        if found is None or not self._send(ref, order):
            self._answers.pop(number_of_order, None)
            return 0
        with self._answered:
            self._answered.wait_for(lambda: self._answers[number_of_order][1] is not None, ANSWER_TIMEOUT_S)
            return self._answers.pop(number_of_order)[1] or 0

    def recover(self, refs: Iterable[AttemptRef]) -> tuple[RecoveredAttempt, ...]:
        """What the shared files say of attempts of an earlier daemon; the rest their agents tell later."""
        return tuple(self._recovered(ref) for ref in refs)

    def owners(self, pids: Iterable[int]) -> Mapping[int, AttemptRef]:
        """The attempts of processes in samples, by the pids that `sample` gave them."""
        return {pid: self._owners[pid] for pid in pids if pid in self._owners}

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
        listed: dict[str, Gpu] = {}
        for host, link in self._links.items():
            reading, _ = link.reading()
            for gpu in () if reading is None else reading.gpus:
                if listed.setdefault(gpu.uuid, gpu).server != host:
                    self._warn_of_twin(gpu, listed[gpu.uuid].server)
        self._listed = tuple(replace(gpu, index=index) for index, gpu in enumerate(listed.values()))
        return self._listed

    def sample(self, at_s: float) -> Mapping[str, GpuSample]:
        """The newest samples of hosts that are not silent. Pids of the Nth host are raised by N * 2**22."""
        self.inventory()
        servers = {gpu.uuid: gpu.server for gpu in self._listed}
        samples: dict[str, GpuSample] = {}
        owners: dict[int, AttemptRef] = {}
        with self._lock:
            hosts = {ref: found.host for ref, found in self._open.items()}
        for number, (host, link) in enumerate(self._links.items(), start=1):
            reading, read_at_s = link.reading()
            if reading is None or read_at_s is None:
                continue
            base = number << PID_BITS
            owners.update((base + pid, ref) for pid, ref in reading.owners.items() if hosts.get(ref) == host)
            for uuid, sample in reading.samples.items():
                if servers.get(uuid) == host:
                    raised = tuple(replace(process, pid=base + process.pid) for process in sample.processes)
                    samples[uuid] = replace(sample, at_s=min(at_s, read_at_s), processes=raised)
        self._owners = owners
        return samples

    def _warn_of_twin(self, gpu: Gpu, other: str) -> None:
        if gpu.uuid not in self._warned_of:
            self._warned_of.add(gpu.uuid)
            fields = {"gpu": gpu.uuid, "host": gpu.server, "other": other}
            logger.warning("a GPU is listed by two hosts; the second one is left out", extra={"fields": fields})

    # -- attempts

    def _host_of(self, uuids: Iterable[str]) -> str:
        servers = {gpu.uuid: gpu.server for gpu in self._listed}
        hosts = {servers.get(uuid) for uuid in uuids}
        if len(hosts) != 1:
            raise BackendError(
                f"its GPUs are on {len(hosts)} hosts, and an attempt runs on one", hint="ask for fewer GPUs"
            )
        (host,) = hosts
        if host is None:
            raise BackendError("its GPUs are of no host that is known")
        return host

    def _note(self, ref: AttemptRef) -> Path:
        return self._root / str(ref.job_id) / f"{ref.attempt}.host"

    def _send(self, ref: AttemptRef, order: Mapping[str, Any]) -> bool:
        with self._lock:
            found = self._open.get(ref)
        return found is not None and self._links[found.host].send({**order, "ref": _pair(ref)})

    def _recovered(self, ref: AttemptRef) -> RecoveredAttempt:
        attempt_dir = AttemptDir(self._root, ref)
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
        if exited is not None or buried or runner is None:
            return RecoveredAttempt(ref=ref, started=attempt_dir.started(CAUSE), exited=exited)
        # It was claimed, so it runs or ran, on a host that says more when its agent is there.
        started = attempt_dir.started(CAUSE)
        if host in self._links:
            with self._lock:
                self._open[ref] = _OpenAttempt(host=host, order=None, since_s=0.0, start_reported=started is not None)
        else:
            fields = {"job": ref.job_id, "host": host}
            logger.warning("a job runs on a host that the configuration has no more", extra={"fields": fields})
        if started is None:
            started = AttemptStarted(
                at_s=time.time(), cause=CAUSE, job_id=ref.job_id, attempt=ref.attempt, process=runner
            )
        return RecoveredAttempt(ref=ref, started=started, exited=None)

    def _greet(self, link: HostLink, node: str) -> None:
        """Tell a new agent of all that is open on its host. An attempt that was launched already is not launched."""
        with self._lock:
            found = {ref: item for ref, item in self._open.items() if item.host == link.host}
        self._check_node(link.host, node, is_used=bool(found))
        for item in found.values():
            if item.order is not None:
                link.send(item.order)
        pairs = [_pair(ref) for ref in found]
        for first in range(0, len(pairs), 1000):  # a line has a limit
            link.send({"do": "recover", "refs": pairs[first : first + 1000]})
        for item in found.values():
            if item.stop is not None:
                link.send(item.stop)

    def _check_node(self, host: str, node: str, *, is_used: bool) -> None:
        """Note the node of a host. From another node the processes of an attempt look dead, and it would run twice.

        Raises:
            BackendError: attempts run on another node, or the note cannot be written.
        """
        path = self._folder / f"{host}.node"
        try:
            before = path.read_text() if path.exists() else node
            if before == node or not is_used:
                atomic.write_bytes(str(path), node.encode(), durable=True)
                return
        except OSError as error:
            raise BackendError(f"cannot use `{path}`: {error.strerror}") from error
        raise BackendError(f"it is on node `{node}`, and jobs of this host run on `{before}`")

    def _hear(self, link: HostLink, message: Mapping[str, Any]) -> None:
        """What an agent says of an attempt of its own host; of any other it has nothing to say."""
        if message.get("say") == "answer":
            self._answer(link.host, message)
            return
        ref = ref_of(message.get("ref"))
        with self._lock:
            found = self._open.get(ref)
        if found is None or found.host != link.host:
            return  # it has ended: two agents may tell the same
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
            with self._lock:
                del self._open[ref]
            self._emit(replace(event, at_s=link.our_time(event.at_s, not_before_s=found.since_s)))
        else:
            raise MalformedMessage(f"found `{str(message.get('say'))[:40]}`, wanted started, ended or answer")

    def _report_start(self, link: HostLink, ref: AttemptRef, found: _OpenAttempt, at_s: float, process: Any) -> None:
        found.order = None
        if found.start_reported:
            return
        found.start_reported = True
        found.since_s = link.our_time(at_s, not_before_s=found.since_s)
        self._emit(
            AttemptStarted(at_s=found.since_s, cause=CAUSE, job_id=ref.job_id, attempt=ref.attempt, process=process)
        )

    def _answer(self, host: str, message: Mapping[str, Any]) -> None:
        number, count = message.get("id"), message.get("count")
        if type(number) is not int or type(count) is not int or not 0 <= count < 2**PID_BITS:
            raise MalformedMessage("an answer has no number")
        with self._answered:
            if self._answers.get(number) == (host, None):
                self._answers[number] = (host, count)
                self._answered.notify_all()

    def _emit(self, event: AttemptStarted | AttemptExited) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # a bug of the listener must not end the link
            logger.exception("listener failed on %s", type(event).__name__)


def _pair(ref: AttemptRef) -> list[int]:
    return [ref.job_id, ref.attempt]
