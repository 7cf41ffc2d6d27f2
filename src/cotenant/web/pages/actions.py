"""Changes of a job: a page that asks for confirmation, and the form that it sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import NotPermitted, UsageError
from cotenant.core.units import format_bytes, format_duration, parse_bytes, parse_duration
from cotenant.daemon.job_verbs import JOB_VERBS
from cotenant.web.site import Site, see_other

QUESTIONS = {
    "cancel": "Cancel it? What runs is stopped, and what it has not saved is lost.",
    "hold": "Hold it? It stays in the queue and does not start until it is released.",
    "release": "Release it? It may start from now on.",
    "requeue": "Queue it again? A running attempt is stopped first.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field that the page can change.

    Attributes:
        name: as in `POST /v1/jobs/ID/update`.
        of: its text for people, from a job's view.
        parse: its value, from that text.
    """

    name: str
    label: str
    hint: str
    of: Callable[[Mapping[str, Any]], str]
    parse: Callable[[str], Any]


FIELDS = (
    Field(name="name", label="Name", hint="", of=lambda job: job["name"], parse=str),
    Field(name="priority", label="Priority", hint="above 0: admins", of=lambda job: str(job["priority"]), parse=int),
    Field(
        name="declared_bytes",
        label="Memory per GPU",
        hint="e.g. 12G; empty: estimated",
        of=lambda job: "" if job["declared_bytes"] is None else format_bytes(job["declared_bytes"]),
        parse=lambda text: parse_bytes(text) if text else None,
    ),
    Field(
        name="time_limit_s",
        label="Time limit",
        hint="e.g. 2:00:00; empty: none",
        of=lambda job: "" if job["time_limit_s"] is None else format_duration(job["time_limit_s"]),
        parse=lambda text: parse_duration(text) if text else None,
    ),
    Field(
        name="max_attempts",
        label="Attempts after OOM",
        hint="",
        of=lambda job: str(job["max_attempts"]),
        parse=int,
    ),
)


class ActionPages:
    """The pages of the verbs of `daemon.job_verbs`."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def ask(self, request: Request) -> Response:
        if self._site.read_only:
            raise NotPermitted("these pages are read-only")
        job = await self._job(request)
        if request.path_params["verb"] == "change":
            fields = [(field, field.of(job)) for field in FIELDS]
            return self._site.page("change.html", request, job=job, fields=fields)
        verb = _verb(request)
        return self._site.page("confirm.html", request, job=job, verb=verb, question=QUESTIONS[verb])

    async def do(self, request: Request) -> Response:
        form = await self._site.form(request)
        token, job_id = self._site.session(request).token, request.path_params["job_id"]
        if request.path_params["verb"] == "change":
            job = await self._job(request)
            edited = [field for field in FIELDS if form.get(field.name, field.of(job)) != field.of(job)]
            changed = {field.name: _parsed(field, form) for field in edited}
            if changed:
                await self._site.daemon.post(f"/v1/jobs/{job_id}/update", token, {"fields": changed})
        else:
            await self._site.daemon.post(f"/v1/jobs/{job_id}/{_verb(request)}", token, {"reason": "on the web page"})
        return see_other(f"/jobs/{job_id}")

    async def _job(self, request: Request) -> dict[str, Any]:
        token = self._site.session(request).token
        job: dict[str, Any] = (await self._site.daemon.get(f"/v1/jobs/{request.path_params['job_id']}", token))["job"]
        return job


def _verb(request: Request) -> str:
    verb: str = request.path_params["verb"]
    if verb not in JOB_VERBS or verb not in QUESTIONS:
        raise UsageError(f"there is no action `{verb}`")
    return verb


def _parsed(field: Field, form: Mapping[str, str]) -> Any:
    try:
        return field.parse(form.get(field.name, "").strip())
    except ValueError as error:
        raise UsageError(f"{field.label.lower()}: `{form.get(field.name, '')}` is not a number") from error
