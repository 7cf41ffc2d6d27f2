"""Estimates in a process of its own: one JSON request a line on stdin, one JSON response a line on stdout.

A request has the fields of `EstimateRequest` and `estimator`, a registered name. The response is `{"estimate": ...}`,
with a `profile` where a script was traced, or `{"error": {"kind", "message", "hint"}}`. A job with a summary of its
model gets an estimate from that where its command cannot be traced. The last output of a failed script goes to stderr.
The process exits with code 0 at the end of stdin. Between requests it keeps a fork server with torch loaded for the
next script.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cotenant.core.codec import decode, encode
from cotenant.core.errors import CotenantError, TraceError, UsageError
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest, Estimator
from cotenant.estimators import create
from cotenant.estimators.memory_profile import memory_profile
from cotenant.estimators.trace_cache import TraceCache, default_folder
from cotenant.tracing.process.forkserver_client import ForkServerClient

if TYPE_CHECKING:
    from cotenant.estimators.traced import TracedEstimator
    from cotenant.estimators.traced_result import TracedResult

TRACED = "traced"
"""The estimator that explains its estimates."""
FALLBACK = "summary"
"""The estimator of a job that another one cannot estimate, if it names a summary of its model."""


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

    name = request.pop("estimator", TRACED)
    try:
        wanted: EstimateRequest = decode(EstimateRequest, request)
        estimator = create(name, tracer)
        try:
            return _answer(estimator, wanted)
        except CotenantError as error:
            if wanted.model_summary is None or (isinstance(error, TraceError) and error.kind == "import"):
                raise
            return {"estimate": encode(_from_summary(wanted, name, error))}
    except CotenantError as error:
        kind = error.kind if isinstance(error, TraceError) else type(error).__name__
        if isinstance(error, TraceError) and error.log_tail:
            print(error.log_tail.rstrip("\n"), file=sys.stderr, flush=True)
        return {"error": {"kind": kind, "message": error.message, "hint": error.hint}}


def _answer(estimator: Estimator, request: EstimateRequest) -> dict[str, Any]:
    """The estimate, and where a script was traced, its memory over the steps."""
    explain: Callable[[EstimateRequest], TracedResult] | None = getattr(estimator, "explain", None)
    if estimator.name != TRACED or explain is None:
        return {"estimate": encode(estimator.estimate(request))}
    result = explain(request)
    profile = memory_profile(result.replay_input.events, result.index)
    return {"estimate": encode(result.estimate), "profile": None if profile is None else encode(profile)}


def _from_summary(request: EstimateRequest, name: str, error: CotenantError) -> Estimate:
    """The estimate from the summary of the job's model, in place of one that estimator `name` did not make.

    Raises:
        CotenantError: `error`, with why the summary does not help either.
    """
    try:
        estimate = create(FALLBACK).estimate(request)
    except CotenantError as second:
        raise UsageError(f"{error.message}; {second.message}", hint=error.hint) from second
    why = f"{name}: {error.message}; estimated from `{request.model_summary}`"
    return replace(estimate, warnings=(why, *estimate.warnings))


if __name__ == "__main__":
    main()
