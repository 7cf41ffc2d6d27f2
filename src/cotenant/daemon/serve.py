"""`serve`: acquires what a daemon needs, runs it, and releases everything."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

from cotenant.core.ports import Engine, GpuBackend
from cotenant.daemon.auth.network import TcpListener
from cotenant.daemon.auth.tokens import TokenStore
from cotenant.daemon.auth.unix_socket import ListeningSocket
from cotenant.daemon.config import paths
from cotenant.daemon.config.schema import Config
from cotenant.daemon.config.validation import check_plugins
from cotenant.daemon.lifecycle import Daemon, Resources
from cotenant.daemon.setup import (
    access_of,
    open_gpus,
    open_hosts,
    open_pilot,
    output_budget,
    services_of,
    state_folder,
    state_mode,
)
from cotenant.daemon.web_process import check_installed
from cotenant.engines import ENGINES
from cotenant.engines.local import LocalEngine
from cotenant.hosts.allocations import AllocationSource
from cotenant.hosts.pilot import Pilot
from cotenant.osutil.open_files import raise_open_files
from cotenant.store.sqlite import SqliteJournal

JOURNAL_FILE = "journal.db"
TOKENS_FILE = "tokens.json"


def serve(
    config: Config,
    socket_file: Path,
    *,
    on_ready: Callable[[], None] = lambda: None,
    allocations: AllocationSource | None = None,
) -> None:
    """Run a daemon until SIGTERM, SIGINT or a request to shut down. Running attempts go on.

    `on_ready` is called once the socket answers. `allocations`: where its pilot, if it has one, gets GPUs.

    Raises:
        DaemonRunning: another daemon holds the socket or the state folder.
        BackendError, JournalError, UsageError, NotPermitted: something that it needs is missing.
    """
    check_plugins(config)
    if config.web.listen is not None:
        check_installed()
    raise_open_files()
    access = access_of(config)
    state_dir = paths.own_folder(state_folder(config), mode=state_mode(config))
    with ExitStack() as stack:
        listening = ListeningSocket(socket_file, for_all=access.many)
        stack.callback(listening.close)
        tcp = TcpListener(config.tcp) if config.tcp.listen is not None else None
        if tcp is not None:
            stack.callback(tcp.socket.close)
        synchronous: Literal["FULL", "NORMAL"] = "FULL" if config.daemon.fsync == "full" else "NORMAL"
        journal = SqliteJournal(state_dir / JOURNAL_FILE, synchronous=synchronous)
        stack.callback(journal.close)
        paths.private_folder(state_dir, mode=state_mode(config))  # not before the journal is locked
        backend, engine, pilot, sim_env = _open_machines(config, state_dir, allocations, stack)
        daemon = Daemon(
            config,
            Resources(
                state_dir=state_dir,
                journal=journal,
                backend=backend,
                engine=engine,
                services=services_of(config, sim_env, socket_file.parent),
                access=access,
                tokens=TokenStore(state_dir / TOKENS_FILE),
                pilot=pilot,
            ),
        )
        stack.enter_context(_gc_tuned())
        asyncio.run(daemon.run(listening, tcp, on_ready))


def _open_machines(
    config: Config, state_dir: Path, allocations: AllocationSource | None, stack: ExitStack
) -> tuple[GpuBackend, Engine, Pilot | None, dict[str, str]]:
    """GPUs, engine and pilot, of other hosts or of this one; and what the environment of jobs needs for these GPUs."""
    backend: GpuBackend
    engine: Engine
    pilot: Pilot | None = None
    sim_env: dict[str, str] = {}
    launchers = config.hosts.launchers()
    if launchers or allocations is not None:
        backend = engine = hosts = open_hosts(config, launchers, state_dir)
        if allocations is not None:
            pilot = open_pilot(config, hosts, allocations, state_dir)
    else:
        backend, sim_env = open_gpus(config, state_dir)
        stack.callback(backend.close)
        engine = ENGINES.get(config.engine.name)(state_dir)
    stack.callback(engine.close)
    if isinstance(engine, LocalEngine):
        engine.output_budget = output_budget(config.output, state_dir)
        if config.engine.cuda_checkpoint is not None:
            engine.suspender.use(config.engine.cuda_checkpoint)
    return backend, engine, pilot, sim_env


@contextlib.contextmanager
def _gc_tuned() -> Iterator[None]:
    """Freeze the objects that exist, and collect rarely: jobs are long-lived and few objects form cycles.

    With CPython's defaults, every 700 new jobs make the collector traverse all of them.
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
