"""Brings the rooms together: start, serve until told to stop, and leave the attempts to the next daemon."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

import cotenant
from cotenant import engines, gpus
from cotenant.core.errors import BackendError, UnknownName, UsageError
from cotenant.core.events import AttemptExited
from cotenant.core.job import AttemptExit, Job, Running, Starting
from cotenant.core.ports import AttemptRef, Engine, Found, GpuBackend, Journal
from cotenant.daemon import api, paths
from cotenant.daemon.access import Access, admin_uids
from cotenant.daemon.clock import Clock
from cotenant.daemon.config import Config
from cotenant.daemon.estimates import EstimatePool
from cotenant.daemon.inputs import Report
from cotenant.daemon.launch_env import LaunchEnv
from cotenant.daemon.loop import Loop
from cotenant.daemon.metrics import Metrics, Picture, picture
from cotenant.daemon.monitor import Monitor
from cotenant.daemon.notify import Notifier
from cotenant.daemon.sockets import ListeningSocket, peer_of
from cotenant.daemon.views import ending, rfc3339
from cotenant.estimators import ESTIMATORS
from cotenant.gpus.mps import MpsServers
from cotenant.gpus.simulated import SimulatedServer
from cotenant.scheduling import policies
from cotenant.scheduling.manager import Manager, ManagerConfig
from cotenant.scheduling.orders import aged
from cotenant.scheduling.policy import Policy
from cotenant.scheduling.ranked import Ranked
from cotenant.store.sqlite import SqliteJournal

logger = logging.getLogger(__name__)

JOURNAL_FILE = "journal.db"
SIMULATED_FOLDER = "simulated"
LIVE_SITE = Path(cotenant.__file__).parent / "sim" / "live" / "site"
"""Gives torch the simulated cards, in every Python that has this folder on its path."""
PICTURE_S = 10.0
"""Longest that whoever asks for metrics waits for the loop."""
GRACE_S = 3
"""Open requests get this long when the daemon ends."""


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
    state_dir = paths.private_folder(state_folder(config))
    with ExitStack() as stack:
        listening = ListeningSocket(socket_file, for_all=access.many)
        stack.callback(listening.close)
        durable: Any = config.daemon.durable.upper()
        journal = SqliteJournal(state_dir / JOURNAL_FILE, synchronous=durable)
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
        )
        asyncio.run(daemon.run(listening, on_ready))


def launch_env_of(config: Config, sim_env: dict[str, str], run_dir: Path) -> LaunchEnv:
    """What attempts are started with: as jobs of the simulated server of `sim_env`, or, on real GPUs, with MPS."""
    if sim_env:
        return LaunchEnv(sim_env, site=LIVE_SITE if config.gpus.live else None)
    return LaunchEnv({}, MpsServers(run_dir / "mps"), thread_percent=config.mps.thread_percent)


def state_folder(config: Config) -> Path:
    """The folder of the journal, the attempts and their output."""
    named = config.daemon.state_dir
    if named is not None:
        return Path(named).absolute()
    return paths.SYSTEM_STATE if config.access.users == "all" else paths.state_dir()


def access_of(config: Config) -> Access:
    """Who may use the daemon.

    Raises:
        UsageError: it is to serve everybody without being root's, or an admin does not exist.
    """
    many = config.access.users == "all"
    if many and os.geteuid() != 0:
        raise UsageError("only root's daemon can serve all users", hint="leave out --all-users, or start it as root")
    names = [each.strip() for each in config.access.admins.split(",") if each.strip()]
    return Access(own_uid=os.getuid(), many=many, admins=admin_uids(names))


def open_gpus(config: Config, state_dir: Path) -> tuple[GpuBackend, dict[str, str]]:
    """The backend, and what jobs need in their environment to use its GPUs.

    Raises:
        BackendError, UsageError: there is none, or not as asked for.
    """
    settings = config.gpus
    folder = state_dir / SIMULATED_FOLDER
    if settings.simulate is None and settings.backend != "simulated":
        try:
            return gpus.create(settings.backend), {}
        except BackendError as error:
            raise BackendError(
                error.message, hint="try it without one: cotenant daemon --simulate 4xA100-40GB"
            ) from error
    if settings.backend == "nvml":
        raise UsageError("backend `nvml` cannot be simulated", hint="leave out one of --backend and --simulate")
    _simulated_server(folder, settings.simulate, settings.time_scale)
    return gpus.create("simulated", simulated_dir=folder), {"COTENANT_SIM_SERVER": str(folder)}


def _simulated_server(folder: Path, cards: str | None, time_scale: float) -> None:
    """Make the simulated server, or see that the one in the state folder is the one asked for."""
    asked = folder / "asked.txt"
    if not asked.exists():
        if cards is None:
            raise UsageError("which GPUs are to be simulated?", hint="say e.g. --simulate 4xA100-40GB")
        # Left half made by a daemon that was killed: nothing can have used it, for `asked` is written last.
        shutil.rmtree(folder, ignore_errors=True)
        SimulatedServer.create(folder, cards, time_scale=time_scale)
        asked.write_text(cards)
        return
    was, scale = asked.read_text(), SimulatedServer.open(folder).time_scale
    if cards not in (None, was) or scale != time_scale:
        raise UsageError(
            f"`{folder}` holds a simulated server `{was}`, time scale {scale:g}",
            hint="ask for that one, remove the folder, or choose another --state-dir",
        )


def scaled_options(name: str, given: dict[str, object], time_scale: float) -> dict[str, object]:
    """Options of policy `name`: those that are seconds count the time of the simulated server, which runs faster."""
    if time_scale == 1.0:
        return given
    known = {**policies.options(name), **given}
    scaled = {
        key: value / time_scale
        for key, value in known.items()
        if key.endswith("_s") and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return {**given, **scaled}


def aging(policy: Policy, points_per_hour: float) -> Policy:
    """`policy` with priorities that grow while jobs wait.

    Raises:
        UsageError: it has an order of its own, which nothing can be added to.
    """
    if points_per_hour == 0:
        return policy
    if not isinstance(policy, Ranked):
        raise UsageError(f"policy `{policy.name}` cannot age priorities", hint="leave out scheduling.ageing_per_hour")
    return replace(policy, order=aged(policy.order, points_per_hour))


@runtime_checkable
class _KeepsOutput(Protocol):
    """An engine whose attempts write to files of this machine."""

    def log_paths(self, ref: AttemptRef) -> tuple[Path, Path]: ...


def log_paths_of(engine: Engine) -> api.LogPaths:
    """Where `engine` keeps the output of attempts.

    Raises:
        BackendError: elsewhere.
    """
    if not isinstance(engine, _KeepsOutput):
        raise BackendError(f"engine `{engine.name}` does not say where the output of jobs is")
    return engine.log_paths


def reports_of(jobs: Sequence[Job], found: Sequence[Found], *, at_s: float) -> list[Report]:
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
        access: Access,
    ) -> None:
        self._access = access
        self._journal = journal
        self._config = config
        self._state_dir = state_dir
        self._engine = engine
        self._launch_env = launch_env
        options = scaled_options(config.policy.name, dict(config.policy.options), config.gpus.time_scale)
        self._policy = aging(policies.create(config.policy.name, options), config.scheduling.ageing_per_hour)
        self._manager = Manager(
            self._policy,
            ManagerConfig(
                estimate=config.estimates.enabled,
                stale_after_s=config.scheduling.stale_after_s,
                window_s=config.scheduling.window_s,
                stop_grace_s=config.scheduling.stop_grace_s,
                quota=config.quotas.of_all(),
                user_quotas=config.quotas.of_users(),
            ),
        )
        self._commands = self._manager.restore(journal.replay())
        self._now = Clock(not_before_s=self._manager.last_at_s)
        self._loop = Loop(
            manager=self._manager,
            journal=journal,
            engine=engine,
            now=self._now,
            tick_s=config.daemon.tick_s,
            launch_env=launch_env,
            on_exit=self._attempt_ended,
        )
        self._backend = backend
        self._monitor = Monitor(backend, engine, tick_s=config.daemon.tick_s, now=self._now, emit=self._loop.sampled)

    def _attempt_ended(self) -> None:
        """Called in the loop's thread."""
        self._monitor.poke()
        self._launch_env.tidy(lambda: [(job.spec, job.attempts[-1].placement) for job in self._live()])

    def _live(self) -> list[Job]:
        return [job for job in self._manager.jobs.values() if isinstance(job.state, (Starting, Running))]

    async def run(self, listening: ListeningSocket, on_ready: Callable[[], None]) -> None:
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
        info = self._info(listening.path)
        metrics = Metrics(lambda: self._picture(info))
        with self._running() as estimates, self._told_to_prometheus(metrics):
            application = api.application(
                api.Server(
                    loop=self._loop,
                    policy=self._policy,
                    estimates=estimates,
                    journal=self._journal,
                    access=self._access,
                    log_paths=log_paths_of(self._engine),
                    now=self._now,
                    info=info,
                    metrics=metrics,
                    stop=closing.set,
                    closing=closing,
                )
            )
            server = _HttpServer(_http_config(application))
            serving = asyncio.create_task(server.serve(sockets=[listening.socket]))
            on_ready()
            logger.info("daemon serves", extra={"fields": {"socket": listening.path, "pid": os.getpid()}})
            await asyncio.wait({serving, asyncio.ensure_future(closing.wait())}, return_when=asyncio.FIRST_COMPLETED)
            closing.set()
            server.should_exit = True
            await serving
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
                notifier.tell(job.spec.notify, job.spec.uid, ending(job))

        self._loop.on_end = told
        self._engine.start(self._loop.put)
        self._loop.start(estimates, self._found(), self._commands)
        self._monitor.start()
        try:
            yield estimates
        finally:
            self._monitor.close()
            self._loop.close()
            estimates.close()
            notifier.close()

    def _picture(self, info: dict[str, Any]) -> Picture:
        """Taken in the loop's thread, where nothing changes meanwhile."""
        journal_ok = self._loop.journal_error is None
        asked = self._loop.ask(lambda manager: picture(manager, at_s=self._now(), info=info, journal_ok=journal_ok))
        return asked.result(timeout=PICTURE_S)

    @contextlib.contextmanager
    def _told_to_prometheus(self, metrics: Metrics) -> Iterator[None]:
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


class _PeerProtocol(H11Protocol):
    """HTTP that remembers who connected, for `request.state.peer`."""

    def connection_made(self, transport: Any) -> None:
        self.app_state = {**self.app_state, "peer": peer_of(transport.get_extra_info("socket"))}
        super().connection_made(transport)


class _HttpServer(uvicorn.Server):
    """uvicorn, with the signals left to us."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _http_config(application: Any) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=_PeerProtocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_S,
    )
