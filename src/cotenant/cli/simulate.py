"""`cotenant simulate`: the daemon's own policies, under virtual time, over recorded traces."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.common import Json, Socket
from cotenant.cli.output import emit_json, note
from cotenant.core.errors import UsageError

if TYPE_CHECKING:
    from cotenant.sim.evaluate import Evaluation
    from cotenant.sim.jobs import Trace
    from cotenant.sim.world.config import WorldConfig

CONTEXT: Mapping[str, Any] = {"allow_interspersed_args": True}

DEFAULT = "exclusive,most-memory"

MOST_RECORDED = 20_000
"""Jobs; larger traces are replayed without keeping what every GPU did."""


def command(
    trace: Annotated[
        str | None, typer.Option("--trace", metavar="NAME|PATH", help="A trace of the package (`--list`), or a file.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option("--policies", metavar="A,B,...", help="Policies to compare, or `all`.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus",
            metavar="GPUS",
            help="e.g. `2*8xV100-32GB`; MIG after a slash. Default: `4xA100-40GB`, for `philly` 400 of them.",
        ),
    ] = None,
    estimator: Annotated[
        str, typer.Option("--estimator", metavar="NAME", help="Who tells the memory of jobs; see `--list`.")
    ] = "oracle",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", metavar="POLICY.KEY=VALUE", help="An option of a policy; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Of all that is drawn.")] = 0,
    bootstrap: Annotated[
        int, typer.Option("--bootstrap", min=0, metavar="N", help="Also run N resamples of the jobs, for intervals.")
    ] = 0,
    first: Annotated[int | None, typer.Option("--first", min=1, metavar="N", help="Only the first N jobs.")] = None,
    window: Annotated[
        int | None, typer.Option("--window", min=2, metavar="N", help="Only the N jobs in a row most like all.")
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="NAME", help="Only the jobs of this user or virtual cluster.")
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, metavar="N", help="Every job N times.")] = 1,
    stretch: Annotated[
        float, typer.Option("--stretch", metavar="X", help="Arrivals X times as late; 0.5 doubles the load.")
    ] = 1.0,
    arrivals: Annotated[
        Path | None, typer.Option("--arrivals", metavar="PATH", help="Lay the jobs on the arrivals in this file.")
    ] = None,
    trace_format: Annotated[
        str | None, typer.Option("--trace-format", metavar="NAME", help="Format of the file, if it is not recognized.")
    ] = None,
    slowdown_bound: Annotated[
        float | None, typer.Option("--slowdown-bound", metavar="X", help="The slowdown that every job accepts.")
    ] = None,
    sensitivity: Annotated[
        float, typer.Option("--sensitivity", metavar="SD", help="Hidden differences in what company costs a job.")
    ] = 0.0,
    spread_speed: Annotated[
        float, typer.Option("--spread-speed", metavar="X", help="Speed left to a job on GPUs of several servers: 0..1.")
    ] = 1.0,
    times_of: Annotated[
        str | None,
        typer.Option(
            "--times-of", metavar="TYPE", help="GPU type that the run times are of. Default: the first of `--gpus`."
        ),
    ] = None,
    from_journal: Annotated[
        Path | None, typer.Option("--from-journal", metavar="PATH", help="Replay the jobs of a daemon's journal.")
    ] = None,
    what_if: Annotated[
        bool, typer.Option("--what-if", help="When would the jobs start that wait now, and with one more GPU?")
    ] = False,
    assume: Annotated[
        str, typer.Option("--assume", metavar="TIME", help="With --what-if: run time of jobs nobody knows.")
    ] = "01:00:00",
    report: Annotated[Path | None, typer.Option("--report", metavar="PATH", help="Write an HTML report.")] = None,
    save_jobs: Annotated[
        Path | None, typer.Option("--save-jobs", metavar="PATH", help="Write what became of each job, as CSV.")
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Traces, formats, policies, estimators; run nothing.")
    ] = False,
    *,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Replay a trace under several policies, and compare them.

    cotenant simulate --trace t1 --policies all --bootstrap 40
    cotenant simulate --trace philly --policies all --report out.html
    cotenant simulate --trace my_cluster.csv --gpus 64*8xA100-40GB --policies exclusive,carma
    cotenant simulate --from-journal ~/.local/state/cotenant/journal.db --policies all
    cotenant simulate --what-if

    Traces without GPU memory and activity get measured workloads of similar run time, drawn by the seed.
    """
    from cotenant.cli import simulate_text
    from cotenant.sim.world.config import WorldConfig

    if list_all:
        simulate_text.print_catalog(json=json)
        return
    if what_if:
        if trace is not None or from_journal is not None or report is not None or save_jobs is not None:
            raise UsageError(
                "`--what-if` asks a daemon", hint="leave out --trace, --from-journal, --report, --save-jobs"
            )
        from cotenant.cli.simulate_what_if import answer

        named = None if policies is None else _policies(policies)
        answer(named, _options(option, named), socket=socket, assume=assume, seed=seed, json=json)
        return
    for path in filter(None, (report, save_jobs)):
        _writable(path)
    if slowdown_bound is not None and not 1.0 <= slowdown_bound < math.inf:
        raise UsageError(f"no job has a slowdown of {slowdown_bound:g}", hint="write 1.0 or more, e.g. `1.5`")
    chosen = _policies(policies or DEFAULT)
    options = _options(option, chosen)
    gpus = gpus or _usual_gpus(trace)
    made = _trace(trace, from_journal, trace_format)
    made = _shaped(made, group, first, window, repeat, stretch, arrivals, seed)
    config = WorldConfig(
        seed=seed,
        sensitivity_sd=sensitivity,
        spread_speed=spread_speed,
        times_of=times_of,
        record=report is not None and len(made) <= MOST_RECORDED,
    )
    evaluation = _evaluate(made, chosen, gpus, estimator, options, config, bootstrap, slowdown_bound)
    if save_jobs is not None:
        simulate_text.save_jobs(evaluation, save_jobs)
    if report is not None:
        _report(evaluation, report)
    if json:
        emit_json(evaluation.as_json())
    else:
        simulate_text.print_evaluation(evaluation)


