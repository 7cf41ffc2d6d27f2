"""Estimates in a process of its own: one JSON request a line on stdin, one JSON response a line on stdout.

A request has the fields of `EstimateRequest` and `estimator`, a registered name. The response is `{"estimate": ...}` or
`{"error": {"kind", "message", "hint"}}`. The last output of a failed script goes to stderr. The process exits with
code 0 at the end of stdin. Between requests it keeps a fork server with torch loaded for the next script.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from cotenant.core.codec import decode, encode
from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.ports import EstimateRequest
from cotenant.estimators import create
from cotenant.estimators.trace_cache import TraceCache, default_folder
from cotenant.tracing.process.forkserver_client import ForkServerClient

if TYPE_CHECKING:
    from cotenant.estimators.traced import TracedEstimator


def main() -> None:
    """Answer requests until stdin ends."""
    with ForkServerClient() as forkserver:
        for line in sys.stdin:
            print(json.dumps(respond(json.loads(line), forkserver)), flush=True)


def respond(request: dict[str, Any], forkserver: ForkServerClient) -> dict[str, Any]:
    """The response to one request."""

    def tracer() -> TracedEstimator:
        from cotenant.estimators.traced import TracedEstimator

        folder = default_folder()
        return TracedEstimator(forkserver=forkserver, cache=TraceCache(folder) if folder is not None else None)

    try:
        estimator = create(request.pop("estimator", "traced"), tracer)
        return {"estimate": encode(estimator.estimate(decode(EstimateRequest, request)))}
    except CotenantError as error:
        kind = error.kind if isinstance(error, TraceError) else type(error).__name__
        if isinstance(error, TraceError) and error.log_tail:
            print(error.log_tail.rstrip("\n"), file=sys.stderr, flush=True)
        return {"error": {"kind": kind, "message": error.message, "hint": error.hint}}


if __name__ == "__main__":
    main()
