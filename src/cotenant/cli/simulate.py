"""`cotenant simulate`: the daemon's own policies, under virtual time, over recorded traces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli import output_files, simulate_text
from cotenant.cli import simulate_options as options
from cotenant.cli.common import Json, Socket
from cotenant.cli.output import emit_json, note
from cotenant.cli.simulate_options import parse_policies, parse_policy_options
from cotenant.cli.slurm_options import parse_option
from cotenant.core.errors import UsageError

if TYPE_CHECKING:
    from cotenant.sim.evaluation import Evaluation
    from cotenant.sim.trace import Trace

CONTEXT: Mapping[str, Any] = {"allow_interspersed_args": True}

DEFAULT = "exclusive,most-memory"

MAX_RECORDED_JOBS = 20_000
"""Jobs; larger traces are replayed without keeping what every GPU did."""


def command(
    trace: options.Trace = None,
    policies: options.Policies = None,
    gpus: options.Gpus = None,
    estimator: options.Estimator = "oracle",
    option: options.Option = None,
    seed: options.Seed = 0,
    bootstrap: options.Bootstrap = 0,
    first: options.First = None,
    window: options.Window = None,
    group: options.Group = None,
    repeat: options.Repeat = 1,
    stretch: options.Stretch = 1.0,
    arrivals: options.Arrivals = None,
    trace_format: options.TraceFormat = None,
    max_slowdown: options.SlowdownBound = None,
    sensitivity: options.Sensitivity = 0.0,
    cross_node_speed: options.SpreadSpeed = 1.0,
    reference_gpu: options.TimesOf = None,
    from_journal: options.FromJournal = None,
    what_if: options.WhatIf = False,
    assume: options.Assume = "01:00:00",
    report: options.Report = None,
    save_jobs: options.SaveJobs = None,
    list_all: options.ListAll = False,
    *,
    json: Json = False,
    socket: Socket = None,
) -> None:
    """Replay a trace under several policies, and compare them.

    cotenant simulate --trace t1 --policies all --bootstrap 40
    cotenant simulate --trace philly --policies all --report out.html
    cotenant simulate --trace my_cluster.csv --gpus 64*8xA100-40GB --policies exclusive,carma
    cotenant simulate --from-journal ~/.local/state/cotenant/journal.db --policies all
    cotenant simulate --forecast

    Traces without GPU memory and activity get measured workloads of similar run time, drawn by the seed.
    """
    if list_all:
        simulate_text.print_catalog(json=json)
        return
    if what_if:
        _refuse_traces(trace, from_journal, report, save_jobs)
        from cotenant.cli.simulate_forecast import print_forecast

        named = None if policies is None else parse_policies(policies)
        print_forecast(named, parse_policy_options(option, named), socket=socket, assume=assume, seed=seed, json=json)
        return
    from cotenant.sim import cluster, memory_source, traces
    from cotenant.sim.engine.config import SimulationConfig
    from cotenant.sim.evaluation import Experiment, evaluate

    _check(report, save_jobs, max_slowdown)
    chosen = parse_policies(DEFAULT if policies is None else policies)
    settings = parse_policy_options(option, chosen)
    gpus = traces.default_gpus(trace) if gpus is None else gpus
    made = _shaped(
        _trace(trace, from_journal, trace_format),
        group=group,
        first=first,
        window=window,
        repeat=repeat,
        stretch=stretch,
        arrivals=arrivals,
        seed=seed,
    )
    config = SimulationConfig(
        seed=seed,
        sensitivity_sd=sensitivity,
        cross_node_speed=cross_node_speed,
        reference_gpu=reference_gpu,
        record=report is not None and len(made) <= MAX_RECORDED_JOBS,
    )
    memory_source.check_estimator(estimator)
    setting = Experiment(
        trace=made,
        cluster=cluster.parse(gpus),
        config=config,
        estimator=estimator,
        max_slowdown=max_slowdown,
        options=settings,
    )
    evaluation = evaluate(setting, chosen, bootstrap=bootstrap, seed=seed, progress=note)
    _tell(evaluation, save_jobs, report, json=json)


def _refuse_traces(*given: str | Path | None) -> None:
    if any(each is not None for each in given):
        raise UsageError("`--forecast` asks a daemon", hint="leave out --trace, --from-journal, --report, --save-jobs")


def _check(report: Path | None, save_jobs: Path | None, max_slowdown: float | None) -> None:
    """Tell before anything runs, and not after all of it."""
    for path in filter(None, (report, save_jobs)):
        output_files.check(path)
    if max_slowdown is not None and not 1.0 <= max_slowdown < math.inf:
        raise UsageError(f"no job has a slowdown of {max_slowdown:g}", hint="write 1.0 or more, e.g. `1.5`")


def _trace(name: str | None, from_journal: Path | None, trace_format: str | None) -> Trace:
    from cotenant.sim import traces
    from cotenant.sim.traces import journal

    if (name is None) == (from_journal is None):
        raise UsageError("one of `--trace` and `--from-journal` is wanted", hint="e.g. `--trace t1`; see `--list`")
    if from_journal is not None:
        return parse_option("--from-journal", from_journal, journal.read)
    return traces.load(name or "", format=trace_format)


def _shaped(
    made: Trace,
    *,
    group: str | None,
    first: int | None,
    window: int | None,
    repeat: int,
    stretch: float,
    arrivals: Path | None,
    seed: int,
) -> Trace:
    """The part of the trace that was asked for, with a workload for every job."""
    from cotenant.sim.traces import transforms
    from cotenant.sim.traces.arrivals import read_arrivals

    if group is not None:
        made = transforms.of_user(made, group)
    if first is not None:
        made = transforms.first_jobs(made, first)
    if window is not None:
        made = transforms.window(made, window)
    if arrivals is not None:
        made = transforms.onto_arrivals(made, read_arrivals(arrivals, seed=seed), seed=seed)
    if stretch != 1.0:
        made = transforms.in_time(made, stretch)
    if not made.has_profiles:
        made = transforms.assign(made, seed=seed)
    return transforms.repeated(made, repeat, seed=seed) if repeat > 1 else made


def _tell(evaluation: Evaluation, save_jobs: Path | None, report: Path | None, *, json: bool) -> None:
    if save_jobs is not None:
        simulate_text.save_jobs(evaluation, save_jobs)
    if report is not None:
        from cotenant.sim.report.page import write_report

        write_report(evaluation, report)
        note(f"report: {report}")
    if json:
        emit_json(evaluation.as_json())
    else:
        simulate_text.print_evaluation(evaluation)
