"""Compares estimates of a campaign's jobs with their measured peaks, on the specification of the same GPU.

    python -m benchmarks.estimator.compare_measured RESULTS --jobs JOBS.toml [--profile FILE] [--only GLOB]
        [--history] [--write]

RESULTS is a folder written by `cotenant measure`. Every job is traced for the measured number of steps, without a GPU.
`--history` shows the first differences between the trace and the recorded allocations.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks._lib.results import RESULTS, add_write_option
from benchmarks._lib.trace_diff import compare, describe, read_history, recorded_allocs, traced_allocs
from cotenant.core.errors import CotenantError
from cotenant.core.units import MiB, format_bytes
from cotenant.demo.accuracy import ErrorSummary, signed_error, summarize_errors
from cotenant.estimators.traced import TracedEstimator
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import GpuSpec, all_gpu_specs, gpu_spec, parse_gpu_spec
from cotenant.measurement.data_card import commit, setup_of
from cotenant.measurement.dry_run import explain
from cotenant.measurement.job_list import MeasureJob, read_jobs
from cotenant.measurement.result_table import read_rows

KINDS = ("allocated", "reserved", "device")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run and its estimate; bytes by `KINDS`, None where not measured."""

    job: str
    measured: Mapping[str, int | None]
    estimated: Mapping[str, int | None]
    bound_bytes: int
    history: Sequence[str] = ()

    def error(self, kind: str) -> float | None:
        """Signed relative error."""
        measured, estimated = self.measured[kind], self.estimated[kind]
        return None if not measured or estimated is None else signed_error(estimated, measured)

    @property
    def exceeds_bound(self) -> bool:
        """Whether the measured device bytes exceed the bound, which a policy reserves."""
        return (self.measured["device"] or 0) > self.bound_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder with rows.csv")
    parser.add_argument("--jobs", type=Path, required=True, help="job file of the campaign")
    parser.add_argument("--profile", type=Path, help="GPU specification written by `cotenant calibrate`")
    parser.add_argument("--only", help="jobs whose name or tag matches this pattern")
    parser.add_argument("--history", action="store_true", help="show where trace and recorded allocations differ")
    add_write_option(parser)
    args = parser.parse_args()

    measured = [row for row in read_rows(args.results / "rows.csv") if row["outcome"] == "ok"]
    if not any(row["peak_reserved_bytes"] for row in measured):
        print(f"skipped: no run in `{args.results}` was on a GPU")
        return 0
    jobs = {job.name: job for job in read_jobs(args.jobs).only(args.only).jobs}
    gpu = find_profile(measured, args.profile)
    rows, problems = [], []
    for run in measured:
        if run["job"] not in jobs or run["repeat"] != "1":
            continue
        try:
            rows.append(row_of(run, jobs[run["job"]], gpu, args.results if args.history else None))
        except CotenantError as error:
            problems.append(f"{run['job']}: {error.message}")
        print(f"[{len(rows)}] {run['job']}", file=sys.stderr, flush=True)
    lines = report_lines(rows, problems, gpu)
    print("\n".join(lines))
    if args.write:
        write(lines, measured)
    return int(bool(problems))


def find_profile(rows: Sequence[Mapping[str, str]], file: Path | None) -> GpuSpec:
    """The profile of `file`, or the shipped one of the GPU that the rows name."""
    if file is not None:
        return parse_gpu_spec(file.read_text(encoding="utf-8"))
    name = next(row["gpu"] for row in rows if row["gpu"])
    return gpu_spec(name)


def row_of(run: Mapping[str, str], job: MeasureJob, gpu: GpuSpec, results: Path | None) -> Row:
    """The job traced for the steps that were measured, on `gpu` and the torch of the run."""
    shipped = {spec.name for spec in all_gpu_specs()}
    traced = explain(job, gpu=gpu.name if gpu.name in shipped else job.gpu, python=sys.executable, timeout_s=300)
    result = TracedEstimator(torch_version=run["torch"] or None).on(traced.trace, gpu, env=job.env)
    estimate = result.estimate
    held = run["end_process_bytes"] or run["end_device_bytes"]
    history: list[str] = []
    if results is not None:
        history = history_lines(results / job.name / f"run-{run['repeat']}.history.json.gz", result)
    return Row(
        job=job.name,
        measured={
            "allocated": int(run["peak_allocated_bytes"]),
            "reserved": int(run["peak_reserved_bytes"]),
            "device": int(held) if held else None,
        },
        estimated={
            "allocated": estimate.peak_allocated_bytes,
            "reserved": estimate.peak_reserved_bytes,
            "device": estimate.device_bytes,
        },
        bound_bytes=estimate.bound_bytes,
        history=history,
    )


def history_lines(path: Path, result: TracedResult) -> list[str]:
    """Differences between the trace and the recorded history; empty without a recording."""
    if not path.is_file():
        return []
    return describe(compare(traced_allocs(result.traced_input.events), recorded_allocs(read_history(path))))


def report_lines(rows: Sequence[Row], problems: Sequence[str], gpu: GpuSpec) -> list[str]:
    """A line for each job, and the summary."""
    lines = [f"On {gpu.name}: errors of estimates, (estimated - measured) / measured.", ""]
    lines += [f"| job | {' | '.join(KINDS)} | reserved MiB, measured / estimated | bound |", "| --- |" + " --- |" * 5]
    for row in rows:
        errors = " | ".join(percent(row.error(kind)) for kind in KINDS)
        sizes = " / ".join(str(round((peak["reserved"] or 0) / MiB)) for peak in (row.measured, row.estimated))
        outcome = "exceeded" if row.exceeds_bound else "held"
        lines.append(f"| {row.job} | {errors} | {sizes} | {outcome} ({format_bytes(row.bound_bytes)}) |")
    lines.append("")
    for kind in KINDS:
        found = summarize_errors([error for row in rows if (error := row.error(kind)) is not None])
        lines.append(f"{kind}: {summary_text(found)}")
    lines.append(f"bound exceeded: {sum(row.exceeds_bound for row in rows)} of {len(rows)}")
    lines += [f"not estimated: {problem}" for problem in problems]
    for row in rows:
        if row.history:
            lines += ["", f"{row.job}: {row.history[0]}", *row.history[1:]]
    return lines


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def summary_text(found: ErrorSummary | None) -> str:
    if found is None:
        return "not measured"
    return (
        f"median {found.median:.2%}, mean {found.mean:.2%}, P95 {found.p95:.2%}, largest {found.worst:.2%}, "
        f"{found.low} of {found.count} too low"
    )


def write(lines: Iterable[str], measured: Sequence[Mapping[str, str]]) -> None:
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    setup = setup_of(measured)
    gpu = setup.get("gpu", "gpu").replace(" ", "-")
    head = [f"# Estimates against measurements, {gpu}", "", *(f"- {key}: {text}" for key, text in setup.items())]
    command = "python -m benchmarks.estimator.compare_measured " + " ".join(sys.argv[1:])
    head += [f"- estimated with commit {commit()}: `{command}`", ""]
    path = RESULTS / f"compare_measured_{gpu}_{today}.md"
    path.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
