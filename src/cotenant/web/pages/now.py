"""Now: the GPUs with their residents, and the queue with the reason of each job."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.web.drawings.memory_bar import gpu_bar
from cotenant.web.drawings.overview import overview
from cotenant.web.feeds import Feed, Reading
from cotenant.web.site import STATUS_POLLS, Site, event
from cotenant.web.templating import gpu_label, rendered

MAX_GPUS = 18
"""GPUs on one page; larger servers have several, and an overview."""
MAX_WAITING = 20
"""Waiting jobs that are shown."""
STALE_AFTER_S = 5.0
MAX_RECENT = 64

Fragments = dict[str, str]


class NowPage:
    """The page, and the stream of its changes."""

    def __init__(self, site: Site) -> None:
        self._site = site
        # What pages were sent: the stream of a page begins with what has changed since.
        self._recent: OrderedDict[tuple[Any, int, int], Fragments] = OrderedDict()

    async def show(self, request: Request) -> Response:
        page = _page_number(request)
        reading = await self._feed(request, page).first()
        total = reading.value["totals"]["gpus"]
        if page > _pages(total):  # the feed of a page that is not there
            page = _pages(total)
            reading = await self._feed(request, page).first()
        shown = reading.value["gpus"]
        fragments = self._fragments(self._site.session(request).identity, reading, page)
        return self._site.page(
            "now.html",
            request,
            fragments=rendered(fragments),
            live=f"/now/events?gpus={page}&reading={reading.number}",
            page=page,
            pages=_pages(total),
            first=(page - 1) * MAX_GPUS,
            cards=[_element_id(gpu["uuid"]) for gpu in shown],
            total=total,
        )

    async def events(self, request: Request) -> Response:
        return self._site.stream(request, self._changes(request))

    async def _changes(self, request: Request) -> AsyncIterator[bytes]:
        page, identity = _page_number(request), self._site.session(request).identity
        number = request.query_params.get("reading", "")
        sent = self._recent.get((identity, page, int(number) if number.isdecimal() else 0), {})
        async for reading in self._feed(request, page).readings():
            if reading.value is None:
                if reading.error is not None:
                    yield event("update", {"banner": self._banner(reading)})
                continue
            fragments = self._fragments(identity, reading, page)
            changed = {name: text for name, text in fragments.items() if sent.get(name) != text}
            if sent and sent.keys() - {"banner"} != fragments.keys() - {"banner"}:
                yield event("reload", {})  # GPUs came or went
                return
            sent = fragments
            if changed:
                yield event("update", changed)

    def _feed(self, request: Request, page: int) -> Feed:
        token = self._site.session(request).token
        daemon = self._site.daemon
        polls = 0
        status: dict[str, Any] = {}

        async def fetch() -> dict[str, Any]:
            nonlocal polls, status
            if polls % STATUS_POLLS == 0:
                status = await daemon.get("/v1/status", token)
            polls += 1
            gpus = await daemon.get("/v1/gpus", token, first=(page - 1) * MAX_GPUS, limit=MAX_GPUS, totals=1)
            waiting = await daemon.get("/v1/jobs", token, states="PENDING,HELD,STARTING", limit=MAX_WAITING, active=1)
            return {
                "gpus": gpus["gpus"],
                "totals": gpus["totals"],
                "waiting": waiting["jobs"],
                "counts": waiting["counts"],
                "status": status,
            }

        return self._site.feed(request, "now", page, fetch=fetch)

    def _fragments(self, identity: Any, reading: Reading, page: int) -> Fragments:
        """The parts of the page by the ids of their elements."""
        if "now" not in reading.rendered:
            reading.rendered["now"] = self._render(reading)
        fragments: Fragments = reading.rendered["now"]
        self._recent[identity, page, reading.number] = fragments
        while len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return fragments

    def _render(self, reading: Reading) -> Fragments:
        macros: Any = self._site.templates.get_template("_now.html").module
        values = reading.value
        totals = values["totals"]
        fragments = {
            "banner": self._banner(reading),
            "totals": macros.totals(totals, values["counts"], values["status"], reading.at_s),
            "queue": macros.queue(values["waiting"], _waiting_count(values["counts"]), MAX_WAITING),
        }
        if totals["gpus"] > MAX_GPUS:
            fragments["overview"] = macros.overview(overview(totals, MAX_GPUS, stale_after_s=STALE_AFTER_S))
        for gpu in values["gpus"]:
            name = _element_id(gpu["uuid"])
            # In parts: figures change with every reading, the rest rarely.
            fragments[f"{name}-head"] = macros.gpu_head(
                f"{name}-head", gpu, gpu_label(gpu), gpu_bar(gpu), _stale_s(gpu)
            )
            fragments[f"{name}-figures"] = macros.gpu_figures(f"{name}-figures", gpu)
            fragments[f"{name}-jobs"] = macros.gpu_jobs(f"{name}-jobs", gpu)
        return {name: str(text) for name, text in fragments.items()}

    def _banner(self, reading: Reading) -> str:
        macros: Any = self._site.templates.get_template("_parts.html").module
        journal_error = None if reading.value is None else reading.value["status"].get("journal_error")
        return str(macros.banner(reading.error, reading.at_s if reading.value is not None else None, journal_error))


def _pages(gpus: int) -> int:
    return max(1, math.ceil(gpus / MAX_GPUS))


def _page_number(request: Request) -> int:
    text = request.query_params.get("gpus", "1")
    return max(1, int(text)) if text.isascii() and text.isdecimal() and len(text) < 6 else 1


def _element_id(uuid: str) -> str:
    return "gpu-" + re.sub("[^A-Za-z0-9]", "-", uuid)


def _stale_s(gpu: Mapping[str, Any]) -> float | None:
    """Age of the newest sample where it is too old to be shown without a warning; infinite if there is none."""
    age_s: float = math.inf if gpu["sample_age_s"] is None else gpu["sample_age_s"]
    return age_s if age_s > STALE_AFTER_S else None


def _waiting_count(counts: Mapping[str, int]) -> int:
    return sum(counts.get(state, 0) for state in ("PENDING", "HELD", "STARTING"))
