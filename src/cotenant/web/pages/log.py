"""The output of a job: its end at once, and what follows as it is written."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cotenant.core.errors import DaemonUnreachable
from cotenant.web.site import Site, event

TAIL_BYTES = 64 * 1024
RETRY_S = 2.0
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
"""Terminal control sequences. Source: ECMA-48, 5.4, and xterm's OSC strings."""
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


class LogPage:
    """The page of one stream, and the stream of its growth."""

    def __init__(self, site: Site) -> None:
        self._site = site

    async def show(self, request: Request) -> Response:
        job_id, stream = request.path_params["job_id"], _stream(request)
        token = self._site.session(request).token
        job = (await self._site.daemon.get(f"/v1/jobs/{job_id}", token))["job"]
        pieces = self._site.daemon.stream(f"/v1/jobs/{job_id}/logs", token, stream=stream, tail_bytes=TAIL_BYTES)
        text = plain(b"".join([piece async for piece in pieces]).decode(errors="replace"))
        return self._site.page("log.html", request, job=job, stream=stream, text=text)

    async def events(self, request: Request) -> Response:
        return self._site.stream(request, self._growth(request))

    async def _growth(self, request: Request) -> AsyncIterator[bytes]:
        """The end of the output, then what is appended; again from the end after the daemon was away."""
        path, token = f"/v1/jobs/{request.path_params['job_id']}/logs", self._site.session(request).token
        query: dict[str, Any] = {"stream": _stream(request), "follow": 1, "tail_bytes": TAIL_BYTES}
        while True:
            decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
            restart = True
            try:
                async for piece in self._site.daemon.stream(path, token, **query):
                    yield event("text", {"text": plain(decoder.decode(piece)), "restart": restart})
                    restart = False
                # The daemon ends a stream when the job is done, and when it ends itself.
                job = (await self._site.daemon.get(path.removesuffix("/logs"), token))["job"]
            except DaemonUnreachable:
                await asyncio.sleep(RETRY_S)
                continue
            if job["ended_at"] is not None:
                yield event("end", {})
                return
            await asyncio.sleep(RETRY_S)


def plain(text: str) -> str:
    """`text` without terminal control sequences; of a line that carriage returns wrote over, the last version."""
    lines = _CONTROLS.sub("", _ESCAPES.sub("", text).replace("\r\n", "\n")).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def _stream(request: Request) -> str:
    return "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
