"""A browser's requests without a browser: cookies, forms and server-sent events over HTTP."""

from __future__ import annotations

import contextlib
import json
import re
import time
from urllib.parse import urlsplit

import httpx

TIMEOUT_S = 60.0


class WebClient:
    """A client of one page with its cookies. `address`: as the server prints it."""

    def __init__(self, address, **options):
        parts = urlsplit(address)
        self.base = f"{parts.scheme}://{parts.netloc}"
        self.http = httpx.Client(base_url=self.base, timeout=TIMEOUT_S, **options)

    def get(self, path, **options):
        """The answer; the rate limit holds tests, too."""
        while (answer := self.http.get(path, **options)).status_code == httpx.codes.TOO_MANY_REQUESTS:
            time.sleep(0.2)
        return answer

    def csrf(self, path="/submit"):
        """The CSRF token of the session, from a page with a form."""
        return re.search(r'name="csrf" value="([^"]+)"', self.get(path).text)[1]

    def post(self, path, *, csrf=None, **fields):
        """Send a form of the session's own."""
        return self.http.post(path, data={"csrf": self.csrf() if csrf is None else csrf, **fields})

    def login(self, token):
        return self.http.post("/login", data={"token": token})

    @contextlib.contextmanager
    def events(self, path):
        """The server-sent events of `path`, as (name, value)."""
        headers = {"accept": "text/event-stream"}
        with self.http.stream("GET", path, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield _events(response.iter_lines())

    def close(self):
        self.http.close()


def _events(lines):
    """The events; fails where the server only says that it is still there."""
    name, deadline_s = None, time.monotonic() + TIMEOUT_S
    for line in lines:
        assert time.monotonic() < deadline_s, "the event did not come"
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)
