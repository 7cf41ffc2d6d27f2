"""Sends one notification over HTTP. A program of its own on the standard library, run as the user who is notified.

python -I -S send_notification.py < '{"url": ..., "message": ..., "timeout_s": ...}'
"""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the message goes to the URL that the user named, or nowhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


def main() -> int:
    """Send the request on stdin; returns the exit code, and prints why it failed to stderr."""
    task = json.load(sys.stdin)
    try:
        request = urllib.request.Request(  # noqa: S310 (the scheme was checked at submission)
            task["url"],
            data=json.dumps(task["message"]).encode(),
            headers={"content-type": "application/json", "user-agent": "cotenant"},
        )
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=task["timeout_s"]) as response:
            response.read(1024)
    except (OSError, ValueError, http.client.HTTPException) as error:
        # Print the host of the URL only: its path may be a secret, as that of a Slack webhook is.
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        code = f"{error.code} " if isinstance(error, urllib.error.HTTPError) else ""
        words = " ".join(str(reason).split()) or type(error).__name__
        print(f"{_host_of(task['url'])}: {code}{words}"[:300], file=sys.stderr)
        return 1
    return 0


def _host_of(url: str) -> str | None:
    try:
        return urllib.parse.urlsplit(url).hostname
    except ValueError:  # as `http://[::1`
        return None


if __name__ == "__main__":
    sys.exit(main())
