"""The routes of the HTTP API: one table, from which both the routing and the OpenAPI document are made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.json_schema import attribute_texts
from cotenant.daemon.api.context import Handlers
from cotenant.daemon.api.handlers.jobs_api import MAX_POLL_S, JobsApi
from cotenant.daemon.api.handlers.server_api import ServerApi
from cotenant.daemon.api.handlers.token_api import TokenApi
from cotenant.daemon.api.queries import JobFilter
from cotenant.daemon.api.schemas import answers
from cotenant.daemon.job_verbs import JOB_VERBS


@dataclass(frozen=True, slots=True, kw_only=True)
class PathKind:
    """A kind of parameters in paths: its Python type, and the regular expression of its text."""

    type: Callable[[str], Any]
    pattern: str


PATH_PARAMETER = re.compile(r"{(\w+):(\w+)}")
PATH_KINDS: Mapping[str, PathKind] = {
    "int": PathKind(type=int, pattern="[0-9]{1,15}"),
    "str": PathKind(type=str, pattern="[^/]+"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter:
    """A parameter of the query string."""

    name: str
    kind: Any
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One call.

    Attributes:
        path: with parameters as `{NAME:KIND}`, see `PATH_KINDS`.
        handlers: the class that `handler` is a method of.
        summary: one line for the reference.
        query: parameters of the query string.
        body: type of the JSON object in the request, or None.
        answer: type of the JSON object in the response; a string is a media type.
        statuses: of successful responses.
    """

    method: str
    path: str
    handlers: type[Handlers]
    handler: Callable[[Any, Request], Awaitable[Response]]
    summary: str
    answer: Any
    query: tuple[QueryParameter, ...] = ()
    body: Any = None
    statuses: tuple[int, ...] = (200,)

    @property
    def operation_id(self) -> str:
        """Unique name of the call, e.g. `get_jobs` or `cancel_job`."""
        verb = self.path.rpartition("/")[2]
        return f"{verb}_job" if verb in JOB_VERBS else self.handler.__name__


def _filters() -> tuple[QueryParameter, ...]:
    texts = attribute_texts(JobFilter)
    kinds = {"bool": int, "str | None": str, "frozenset[str] | None": str, "int | None": int, "float | None": float}
    return tuple(
        QueryParameter(name=field.name, kind=kinds[str(field.type)], text=texts[field.name])
        for field in dataclasses.fields(JobFilter)
    )


_JOB = "/v1/jobs/{job_id:int}"

