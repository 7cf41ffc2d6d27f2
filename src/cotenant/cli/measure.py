"""`cotenant measure`: what training scripts use on this machine's GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotenant.cli.options import argument, cli_command, flag, json_option, option, option_group
from cotenant.cli.output import emit_json, note
from cotenant.cli.parameter_types import PATH, number
from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.measurement.campaign import CampaignSetup
    from cotenant.measurement.dry_run import DryRun


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """A campaign of measurements."""

    jobs: Path | None = argument(
        required=False, type=PATH, metavar="[JOBS.toml]", help="File of jobs; not with --convs."
    )
    out: Path | None = option("--out", type=PATH, metavar="DIR", help="Folder of the results.")
    only: str | None = option("--only", metavar="GLOB", help="Only jobs whose name or one of whose tags matches.")
    stop_after_s: float | None = option(
        "--stop-after", type=number(minimum=1), metavar="SECONDS", help="Begin no more jobs after SECONDS."
    )
    resume: bool = flag("--resume", help="Continue with the results in DIR.")
    dry_run: bool = flag("--dry-run", help="Estimate every job instead; needs no GPU.")
    convs: bool = flag("--convs", help="Measure workspaces of convolutions instead.")
    pairs: bool = flag("--pairs", help="Measure jobs alone and in pairs instead.")
    mps: bool = flag("--mps", help="With --pairs: through an MPS server of its own.")
    python: str | None = option(
        "--python", metavar="PATH", help="Interpreter that runs the jobs; by default the one of cotenant."
    )

    def check(self) -> None:
        """Refuse combinations without a meaning.

        Raises:
            UsageError: the message names the options.
        """
        if sum((self.dry_run, self.convs, self.pairs)) > 1:
            raise UsageError("`--dry-run`, `--convs` and `--pairs` exclude each other", hint="give one of them")
        if self.mps and not self.pairs:
            raise UsageError("`--mps` needs `--pairs`", hint="add it, or leave out `--mps`")
        if self.convs and (self.jobs is not None or self.only is not None):
            raise UsageError("`--convs` takes no jobs", hint="its shapes are those of the shipped table")
        if self.jobs is None and not self.convs:
            raise UsageError("no file of jobs", hint="try `benchmarks/campaigns/default.toml` of the repository")


@cli_command()
@option_group("options", MeasureOptions)
@json_option
def command(options: MeasureOptions, *, json: bool) -> int:
    """Run training scripts unchanged on a GPU, and record their memory and step times.

    Each job runs alone in its own process for a few optimizer steps. DIR gets rows.csv, a folder for each job, and a
    data card. Every row is on the disk when its job ends: after an interruption, continue with --resume.

      cotenant measure benchmarks/campaigns/default.toml --out results
      cotenant measure jobs.toml --out results --only 'cnn*' --stop-after 540 --resume
      cotenant measure --pairs pairs.toml --out pairs
      cotenant measure --convs --out convs
    """
    from cotenant.measurement.campaign import default_python

    options.check()
    python = options.python or default_python()
    if options.jobs is None:
        return _convs(_setup(options, python), resume=options.resume, json=json)
    from cotenant.measurement.job_list import read_jobs

    jobs = read_jobs(options.jobs).only(options.only)
    if options.dry_run:
        from cotenant.measurement.dry_run import dry_run as estimate_jobs

        return _print_dry_runs(estimate_jobs(jobs, python=python, timeout_s=options.stop_after_s or 300.0), json=json)
    if options.pairs:
        from cotenant.measurement.collocation import group_line, run_groups

        ways = [replace(group, sharing="mps") if options.mps else group for group in jobs.groups]
        groups = run_groups(
            replace(jobs, groups=tuple(ways)),
            _setup(options, python),
            table="pairs.csv",
            resume=options.resume,
            say=note,
        )
        return _print_rows(groups, group_line, json=json)
    from cotenant.measurement.campaign import run_campaign

    return _print_rows(
        run_campaign(jobs, _setup(options, python), resume=options.resume, say=note), _row_line, json=json
    )


def _setup(options: MeasureOptions, python: str) -> CampaignSetup:
    from cotenant.gpus.gpu_sampler import open_sampler
    from cotenant.measurement.campaign import CampaignSetup
    from cotenant.measurement.preflight import check_gpu

    if options.out is None:
        raise UsageError("no folder for the results", hint="give one: `--out DIR`")
    sampler, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
    setup = CampaignSetup(out=options.out, python=python, watch=sampler, no_watch=reason, limit_s=options.stop_after_s)
    check_gpu(setup)
    if sampler is None:
        note(f"no GPU sampling: {reason}")
    return setup


def _print_rows(rows: Iterator[Mapping[str, object]], line: Callable[[Mapping[str, Any]], str], *, json: bool) -> int:
    measured = []
    for row in rows:
        measured.append(row)
        print(line(row), file=sys.stderr if json else sys.stdout, flush=True)
    if json:
        emit_json({"rows": measured})
    return 0


def _convs(setup: CampaignSetup, *, resume: bool, json: bool) -> int:
    from cotenant.measurement.conv_workspaces import run_convs

    summary = run_convs(setup, resume=resume, say=note)
    if json:
        emit_json(summary)
    else:
        for name, value in summary.items():
            print(f"{name}: {value}")
    return 0


def _row_line(row: Mapping[str, Any]) -> str:
    head = f"{row['job']:<34} {row['outcome']:<8}"
    if row["peak_reserved_bytes"] is None:
        return f"{head} {row['message'] or ''}".rstrip()
    step = "" if row["step_s"] is None else f"  {row['step_s'] * 1000:8.1f} ms/step"
    sizes = (
        f"allocated {format_bytes(row['peak_allocated_bytes'])}, reserved {format_bytes(row['peak_reserved_bytes'])}"
    )
    process = row["end_process_bytes"]
    held = "" if process is None else f", process {format_bytes(process)}"
    return f"{head} {sizes}{held}{step}"


def _print_dry_runs(runs: Iterable[DryRun], *, json: bool) -> int:
    estimates, failed = [], 0
    for run in runs:
        failed += run.estimate is None
        size = run.problem if run.estimate is None else format_bytes(run.estimate.device_bytes)
        text = f"{run.job.name:<34} {size}  ({run.elapsed_s:.1f} s)"
        print(text, file=sys.stderr if json else sys.stdout, flush=True)
        estimates.append(
            {
                "job": run.job.name,
                "device_bytes": None if run.estimate is None else run.estimate.device_bytes,
                "peak_reserved_bytes": None if run.estimate is None else run.estimate.peak_reserved_bytes,
                "problem": run.problem or None,
                "warnings": [] if run.estimate is None else list(run.estimate.warnings),
            }
        )
    if json:
        emit_json({"estimates": estimates})
    elif failed:
        note(f"{failed} of {len(estimates)} jobs cannot be estimated")
    return 1 if failed else 0
