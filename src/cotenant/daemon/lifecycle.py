"""One life of the daemon: what it is made of, in which order its threads start, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cotenant
from cotenant.core.errors import BackendError, CotenantError
from cotenant.core.events import ServerSampled
from cotenant.core.ports import AttemptRef, Engine, GpuBackend, Journal
from cotenant.daemon.api.application import application
from cotenant.daemon.api.context import ApiContext
from cotenant.daemon.api.submission.sharing_modes import unavailable_modes
from cotenant.daemon.api.views.job_words import rfc3339
from cotenant.daemon.api.views.metrics import MetricsSnapshot, PrometheusCollector, metrics_snapshot
from cotenant.daemon.auth.http import UvicornServer, new_server
from cotenant.daemon.auth.network import TcpListener, TokenAuthMiddleware
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import TokenStore
from cotenant.daemon.auth.unix_socket import ListeningSocket
from cotenant.daemon.clock import restored_clock
from cotenant.daemon.config.interference_file import read_interference
from cotenant.daemon.config.schema import Config, IdleSection, MigSection
from cotenant.daemon.control_loop import ControlLoop
from cotenant.daemon.estimation.pool import EstimatePool
from cotenant.daemon.inbox import Inbox
from cotenant.daemon.messages import Report
from cotenant.daemon.monitoring.monitor import INVENTORY_EVERY, Monitor
from cotenant.daemon.monitoring.telemetry_checkpoint import SAVE_INTERVAL_S, PeriodicSaver, TelemetryFile
from cotenant.daemon.pruning import OutputStore
from cotenant.daemon.services.base import AttemptServices
from cotenant.daemon.setup import ServiceSet, mig_control_of, on_hosts, scaled_options, with_aging
from cotenant.daemon.startup import recovered_reports, restore_manager, save_snapshot_if_due
from cotenant.daemon.storage_quota import StorageQuota
from cotenant.daemon.web_process import WebProcess
from cotenant.engines.local import LocalEngine
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.hosts.engine import HostsEngine
from cotenant.hosts.pilot import Pilot
from cotenant.scheduling import policies
from cotenant.scheduling.config import ManagerConfig
from cotenant.scheduling.fit_check import Supply
from cotenant.scheduling.idle_watch import IdlePolicy
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.overrun_watch import OverrunPolicy
from cotenant.scheduling.repartition import RepartitionRule

logger = logging.getLogger(__name__)

TELEMETRY_FILE = "telemetry.json"
GPU_HISTORY_FILE = "gpu-history.jsonl"
SOCKET_CHECK_S = 2.0
"""How often the daemon looks whether its socket is still there."""
QUERY_TIMEOUT_S = 10.0
"""Longest time that a scrape of the metrics, or the telemetry checkpoint, waits for the control loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What a daemon holds open and its caller closes."""

    state_dir: Path
    journal: Journal
    backend: GpuBackend
    engine: Engine
    services: ServiceSet
    access: AccessPolicy
    tokens: TokenStore
    pilot: Pilot | None = None


class Shutdown:
    """A request to end, from any thread, before or while the event loop runs."""

    def __init__(self) -> None:
        self.has_failed = False
        self._lock = threading.Lock()
        self._is_requested = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()

    def attach(self) -> asyncio.Event:
        """Return the event that a request sets. Call it in the event loop."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            if self._is_requested:
                self._event.set()
        return self._event

    def request(self) -> None:
        """Ask the daemon to end."""
        with self._lock:
            self._is_requested = True
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._event.set)

    def fail(self) -> None:
        """Ask the daemon to end with an error."""
        self.has_failed = True
        self.request()


