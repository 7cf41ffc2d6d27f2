"""Brings the rooms together: start, serve until told to stop, and leave the attempts to the next daemon."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import cotenant
from cotenant import engines
from cotenant.core.errors import BackendError, UnknownName
from cotenant.core.events import AttemptExited, ServerSampled
from cotenant.core.job import AttemptExit, Job, Running, Starting
from cotenant.core.ports import AttemptRef, Engine, GpuBackend, Journal, RecoveredAttempt
from cotenant.daemon.api import application
from cotenant.daemon.api.metrics import MetricsSnapshot, PrometheusCollector, metrics_snapshot
from cotenant.daemon.api.sharing_modes import unavailable_modes
from cotenant.daemon.api.views import end_message, rfc3339
from cotenant.daemon.attempt_services import LaunchEnv
from cotenant.daemon.auth.http import new_server
from cotenant.daemon.auth.network import TcpListener, TokenAuthMiddleware
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import TokenStore
from cotenant.daemon.auth.unix_socket import ListeningSocket
from cotenant.daemon.clock import Clock
from cotenant.daemon.config import paths
from cotenant.daemon.config.schema import Config
from cotenant.daemon.control_loop import ControlLoop
from cotenant.daemon.estimation.pool import EstimatePool
from cotenant.daemon.messages import Report
from cotenant.daemon.monitoring.monitor import Monitor
from cotenant.daemon.monitoring.telemetry_checkpoint import SAVE_INTERVAL_S, PeriodicSaver, TelemetryFile
from cotenant.daemon.notifier import Notifier
from cotenant.daemon.setup import (
    access_of,
    launch_env_of,
    open_gpus,
    scaled_options,
    state_folder,
    state_mode,
    with_aging,
)
from cotenant.daemon.startup import restore_manager, save_snapshot_if_due
from cotenant.estimators import ESTIMATORS
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.store.sqlite import SqliteJournal

logger = logging.getLogger(__name__)

JOURNAL_FILE = "journal.db"
TELEMETRY_FILE = "watched.json"
GPU_HISTORY_FILE = "gpus-past.jsonl"
TOKENS_FILE = "tokens.json"
METRICS_TIMEOUT_S = 10.0
"""Longest that whoever asks for metrics waits for the loop."""


def serve(config: Config, socket_file: Path, *, on_ready: Callable[[], None] = lambda: None) -> None:
    """Run a daemon until SIGTERM, SIGINT or a request to shut down. Attempts that run go on.

    `on_ready` is called once the socket answers.

    Raises:
        DaemonRunning: the socket or the state folder is another daemon's.
        BackendError, JournalError, UsageError, NotPermitted: what it needs is not there.
    """
    if config.estimates.estimator not in ESTIMATORS:
        raise UnknownName("estimator", config.estimates.estimator, ESTIMATORS)
    access = access_of(config)
    state_dir = paths.private_folder(state_folder(config), mode=state_mode(config))
    with ExitStack() as stack:
        listening = ListeningSocket(socket_file, for_all=access.many)
        stack.callback(listening.close)
        tcp = TcpListener(config.tcp) if config.tcp.listen is not None else None
        if tcp is not None:
            stack.callback(tcp.socket.close)
        fsync: Any = config.daemon.fsync.upper()
        journal = SqliteJournal(state_dir / JOURNAL_FILE, synchronous=fsync)
        stack.callback(journal.close)
        backend, sim_env = open_gpus(config, state_dir)
        stack.callback(backend.close)
        engine = engines.create("local", state_dir)
        stack.callback(engine.close)
        daemon = _Daemon(
            config,
            state_dir=state_dir,
            journal=journal,
            backend=backend,
            engine=engine,
            launch_env=launch_env_of(config, sim_env, socket_file.parent),
            access=access,
            tokens=TokenStore(state_dir / TOKENS_FILE),
        )
        stack.enter_context(_gc_tuned())
        asyncio.run(daemon.run(listening, tcp, on_ready))


@contextlib.contextmanager
def _gc_tuned() -> Iterator[None]:
    """What is there by now stays, and jobs come to stay: to look through them all again and again finds nothing.

    Only what refers to itself in a circle has to be searched for, and there is little of that.
    """
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


@runtime_checkable
class _HasLogPaths(Protocol):
    """An engine whose attempts write to files of this machine."""

    def log_paths(self, ref: AttemptRef) -> tuple[Path, Path]: ...


def log_paths_of(engine: Engine) -> application.LogPaths:
    """Where `engine` keeps the output of attempts.

    Raises:
        BackendError: elsewhere.
    """
    if not isinstance(engine, _HasLogPaths):
        raise BackendError(f"engine `{engine.name}` does not say where the output of jobs is")
    return engine.log_paths


def reports_of(jobs: Sequence[Job], found: Sequence[RecoveredAttempt], *, at_s: float) -> list[Report]:
    """What an engine found of attempts that the journal left open, as the events to take in."""
    reports: list[Report] = []
    for job, each in zip(jobs, found, strict=True):
        if each.started is not None and isinstance(job.state, Starting):
            reports.append(each.started)
        if each.exited is not None:
            reports.append(each.exited)
        elif each.started is None:
            reports.append(_missing(job, each.ref, at_s))
    return reports


def _missing(job: Job, ref: AttemptRef, at_s: float) -> AttemptExited:
    """The end of an attempt that an engine knows nothing of."""
    if isinstance(job.state, Starting):
        end = AttemptExit(exit_code=None, signal=None, reason="never-ran", detail="the daemon ended before it started")
    else:
        end = AttemptExit(exit_code=None, signal=None, reason="lost", detail="its files are gone")
    return AttemptExited(
        at_s=at_s, cause="restart", job_id=ref.job_id, attempt=ref.attempt, exit=end, peak_observed_bytes={}
    )


class _Daemon:
    """One life of the daemon."""

    def __init__(
        self,
        config: Config,
        *,
        state_dir: Path,
        journal: Journal,
        backend: GpuBackend,
        engine: Engine,
        launch_env: LaunchEnv,
        access: AccessPolicy,
        tokens: TokenStore,
    ) -> None:
        self._access = access
        self._tokens = tokens
        self._journal = journal
        self._config = config
        self._state_dir = state_dir
        self._engine = engine
        self._launch_env = launch_env
        options = scaled_options(config.policy.name, dict(config.policy.options), config.gpus.time_scale)
        self._policy = with_aging(policies.create(config.policy.name, options), config.scheduling.aging_per_hour)
        self._manager = Manager(
            self._policy,
            ManagerConfig(
                estimate=config.estimates.enabled,
                stale_after_s=config.scheduling.stale_after_s,
                window_s=config.scheduling.window_s,
                stop_grace_s=config.scheduling.stop_grace_s,
                time_slice_grace_s=config.scheduling.time_slice_grace_s,
                pace=config.gpus.time_scale,
                quota=config.quotas.of_all(),
                user_quotas=config.quotas.of_users(),
            ),
        )
        self._commands = restore_manager(self._manager, journal)
        self._watched = TelemetryFile(state_dir / TELEMETRY_FILE)
        self._watched.restore(self._manager)
        self._past = GpuTimeSeries(state_dir / GPU_HISTORY_FILE)
        self._now = Clock(not_before_s=self._manager.last_at_s)
        self._loop = ControlLoop(
            manager=self._manager,
            journal=journal,
            engine=engine,
            now=self._now,
            tick_s=config.daemon.tick_s,
            launch_env=launch_env,
            on_exit=self._attempt_ended,
        )
        self._backend = backend
        self._monitor = Monitor(
            backend,
            engine,
            tick_s=config.daemon.tick_s,
            now=self._now,
            emit=self._sampled,
            rate=launch_env.rate,
        )

    def _sampled(self, event: ServerSampled) -> None:
        """Called in the monitor's thread."""
        self._past.add(event.samples)
        self._loop.sampled(event)

    def _attempt_ended(self) -> None:
        """Called in the loop's thread."""
        self._monitor.poke()
        self._launch_env.tidy(lambda: [(job.spec, job.attempts[-1].placement) for job in self._live()])

    def _live(self) -> list[Job]:
        return [job for job in self._manager.jobs.values() if isinstance(job.state, (Starting, Running))]

    async def run(self, listening: ListeningSocket, tcp: TcpListener | None, on_ready: Callable[[], None]) -> None:
        """Serve until told to stop."""
        closing = asyncio.Event()
        here = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            here.add_signal_handler(number, closing.set)
        failed = False

        def fail() -> None:
            nonlocal failed
            failed = True
            here.call_soon_threadsafe(closing.set)

        self._loop.failed = fail
        info = {**self._info(listening.path), "tcp": None if tcp is None else tcp.url}
        metrics = PrometheusCollector(lambda: self._picture(info))
        with self._running() as estimates, self._told_to_prometheus(metrics):
            asgi = application.application(
                application.ApiContext(
                    loop=self._loop,
                    policy=self._policy,
                    estimates=estimates,
                    journal=self._journal,
                    access=self._access,
                    tokens=self._tokens,
                    log_paths=log_paths_of(self._engine),
                    now=self._now,
                    info=info,
                    metrics=metrics,
                    past=self._past,
                    refusals=lambda: unavailable_modes(
                        self._policy, self._monitor.gpus, mps_unavailable_reason=self._no_mps()
                    ),
                    stop=closing.set,
                    closing=closing,
                )
            )
            server = new_server(asgi)
            serving = asyncio.create_task(server.serve(sockets=[listening.socket]))
            gate = TokenAuthMiddleware(asgi, self._tokens, self._access)
            remote = None if tcp is None else asyncio.create_task(tcp.serve(gate, closing))
            on_ready()
            fields = {"socket": listening.path, "tcp": info["tcp"], "pid": os.getpid()}
            logger.info("daemon serves", extra={"fields": fields})
            await asyncio.wait({serving, asyncio.ensure_future(closing.wait())}, return_when=asyncio.FIRST_COMPLETED)
            closing.set()
            server.should_exit = True
            await serving
            if remote is not None:
                await remote
        if failed:
            raise BackendError("the daemon failed; its log says how", hint="start it again: nothing is lost")
        logger.info("daemon ends")

    @contextlib.contextmanager
    def _running(self) -> Iterator[EstimatePool]:
        """Everything that has a thread, started in order and stopped in reverse."""
        biggest = max(self._monitor.gpus, key=lambda gpu: gpu.memory_total_bytes, default=None)
        estimates = EstimatePool(
            self._config.estimates,
            gpu="" if biggest is None else biggest.name,
            folder=self._state_dir / "estimates",
            now=self._now,
            emit=self._loop.put,
        )
        notifier = Notifier(enabled=self._config.notifications.enabled, timeout_s=self._config.notifications.timeout_s)

        def told(job: Job) -> None:
            if job.spec.notify is not None:
                notifier.tell(job.spec.notify, job.spec.uid, end_message(job))

        self._loop.on_end = told
        self._loop.failed_under_mps = lambda job, attempt, ran_s: self._launch_env.server_failed_under(
            job, attempt, ran_s, self._live
        )
        self._engine.start(self._loop.put)
        self._loop.start(estimates, self._found(), self._commands)
        self._monitor.start()
        self._launch_env.start()
        keeper = PeriodicSaver(self._watched, self._seen, every_s=SAVE_INTERVAL_S)
        keeper.start()
        try:
            yield estimates
        finally:
            self._monitor.close()
            self._launch_env.close()
            keeper.close()
            self._loop.close()
            if self._loop.is_consistent():
                self._watched.keep(self._manager.watched())
                save_snapshot_if_due(self._manager, self._journal)
            estimates.close()
            notifier.close()

    def _seen(self) -> dict[str, Any]:
        """What telemetry has added up so far, looked at in the loop's thread."""
        return self._loop.ask(lambda manager: manager.watched()).result(timeout=METRICS_TIMEOUT_S)

    def _no_mps(self) -> str | None:
        """Why jobs that ask for MPS cannot have it, or None."""
        if not self._config.mps.allow_job_requests:
            return "its configuration leaves that to the policy: [mps] allow_job_requests"
        return self._launch_env.mps_unavailable_reason

    def _picture(self, info: dict[str, Any]) -> MetricsSnapshot:
        """Taken in the loop's thread, where nothing changes meanwhile."""
        journal_ok = self._loop.journal_error is None
        asked = self._loop.ask(
            lambda manager: metrics_snapshot(manager, at_s=self._now(), info=info, journal_ok=journal_ok)
        )
        return asked.result(timeout=METRICS_TIMEOUT_S)

    @contextlib.contextmanager
    def _told_to_prometheus(self, metrics: PrometheusCollector) -> Iterator[None]:
        where = self._config.metrics.listen
        close = metrics.listen(where) if where is not None else None
        try:
            yield
        finally:
            if close is not None:
                close()

    def _found(self) -> list[Report]:
        live = self._live()
        refs = [AttemptRef(job_id=job.id, attempt=len(job.attempts)) for job in live]
        found = self._engine.find(refs)
        if refs:
            kept = sum(1 for each in found if each.started is not None and each.exited is None)
            logger.info("attempts found", extra={"fields": {"running": kept, "ended": len(refs) - kept}})
        return reports_of(live, found, at_s=self._now())

    def _info(self, socket_file: Path) -> dict[str, Any]:
        return {
            "version": cotenant.__version__,
            "pid": os.getpid(),
            "started_at": rfc3339(self._now()),
            "socket": str(socket_file),
            "state_dir": str(self._state_dir),
            "policy": self._config.policy.name,
            "backend": self._backend.name,
            "simulate": self._config.gpus.simulate,
            "time_scale": self._config.gpus.time_scale,
            "tick_s": self._config.daemon.tick_s,
            "users": self._config.access.users,
            "notifications": self._config.notifications.enabled,
            "estimator": self._config.estimates.estimator if self._config.estimates.enabled else None,
        }
