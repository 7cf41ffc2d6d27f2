"""What each call of the HTTP API does. Reads and changes go through the loop; this thread owns no state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cotenant.core.codec import encode
from cotenant.core.errors import NoSuchJob, UsageError
from cotenant.core.job import Job, JobSpec
from cotenant.core.ports import AttemptRef, Journal
from cotenant.daemon.api.future_bridge import FutureBridge
from cotenant.daemon.api.job_specs import parse_specs, user_name, with_changes
from cotenant.daemon.api.metrics import CONTENT_TYPE, PrometheusCollector
from cotenant.daemon.api.preview import preview
from cotenant.daemon.api.queries import JobFilter, resolve_ids
from cotenant.daemon.api.requests import json_response, read_number, read_object
from cotenant.daemon.api.sharing_modes import available_modes, check_available
from cotenant.daemon.api.timeline import timeline
from cotenant.daemon.api.views import JsonViews, counts
from cotenant.daemon.auth.permissions import AccessPolicy
from cotenant.daemon.auth.tokens import TokenStore
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.daemon.control_loop import ControlLoop
from cotenant.daemon.estimation.pool import EstimatePool
from cotenant.daemon.log_stream import OutputLocation, follow
from cotenant.daemon.messages import JobChange, WaitRequest
from cotenant.daemon.services.notifier import why_invalid_url
from cotenant.gpus.timeseries import GpuTimeSeries
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.placement.policy import Policy

T = TypeVar("T")

MAX_JOBS = 10_000
MAX_POLL_S = 60.0

LogPaths = Callable[[AttemptRef], tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiContext:
    """What the handlers work with.

    Attributes:
        log_paths: files with the output and the errors of an attempt.
        metrics: what Prometheus is told.
        gpu_history: samples of the GPUs over the last days.
        info: fields of `/v1/status` that do not change.
        refusals: why each way to share a GPU is not offered, or None, as of `daemon.calls.offers`.
        stop: ends the daemon.
        closing: set when it ends; long answers end then.
    """

    loop: ControlLoop
    policy: Policy
    estimates: EstimatePool
    journal: Journal
    access: AccessPolicy
    tokens: TokenStore
    log_paths: LogPaths
    metrics: PrometheusCollector
    gpu_history: GpuTimeSeries
    now: Callable[[], float]
    info: Mapping[str, Any]
    refusals: Callable[[], Mapping[str, str | None]]
    stop: Callable[[], None]
    closing: asyncio.Event


class Handlers:
    """One method for every route."""

    def __init__(self, server: ApiContext) -> None:
        self._server = server
        self._answers = FutureBridge()

    async def submit(self, request: Request) -> Response:
        body = await read_object(request)
        told = body.get("jobs")
        if not isinstance(told, list) or not 1 <= len(told) <= MAX_JOBS:
            raise UsageError(f"`jobs` must be an array of 1 to {MAX_JOBS} jobs")
        peer = _peer(request)
        specs = parse_specs(told, peer)
        self._check_notify(specs)
        if any(each.priority > 0 for each in specs):
            self._server.access.check_admin(peer, "raise a priority above 0")
        check_available(specs, self._server.refusals())
        if body.get("dry_run"):
            return json_response({"jobs": [await self._preview(each) for each in specs]})
        now = self._server.now

        def look(manager: Manager, ids: Sequence[int]) -> list[dict[str, Any]]:
            views = JsonViews(manager, now())
            return [views.job(manager.jobs[each]) for each in ids]

        views = await self._answers.of(self._server.loop.submit_and_query(specs, look))
        return json_response({"jobs": views}, status=201)

    async def jobs(self, request: Request) -> Response:
        selection = JobFilter.of(request.query_params)
        access, peer = self._server.access, _peer(request)

        def look(views: JsonViews, manager: Manager) -> dict[str, Any]:
            visible = [job for job in manager.jobs.values() if access.may_see(peer, job)]
            jobs = selection.of_jobs(visible)
            return {
                "jobs": [_record(each) if records else views.job(each) for each in jobs],
                "counts": counts(visible),
            }

        records = request.query_params.get("records") == "1"
        return json_response(await self._look(look))

    async def ids(self, request: Request) -> Response:
        refs = request.query_params.get("refs", "").split(",")
        access, peer = self._server.access, _peer(request)

        def look(_: JsonViews, manager: Manager) -> list[int]:
            found = resolve_ids(refs, manager.jobs)
            for each in found:
                access.check_job(peer, manager.jobs[each])
            return found

        return json_response({"ids": await self._look(look)})

    async def job(self, request: Request) -> Response:
        return json_response({"job": await self._detail(request)})

    async def explain(self, request: Request) -> Response:
        return json_response(await self._look(lambda views, manager: views.explanation(self._find(manager, request))))

    async def events(self, request: Request) -> Response:
        job = await self._look(lambda _, manager: self._find(manager, request))
        events = await asyncio.to_thread(self._server.journal.of_job, job.id)

        def named(manager: Manager) -> list[dict[str, Any]]:
            return timeline(events, lambda neighbor_ids: manager.named(job, neighbor_ids), job=manager.jobs.get(job.id))

        return json_response({"id": job.id, "events": await asyncio.wrap_future(self._server.loop.query(named))})

    async def change(self, request: Request) -> Response:
        kind: Any = request.url.path.rpartition("/")[2]
        body = await read_object(request)
        peer = _peer(request)
        job = await self._look(lambda _, manager: self._find(manager, request))
        fields = body.get("fields", {})
        if not isinstance(fields, dict):
            raise UsageError("`fields` is not a JSON object")
        if isinstance(fields.get("priority"), int) and fields["priority"] > max(0, job.spec.priority):
            self._server.access.check_admin(peer, "raise a priority above 0")
        if kind == "update":
            new = with_changes(job.spec, fields, job.id)
            self._check_notify([new] if "notify" in fields else [])
            check_available([new] if "sharing" in fields else [], self._server.refusals())
        # Who did it stands first: a reason is the client's word.
        cause = f"{kind} by {user_name(peer.uid)}{'' if peer.token is None else f' (token {peer.token})'}"
        if body.get("reason"):
            cause = f"{cause}: {body['reason']}"[:1000]
        self._server.access.note(peer, kind, job)
        await asyncio.wrap_future(self._server.loop.change(JobChange(kind, job.id, cause, fields)))
        return json_response({"job": await self._detail(request)})

    def _check_notify(self, specs: Sequence[JobSpec]) -> None:
        if any(each.notify is not None for each in specs) and not self._server.info["notifications"]:
            raise UsageError(
                "this daemon sends no notifications", hint="its configuration can turn them on: [notifications] enabled"
            )
        for each in specs:
            why = None if each.notify is None else why_invalid_url(each.notify)
            if why is not None:
                raise UsageError(
                    f"nobody can be told at `{each.notify}`: {why}", hint="write a command, or https://HOST/PATH"
                )

    async def wait(self, request: Request) -> Response:
        until: Any = request.query_params.get("until", "done")
        if until not in ("done", "started"):
            raise UsageError(f"`until` is `{until}`, wanted `done` or `started`")
        timeout_s = min(MAX_POLL_S, read_number(request, "timeout_s", MAX_POLL_S))
        job = await self._look(lambda _, manager: self._find(manager, request))
        reached = await self._reached(self._server.loop.wait(WaitRequest(job.id, until)), timeout_s)
        return json_response({"reached": reached, "job": await self._detail(request)})

    async def logs(self, request: Request) -> Response:
        stream = request.query_params.get("stream", "stdout")
        if stream not in ("stdout", "stderr"):
            raise UsageError(f"`stream` is `{stream}`, wanted `stdout` or `stderr`")
        attempt = int(read_number(request, "attempt", 0))
        follows = request.query_params.get("follow") == "1"

        async def look() -> OutputLocation:
            return await self._output(request, stream, attempt)

        await look()  # an unknown job is an error, not an empty answer
        return StreamingResponse(follow(look, until_end=follows), media_type="application/octet-stream")

    async def gpus(self, request: Request) -> Response:
        access, peer = self._server.access, _peer(request)

        def look(views: JsonViews, manager: Manager) -> list[dict[str, Any]]:
            hidden = {job_id for job_id, job in manager.jobs.items() if not access.may_see(peer, job)}
            return views.gpus(hidden=hidden)

        return json_response({"gpus": await self._look(look)})

    async def status(self, request: Request) -> Response:
        access, peer = self._server.access, _peer(request)
        found = await self._look(
            lambda _, manager: counts(job for job in manager.jobs.values() if access.may_see(peer, job))
        )
        error = self._server.loop.journal_error
        journal = None if error is None else error.message
        shares = available_modes(self._server.refusals())
        return json_response({**self._server.info, "sharing_modes": shares, "jobs": found, "journal_error": journal})

    async def metrics(self, request: Request) -> Response:
        # They name the jobs of all users; Prometheus has an address of its own, if the operator wants one.
        self._server.access.check_admin(_peer(request), "read the metrics here")
        text = await asyncio.to_thread(self._server.metrics.text)
        return Response(text, media_type=CONTENT_TYPE)

    async def shutdown(self, request: Request) -> Response:
        self._server.access.check_admin(_peer(request), "end the daemon")
        self._server.access.note(_peer(request), "shutdown")
        self._server.stop()
        return json_response({"pid": os.getpid()})

    def _find(self, manager: Manager, request: Request) -> Job:
        """The job of the path, which the peer may see.

        Raises:
            NoSuchJob, NotPermitted: there is none; it is another user's.
        """
        peer = _peer(request)
        if peer.token is not None:
            self._server.tokens.check(peer.token)  # an answer may be under way for hours
        job_id: int = request.path_params["job_id"]
        job = manager.jobs.get(job_id)
        if job is None:
            raise NoSuchJob(f"no job {job_id}", hint="see `cotenant ls`")
        self._server.access.check_job(peer, job)
        return job

    async def _look(self, question: Callable[[JsonViews, Manager], T]) -> T:
        now = self._server.now
        return await self._answers.of(
            self._server.loop.query(lambda manager: question(JsonViews(manager, now()), manager))
        )

    async def _detail(self, request: Request) -> dict[str, Any]:
        def look(views: JsonViews, manager: Manager) -> dict[str, Any]:
            job = self._find(manager, request)
            return views.detail(job, paths=self._paths(job))

        return await self._look(look)

    def _paths(self, job: Job) -> dict[str, str | None]:
        log = self._server.estimates.log_path(job.id)
        paths: dict[str, str | None] = {"estimate_log_path": str(log) if log.exists() else None}
        if job.last_attempt is None:
            return {**paths, "stdout_path": job.spec.stdout_path, "stderr_path": job.spec.stderr_path}
        out, err = self._server.log_paths(AttemptRef(job_id=job.id, attempt=job.last_attempt.number))
        return {**paths, "stdout_path": out, "stderr_path": err}

    async def _output(self, request: Request, stream: str, attempt: int) -> OutputLocation:
        """Where `stream` is now: of `attempt`, or of the newest one if that is 0."""
        job = await self._look(lambda _, manager: self._find(manager, request))
        job_id, newest = job.id, len(job.attempts)
        if attempt > newest:
            raise UsageError(f"job {job_id} has no attempt {attempt} (so far: {newest})")
        number = attempt or newest
        if number == 0:
            return OutputLocation(path=None, attempt=0, is_final=job.is_done or self._server.closing.is_set())
        paths = self._server.log_paths(AttemptRef(job_id=job_id, attempt=number))
        over = job.is_done or (attempt > 0 and job.attempts[attempt - 1].ended_at_s is not None)
        final = over or self._server.closing.is_set()
        named = job.spec.stderr_path if stream == "stderr" else job.spec.stdout_path
        owner = job.spec.uid if named is not None and job.spec.uid != os.geteuid() else None
        return OutputLocation(path=Path(paths[stream == "stderr"]), attempt=number, is_final=final, owner_uid=owner)

    async def _preview(self, spec: JobSpec) -> dict[str, Any]:
        server = self._server
        estimate, error = await asyncio.to_thread(server.estimates.estimate_spec, spec)
        return await asyncio.wrap_future(
            server.loop.query(lambda manager: preview(manager, server.policy, spec, estimate, error, at_s=server.now()))
        )

    async def _reached(self, future: Future[Job], timeout_s: float) -> bool:
        """Whether `future` is answered before the time is up or the daemon ends."""
        answer = asyncio.wrap_future(future)
        closing = asyncio.ensure_future(self._server.closing.wait())
        waited: set[asyncio.Future[Any]] = {answer, closing}
        await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if answer.done():
            answer.result()
            return True
        answer.cancel()
        return False


def _peer(request: Request) -> Peer:
    """Who asks."""
    peer: Peer = request.state.peer
    return peer


def _record(job: Job) -> Any:
    return encode(replace(job, spec=replace(job.spec, env={})))