def _policies(text: str) -> list[str]:
    from cotenant.scheduling import policies as registered

    names = list(registered.policies()) if text == "all" else [each.strip() for each in text.split(",") if each.strip()]
    if not names:
        raise UsageError("no policy given", hint="write e.g. `--policies exclusive,most-memory`, or `all`")
    for each in names:
        registered.options(each)  # unknown ones are told before anything runs
    first = [each for each in names if each == "exclusive"]
    return list(dict.fromkeys([*first, *names]))


def _writable(path: Path) -> None:
    """Tell before anything runs, and not after all of it."""
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"cannot write `{path}`: there is no folder `{path.parent}`")
    if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
        raise UsageError(f"cannot write `{path}`: {'it is a folder' if path.is_dir() else 'permission denied'}")


def _options(texts: list[str] | None, chosen: Sequence[str] | None) -> dict[str, dict[str, object]]:
    """`carma.smact_limit=0.7` as {policy: {key: value}}; values as in TOML, or else text."""
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


def _trace(name: str | None, from_journal: Path | None, trace_format: str | None) -> Trace:
    from cotenant.sim import traces
    from cotenant.sim.traces import journal

    if (name is None) == (from_journal is None):
        raise UsageError("one of `--trace` and `--from-journal` is wanted", hint="e.g. `--trace t1`; see `--list`")
    return journal.read(from_journal) if from_journal is not None else traces.load(name or "", format=trace_format)


def _usual_gpus(trace: str | None) -> str:
    from cotenant.sim import traces

    return traces.usual_gpus(trace)


def _shaped(
    made: Trace,
    group: str | None,
    first: int | None,
    window: int | None,
    repeat: int,
    stretch: float,
    arrivals: Path | None,
    seed: int,
) -> Trace:
    """The part of the trace that was asked for, with a workload for every job."""
    from cotenant.sim import mapper
    from cotenant.sim.traces.arrivals import read_arrivals

    if group is not None:
        made = mapper.of_user(made, group)
    if first is not None:
        made = mapper.first_jobs(made, first)
    if window is not None:
        made = mapper.window(made, window)
    if arrivals is not None:
        made = mapper.onto_arrivals(made, read_arrivals(arrivals, seed=seed), seed=seed)
    if stretch != 1.0:
        made = mapper.in_time(made, stretch)
    if not made.has_profiles:
        made = mapper.assign(made, seed=seed)
    return mapper.repeated(made, repeat, seed=seed) if repeat > 1 else made


def _evaluate(
    made: Trace,
    policies: list[str],
    gpus: str,
    estimator: str,
    options: dict[str, dict[str, object]],
    config: WorldConfig,
    bootstrap: int,
    slowdown_bound: float | None,
) -> Evaluation:
    from cotenant.sim import cluster, knowledge
    from cotenant.sim.evaluate import Setting, evaluate

    knowledge.check(estimator)
    setting = Setting(
        trace=made,
        cluster=cluster.parse(gpus),
        config=config,
        estimator=estimator,
        slowdown_bound=slowdown_bound,
        options=options,
    )
    return evaluate(setting, policies, bootstrap=bootstrap, seed=config.seed, progress=note)


def _report(evaluation: Evaluation, path: Path) -> None:
    try:
        module = importlib.import_module("cotenant.sim.report.page")
    except ModuleNotFoundError as error:
        raise UsageError("this version has no report", hint="use `--json`") from error
    module.write_report(evaluation, path)
    note(f"report: {path}")
