"""Estimates in a process of its own: lines of JSON on stdin ask, a line of JSON on stdout answers each.

Request: the fields of `EstimateRequest` and `estimator`, a registered name. Answer: `{"estimate": ...}` or
`{"error": {"kind", "message", "hint"}}`. What a script printed last goes to stderr. The end of stdin ends the process,
with exit code 0. Between two requests a process with torch loaded is kept for the next script.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cotenant.core.codec import decode, encode
from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.ports import EstimateRequest, Estimator
from cotenant.estimators import create
from cotenant.estimators.trace_cache import TraceCache, default_folder
from cotenant.tracing.process.forkserver_client import ForkServerClient


def main() -> None:
    """Read, estimate, answer, until there is nothing more to read."""
    with ForkServerClient() as warm:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), warm)), flush=True)


def answer(asked: dict[str, Any], warm: ForkServerClient) -> dict[str, Any]:
    """The answer to one request."""
    try:
        estimator = _estimator(asked.pop("estimator", "traced"), warm)
        return {"estimate": encode(estimator.estimate(decode(EstimateRequest, asked)))}
    except CotenantError as error:
        kind = error.kind if isinstance(error, TraceError) else type(error).__name__
        if isinstance(error, TraceError) and error.log_tail:
            print(error.log_tail.rstrip("\n"), file=sys.stderr, flush=True)
        return {"error": {"kind": kind, "message": error.message, "hint": error.hint}}


def _estimator(name: str, warm: ForkServerClient) -> Estimator:
    if name != "traced":
        return create(name)
    from cotenant.estimators.traced import TracedEstimator

    folder = default_folder()
    return TracedEstimator(warm=warm, cache=TraceCache(folder) if folder is not None else None)


if __name__ == "__main__":
    main()
