"""The options of `cotenant simulate`, and what the texts of those about policies mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from cotenant.core.errors import UsageError

Trace = Annotated[
    str | None, typer.Option("--trace", metavar="NAME|PATH", help="A trace of the package (`--list`), or a file.")
]
Policies = Annotated[str | None, typer.Option("--policies", metavar="A,B,...", help="Policies to compare, or `all`.")]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="GPUS",
        help="e.g. `2*8xV100-32GB`; MIG after a slash. Default: `4xA100-40GB`, for `philly` 400 of them.",
    ),
]
Estimator = Annotated[
    str, typer.Option("--estimator", metavar="NAME", help="Who tells the memory of jobs; see `--list`.")
]
Option = Annotated[
    list[str] | None,
    typer.Option("--policy-option", "-o", metavar="POLICY.KEY=VALUE", help="An option of a policy; may be repeated."),
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of all that is drawn.")]
Bootstrap = Annotated[
    int, typer.Option("--bootstrap", min=0, metavar="N", help="Also run N resamples of the jobs, for intervals.")
]
First = Annotated[int | None, typer.Option("--head", min=1, metavar="N", help="Only the first N jobs.")]
Window = Annotated[
    int | None, typer.Option("--sample-window", min=2, metavar="N", help="Only the N jobs in a row most like all.")
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="Only the jobs of this user or virtual cluster.")
]
Repeat = Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Every job N times.")]
Stretch = Annotated[
    float, typer.Option("--arrival-scale", metavar="X", help="Arrivals X times as late; 0.5 doubles the load.")
]
Arrivals = Annotated[
    Path | None, typer.Option("--arrivals", metavar="PATH", help="Lay the jobs on the arrivals in this file.")
]
TraceFormat = Annotated[
    str | None, typer.Option("--trace-format", metavar="NAME", help="Format of the file, if it is not recognized.")
]
SlowdownBound = Annotated[
    float | None, typer.Option("--max-slowdown", metavar="X", help="The slowdown that every job accepts.")
]
Sensitivity = Annotated[
    float, typer.Option("--sensitivity", metavar="SD", help="Hidden differences in what company costs a job.")
]
SpreadSpeed = Annotated[
    float, typer.Option("--cross-node-speed", metavar="X", help="Speed left to a job on GPUs of several servers: 0..1.")
]
TimesOf = Annotated[
    str | None,
    typer.Option(
        "--reference-gpu", metavar="TYPE", help="GPU type that the run times are of. Default: the first of `--gpus`."
    ),
]
FromJournal = Annotated[
    Path | None, typer.Option("--from-journal", metavar="PATH", help="Replay the jobs of a daemon's journal.")
]
WhatIf = Annotated[
    bool, typer.Option("--forecast", help="When would the jobs start that wait now, and with one more GPU?")
]
Assume = Annotated[
    str, typer.Option("--default-runtime", metavar="TIME", help="With --forecast: run time of jobs nobody knows.")
]
Report = Annotated[Path | None, typer.Option("--report", metavar="PATH", help="Write an HTML report.")]
SaveJobs = Annotated[
    Path | None, typer.Option("--save-jobs", metavar="PATH", help="Write what became of each job, as CSV.")
]
ListAll = Annotated[bool, typer.Option("--list", help="Traces, formats, policies, estimators; run nothing.")]


def parse_policies(text: str) -> list[str]:
    """The policies named in `A,B,...` or `all`, each once; `exclusive` first, since others are compared with it.

    Raises:
        UsageError: one is not known, or none is named.
    """
    from cotenant.scheduling import policies as registered

    names = list(registered.policies()) if text == "all" else [each.strip() for each in text.split(",") if each.strip()]
    if not names:
        raise UsageError("no policy given", hint="write e.g. `--policies exclusive,most-memory`, or `all`")
    for each in names:
        registered.options(each)  # unknown ones are told before anything runs
    first = [each for each in names if each == "exclusive"]
    return list(dict.fromkeys([*first, *names]))


def parse_policy_options(texts: Sequence[str] | None, chosen: Sequence[str] | None) -> dict[str, dict[str, object]]:
    """`carma.smact_limit=0.7` as {policy: {key: value}}; values as in TOML, or else text.

    Raises:
        UsageError: a text that is no such option, or one of a policy that is not `chosen`.
    """
    from cotenant.scheduling import policies as registered

    found: dict[str, dict[str, object]] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        policy, dot, key = name.partition(".")
        if not (equals and dot and key and value):
            raise UsageError(f"`{text}` is no option of a policy", hint="write e.g. `most-memory.smact_limit=0.7`")
        registered.options(policy)
        if chosen is not None and policy not in chosen:
            raise UsageError(f"`{text}` is of a policy that does not run", hint=f"add `{policy}` to --policies")
        found.setdefault(policy, {})[key] = _value(value)
    for policy, given in found.items():
        registered.create(policy, given)
    return found


def _value(text: str) -> object:
    words: Mapping[str, object] = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
