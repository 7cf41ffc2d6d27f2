"""Replays: the jobs of the last hours or days under another policy, by the simulator, in a process of its own.

The jobs are those that the session's user may see, read with their token, so a replay shows nobody more than the other
pages do. A user has one replay at a time, and the server `MAX_RUNNING`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import secrets
import sys
import time
from asyncio.subprocess import PIPE
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.codec import encode
from cotenant.core.errors import NotPermitted, UsageError
from cotenant.osutil.child_environment import python_environment
from cotenant.reporting.style import STYLE
from cotenant.scheduling.policies import POLICIES
from cotenant.web.guard import HEADERS
from cotenant.web.pages.history import SPANS, jobs_since
from cotenant.web.site import Site, see_other
from cotenant.web.templating import now_s

MODULE = "cotenant.web.replay_worker"
MAX_RUNNING = 2
MAX_REPLAYS = 4
"""Of one session; older ones are forgotten."""
TIMEOUT_S = 180.0
REFRESH_S = 2
NICE = 10
MAX_REPORT_BYTES = 32 * 2**20
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
REPORT_POLICY = f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
"""The report is one file with its style sheet in it, and nothing else: its hash allows that one, and no other."""


@dataclass(slots=True, kw_only=True)
class PolicyReplay:
    """One replay. `report` is its HTML; `problem` why there is none; both are None while it runs."""

    title: str
    span: str
    is_admin: bool
    jobs: int
    began_s: float = field(default_factory=now_s)
    report: str | None = None
    problem: str | None = None
    task: asyncio.Task[None] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it runs no more."""
        return self.report is not None or self.problem is not None


class ReplayPages:
    """The form's target, the progress, and the report."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._running: set[str] = set()  # names of users

    async def begin(self, request: Request) -> Response:
        form = await self._site.form(request, changes=False)
        policy, hours = form.get("policy", ""), form.get("hours", "")
        if policy not in POLICIES or hours not in SPANS:
            raise UsageError(f"there is no policy `{policy}`" if hours in SPANS else f"`{hours}` is no time to replay")
        status = await self._site.read(request, "/v1/status")
        user: str = status["caller"]["name"]
        if user in self._running:
            raise NotPermitted("a replay of yours runs", hint="wait for its end")
        if len(self._running) >= MAX_RUNNING:
            raise NotPermitted("other users' replays run", hint="try again in a minute")
        self._running.add(user)
        try:
            replay, task = await self._prepared(request, status, policy, hours)
        except BaseException:
            self._running.discard(user)
            raise
        replay.task = asyncio.create_task(self._run(replay, task, user))
        key, session = secrets.token_urlsafe(9), self._site.session(request)
        session.replays[key] = replay
        while len(session.replays) > MAX_REPLAYS:
            session.replays.popitem(last=False)
        return see_other(f"/history/replay/{key}")

    async def show(self, request: Request) -> Response:
        replay = self._find(request)
        elapsed_s = now_s() - replay.began_s
        return self._site.page("replay.html", request, replay=replay, elapsed_s=elapsed_s, refresh_s=REFRESH_S)

    async def report(self, request: Request) -> Response:
        replay = self._find(request)
        if replay.report is None:
            raise UsageError("this replay has no report", hint=replay.problem or "it still runs")
        headers = {**HEADERS, "content-security-policy": REPORT_POLICY}
        return Response(replay.report, media_type="text/html; charset=utf-8", headers=headers)

    def _find(self, request: Request) -> PolicyReplay:
        replay: PolicyReplay | None = self._site.session(request).replays.get(request.path_params["key"])
        if replay is None:
            raise UsageError("this replay is gone", hint="begin it again on the history page")
        return replay

    async def _prepared(
        self, request: Request, status: dict[str, Any], policy: str, hours: str
    ) -> tuple[PolicyReplay, dict[str, Any]]:
        """The replay, and what its process is sent."""
        jobs, _ = await jobs_since(self._site, request, time.time() - float(hours) * 3600)
        jobs = [job for job in jobs if job.is_done]
        if not jobs:
            raise UsageError("no job ended in this time")
        gpus = (await self._site.read(request, "/v1/gpus"))["gpus"]
        current = status["policy"]
        title = f"{current} and {policy}" if current != policy else policy
        replay = PolicyReplay(title=title, span=_length(hours), is_admin=status["caller"]["admin"], jobs=len(jobs))
        task = {
            "name": f"the last {_length(hours)}",
            "jobs": [encode(job) for job in jobs],
            "gpus": gpus,
            "policies": list(dict.fromkeys(name for name in (current, policy) if name in POLICIES)),
        }
        return replay, task

    async def _run(self, replay: PolicyReplay, task: dict[str, Any], user: str) -> None:
        try:
            replay.report, replay.problem = await _output(json.dumps(task).encode())
        except (OSError, asyncio.TimeoutError) as error:
            longer = f"it took longer than {TIMEOUT_S:g} s"
            replay.problem = longer if isinstance(error, asyncio.TimeoutError) else f"it cannot start: {error.strerror}"
        finally:
            self._running.discard(user)


def _length(hours: str) -> str:
    """`hour`, `6 hours`, `week`: what "the last" is followed by."""
    return SPANS[hours].removeprefix("an ").removeprefix("a ")


async def _output(task: bytes) -> tuple[str | None, str | None]:
    """The report that the process makes, or why it makes none.

    Raises:
        OSError: it cannot be started.
        asyncio.TimeoutError: it took too long, and was killed.
    """
    process = await asyncio.create_subprocess_exec(
        "nice",
        f"-n{NICE}",
        sys.executable,
        "-m",
        MODULE,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=python_environment(),
        cwd="/",
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(task), TIMEOUT_S)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode == 0 and len(out) <= MAX_REPORT_BYTES:
        return out.decode(), None
    lines = err.decode(errors="replace").strip().splitlines()
    return None, f"the replay failed: {lines[-1][:300]}" if lines else f"the replay ended with {process.returncode}"
