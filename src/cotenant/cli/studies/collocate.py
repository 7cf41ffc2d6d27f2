"""`cotenant study collocate` and `export`: groups of jobs on one GPU, and their runs for other tools."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.cli.options import cli_argument, cli_command, cli_option, json_option, option_group
from cotenant.cli.output import Column, emit_json, note, print_table
from cotenant.cli.parameter_types import PATH, integer, number
from cotenant.cli.studies.options import (
    experiment_option,
    mlflow_option,
    out_option,
    python_option,
    resume_option,
    simulated_study_gpu,
)
from cotenant.cli.studies.table import FitOptions, use_rows
from cotenant.core.errors import UsageError
from cotenant.measurement.result_table import read_rows

if TYPE_CHECKING:
    from cotenant.measurement.campaign import CampaignSetup, RunTracker
    from cotenant.study.collocation_report import GroupResult


@cli_command("collocate")
@cli_argument(
    "path",
    required=False,
    type=PATH,
    metavar="[JOBS.toml]",
    help="Jobs and groups; by default the list in the package.",
)
@out_option
@cli_option("--published", is_flag=True, help="Only draw what was published, beside rows in DIR; needs no GPU.")
@cli_option("--only", metavar="GLOB", help="Only groups all of whose jobs have a name or a tag that matches.")
@cli_option("--repeats", type=integer(minimum=1), default=1, metavar="N", help="Runs of each job and group.")
@cli_option(
    "--listen",
    metavar="NAMES",
    help="Monitoring tools beside each run, e.g. top,iostat; their output is a file of the run.",
)
@cli_option("--stop-after", "limit_s", type=number(minimum=1), metavar="SECONDS", help="Begin no more after SECONDS.")
@cli_option("--simulate", "simulated", metavar="GPU", help="Use a simulated GPU, e.g. A100-40GB; rows say so.")
@resume_option
@mlflow_option
@experiment_option
@python_option
@option_group("table", FitOptions)
@json_option
def collocate(
    table: FitOptions,
    *,
    path: Path | None,
    out: Path,
    published: bool,
    only: str | None,
    repeats: int,
    listen: str | None,
    limit_s: float | None,
    simulated: str | None,
    resume: bool,
    mlflow: str | None,
    experiment: str,
    python: str | None,
    json: bool,
) -> None:
    """Measure jobs alone and in groups on one GPU: time-sliced, under MPS and on MIG instances.

    Each job runs unchanged. The jobs of a group warm up, wait for each other and train for the same time. The GPU's
    mode is put back after each group, whatever ends it. A busy GPU is refused. With --install or --check and results in
    DIR, nothing is measured. JOBS.toml is a job list with groups:

    $ cat groups.toml
      [[job]]
      name = "small"
      script = "train.py"

      [[group]]
      jobs = ["small", "small", "small"]
      sharing = ["time-sliced", "mps", "mps:30", "mig:2g.10gb,2g.10gb,2g.10gb"]

    $ cotenant study collocate groups.toml --out groups --repeats 3
    """
    from cotenant.measurement.collocation import group_line, run_groups
    from cotenant.measurement.job_list import read_jobs
    from cotenant.study.collocation_report import results_of, write_pairs, write_report
    from cotenant.study.overhead import JOBS_FOLDER

    table.refuse_meaningless()
    source = out / "collocation.csv"
    if not published and (resume or not (table.is_wanted and source.exists())):
        jobs = read_jobs(path or JOBS_FOLDER / "collocation.toml").only(only)
        listeners = _listeners(listen, out)
        with _collocation_setup(out, simulated=simulated, python=python, limit_s=limit_s) as plain:
            setup = replace(plain, listeners=listeners, tracker=_tracker(mlflow, experiment))
            for row in run_groups(jobs, setup, table=source.name, repeats=repeats, resume=resume, say=note):
                note(group_line(row))
    out.mkdir(parents=True, exist_ok=True)
    rows = read_rows(source) if source.exists() else []
    results = results_of(rows)
    page = write_report(rows, out / "collocation.html")
    pairs = write_pairs(results, out / "pairs.csv")
    fitted = use_rows(rows, source, table)
    if json:
        emit_json({"rows": rows, "results": [found._asdict() for found in results], "report": str(page), **fitted})
        return
    _print_results(results)
    note(f"report: {page}" + ("" if pairs is None else f"; pairs for `cotenant simulate`: {pairs}"))


def _print_results(results: Sequence[GroupResult]) -> None:
    """A table of what was measured on stdout, and on stderr why other groups were not."""
    from cotenant.measurement.job_list import group_text
    from cotenant.study.collocation_report import HEAD, table_cells

    columns = [Column(key=name, title=name.upper(), right=index > 1) for index, name in enumerate(HEAD)]
    measured = [result for result in results if not result.problem]
    if measured:
        print_table([dict(zip(HEAD, table_cells(result), strict=True)) for result in measured], columns)
    for result in results:
        if result.problem:
            note(f"not measured: {group_text(result.jobs)}, {result.sharing}: {result.problem}")


def _tracker(uri: str | None, experiment: str) -> RunTracker | None:
    """What logs runs to MLflow while they go on; None without a URI.

    Raises:
        UsageError: mlflow is not installed, or does not reach the URI.
    """
    if uri is None:
        return None
    from cotenant.study.mlflow_runs import LiveMlflow, MlflowRuns

    return LiveMlflow(MlflowRuns.open(uri, experiment=experiment), note)


def _listeners(names: str | None, out: Path) -> dict[str, Sequence[str]]:
    """Commands of monitoring tools that run beside a job, by name.

    Raises:
        UsageError: there is no such tool, it is not on this machine, or it runs around a job.
    """
    from cotenant.study.tools import MONITORING_TOOLS, Run

    found: dict[str, Sequence[str]] = {}
    for name in filter(None, (part.strip() for part in (names or "").split(","))):
        tool = MONITORING_TOOLS.get(name)
        if tool.around:
            raise UsageError(f"`--listen`: `{name}` runs around a job, not beside it", hint="leave it out")
        if reason := tool.missing():
            raise UsageError(f"`--listen`: `{name}`: {reason}", hint="leave it out, or install it")
        found[name] = tool.command(Run(folder=out, job=(), scratch=out))
    return found


@contextmanager
def _collocation_setup(
    out: Path, *, simulated: str | None, python: str | None, limit_s: float | None
) -> Iterator[CampaignSetup]:
    from cotenant.measurement.campaign import CampaignSetup, default_python
    from cotenant.measurement.preflight import check_gpu
    from cotenant.measurement.sharing import check_idle

    if simulated is None:
        from cotenant.gpus.gpu_sampler import open_sampler

        sampler, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
        name = "" if sampler is None else sampler.gpu.name
        chosen = python or default_python()
        setup = CampaignSetup(out=out, python=chosen, watch=sampler, no_watch=reason, limit_s=limit_s, gpu_name=name)
        check_gpu(setup)
        check_idle(setup)
        yield setup
        return
    from cotenant.gpus.gpu_sampler import GpuSampler
    from cotenant.study import simulated_job

    with simulated_study_gpu(simulated) as (backend, gpu, env):
        yield CampaignSetup(
            out=out,
            python=sys.executable,
            watch=GpuSampler(backend, gpu),
            limit_s=limit_s,
            gpu_name=f"simulated {gpu.name}",
            probe=Path(simulated_job.__file__),
            is_simulated=True,
            env=env,
        )
