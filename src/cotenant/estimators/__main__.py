"""One estimate in a process of its own: a request as JSON on stdin, an answer as JSON on stdout.

Request: the fields of `EstimateRequest` and `estimator`, a registered name. Answer: `{"estimate": ...}` or
`{"error": {"kind", "message", "hint"}}`; the exit code is 0 for both, since both are answers.
"""

from __future__ import annotations

import json
import sys

from cotenant.core.codec import decode, encode
from cotenant.core.errors import CotenantError, TraceError
from cotenant.core.ports import EstimateRequest
from cotenant.estimators import create


def main() -> None:
    """Read, estimate, answer."""
    try:
        asked = json.load(sys.stdin)
        estimator = create(asked.pop("estimator", "traced"))
        answer = {"estimate": encode(estimator.estimate(decode(EstimateRequest, asked)))}
    except CotenantError as error:
        kind = error.kind if isinstance(error, TraceError) else type(error).__name__
        answer = {"error": {"kind": kind, "message": error.message, "hint": error.hint}}
        if isinstance(error, TraceError) and error.log_tail:
            sys.stderr.write(error.log_tail)
    json.dump(answer, sys.stdout)
    print()


if __name__ == "__main__":
    main()
