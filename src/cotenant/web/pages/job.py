"""A job: its state and events, promised against seen, why it waits on each GPU, attempts, and what may be done."""

from __future__ import annotations

import shlex
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.units import format_bytes
from cotenant.reporting.style import tone
from cotenant.web.drawings.memory_bar import Part, bar
from cotenant.web.drawings.memory_history import memory_history
from cotenant.web.drawings.memory_profile import memory_profile_chart
from cotenant.web.feeds import Feed, Reading
from cotenant.web.site import Site, event
from cotenant.web.templating import rendered, seconds_of

HISTORY_POLLS = 15
"""The memory over time is read once in so many polls."""
MAX_EVENTS = 200
MAX_REJECTIONS = 100
VERBS = {
    "PENDING": ("hold", "change", "cancel"),
    "HELD": ("release", "change", "cancel"),
    "STARTING": ("requeue", "cancel"),
    "RUNNING": ("requeue", "cancel"),
}
"""What may be done to a job, by state; to one that is done: `requeue`."""
ESTIMATE_PARTS = (("peak_reserved_bytes", "allocator"), ("context_bytes", "CUDA context"), ("margin_bytes", "margin"))


class JobPage:
    """The page of one job, and the stream of its changes."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        reading = await self._feed(request).first()
        fragments = self._fragments(reading)
        job = reading.value["job"]
        return self._site.page(
            "job.html",
            request,
            job=job,
            fragments=rendered(fragments),
            live=f"/jobs/{job['id']}/events",
        )

    async def events(self, request: Request) -> Response:
        return self._site.stream(request, self._changes(request))

    async def _changes(self, request: Request) -> AsyncIterator[bytes]:
        sent: dict[str, str] = {}
        async for reading in self._feed(request).readings():
            if reading.value is None:
                if reading.error is not None:
                    yield event("update", {"banner": self._banner(reading)})
                continue
            fragments = self._fragments(reading)
            changed = {name: text for name, text in fragments.items() if sent.get(name) != text}
            sent = fragments
            if changed:
                yield event("update", changed)

    def _feed(self, request: Request) -> Feed:
        token, job_id = self._site.session(request).token, request.path_params["job_id"]
        daemon = self._site.daemon
        polls = 0
        history: list[Any] = []
        events: list[Any] = []
        profile: Any = None
        seen: Any = None

        async def fetch() -> dict[str, Any]:
            nonlocal polls, history, events, profile, seen
            job = (await daemon.get(f"/v1/jobs/{job_id}", token))["job"]
            why = await daemon.get(f"/v1/jobs/{job_id}/explain", token)
            reason = job["reason"] if job["state"] != "RUNNING" else ""
            mark = (
                job["state"],
                job["attempts"],
                job["priority"],
                reason,
                job["estimate"] is None,
                job["idle_s"] is None,
            )
            if mark != seen:
                events = (await daemon.get(f"/v1/jobs/{job_id}/events", token))["events"]
                profile = (await daemon.get(f"/v1/jobs/{job_id}/memory-profile", token))["profile"]
                seen = mark
            attempt = job["attempt_list"][-1] if job["attempt_list"] else None
            if attempt is not None and attempt["started_at"] is not None and polls % HISTORY_POLLS == 0:
                since_s = seconds_of(attempt["started_at"]) or 0.0
                uuids = ",".join(attempt["gpu_uuids"])
                seconds = max(1.0, time.time() - since_s)
                history = (await daemon.get("/v1/gpus/history", token, seconds=f"{seconds:.0f}", uuids=uuids))["gpus"]
            polls += 1
            return {"job": job, "why": why, "events": events, "history": history, "profile": profile}

        return self._site.feed(request, "job", job_id, fetch=fetch)

    def _fragments(self, reading: Reading) -> dict[str, str]:
        if "job" not in reading.rendered:
            reading.rendered["job"] = self._render(reading)
        fragments: dict[str, str] = reading.rendered["job"]
        return fragments

    def _render(self, reading: Reading) -> dict[str, str]:
        macros: Any = self._site.templates.get_template("_job.html").module
        job, why = reading.value["job"], reading.value["why"]
        verbs = () if self._site.read_only else VERBS.get(job["state"], ("requeue",))
        attempt = job["attempt_list"][-1] if job["attempt_list"] else None
        found = {
            "banner": self._banner(reading),
            "job-state": macros.overview(job, shlex.join(job["command"]), verbs),
            "job-why": macros.why(job, why["rejections"][:MAX_REJECTIONS], len(why["rejections"])),
            "job-memory": macros.memory(job, _estimate_bar(job), _memory_bar(job, attempt), _history(reading, attempt)),
            "job-profile": macros.profile(_profile(reading.value["profile"])),
            "job-advice": macros.advice(_advice(job)),
            "job-attempts": macros.attempts(job["attempt_list"]),
            "job-events": macros.events(reading.value["events"][-MAX_EVENTS:]),
        }
        return {name: str(text) for name, text in found.items()}

    def _banner(self, reading: Reading) -> str:
        macros: Any = self._site.templates.get_template("_parts.html").module
        return str(macros.banner(reading.error, reading.at_s if reading.value is not None else None, None))


def _estimate_bar(job: Mapping[str, Any]) -> Markup | None:
    estimate = job["estimate"]
    if estimate is None:
        return None
    parts = [
        Part(f"seen {tone(i)}", estimate[key], f"{name}: {_gib(estimate[key])}")
        for i, (key, name) in enumerate(ESTIMATE_PARTS)
    ]
    return bar(parts, estimate["bound_bytes"], f"bound of {_gib(estimate['bound_bytes'])}")


def _memory_bar(job: Mapping[str, Any], attempt: Mapping[str, Any] | None) -> Markup | None:
    """The newest attempt's promise, filled as far as it was seen."""
    if attempt is None or not attempt["promised_bytes"]:
        return None
    promised = attempt["promised_bytes"]
    seen = max(attempt["peak_observed_bytes"].values(), default=job["observed_bytes"] or 0)
    parts = [Part("seen t0", min(seen, promised), f"peak: {_gib(seen)}")]
    if seen > promised:
        parts.append(Part("over", seen - promised, f"beyond the promise: {_gib(seen - promised)}"))
    else:
        parts.append(Part("promise t0", promised - seen, f"promised, never used: {_gib(promised - seen)}"))
    return bar(parts, promised, f"{_gib(seen)} used of {_gib(promised)} promised")


def _history(reading: Reading, attempt: Mapping[str, Any] | None) -> Markup | None:
    since_s = None if attempt is None else seconds_of(attempt["started_at"])
    if attempt is None or since_s is None:
        return None
    until_s = seconds_of(attempt["ended_at"])  # then other jobs use its GPUs
    return memory_history(
        reading.value["history"], since_s=since_s, until_s=until_s, promised_bytes=attempt["promised_bytes"]
    )


def _profile(profile: Mapping[str, Any] | None) -> tuple[Markup, dict[str, str]] | None:
    return None if profile is None or not profile["category_bytes"] else memory_profile_chart(profile)


def _advice(job: Mapping[str, Any]) -> list[str]:
    """What the user may want to do, one sentence each: the daemon's advice, and what only concerns jobs in between."""
    found: list[str] = list(job["advice"])
    if job["idle_s"] is not None:
        found.append("It holds its GPUs and computes nothing: see whether it hangs, or cancel it.")
    if job["state"] == "PENDING" and job["exclusive"]:
        found.append("It requests a GPU of its own; without that it could share one, and start sooner.")
    return found


def _gib(value: float) -> str:
    return format_bytes(int(value))
