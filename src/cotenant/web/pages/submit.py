"""Submit: a form, then the estimate and where the job would start, then the job."""

from __future__ import annotations

import asyncio
import operator
import pwd
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import CotenantError, UsageError
from cotenant.core.units import format_bytes, parse_bytes, parse_duration
from cotenant.reporting.style import tone
from cotenant.web.drawings.memory_bar import Part, bar
from cotenant.web.site import Site, see_other
from cotenant.web.templating import now_s

MAX_DRAFTS = 8
MAX_PREVIEW_S = 900.0
REFRESH_S = 2
LOGIN_PATH = "/usr/local/bin:/usr/bin:/bin"
FIELDS = ("command", "workdir", "name", "gpus", "memory", "time_limit", "environment", "exclusive")


@dataclass(slots=True, kw_only=True)
class Draft:
    """A job that is being previewed.

    Attributes:
        fields: the form, to show it again.
        body: for `POST /v1/jobs`.
        answer, error: of the dry run; both None while it is made.
    """

    fields: Mapping[str, str]
    body: dict[str, Any]
    began_s: float = field(default_factory=now_s)
    answer: Mapping[str, Any] | None = None
    error: CotenantError | None = None
    task: asyncio.Task[None] | None = None


class SubmitPages:
    """The form, the preview, and the submission."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        fields = {name: request.query_params.get(name, "") for name in FIELDS}
        return self._form(request, {**fields, "gpus": fields["gpus"] or "1"}, None)

    async def preview(self, request: Request) -> Response:
        form = await self._site.form(request)
        fields = {name: form.get(name, "") for name in FIELDS}
        try:
            body = self._body(fields, await self._environment(request))
        except CotenantError as error:
            return self._form(request, fields, error)
        session = self._site.session(request)
        draft = Draft(fields=fields, body=body)
        draft.task = asyncio.create_task(self._dry_run(draft, session.token))
        key = secrets.token_urlsafe(9)
        session.drafts[key] = draft
        while len(session.drafts) > MAX_DRAFTS:
            _, oldest = session.drafts.popitem(last=False)
            oldest.task.cancel()
        return see_other(f"/submit/{key}")

    async def draft(self, request: Request) -> Response:
        draft = self._draft(request)
        if draft.error is not None:
            return self._form(request, draft.fields, draft.error)
        answer = draft.answer
        return self._site.page(
            "draft.html",
            request,
            fields=draft.fields,
            answer=answer,
            elapsed_s=now_s() - draft.began_s,
            refresh_s=REFRESH_S,
            bar=None if answer is None or answer["estimate"] is None else _bar(answer["estimate"]),
        )

    async def submit(self, request: Request) -> Response:
        await self._site.form(request)
        draft = self._draft(request)
        token = self._site.session(request).token
        jobs = (await self._site.daemon.post("/v1/jobs", token, {"jobs": [draft.body]}))["jobs"]
        self._site.session(request).drafts.pop(request.path_params["key"], None)
        return see_other(f"/jobs/{jobs[0]['id']}")

    async def _dry_run(self, draft: Draft, token: str | None) -> None:
        body = {"jobs": [draft.body], "dry_run": True}
        try:
            answer = await self._site.daemon.post("/v1/jobs", token, body, timeout_s=MAX_PREVIEW_S)
            draft.answer = answer["jobs"][0]
        except CotenantError as error:
            draft.error = error

    def _form(self, request: Request, fields: Mapping[str, str], error: CotenantError | None) -> Response:
        status = 200 if error is None else 400
        return self._site.page("submit.html", request, status=status, fields=fields, error=error)

    def _draft(self, request: Request) -> Draft:
        draft: Draft | None = self._site.session(request).drafts.get(request.path_params["key"])
        if draft is None:
            raise UsageError("this draft is gone", hint="fill in the form again")
        return draft

    async def _environment(self, request: Request) -> Mapping[str, str]:
        """Variables of the job. Over the network, those that every login has: this process has another user's."""
        if self._site.environment is not None:
            return self._site.environment
        caller = (await self._site.daemon.get("/v1/status", self._site.session(request).token))["caller"]
        try:
            home, shell = operator.attrgetter("pw_dir", "pw_shell")(pwd.getpwuid(caller["uid"]))
        except KeyError:
            home, shell = "/", "/bin/sh"
        return {"PATH": LOGIN_PATH, "HOME": home, "SHELL": shell, "USER": caller["name"], "LOGNAME": caller["name"]}

    def _body(self, fields: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, Any]:
        """The job for the API.

        Raises:
            UsageError: a field is empty or wrong.
        """
        command = _words(fields["command"])
        workdir = fields["workdir"].strip()
        if not workdir.startswith("/"):
            raise UsageError(f"the folder is `{workdir}`, wanted an absolute path", hint="e.g. /home/ann/project")
        gpus = fields["gpus"].strip() or "1"
        if not gpus.isascii() or not gpus.isdecimal():
            raise UsageError(f"the number of GPUs is `{gpus}`, wanted a whole number")
        script = next((word for word in command if word.endswith((".py", ".sh"))), command[0])
        output = f"{workdir.replace('%', '%%').rstrip('/')}/cotenant-%j.out"
        return {
            "command": command,
            "workdir": workdir,
            "env": {**environment, **_environment(fields["environment"])},
            "name": fields["name"].strip() or PurePosixPath(script).stem or "job",
            "gpus": int(gpus),
            "declared_bytes": parse_bytes(fields["memory"]) if fields["memory"].strip() else None,
            "time_limit_s": parse_duration(fields["time_limit"].strip()) if fields["time_limit"].strip() else None,
            "exclusive": bool(fields["exclusive"]),
            "stdout_path": output,
            "stderr_path": output,
        }


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"the command cannot be read: {str(error).lower()}") from error
    if not words:
        raise UsageError("the command is empty", hint="e.g. python train.py --epochs 3")
    return words


def _environment(text: str) -> dict[str, str]:
    """The variables in lines `NAME=value`."""
    found = {}
    for line in text.splitlines():
        name, equals, value = line.strip().partition("=")
        if not line.strip():
            continue
        if not equals or not name.isidentifier():
            raise UsageError(f"`{line.strip()[:80]}` is not NAME=value")
        found[name] = value
    return found


def _bar(estimate: Mapping[str, Any]) -> Markup:
    parts = [
        Part(f"seen {tone(i)}", estimate[f"{key}_bytes"], f"{name}: {format_bytes(estimate[f'{key}_bytes'])}")
        for i, (key, name) in enumerate(
            (("peak_reserved", "allocator"), ("context", "CUDA context"), ("margin", "margin"))
        )
    ]
    return bar(parts, estimate["bound_bytes"], f"bound of {format_bytes(estimate['bound_bytes'])}")
