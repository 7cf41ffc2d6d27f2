"""What the handlers of the HTTP API work with, and the helpers that they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request

from cotenant.core.errors import NoSuchJob
from cotenant.core.job import Job
from cotenant.core.ports import AttemptRef, Journal
from cotenant.daemon.api.future_bridge import FutureBridge
from cotenant.daemon.api.views.job_views import JsonViews
from cotenant.daemon.api.views.metrics import PrometheusCollector
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import TokenStore
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.daemon.config.schema import LimitsSection
from cotenant.daemon.control_loop import ControlLoop
from cotenant.daemon.estimation.pool import EstimatePool
from cotenant.daemon.pruning import OutputStore
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.placement.policy import Policy

T = TypeVar("T")

LogPaths = Callable[[AttemptRef], tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """The parts of the daemon that handlers use.

    Attributes:
        log_paths: returns the files with the stdout and the stderr of an attempt.
        send_signal: signals the processes of an attempt, and returns how many; see `Engine.send_signal`.
        metrics: the series for Prometheus.
        gpu_history: samples of the GPUs over the last days.
        info: the fields of `/v1/status` that do not change.
        refusals: returns why each sharing mode is unavailable, or None; see `daemon.api.submission.sharing_modes`.
        hosts: how many hosts with agents it has; 0 where its GPUs are in this machine.
        pilot: what `/v1/status` says of the pilot; None without one.
        stop: ends the daemon.
        closing: set when the daemon ends; long answers end then.
        limits: the section of the configuration.
        store: output of jobs in the daemon's folder, and its limits.
    """

    loop: ControlLoop
    policy: Policy
    estimates: EstimatePool
    journal: Journal
    access: AccessPolicy
    tokens: TokenStore
    log_paths: LogPaths
    send_signal: Callable[..., int]
    metrics: PrometheusCollector
    gpu_history: GpuTimeSeries
    now: Callable[[], float]
    info: Mapping[str, Any]
    refusals: Callable[[], Mapping[str, str | None]]
    stop: Callable[[], None]
    closing: asyncio.Event
    limits: LimitsSection
    store: OutputStore
    hosts: int = 0
    pilot: Callable[[], dict[str, Any] | None] = lambda: None


class Handlers:
    """Base of the handlers: they read and change state through the control loop, and own none."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._bridge = FutureBridge()

    async def _query(self, function: Callable[[Manager], T]) -> T:
        """Call `function(manager)` in the control loop's thread."""
        return await self._bridge.of(self._context.loop.query(function))

    async def _view(self, function: Callable[[JsonViews, Manager], T]) -> T:
        """Call `function(views, manager)` in the control loop's thread."""
        now = self._context.now
        return await self._query(lambda manager: function(JsonViews(manager, now()), manager))

    async def _job(self, request: Request) -> Job:
        return await self._query(lambda manager: self._find(manager, request))

    def _find(self, manager: Manager, request: Request) -> Job:
        """The job of the path, if the peer may see it.

        Raises:
            NoSuchJob: it does not exist.
            NotPermitted: it is another user's, or the token of a long answer was revoked meanwhile.
        """
        peer = peer_of(request)
        if peer.token is not None:
            self._context.tokens.check(peer.token)
        job_id: int = request.path_params["job_id"]
        job = manager.jobs.get(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}", hint="see `cotenant ls`")
        self._context.access.check_job(peer, job)
        return job


def peer_of(request: Request) -> Peer:
    """Who sent the request."""
    peer: Peer = request.scope["state"]["peer"]
    return peer