class Daemon:
    """Everything that runs between the start and the end of `serve`."""

    def __init__(self, config: Config, resources: Resources) -> None:
        self._config = config
        self._resources = resources
        self._shutdown = Shutdown()
        options = scaled_options(config.policy.name, dict(config.policy.options), config.gpus.time_scale)
        policy = with_aging(policies.create(config.policy.name, options), config.scheduling.aging_per_hour)
        self._policy = on_hosts(policy) if isinstance(resources.engine, HostsEngine) else policy
        self._manager = Manager(self._policy, _manager_config(config))
        self._commands = restore_manager(self._manager, resources.journal)
        self._telemetry = TelemetryFile(resources.state_dir / TELEMETRY_FILE)
        self._telemetry.restore(self._manager)
        self._gpu_history = GpuTimeSeries(resources.state_dir / GPU_HISTORY_FILE)
        self._now = restored_clock(resources.state_dir, self._manager)
        self._services = AttemptServices(resources.services.all)
        self._inbox = Inbox()
        self._monitor = Monitor(
            resources.backend,
            resources.engine,
            tick_s=config.daemon.tick_s,
            now=self._now,
            emit=self._sampled,
            observe=self._services.observe,
            # Hosts come and go, and their inventory costs nothing: agents send it with every sample.
            inventory_every=1 if isinstance(resources.engine, HostsEngine) else INVENTORY_EVERY,
            mig=mig_control_of(config, resources.backend),
            ended=self._inbox.put,
        )
        largest = max(self._monitor.gpus, key=lambda gpu: gpu.memory_total_bytes, default=None)
        self._estimates = EstimatePool(
            config.estimates,
            gpu="" if largest is None else largest.name,
            folder=resources.state_dir / "estimates",
            now=self._now,
            emit=self._inbox.put,
            many_users=resources.access.many,
        )
        budget = resources.engine.output_budget if isinstance(resources.engine, LocalEngine) else None
        self._output = OutputStore(resources.state_dir, budget)
        self._loop = ControlLoop(
            manager=self._manager,
            journal=resources.journal,
            engine=resources.engine,
            inbox=self._inbox,
            estimates=self._estimates,
            services=self._services,
            now=self._now,
            tick_s=config.daemon.tick_s,
            quota=StorageQuota(config.limits, self._manager, resources.journal),
            on_exit=self._monitor.poke,
            repartition=self._monitor.repartition if config.mig.repartition else None,
            on_failure=self._shutdown.fail,
        )

    def _sampled(self, event: ServerSampled) -> None:
        """Called in the monitor's thread."""
        self._gpu_history.add(event.samples)
        self._inbox.put_sample(event)

    async def run(self, listening: ListeningSocket, tcp: TcpListener | None, on_ready: Callable[[], None]) -> None:
        """Serve until a signal, a request to shut down, or a failure of the control loop."""
        closing = self._shutdown.attach()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, closing.set)
        info = {**self._info(listening.path), "tcp": None if tcp is None else tcp.url}
        metrics = PrometheusCollector(lambda: self._metrics_snapshot(info))
        async with self._web_page(listening.path) as url:
            info["web"] = url
            await self._serve(listening, tcp, on_ready, info, metrics, closing)
        if self._shutdown.has_failed:
            raise BackendError("the daemon failed, see its log", hint="start it again: no job is lost")
        logger.info("daemon ends")

    async def _serve(
        self,
        listening: ListeningSocket,
        tcp: TcpListener | None,
        on_ready: Callable[[], None],
        info: dict[str, Any],
        metrics: PrometheusCollector,
        closing: asyncio.Event,
    ) -> None:
        """Answer requests until `closing`."""
        with self._threads_running(), self._metrics_port(metrics):
            app = application(self._api_context(info, metrics, closing))
            guarded = TokenAuthMiddleware(app, self._resources.tokens, self._resources.access)
            server = new_server(guarded, max_per_user=self._config.access.connections_per_user)
            serving = asyncio.create_task(server.serve(sockets=[listening.socket]))
            guarding = asyncio.create_task(_guard_socket(listening, server))
            remote = None if tcp is None else asyncio.create_task(tcp.serve(guarded, closing))
            on_ready()
            fields = {"socket": listening.path, "tcp": info["tcp"], "web": info["web"], "pid": os.getpid()}
            logger.info("daemon serves", extra={"fields": fields})
            await asyncio.wait({serving, asyncio.ensure_future(closing.wait())}, return_when=asyncio.FIRST_COMPLETED)
            closing.set()
            guarding.cancel()
            server.should_exit = True
            await serving
            if remote is not None:
                await remote

    @contextlib.asynccontextmanager
    async def _web_page(self, socket_file: Path) -> AsyncIterator[str | None]:
        """Serve the web page, if the configuration says so; yields its address."""
        if self._config.web.listen is None:
            yield None
            return
        # Root's daemon for all users has a socket that everybody may connect to: the process needs no rights.
        drop_rights = os.getuid() == 0 and self._resources.access.many
        process = WebProcess(self._config.web, socket_file, drop_rights=drop_rights)
        await process.start()
        try:
            yield process.url
        finally:
            await process.close()

    @contextlib.contextmanager
    def _threads_running(self) -> Iterator[None]:
        """Start everything that has a thread, and stop it in reverse order."""
        self._estimates.start()
        self._resources.engine.start(self._inbox.put)
        owners = {job.id: job.spec.uid for job in self._manager.jobs.values()}
        self._loop.start(self._recovered(), self._commands)
        if isinstance(self._resources.engine, HostsEngine):
            self._resources.engine.connect()
        threading.Thread(target=self._output.measure, args=(owners,), name="output-sizes", daemon=True).start()
        self._monitor.start()
        self._services.start()
        pilot = self._resources.pilot
        if pilot is not None:
            pilot.start(self._scheduler_view, self._set_supply)
        saver = PeriodicSaver(self._telemetry, self._telemetry_state, every_s=SAVE_INTERVAL_S)
        saver.start()
        try:
            yield
        finally:
            if pilot is not None:
                pilot.close()
            self._monitor.close()
            saver.close()
            self._loop.close()
            if self._loop.is_consistent():
                self._telemetry.save(self._manager.telemetry_state())
                save_snapshot_if_due(self._manager, self._resources.journal)
            self._estimates.close()
            self._services.close()

    def _recovered(self) -> list[Report]:
        """The events of attempts that an earlier daemon launched."""
        running = self._loop.running_jobs()
        refs = [AttemptRef(job_id=job.id, attempt=len(job.attempts)) for job in running]
        found = self._resources.engine.recover(refs)
        if refs:
            alive = sum(1 for attempt in found if attempt.started is not None and attempt.exited is None)
            logger.info("attempts recovered", extra={"fields": {"running": alive, "ended": len(refs) - alive}})
        return recovered_reports(running, found, at_s=self._now())

    def _scheduler_view(self) -> tuple[dict[int, float], frozenset[str]]:
        """Waiting jobs and hosts with GPUs. Called in the pilot's thread."""
        answer = self._loop.query(
            lambda manager: (
                {job.id: job.spec.time_limit_s or 0.0 for job in manager.queue()},
                frozenset(gpu.server for gpu in manager.gpus if gpu.server),
            )
        )
        return answer.result(timeout=QUERY_TIMEOUT_S)

    def _set_supply(self, why_none: str, longest_s: float) -> None:
        """Called in the pilot's thread."""
        self._loop.query(lambda manager: setattr(manager, "supply", Supply(why_none, longest_s)))

    def _telemetry_state(self) -> dict[str, Any]:
        return self._loop.query(lambda manager: manager.telemetry_state()).result(timeout=QUERY_TIMEOUT_S)

    def _metrics_snapshot(self, info: dict[str, Any]) -> MetricsSnapshot:
        journal_ok = self._loop.journal_error is None
        answer = self._loop.query(
            lambda manager: metrics_snapshot(manager, at_s=self._now(), info=info, journal_ok=journal_ok)
        )
        return answer.result(timeout=QUERY_TIMEOUT_S)

    @contextlib.contextmanager
    def _metrics_port(self, metrics: PrometheusCollector) -> Iterator[None]:
        where = self._config.metrics.listen
        close = metrics.listen(where) if where is not None else None
        try:
            yield
        finally:
            if close is not None:
                close()

    def _api_context(self, info: dict[str, Any], metrics: PrometheusCollector, closing: asyncio.Event) -> ApiContext:
        mps_reason, pilot = self._resources.services.mps_unavailable_reason, self._resources.pilot
        return ApiContext(
            loop=self._loop,
            policy=self._policy,
            estimates=self._estimates,
            journal=self._resources.journal,
            access=self._resources.access,
            tokens=self._resources.tokens,
            log_paths=self._resources.engine.log_paths,
            send_signal=self._resources.engine.send_signal,
            now=self._now,
            info=info,
            metrics=metrics,
            gpu_history=self._gpu_history,
            hosts=len(self._config.hosts.agents) + (pilot is not None) * self._config.pilot.max_allocations,
            pilot=(lambda: None) if pilot is None else pilot.status,
            refusals=lambda: unavailable_modes(self._policy, self._monitor.gpus, mps_unavailable_reason=mps_reason),
            stop=closing.set,
            closing=closing,
            limits=self._config.limits,
            store=self._output,
        )

    def _info(self, socket_file: Path) -> dict[str, Any]:
        return {
            "version": cotenant.__version__,
            "pid": os.getpid(),
            "started_at": rfc3339(self._now()),
            "socket": str(socket_file),
            "state_dir": str(self._resources.state_dir),
            "policy": self._config.policy.name,
            "backend": self._resources.backend.name,
            "engine": self._resources.engine.name,
            "simulate": self._config.gpus.simulate,
            "time_scale": self._config.gpus.time_scale,
            "tick_s": self._config.daemon.tick_s,
            "users": self._config.access.users,
            "notifications": self._config.notifications.enabled,
            "estimator": self._config.estimates.estimator if self._config.estimates.enabled else None,
        }


