"""Handlers of `/v1/jobs` and `/v1/ids`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cotenant.core.codec import encode
from cotenant.core.errors import NotPermitted, UsageError
from cotenant.core.job import Done, Job, JobSpec, Running
from cotenant.core.ports import AttemptRef, SignalTarget
from cotenant.core.text import check_text
from cotenant.core.units import format_bytes
from cotenant.daemon.api.context import Handlers, peer_of
from cotenant.daemon.api.handlers.preview import preview
from cotenant.daemon.api.queries import JobFilter, resolve_ids
from cotenant.daemon.api.requests import json_response, read_number, read_object
from cotenant.daemon.api.schemas.json_objects import (
    Explanation,
    FilePaths,
    JobDetail,
    JobEvent,
    JobView,
    StartPreview,
    WaitPreview,
)
from cotenant.daemon.api.submission.job_specs import parse_specs, user_name
from cotenant.daemon.api.submission.sharing_modes import check_available, check_gpus
from cotenant.daemon.api.views.job_views import JsonViews, counts
from cotenant.daemon.api.views.job_words import label
from cotenant.daemon.api.views.timeline import timeline
from cotenant.daemon.auth.unix_socket import Peer
from cotenant.daemon.job_verbs import JOB_VERBS, JobVerb
from cotenant.daemon.log_stream import OutputLocation, follow
from cotenant.daemon.messages import BulkChange, JobChange, WaitRequest
from cotenant.daemon.pruning import prune
from cotenant.daemon.services.notifier import why_invalid_url
from cotenant.scheduling.manager import Manager

MAX_JOBS = 10_000
MAX_POLL_S = 60.0
MAX_CAUSE_CHARS = 1000
CHUNK_JOBS = 500
"""Jobs of one transaction of a change of many: some 50 ms, in which no other request is served."""


class JobsApi(Handlers):
    """One method per route; a change has one for all verbs."""

    async def submit(self, request: Request) -> Response:
        limits = self._context.limits
        body = await read_object(request, int(limits.request_mib * 2**20))
        jobs = body.get("jobs")
        if not isinstance(jobs, list) or not 1 <= len(jobs) <= MAX_JOBS:
            raise UsageError(f"`jobs` must be an array of 1 to {MAX_JOBS} jobs")
        peer = peer_of(request)
        specs = parse_specs(jobs, peer)
        self._check_notify(specs)
        if any(spec.priority > 0 for spec in specs):
            self._context.access.check_admin(peer, "raise a priority above 0")
        check_available(specs, self._context.refusals())
        check_gpus(specs, self._context.policy, self._context.hosts)
        await self._check_output(specs[0].uid)
        if body.get("dry_run"):
            return json_response({"jobs": [await self._preview(spec) for spec in specs]})
        now = self._context.now

        def views_of(manager: Manager, ids: Sequence[int]) -> list[JobView]:
            views = JsonViews(manager, now())
            return [views.job(manager.jobs[job_id]) for job_id in ids]

        return json_response(
            {"jobs": await self._bridge.of(self._context.loop.submit_and_query(specs, views_of))}, status=201
        )

    async def jobs(self, request: Request) -> Response:
        job_filter = JobFilter.of(request.query_params)
        access, peer = self._context.access, peer_of(request)
        wants_records = request.query_params.get("records") == "1"
        only = [field for field in request.query_params.get("fields", "").split(",") if field]
        unknown = set(only) - JobView.__annotations__.keys()
        if unknown:
            raise UsageError(f"`fields` has `{min(unknown)}`, which no job has", hint="see the schema of JobView")

        def answer(views: JsonViews, manager: Manager) -> dict[str, Any]:
            visible = (job for job in job_filter.candidates(manager.jobs) if access.may_see(peer, job))
            view: Callable[[Job], Any] = _record if wants_records else views.job
            found = [view(job) for job in job_filter.of_jobs(visible)]
            if only and not wants_records:
                found = [{field: job[field] for field in only} for job in found]
            if job_filter.after is not None:
                return {"jobs": found, "counts": {}}
            return {"jobs": found, "counts": counts(job for job in manager.jobs.values() if access.may_see(peer, job))}

        return json_response(await self._view(answer))

    async def ids(self, request: Request) -> Response:
        refs = request.query_params.get("refs", "").split(",")
        access, peer = self._context.access, peer_of(request)

        def resolved(manager: Manager) -> list[int]:
            ids = resolve_ids(refs, manager.jobs)
            for job_id in ids:
                access.check_job(peer, manager.jobs[job_id])
            return ids

        return json_response({"ids": await self._query(resolved)})

    async def job(self, request: Request) -> Response:
        return json_response({"job": await self._detail(request)})

    async def explain(self, request: Request) -> Response:
        def explanation(views: JsonViews, manager: Manager) -> Explanation:
            job = self._find(manager, request)
            return views.explanation(job, quarantined=self._context.journal.quarantined(job.id))

        return json_response(await self._view(explanation))

    async def memory_profile(self, request: Request) -> Response:
        job = await self._job(request)
        profile = await asyncio.to_thread(self._context.estimates.profile, job.id)
        return json_response({"id": job.id, "profile": None if profile is None else encode(profile)})

    async def events(self, request: Request) -> Response:
        job = await self._job(request)
        events = await asyncio.to_thread(self._context.journal.of_job, job.id)

        def entries(manager: Manager) -> list[JobEvent]:
            return timeline(
                events,
                lambda neighbor_ids: manager.redact_ids(job, neighbor_ids),
                indices={gpu.uuid: gpu.index for gpu in manager.gpus},
                job=manager.jobs.get(job.id),
            )

        return json_response({"id": job.id, "events": await self._query(entries)})

    async def change(self, request: Request) -> Response:
        verb = JOB_VERBS[request.url.path.rpartition("/")[2]]
        body = await read_object(request)
        peer = peer_of(request)
        job = await self._job(request)
        fields = body.get("fields", {})
        if not isinstance(fields, dict):
            raise UsageError("`fields` is not a JSON object")
        if isinstance(fields.get("priority"), int) and fields["priority"] > max(0, job.spec.priority):
            self._context.access.check_admin(peer, "raise a priority above 0")
        if verb.takes_fields:
            spec = verb.new_spec(job, fields)
            self._check_notify([spec] if "notify" in fields else [])
            check_gpus([spec], self._context.policy, self._context.hosts)
            check_available([spec] if "sharing" in fields else [], self._context.refusals())
        cause = _cause(verb, peer, body)
        self._context.access.note(peer, verb.name, job)
        await asyncio.wrap_future(self._context.loop.change(JobChange(verb.name, job.id, cause, fields)))
        return json_response({"job": await self._detail(request)})

    async def change_many(self, request: Request) -> Response:
        """Apply a verb to the jobs that references or a filter name.

        `cancel` and `hold` begin with the newest: jobs that wait for others are changed before those, and none starts
        on what became free. `release` and `requeue` begin with the oldest, which is then first in the queue. Other
        requests are served between chunks.
        """
        body = await read_object(request)
        peer = peer_of(request)
        verb = JOB_VERBS.get(str(body.get("verb")))
        if verb is None or verb.takes_fields:
            known = [name for name, known_verb in JOB_VERBS.items() if not known_verb.takes_fields]
            raise UsageError(f"`verb` is {body.get('verb')!r}, wanted one of {', '.join(known)}")
        cause = _cause(verb, peer, body)
        newest_first = await self._query(lambda manager: self._chosen(manager, peer, body))
        ids = newest_first if verb.newest_first else newest_first[::-1]
        jobs: list[JobView] = []
        errors: list[dict[str, Any]] = []
        for first in range(0, len(ids), CHUNK_JOBS):
            chunk = ids[first : first + CHUNK_JOBS]
            change = BulkChange(verb.name, tuple(chunk), cause)
            outcome = await self._bridge.of(self._context.loop.change_many(change))
            changed = [job_id for job_id, error in zip(chunk, outcome, strict=True) if error is None]
            errors += [
                {"id": job_id, **error.as_json()}
                for job_id, error in zip(chunk, outcome, strict=True)
                if error is not None
            ]
            jobs += await self._view(partial(_views_of, changed))
        self._context.access.note_many(peer, verb.name, len(jobs))
        return json_response({"jobs": jobs, "errors": errors})

    async def signal(self, request: Request) -> Response:
        """Signal the processes of the running jobs that references or a filter name."""
        body, peer = await read_object(request), peer_of(request)
        number, target = body.get("signal"), body.get("target", "programs")
        if not isinstance(number, int) or isinstance(number, bool) or number not in signal.valid_signals():
            raise UsageError(f"`signal` is {number!r}, wanted the number of a signal", hint="see kill -l")
        if target not in get_args(SignalTarget):
            raise UsageError(f"`target` is {target!r}, wanted one of {', '.join(get_args(SignalTarget))}")
        jobs = await self._query(lambda manager: [manager.jobs[found] for found in self._chosen(manager, peer, body)])
        errors: list[dict[str, Any]] = []
        for job in jobs:
            sent = 0
            if isinstance(job.state, Running):
                self._context.access.note(peer, f"signal {number}", job)
                ref = AttemptRef(job_id=job.id, attempt=job.attempts[-1].number)
                sent = await asyncio.to_thread(self._context.send_signal, ref, number, target, uid=job.spec.uid)
            if not sent:
                errors.append({"id": job.id, **UsageError(f"job {label(job)} is not running").as_json()})
        ended = {error["id"] for error in errors}
        signaled = [job.id for job in jobs if job.id not in ended]
        return json_response({"jobs": await self._view(partial(_views_of, signaled)), "errors": errors})

    def _chosen(self, manager: Manager, peer: Peer, body: Mapping[str, Any]) -> list[int]:
        """Ids of the jobs that `refs` or `filters` of a request name, newest first.

        Raises:
            UsageError: it has neither or both, or a value is wrong.
            NoSuchJob, NotPermitted: a reference names no job, or another user's.
        """
        refs, filters, access = body.get("refs"), body.get("filters"), self._context.access
        if (refs is None) == (filters is None):
            raise UsageError("a change of many jobs needs either `refs` or `filters`")
        if refs is not None:
            if not isinstance(refs, list) or not all(isinstance(ref, str) for ref in refs):
                raise UsageError("`refs` is not an array of texts")
            ids = resolve_ids(refs, manager.jobs)
            for job_id in ids:
                access.check_job(peer, manager.jobs[job_id])
            return sorted(ids, reverse=True)
        if not isinstance(filters, dict):
            raise UsageError("`filters` is not a JSON object")
        job_filter = JobFilter.of(
            {name: str(int(value) if isinstance(value, bool) else value) for name, value in filters.items()}
        )
        visible = [job for job in manager.jobs.values() if access.may_see(peer, job)]
        return [job.id for job in reversed(job_filter.of_jobs(visible))]

    async def prune(self, request: Request) -> Response:
        """Remove what finished jobs left; see `daemon.pruning`."""
        body, peer, access = await read_object(request), peer_of(request), self._context.access
        older_than_s = body.get("older_than_s")
        if not isinstance(older_than_s, (int, float)) or isinstance(older_than_s, bool) or not 0 <= older_than_s < 1e12:
            raise UsageError(f"`older_than_s` is {older_than_s!r}, wanted a number from 0")
        everybody, before_s = bool(body.get("all_users")), self._context.now() - older_than_s
        if everybody:
            access.check_admin(peer, "prune the jobs of other users")
            access.note(peer, "prune")

        def chosen(manager: Manager) -> list[Job]:
            return [
                job
                for job in manager.jobs.values()
                if isinstance(job.state, Done)
                and job.state.at_s <= before_s
                and (everybody or job.spec.uid == peer.uid or not access.many)
            ]

        jobs = await self._query(chosen)
        dry_run = bool(body.get("dry_run"))
        context = self._context
        count, size = await asyncio.to_thread(prune, jobs, context.store, context.journal, dry_run=dry_run)
        return json_response({"jobs": count, "bytes": size})

    async def wait(self, request: Request) -> Response:
        until: Any = request.query_params.get("until", "done")
        if until not in ("done", "started"):
            raise UsageError(f"`until` is `{until}`, wanted `done` or `started`")
        timeout_s = min(MAX_POLL_S, read_number(request, "timeout_s", MAX_POLL_S))
        job = await self._job(request)
        reached = await self._reached(self._context.loop.wait(WaitRequest(job.id, until)), timeout_s)
        return json_response({"reached": reached, "job": await self._detail(request)})

    async def logs(self, request: Request) -> Response:
        stream = request.query_params.get("stream", "stdout")
        if stream not in ("stdout", "stderr"):
            raise UsageError(f"`stream` is `{stream}`, wanted `stdout` or `stderr`")
        attempt = int(read_number(request, "attempt", 0))
        follows = request.query_params.get("follow") == "1"
        tail_bytes = int(read_number(request, "tail_bytes", 0)) or None

        async def locate() -> OutputLocation:
            return await self._output(request, stream, attempt)

        await locate()  # an unknown job is an error; once the stream has begun, it could only end
        stream_of = follow(locate, until_end=follows, tail_bytes=tail_bytes)
        return StreamingResponse(stream_of, media_type="application/octet-stream")

    async def _check_output(self, uid: int) -> None:
        """Refuse a user whose output has outgrown the limit.

        Raises:
            NotPermitted: it has.
        """
        store = self._context.store
        max_bytes = store.budget.max_user_bytes
        if max_bytes is None:
            return
        if store.take_measure():  # else a submission would walk over all jobs, and start a thread
            owners = await self._query(lambda manager: {job.id: job.spec.uid for job in manager.jobs.values()})
            await asyncio.to_thread(store.measure, owners)
        used_bytes = store.budget.used_bytes(uid)
        if used_bytes > max_bytes:
            raise NotPermitted(
                f"quota: the output of your jobs takes {format_bytes(used_bytes)},"
                f" {format_bytes(max_bytes)} are allowed",
                hint="remove old output: cotenant prune --older-than 7-0",
            )

    def _check_notify(self, specs: Sequence[JobSpec]) -> None:
        targets = [spec.notify for spec in specs if spec.notify is not None]
        if targets and not self._context.info["notifications"]:
            raise UsageError("this daemon sends no notifications", hint="an admin can set [notifications] enabled")
        for target in targets:
            why = why_invalid_url(target)
            if why is not None:
                raise UsageError(f"cannot notify `{target}`: {why}", hint="write a command, or https://HOST/PATH")

    async def _detail(self, request: Request) -> JobDetail:
        def detail(views: JsonViews, manager: Manager) -> JobDetail:
            job = self._find(manager, request)
            return views.detail(job, paths=self._paths(job), quarantined=self._context.journal.quarantined(job.id))

        return await self._view(detail)

    def _paths(self, job: Job) -> FilePaths:
        log = self._context.estimates.log_path(job.id)
        out, err = job.spec.stdout_path, job.spec.stderr_path
        if job.last_attempt is not None:
            out, err = self._context.log_paths(AttemptRef(job_id=job.id, attempt=job.last_attempt.number))
        return {"estimate_log_path": str(log) if log.exists() else None, "stdout_path": out, "stderr_path": err}

    async def _output(self, request: Request, stream: str, attempt: int) -> OutputLocation:
        """Where `stream` of `attempt` is; of the newest attempt if that is 0."""
        job = await self._job(request)
        newest = len(job.attempts)
        if attempt > newest:
            raise UsageError(f"job {job.id} has no attempt {attempt} (so far: {newest})")
        is_closing = self._context.closing.is_set()
        number = attempt or newest
        if number == 0:
            return OutputLocation(path=None, attempt=0, is_final=job.is_done or is_closing)
        paths = self._context.log_paths(AttemptRef(job_id=job.id, attempt=number))
        is_over = job.is_done or (attempt > 0 and job.attempts[attempt - 1].ended_at_s is not None)
        own_path = job.spec.stderr_path if stream == "stderr" else job.spec.stdout_path
        owner = job.spec.uid if own_path is not None and job.spec.uid != os.geteuid() else None
        return OutputLocation(
            path=Path(paths[stream == "stderr"]), attempt=number, is_final=is_over or is_closing, owner_uid=owner
        )

    async def _preview(self, spec: JobSpec) -> StartPreview | WaitPreview:
        estimating = asyncio.ensure_future(asyncio.to_thread(self._context.estimates.estimate_spec, spec))
        closing = asyncio.ensure_future(self._context.closing.wait())
        await asyncio.wait({estimating, closing}, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if not estimating.done():  # its thread would keep the process alive
            self._context.estimates.end_trials()
        estimate, error = await estimating
        policy, now = self._context.policy, self._context.now
        return await self._query(lambda manager: preview(manager, policy, spec, estimate, error, at_s=now()))

    async def _reached(self, future: Future[Job], timeout_s: float) -> bool:
        """Whether `future` is answered before the timeout and before the daemon ends."""
        answer = asyncio.wrap_future(future)
        closing = asyncio.ensure_future(self._context.closing.wait())
        waited: set[asyncio.Future[Any]] = {answer, closing}
        await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        closing.cancel()
        if answer.done():
            answer.result()
            return True
        answer.cancel()
        return False


def _views_of(ids: Sequence[int], views: JsonViews, manager: Manager) -> list[JobView]:
    return [views.job(manager.jobs[job_id]) for job_id in ids if job_id in manager.jobs]


def _cause(verb: JobVerb, peer: Peer, body: Mapping[str, Any]) -> str:
    """The cause to journal. The peer comes first: the client's reason could otherwise name another user."""
    cause = f"{verb.name} by {user_name(peer.uid)}{'' if peer.token is None else f' (token {peer.token})'}"
    reason = body.get("reason")
    if not reason:
        return cause
    check_text("`reason`", str(reason), "label")
    return f"{cause}: {reason}"[:MAX_CAUSE_CHARS]


def _record(job: Job) -> Any:
    return encode(replace(job, spec=replace(job.spec, env={})))
