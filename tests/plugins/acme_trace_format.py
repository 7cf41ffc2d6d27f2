"""A trace format of another distribution: lines of `submit duration gpus`, separated by spaces."""

from __future__ import annotations

from cotenant.core.errors import UsageError
from cotenant.sim.trace import TraceJob
from cotenant.sim.traces import TraceFormat
from cotenant.sim.traces.rows import Collected, read_text

ENTRY_POINTS = {"cotenant.trace_formats": {"acme-lines": "acme_trace_format:ACME_LINES"}}
EXAMPLE = "acme jobs\n0 60 1\n30 90 2\n31 none 1\n"


def read(path):
    first, *lines = read_text(path).splitlines() or [""]
    if first != "acme jobs":
        raise UsageError(f"`{path}` does not begin with `acme jobs`")
    found = Collected()
    for line in lines:
        words = line.split()
        if len(words) == 3 and all(word.isdigit() for word in words):
            found.add(TraceJob(submit_s=float(words[0]), duration_s=float(words[1]), gpus=int(words[2])))
        else:
            found.skip("not three numbers")
    return found.trace(path.stem, path)


ACME_LINES = TraceFormat(
    about="lines of Acme: submission, duration and GPUs",
    recognizes=lambda path, text: text.startswith("acme jobs\n"),
    read=read,
    example=EXAMPLE,
    example_name="jobs.acme",
)
