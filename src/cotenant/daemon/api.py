"""The HTTP API on the daemon's socket. Reads and changes go through the loop; this thread owns no state."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from cotenant.core.codec import encode
from cotenant.core.errors import CotenantError, NoSuchJob, NotPermitted, UsageError
from cotenant.core.job import Job, JobSpec
from cotenant.core.ports import AttemptRef
from cotenant.daemon.estimates import EstimatePool
from cotenant.daemon.inputs import Change, Watch
from cotenant.daemon.logfiles import Output, follow
from cotenant.daemon.loop import Loop
from cotenant.daemon.metrics import CONTENT_TYPE, Metrics
from cotenant.daemon.preview import preview
from cotenant.daemon.sockets import Peer
from cotenant.daemon.specs import spec_of, user_name
from cotenant.daemon.views import Views, counts
from cotenant.scheduling.manager import Manager
from cotenant.scheduling.policy import Policy

logger = logging.getLogger(__name__)

T = TypeVar("T")

SCHEMA = 1
MOST_JOBS = 10_000
MOST_BODY_BYTES = 64 * 2**20
LONGEST_POLL_S = 60.0
STATUS = {2: 400, 3: 503, 4: 404, 5: 403}
"""HTTP status by exit code; 500 for the others."""

LogPaths = Callable[[AttemptRef], tuple[Path, Path]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What the handlers work with.

    Attributes:
        log_paths: files with the output and the errors of an attempt.
        info: fields of `/v1/status` that do not change.
        stop: ends the daemon.
        closing: set when it ends; long answers end then.
    """

    loop: Loop
    policy: Policy
    estimates: EstimatePool
    log_paths: LogPaths
    now: Callable[[], float]
    info: Mapping[str, Any]
    metrics: Metrics
    stop: Callable[[], None]
    closing: asyncio.Event


def application(server: Server) -> Starlette:
    """The ASGI application. Every request carries the peer in `request.state.peer`."""
    api = _Api(server)
    routes = [
        Route("/v1/jobs", _guarded(api.submit), methods=["POST"]),
        Route("/v1/jobs", _guarded(api.jobs), methods=["GET"]),
        Route("/v1/jobs/{job_id:int}", _guarded(api.job), methods=["GET"]),
        Route("/v1/jobs/{job_id:int}/explain", _guarded(api.explain), methods=["GET"]),
        Route("/v1/jobs/{job_id:int}/logs", _guarded(api.logs), methods=["GET"]),
        Route("/v1/jobs/{job_id:int}/wait", _guarded(api.wait), methods=["GET"]),
        *(
            Route(f"/v1/jobs/{{job_id:int}}/{kind}", _guarded(api.change), methods=["POST"], name=kind)
            for kind in ("cancel", "hold", "release")
        ),
        Route("/v1/gpus", _guarded(api.gpus), methods=["GET"]),
        Route("/v1/status", _guarded(api.status), methods=["GET"]),
        Route("/metrics", _guarded(api.metrics), methods=["GET"]),
        Route("/v1/shutdown", _guarded(api.shutdown), methods=["POST"]),
    ]
    return Starlette(routes=routes, exception_handlers={404: _unknown, 405: _unknown})


def check_peer(peer: Peer, *, own_uid: int) -> None:
    """Let in the daemon's own user, and root.

    Raises:
        NotPermitted: it is somebody else.
    """
    if peer.uid not in (own_uid, 0):
        raise NotPermitted(f"uid {peer.uid} may not use the daemon of uid {own_uid}")