async def _guard_socket(listening: ListeningSocket, server: UvicornServer) -> None:
    """Make the socket again when its path was removed: no client could reach the daemon, not even to stop it."""
    while True:
        await asyncio.sleep(SOCKET_CHECK_S)
        if not listening.is_lost:
            continue
        try:
            await server.add_socket(listening.rebind())
        except CotenantError as error:
            logger.error("the socket is gone", extra={"fields": {"socket": listening.path, "why": error.message}})
        else:
            logger.warning("the socket was removed, and is made again", extra={"fields": {"socket": listening.path}})


def _manager_config(config: Config) -> ManagerConfig:
    return ManagerConfig(
        estimate=config.estimates.enabled,
        stale_after_s=config.scheduling.stale_after_s,
        window_s=config.scheduling.window_s,
        stop_grace_s=config.scheduling.stop_grace_s,
        time_slice_grace_s=config.scheduling.time_slice_grace_s,
        time_slice_s=config.scheduling.time_slice_s,
        time_slice_notice_s=config.scheduling.time_slice_notice_s,
        overrun=OverrunPolicy(
            action=config.scheduling.overrun,
            margin=config.scheduling.overrun_margin,
            samples=config.scheduling.overrun_samples,
        ),
        idle=_idle_policy(config.idle),
        interference=read_interference(config),
        repartition=_repartition_rule(config.mig),
        pace=config.gpus.time_scale,
        quota=config.quotas.of_all(),
        user_quotas=config.quotas.of_users(),
    )


def _repartition_rule(settings: MigSection) -> RepartitionRule | None:
    if not settings.repartition:
        return None
    return RepartitionRule(min_gain=settings.min_gain, cost_s=settings.cost_s, period_s=settings.period_s)


def _idle_policy(settings: IdleSection) -> IdlePolicy | None:
    if settings.action == "off":
        return None
    return IdlePolicy(
        action=settings.action,
        max_activity=settings.max_activity,
        after_s=settings.after_s,
        warmup_s=settings.warmup_s,
        grace_s=settings.grace_s,
    )
