"""Estimates of the example scripts against published measurements of the same jobs.

    python -m benchmarks.estimator.published_scripts [--quick] [--torch VERSION] [--write] [--data FOLDER]

Each row is a job of `realworld_measured.csv`, measured 2025-09 (whole-device peak by nvidia-smi, A100-SXM4-40GB). There
are two baselines: the published FakeTensor estimate, and four times the bytes of the parameters, the usual rule of
thumb for Adam in fp32 (weights, gradients and two states: 16 bytes per parameter).
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, version, write_result
from cotenant.core.estimate import Estimate
from cotenant.core.ports import EstimateRequest
from cotenant.core.stats import quantile
from cotenant.core.units import MiB
from cotenant.demo.accuracy import ErrorSummary, signed_error, summarize_errors
from cotenant.demo.examples import ScriptEstimate, estimate_scripts, find_examples
from cotenant.demo.published import MeasuredScript, measured_scripts
from cotenant.estimators.traced import TracedEstimator

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "gpumemnet"
GPU = "A100-40GB"
MEASURED_WITH = "2.8.0"
"""The newest torch in September 2025; the publication names no version."""
QUICK = (
    "bert_mlm --size base --batch-size 32",
    "mobilenet_v2 --batch-size 32",
    "cifar --model resnet18 --batch-size 32",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} jobs instead of all")
    add_write_option(parser)
    parser.add_argument(
        "--torch", metavar="VERSION", help=f"rules of another torch, e.g. {MEASURED_WITH}; by default those of this one"
    )
    parser.add_argument("--data", type=Path, default=DATA, help="folder of realworld_measured.csv")
    args = parser.parse_args()

    table = args.data / "realworld_measured.csv"
    if not table.is_file():
        print(f"skipped: no published measurements at `{table}`; set --data FOLDER")
        return 0
    jobs = [job for job in measured_scripts(table) if not args.quick or job.title in QUICK]
    results = measure(jobs, torch_version=args.torch)
    report = "\n".join([*table_lines(results), "", *summary_lines(results)])
    print("\n" + report)
    if args.write:
        write(report, quick=args.quick, torch_version=args.torch)
    return int(any(result.problem for result in results))


def measure(jobs: Sequence[MeasuredScript], *, torch_version: str | None = None) -> list[ScriptEstimate]:
    """An estimate for every job; a job with two measurements is estimated once."""
    estimator = TracedEstimator(torch_version=torch_version)

    def estimate(script: Path, args: Sequence[str], gpu: str) -> Estimate:
        request = EstimateRequest(
            command=(str(script), *args), workdir=str(script.parent), env=dict(os.environ), gpu=gpu
        )
        return estimator.estimate(request)

    distinct = list({job.title: job for job in jobs}.values())
    found = {}
    for number, result in enumerate(estimate_scripts(distinct, find_examples(), gpu=GPU, estimating=estimate), start=1):
        outcome = result.problem or f"{result.elapsed_s:.1f} s"
        print(f"[{number}/{len(distinct)}] {result.measured.title}: {outcome}", file=sys.stderr, flush=True)
        found[result.measured.title] = result
    return [
        ScriptEstimate(
            measured=job,
            estimate=found[job.title].estimate,
            problem=found[job.title].problem,
            elapsed_s=found[job.title].elapsed_s,
        )
        for job in jobs
    ]


def rule_of_thumb_bytes(result: ScriptEstimate) -> int | None:
    """Four copies of the traced parameters."""
    parameters = result.estimate.breakdown_bytes.get("parameter") if result.estimate else None
    return 4 * parameters if parameters else None


def table_lines(results: Sequence[ScriptEstimate]) -> list[str]:
    lines = [
        "| job | measured MiB | estimated MiB | error | bound MiB | FakeTensor | 4 x parameters | seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for result in results:
        measured = result.measured.measured_bytes
        if result.estimate is None:
            lines.append(
                f"| {result.measured.title} | {measured // MiB} | {result.problem} | | | | | {result.elapsed_s:.1f} |"
            )
            continue
        cells = (
            result.measured.title,
            str(measured // MiB),
            str(round(result.estimate.device_bytes / MiB)),
            percent(result.error),
            str(round(result.estimate.bound_bytes / MiB)) + (" (too low)" if result.exceeds_bound else ""),
            percent(error_of(result.measured.faketensor_bytes, measured)),
            percent(error_of(rule_of_thumb_bytes(result), measured)),
            f"{result.elapsed_s:.1f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary_lines(results: Sequence[ScriptEstimate]) -> list[str]:
    done = [result for result in results if result.estimate is not None]
    ours = [result.error for result in done if result.error is not None]
    fake = [error_of(result.measured.faketensor_bytes, result.measured.measured_bytes) for result in done]
    rule = [error_of(rule_of_thumb_bytes(result), result.measured.measured_bytes) for result in done]
    lines = [
        "| absolute relative error | rows | median | mean | P95 | max | too low |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        summary_line("cotenant", ours),
        summary_line("FakeTensor, as published", [error for error in fake if error is not None]),
        summary_line("4 x parameters", [error for error in rule if error is not None]),
    ]
    if done:
        times = [result.elapsed_s for result in done]
        low = sum(result.exceeds_bound for result in done)
        margin = sum(
            result.estimate.margin_bytes / result.estimate.device_bytes for result in done if result.estimate
        ) / len(done)
        lines += [
            "",
            f"Measured peak above the bound: {low} of {len(done)}; mean margin {margin:.1%}.",
            f"Seconds per estimate, cold, sequential: median {quantile(times, 0.5):.1f}, max {max(times):.1f}.",
        ]
    failed = [result.measured.title for result in results if result.estimate is None]
    return [*lines, *([f"No estimate for: {', '.join(failed)}."] if failed else [])]


def summary_line(title: str, errors: Sequence[float]) -> str:
    summary: ErrorSummary | None = summarize_errors(errors)
    if summary is None:
        return f"| {title} | 0 | | | | | |"
    numbers = (summary.median, summary.mean, summary.p95, summary.worst)
    return f"| {title} | {summary.count} | " + " | ".join(f"{number:.1%}" for number in numbers) + f" | {summary.low} |"


def error_of(estimated_bytes: int | None, measured_bytes: int) -> float | None:
    return None if estimated_bytes is None else signed_error(estimated_bytes, measured_bytes)


def percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"


def write(report: str, *, quick: bool, torch_version: str | None) -> None:
    """Write the report with the command, the commit and the versions."""
    versions = "; ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "timm", "transformers"))
    repeat = f"python -m benchmarks.estimator.published_scripts{' --quick' if quick else ''} --write"
    repeat += f" --torch {torch_version}" if torch_version else ""
    head = [
        f"# Estimates against published measurements, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {versions}.",
        f"{os.cpu_count()} cores, no GPU; estimated for {GPU}. Repeat with `{repeat}`; there is no seed to set.",
        "Measured: GPUMemNet and CARMA, run 2025-09, nvidia-smi on an A100-SXM4-40GB; library versions there unknown.",
        f"Allocator and cuDNN tables: those of torch {torch_version or 'above'}.",
        "",
    ]
    write_result("estimates" + (f"-torch-{torch_version}" if torch_version else ""), "\n".join([*head, report]))


if __name__ == "__main__":
    sys.exit(main())