class _Api:
    """One method for every route."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def submit(self, request: Request) -> Response:
        body = await _body(request)
        told = body.get("jobs")
        if not isinstance(told, list) or not 1 <= len(told) <= MOST_JOBS:
            raise UsageError(f"`jobs` must be an array of 1 to {MOST_JOBS} jobs")
        specs = [spec_of(each, request.state.peer) for each in told]
        if body.get("dry_run"):
            return _json({"jobs": [await self._preview(each) for each in specs]})
        ids = await asyncio.wrap_future(self._server.loop.submit(specs))
        views = await self._look(lambda views, manager: [views.job(manager.jobs[each]) for each in ids])
        return _json({"jobs": views}, status=201)

    async def jobs(self, request: Request) -> Response:
        if request.query_params.get("records") == "1":
            return _json({"jobs": await self._look(lambda _, manager: [_record(each) for each in _all(manager)])})
        active = request.query_params.get("active") == "1"
        views = await self._look(
            lambda views, manager: [views.job(each) for each in _all(manager) if not (active and each.is_done)]
        )
        return _json({"jobs": views})

    async def job(self, request: Request) -> Response:
        return _json({"job": await self._detail(request.path_params["job_id"])})

    async def explain(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        return _json(await self._look(lambda views, manager: views.explanation(_find(manager, job_id))))

    async def change(self, request: Request) -> Response:
        kind: Any = request.url.path.rpartition("/")[2]
        body = await _body(request)
        job_id = request.path_params["job_id"]
        cause = str(body.get("reason") or f"{kind} by {user_name(request.state.peer.uid)}")
        await asyncio.wrap_future(self._server.loop.change(Change(kind, job_id, cause)))
        return _json({"job": await self._detail(job_id)})

    async def wait(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        until: Any = request.query_params.get("until", "done")
        if until not in ("done", "started"):
            raise UsageError(f"`until` is `{until}`, wanted `done` or `started`")
        timeout_s = min(LONGEST_POLL_S, _number(request, "timeout_s", LONGEST_POLL_S))
        reached = await self._reached(self._server.loop.watch(Watch(job_id, until)), timeout_s)
        return _json({"reached": reached, "job": await self._detail(job_id)})

    async def logs(self, request: Request) -> Response:
        job_id = request.path_params["job_id"]
        stream = request.query_params.get("stream", "stdout")
        if stream not in ("stdout", "stderr"):
            raise UsageError(f"`stream` is `{stream}`, wanted `stdout` or `stderr`")
        attempt = int(_number(request, "attempt", 0))
        follows = request.query_params.get("follow") == "1"

        async def look() -> Output:
            return await self._output(job_id, stream, attempt)

        await look()  # an unknown job is an error, not an empty answer
        return StreamingResponse(follow(look, until_end=follows), media_type="application/octet-stream")

    async def gpus(self, request: Request) -> Response:  # noqa: ARG002 (a handler's signature)
        return _json({"gpus": await self._look(lambda views, _: views.gpus())})

    async def status(self, request: Request) -> Response:  # noqa: ARG002
        found = await self._look(lambda _, manager: counts(manager))
        error = self._server.loop.journal_error
        journal = None if error is None else error.message
        return _json({**self._server.info, "jobs": found, "journal_error": journal})

    async def metrics(self, _: Request) -> Response:
        text = await asyncio.to_thread(self._server.metrics.text)
        return Response(text, media_type=CONTENT_TYPE)

    async def shutdown(self, request: Request) -> Response:  # noqa: ARG002
        self._server.stop()
        return _json({"pid": os.getpid()})

    async def _look(self, question: Callable[[Views, Manager], T]) -> T:
        now = self._server.now
        return await asyncio.wrap_future(
            self._server.loop.ask(lambda manager: question(Views(manager, now()), manager))
        )

    async def _detail(self, job_id: int) -> dict[str, Any]:
        def look(views: Views, manager: Manager) -> dict[str, Any]:
            job = _find(manager, job_id)
            return views.detail(job, paths=self._paths(job))

        return await self._look(look)

    def _paths(self, job: Job) -> dict[str, str | None]:
        log = self._server.estimates.log_path(job.id)
        paths: dict[str, str | None] = {"estimate_log_path": str(log) if log.exists() else None}
        if job.last_attempt is None:
            return {**paths, "stdout_path": job.spec.stdout_path, "stderr_path": job.spec.stderr_path}
        out, err = self._server.log_paths(AttemptRef(job_id=job.id, attempt=job.last_attempt.number))
        return {**paths, "stdout_path": str(out), "stderr_path": str(err)}

    async def _output(self, job_id: int, stream: str, attempt: int) -> Output:
        """Where `stream` is now: of `attempt`, or of the newest one if that is 0."""
        job = await self._look(lambda _, manager: _find(manager, job_id))
        newest = len(job.attempts)
        if attempt > newest:
            raise UsageError(f"job {job_id} has no attempt {attempt} (so far: {newest})")
        number = attempt or newest
        if number == 0:
            return Output(path=None, attempt=0, is_final=job.is_done or self._server.closing.is_set())
        paths = self._server.log_paths(AttemptRef(job_id=job_id, attempt=number))
        over = job.is_done or (attempt > 0 and job.attempts[attempt - 1].ended_at_s is not None)
        final = over or self._server.closing.is_set()
        return Output(path=paths[stream == "stderr"], attempt=number, is_final=final)

    async def _preview(self, spec: JobSpec) -> dict[str, Any]:
        server = self._server
        estimate, error = await asyncio.to_thread(server.estimates.estimate_now, spec)
        return await asyncio.wrap_future(
            server.loop.ask(lambda manager: preview(manager, server.policy, spec, estimate, error, at_s=server.now()))
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


Handler = Callable[[Request], Awaitable[Response]]


def _guarded(handler: Handler) -> Handler:
    """`handler` for those who may; errors become JSON."""

    async def handle(request: Request) -> Response:
        try:
            check_peer(request.state.peer, own_uid=os.getuid())
            return await handler(request)
        except CotenantError as error:
            return _error(error)
        except Exception as error:
            logger.exception("request failed", extra={"fields": {"path": request.url.path}})
            return _error(CotenantError(f"the daemon failed on this request ({type(error).__name__})"))

    return handle


async def _unknown(request: Request, _: Exception) -> Response:
    return _error(UsageError(f"no such call: {request.method} {request.url.path}"))


def _error(error: CotenantError) -> Response:
    body = {
        "kind": type(error).__name__,
        "message": error.message,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    return _json({"error": body}, status=STATUS.get(error.exit_code, 500))


def _json(value: Mapping[str, Any], *, status: int = 200) -> JSONResponse:
    return JSONResponse({"schema": SCHEMA, **value}, status_code=status)


async def _body(request: Request) -> dict[str, Any]:
    if int(request.headers.get("content-length") or 0) > MOST_BODY_BYTES:
        raise UsageError(f"a request may have {MOST_BODY_BYTES // 2**20} MiB")
    try:
        value = json.loads(await request.body() or b"{}")
    except ValueError as error:
        raise UsageError(f"the request is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UsageError("the request is not a JSON object")
    return value


def _number(request: Request, name: str, default: float) -> float:
    text = request.query_params.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError as error:
        raise UsageError(f"`{name}` is `{text}`, wanted a number") from error
    if not 0 <= value < 1e9:
        raise UsageError(f"`{name}` is `{text}`, wanted a number from 0")
    return value


def _all(manager: Manager) -> list[Job]:
    return [manager.jobs[job_id] for job_id in sorted(manager.jobs)]


def _find(manager: Manager, job_id: int) -> Job:
    job = manager.jobs.get(job_id)
    if job is None:
        raise NoSuchJob(f"no job {job_id}", hint="see `cotenant ls`")
    return job


def _record(job: Job) -> Any:
    return encode(replace(job, spec=replace(job.spec, env={})))