ROUTES: tuple[Route, ...] = (
    Route(
        method="POST",
        path="/v1/jobs",
        handlers=JobsApi,
        handler=JobsApi.submit,
        summary="Submit jobs, all or none.",
        body=answers.SubmitBody,
        answer=answers.SubmitAnswer,
        statuses=(201, 200),  # 200 for a dry run
    ),
    Route(
        method="GET",
        path="/v1/jobs",
        handlers=JobsApi,
        handler=JobsApi.jobs,
        summary="List jobs, oldest first.",
        query=(
            *_filters(),
            QueryParameter(name="fields", kind=str, text="only these fields of each view, separated by commas"),
            QueryParameter(name="records", kind=int, text="1: encoded `Job`s instead of views"),
        ),
        answer=answers.JobsAnswer,
    ),
    Route(
        method="POST",
        path="/v1/jobs/change",
        handlers=JobsApi,
        handler=JobsApi.change_many,
        summary="Change many jobs: `cancel` and `hold` newest first, the others oldest first.",
        body=answers.ChangeManyBody,
        answer=answers.ChangeManyAnswer,
    ),
    Route(
        method="POST",
        path="/v1/jobs/signal",
        handlers=JobsApi,
        handler=JobsApi.signal,
        summary="Signal the processes of running jobs, newest first.",
        body=answers.SignalBody,
        answer=answers.ChangeManyAnswer,
    ),
    Route(
        method="POST",
        path="/v1/prune",
        handlers=JobsApi,
        handler=JobsApi.prune,
        summary="Remove output and environments of finished jobs; their records stay.",
        body=answers.PruneBody,
        answer=answers.PruneAnswer,
    ),
    Route(
        method="GET",
        path="/v1/ids",
        handlers=JobsApi,
        handler=JobsApi.ids,
        summary="Resolve references to job ids.",
        query=(QueryParameter(name="refs", kind=str, text="`17`, `17_3` and `17_[3-5]`, separated by commas"),),
        answer=answers.IdsAnswer,
    ),
    Route(
        method="GET",
        path=_JOB,
        handlers=JobsApi,
        handler=JobsApi.job,
        summary="Show a job with its attempts.",
        answer=answers.JobAnswer,
    ),
    Route(
        method="GET",
        path=f"{_JOB}/explain",
        handlers=JobsApi,
        handler=JobsApi.explain,
        summary="Explain why a job waits.",
        answer=answers.ExplainAnswer,
    ),
    Route(
        method="GET",
        path=f"{_JOB}/memory-profile",
        handlers=JobsApi,
        handler=JobsApi.memory_profile,
        summary="Memory over the steps that were traced for the estimate.",
        answer=answers.MemoryProfileAnswer,
    ),
    Route(
        method="GET",
        path=f"{_JOB}/events",
        handlers=JobsApi,
        handler=JobsApi.events,
        summary="List the events of a job, oldest first.",
        answer=answers.EventsAnswer,
    ),
    Route(
        method="GET",
        path=f"{_JOB}/logs",
        handlers=JobsApi,
        handler=JobsApi.logs,
        summary="Stream the output of a job.",
        query=(
            QueryParameter(name="stream", kind=str, text="`stdout` (default) or `stderr`"),
            QueryParameter(name="attempt", kind=int, text="number of an attempt; 0 (default) is the newest"),
            QueryParameter(name="follow", kind=int, text="1: keep the stream open until the job is done"),
            QueryParameter(name="tail_bytes", kind=int, text="begin so many bytes before the end; default: all"),
        ),
        answer="application/octet-stream",
    ),
    Route(
        method="GET",
        path=f"{_JOB}/wait",
        handlers=JobsApi,
        handler=JobsApi.wait,
        summary="Wait until a job has started or is done.",
        query=(
            QueryParameter(name="until", kind=str, text="`done` (default) or `started`"),
            QueryParameter(name="timeout_s", kind=float, text=f"longest wait, up to {MAX_POLL_S:g} (default)"),
        ),
        answer=answers.WaitAnswer,
    ),
    *(
        Route(
            method="POST",
            path=f"{_JOB}/{verb.name}",
            handlers=JobsApi,
            handler=JobsApi.change,
            summary=verb.summary,
            body=answers.UpdateBody if verb.takes_fields else answers.ChangeBody,
            answer=answers.JobAnswer,
        )
        for verb in JOB_VERBS.values()
    ),
    Route(
        method="GET",
        path="/v1/gpus",
        handlers=ServerApi,
        handler=ServerApi.gpus,
        summary="List the GPUs with their newest sample and their jobs.",
        query=(
            QueryParameter(name="first", kind=int, text="leave out so many GPUs; default 0"),
            QueryParameter(name="limit", kind=int, text="so many GPUs; default all"),
            QueryParameter(name="totals", kind=int, text="1: also sums over all GPUs"),
        ),
        answer=answers.GpusAnswer,
    ),
    Route(
        method="GET",
        path="/v1/gpus/history",
        handlers=ServerApi,
        handler=ServerApi.gpu_history,
        summary="List the samples of the GPUs over time.",
        query=(
            QueryParameter(name="seconds", kind=float, text="how far back; default 600"),
            QueryParameter(name="uuids", kind=str, text="only these GPUs, separated by commas"),
        ),
        answer=answers.GpuHistoryAnswer,
    ),
    Route(
        method="GET",
        path="/v1/usage",
        handlers=ServerApi,
        handler=ServerApi.usage,
        summary="Sum usage by user or day, or show what is known by workload.",
        query=(QueryParameter(name="by", kind=str, text="`user` (default), `day` or `workload`"), *_filters()),
        answer=answers.UsageAnswer,
    ),
    Route(
        method="GET",
        path="/v1/status",
        handlers=ServerApi,
        handler=ServerApi.status,
        summary="Show the daemon.",
        answer=answers.StatusAnswer,
    ),
    Route(
        method="GET",
        path="/v1/openapi.json",
        handlers=ServerApi,
        handler=ServerApi.openapi,
        summary="This document.",
        answer="application/json",
    ),
    Route(
        method="POST",
        path="/v1/shutdown",
        handlers=ServerApi,
        handler=ServerApi.shutdown,
        summary="End the daemon; running jobs go on. For admins.",
        answer=answers.ShutdownAnswer,
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        handlers=TokenApi,
        handler=TokenApi.create,
        summary="Create a token. On the unix socket only.",
        body=answers.TokenBody,
        answer=answers.NewTokenAnswer,
        statuses=(201,),
    ),
    Route(
        method="GET",
        path="/v1/tokens",
        handlers=TokenApi,
        handler=TokenApi.list,
        summary="List tokens. On the unix socket only.",
        answer=answers.TokensAnswer,
    ),
    Route(
        method="POST",
        path="/v1/tokens/{token_id:str}/revoke",
        handlers=TokenApi,
        handler=TokenApi.revoke,
        summary="Revoke a token. On the unix socket only.",
        answer=answers.TokenAnswer,
    ),
    Route(
        method="GET",
        path="/metrics",
        handlers=ServerApi,
        handler=ServerApi.metrics,
        summary="Metrics in Prometheus' text format. For admins.",
        answer="text/plain",
    ),
)
