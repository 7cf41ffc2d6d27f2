"""`cotenant measure`: what training scripts really take, on this machine's GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cotenant.cli.output import emit_json, note
from cotenant.core.errors import UsageError
from cotenant.core.units import format_bytes

if TYPE_CHECKING:
    from cotenant.measurement.campaign import CampaignSetup
    from cotenant.measurement.dry_run import DryRun


def command(
    jobs: Annotated[Path | None, typer.Argument(metavar="[JOBS.toml]", help="File of jobs; none with --convs.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the results.")] = None,
    only: Annotated[
        str | None, typer.Option(metavar="GLOB", help="Jobs whose name or one of whose tags is like this.")
    ] = None,
    limit_s: Annotated[
        float | None, typer.Option("--limit-s", min=1, metavar="N", help="Stop after so many seconds.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the results in DIR.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Estimate every job instead; needs no GPU.")] = False,
    convs: Annotated[bool, typer.Option("--convs", help="Measure workspaces of convolutions instead.")] = False,
    pairs: Annotated[bool, typer.Option("--pairs", help="Measure jobs alone and in pairs instead.")] = False,
    mps: Annotated[bool, typer.Option("--mps", help="With --pairs: through an MPS server of its own.")] = False,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that runs the jobs; default: this one.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
) -> int:
    """Run training scripts unchanged on a GPU, and write down their memory and step times.

    Each job runs alone in its own process for a few optimizer steps. DIR gets rows.csv, a folder for each job, and a
    data card. Every row is on the disk when its job ends: after a break, go on with --resume.

      cotenant measure benchmarks/campaigns/default.toml --out results
      cotenant measure jobs.toml --out results --only 'cnn*' --limit-s 540 --resume
      cotenant measure --pairs pairs.toml --out pairs
      cotenant measure --convs --out convs
    """
    from cotenant.measurement.campaign import default_python

    chosen = python or default_python()
    if sum((dry_run, convs, pairs)) > 1:
        raise UsageError("`--dry-run`, `--convs` and `--pairs` exclude each other")
    if mps and not pairs:
        raise UsageError("`--mps` goes with `--pairs`")
    if convs:
        if jobs is not None or only is not None:
            raise UsageError("`--convs` takes no jobs", hint="its shapes are those of the shipped table")
        return _convs(_setup(out, chosen, limit_s), resume=resume, json=json)
    if jobs is None:
        raise UsageError("no file of jobs", hint="try `benchmarks/campaigns/default.toml` of the repository")
    from cotenant.measurement.job_list import read_jobs

    listed = read_jobs(jobs).only(only)
    if dry_run:
        from cotenant.measurement.dry_run import dry_run as estimates

        return _dry(estimates(listed, python=chosen, timeout_s=limit_s or 300.0), json=json)
    if pairs:
        from cotenant.measurement.pairs import pair_line, run_pairs

        found = run_pairs(listed, _setup(out, chosen, limit_s), mps=mps, resume=resume, say=note)
        return _show(found, pair_line, json=json)
    from cotenant.measurement.campaign import run_campaign

    return _show(run_campaign(listed, _setup(out, chosen, limit_s), resume=resume, say=note), _row_line, json=json)


def _setup(out: Path | None, python: str, limit_s: float | None) -> CampaignSetup:
    from cotenant.gpus.gpu_sampler import open_sampler
    from cotenant.measurement.campaign import CampaignSetup
    from cotenant.measurement.preflight import check_gpu

    if out is None:
        raise UsageError("no folder for the results", hint="say `--out DIR`")
    watch, reason = open_sampler(os.environ.get("CUDA_VISIBLE_DEVICES"))
    setup = CampaignSetup(out=out, python=python, watch=watch, no_watch=reason, limit_s=limit_s)
    check_gpu(setup)
    if watch is None:
        note(f"the GPU is not watched: {reason}")
    return setup


def _show(rows: Iterator[Mapping[str, object]], line: Any, *, json: bool) -> int:
    kept = []
    for row in rows:
        kept.append(row)
        print(line(row), file=sys.stderr if json else sys.stdout, flush=True)
    if json:
        emit_json({"rows": kept})
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


def _dry(runs: Iterable[DryRun], *, json: bool) -> int:
    kept, failed = [], 0
    for each in runs:
        failed += each.estimate is None
        size = each.problem if each.estimate is None else format_bytes(each.estimate.device_bytes)
        text = f"{each.job.name:<34} {size}  ({each.elapsed_s:.1f} s)"
        print(text, file=sys.stderr if json else sys.stdout, flush=True)
        kept.append(
            {
                "job": each.job.name,
                "device_bytes": None if each.estimate is None else each.estimate.device_bytes,
                "peak_reserved_bytes": None if each.estimate is None else each.estimate.peak_reserved_bytes,
                "problem": each.problem or None,
                "warnings": [] if each.estimate is None else list(each.estimate.warnings),
            }
        )
    if json:
        emit_json({"estimates": kept})
    elif failed:
        note(f"{failed} of {len(kept)} jobs cannot be estimated")
    return 1 if failed else 0
