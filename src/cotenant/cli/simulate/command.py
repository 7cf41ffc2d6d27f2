"""`cotenant simulate`: the daemon's own policies, under virtual time, over recorded traces."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cotenant.cli.common import Connection, connection_options
from cotenant.cli.options import cli_command, cli_option, json_option, option_group
from cotenant.cli.output import emit_json, note
from cotenant.cli.simulate import text as simulate_text
from cotenant.cli.simulate.options import (
    DEFAULT_POLICIES,
    ClusterOptions,
    ForecastOptions,
    PolicyOptions,
    ReplayOptions,
    ResultOptions,
    SliceOptions,
)
from cotenant.core.errors import UsageError

if TYPE_CHECKING:
    from cotenant.sim.evaluation import Evaluation

MAX_RECORDED_JOBS = 20_000
"""Larger traces are replayed without recording what every GPU did: their reports have no charts of GPUs."""


@cli_command()
@option_group("trace", ReplayOptions)
@option_group("policy", PolicyOptions)
@option_group("cluster", ClusterOptions)
@option_group("slices", SliceOptions)
@option_group("results", ResultOptions)
@option_group("forecast", ForecastOptions)
@cli_option("--describe", metavar="NAME|PATH", help="Print what a trace is like, and run nothing.")
@cli_option("--list", "list_all", is_flag=True, help="List traces, formats, policies and estimators; run nothing.")
@json_option
@connection_options
def command(
    trace: ReplayOptions,
    policy: PolicyOptions,
    cluster: ClusterOptions,
    slices: SliceOptions,
    results: ResultOptions,
    forecast: ForecastOptions,
    *,
    describe: str | None,
    list_all: bool,
    json: bool,
    connection: Connection,
) -> None:
    """Replay a trace under several policies, and compare them.

    cotenant simulate --trace t1 --policies all --bootstrap 40
    cotenant simulate --trace philly --policies all --report out.html
    cotenant simulate --trace my_cluster.csv --gpus 64*8xA100-40GB --policies exclusive,carma
    cotenant simulate --from-journal ~/.local/state/cotenant/journal.db --policies all
    cotenant simulate --describe philly --head 5000
    cotenant simulate --forecast

    Jobs of traces without GPU memory and activity are assigned measured workloads of similar run time, by the seed.
    """
    if list_all:
        simulate_text.print_catalog(json=json)
        return
    if describe is not None:
        _describe(replace(trace, trace=describe), cluster.seed, json=json)
        return
    if forecast.forecast:
        if any((trace.trace, trace.from_journal, results.report, results.save_jobs)):
            raise UsageError(
                "`--forecast` queries a daemon", hint="leave out --trace, --from-journal, --report, --save-jobs"
            )
        from cotenant.cli.simulate.forecast import print_forecast

        print_forecast(policy, forecast, connection, seed=cluster.seed, json=json)
        return
    _print(_evaluation(trace, policy, cluster, slices, results), results, json=json)


def _describe(trace: ReplayOptions, seed: int, *, json: bool) -> None:
    from cotenant.sim.trace_description import describe

    loaded = trace.load(seed)
    described = describe(loaded)
    if json:
        emit_json(simulate_text.description_json(described))
    else:
        simulate_text.print_description(described, loaded.notes)


def _evaluation(
    trace: ReplayOptions, policy: PolicyOptions, cluster: ClusterOptions, slices: SliceOptions, results: ResultOptions
) -> Evaluation:
    from cotenant.sim import cluster as clusters
    from cotenant.sim import memory_source, traces
    from cotenant.sim.evaluation import Experiment, evaluate

    results.check_files()
    chosen = policy.names or DEFAULT_POLICIES
    settings = policy.settings(chosen)
    jobs = trace.load(cluster.seed)
    memory_source.check_estimator(policy.estimator)
    is_recorded = results.report is not None and len(jobs) <= MAX_RECORDED_JOBS
    experiment = Experiment(
        trace=jobs,
        cluster=clusters.parse(traces.default_gpus(trace.trace) if cluster.gpus is None else cluster.gpus),
        config=slices.apply(policy.apply(cluster.config(record=is_recorded))),
        estimator=policy.estimator,
        max_slowdown=policy.max_slowdown,
        options=settings,
    )
    return evaluate(experiment, list(chosen), bootstrap=results.bootstrap, seed=cluster.seed, progress=note)


def _print(evaluation: Evaluation, results: ResultOptions, *, json: bool) -> None:
    if results.save_jobs is not None:
        simulate_text.save_jobs(evaluation, results.save_jobs)
    if results.report is not None:
        from cotenant.sim.report.page import write_report

        write_report(evaluation, results.report)
        note(f"report: {results.report}")
    if json:
        emit_json(evaluation.as_json())
    else:
        simulate_text.print_evaluation(evaluation)
