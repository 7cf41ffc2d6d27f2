"""Users and work: GPU time, energy, efficiency and OOMs by user, day and workload; and the same as CSV."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import UsageError
from cotenant.core.text import encodable
from cotenant.scheduling.idle_watch import IDLE_STOP, PARKED
from cotenant.web.site import Site

SPANS = {"1": "a day", "7": "a week", "30": "30 days", "": "all"}
GROUPINGS = ("user", "day", "workload")
MAX_WORKLOADS = 100
MAX_STOPPED = 500
"""Newest held and cancelled jobs among which those that were idle are sought."""
IDLE_REASON = re.compile(f"(^|: )({re.escape(PARKED)}|{re.escape(IDLE_STOP)}) ")
DAY_S = 86400.0
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "user": (
        "user", "jobs", "gpu_s", "gpu_share_s", "energy_j", "idle_energy_j", "smact", "mean_bytes", "promised_bytes",
        "ooms", "idle_gpu_s",
    ),
    "day": (
        "day", "jobs", "gpu_s", "gpu_share_s", "energy_j", "idle_energy_j", "smact", "mean_bytes", "promised_bytes",
        "ooms", "idle_gpu_s",
    ),
    "workload": (
        "workload", "runs", "need_bytes", "is_certain", "min_bytes", "duration_s", "solo_s", "smact", "drama",
        "steps_hz", "sensitivity", "aggressiveness",
    ),
}  # fmt: skip
"""Columns of the CSV files, as the API names them, with its units."""


class UsagePage:
    """The page, and its tables as CSV."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        span = _span(request)
        users, days = await self._rows(request, "user"), await self._rows(request, "day")
        workloads = (await self._rows(request, "workload"))[-MAX_WORKLOADS:]
        return self._site.page(
            "usage.html",
            request,
            span=span,
            spans=SPANS,
            users=sorted(users, key=lambda row: -row["gpu_share_s"]),
            days=days,
            most_s=max((row["gpu_s"] for row in (*users, *days)), default=0.0) or 1.0,
            workloads=list(reversed(workloads)),
            idle=await self._idle_jobs(request),
        )

    async def _idle_jobs(self, request: Request) -> list[dict[str, Any]]:
        """Running jobs that are idle by `[idle]`, and the newest that were stopped for it."""
        running = (await self._site.read(request, "/v1/jobs", states="RUNNING"))["jobs"]
        stopped = (await self._site.read(request, "/v1/jobs", states="HELD,CANCELLED", last=MAX_STOPPED))["jobs"]
        return [
            *(job for job in running if job["idle_s"] is not None),
            *(job for job in reversed(stopped) if IDLE_REASON.search(job["reason"])),
        ]

    async def export(self, request: Request) -> Response:
        by = request.query_params.get("by", "user")
        if by not in GROUPINGS:
            raise UsageError(f"`by` is `{by}`, wanted one of {', '.join(GROUPINGS)}")
        text = to_csv(COLUMNS[by], await self._rows(request, by))
        headers = {"content-disposition": f'attachment; filename="cotenant-{by}.csv"'}
        return Response(text, media_type="text/csv; charset=utf-8", headers=headers)

    async def _rows(self, request: Request, by: str) -> list[dict[str, Any]]:
        span = _span(request)
        since_s = None if not span else f"{time.time() - float(span) * DAY_S:.0f}"
        rows: list[dict[str, Any]] = (await self._site.read(request, "/v1/usage", by=by, since_s=since_s))["usage"]
        return rows


def to_csv(columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as CSV. Spreadsheets take a text that begins like a formula for one, so it gets an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow(columns)
    writer.writerows([_cell(row[column]) for column in columns] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        text = encodable(value)
        return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
    return "" if value is None else value


def _span(request: Request) -> str:
    """The days to show, as a text of `SPANS`."""
    span = request.query_params.get("days", "7")
    return span if span in SPANS else ""
