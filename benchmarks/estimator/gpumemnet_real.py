"""Parts `real` and `busy` of `gpumemnet.py`: training scripts that no model was trained on."""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from functools import cache
from pathlib import Path

from benchmarks._lib.results import RESULTS
from benchmarks.estimator.gpumemnet_plots import RealJob, draw_all
from benchmarks.estimator.trace_jobs import TraceJob, trace_jobs
from cotenant.core.errors import UsageError
from cotenant.core.stats import quantile
from cotenant.core.units import MiB
from cotenant.demo.accuracy import signed_error
from cotenant.demo.examples import find_examples
from cotenant.demo.published import MeasuredScript, measured_scripts
from cotenant.estimators.api import explain
from cotenant.estimators.compare import compare_estimators
from cotenant.estimators.learned.utilization import utilization_of
from cotenant.estimators.trace_features import features_of
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import gpu_spec
from cotenant.scheduling.prediction.interference import ASSUMED_SMACT, expected_smact

ROOT = Path(__file__).resolve().parents[2]
GPU = "A100-40GB"
TIMEOUT_S = 600.0
REAL = ("traced", "hybrid", "gpumemnet-mlp", "gpumemnet-sequence", "extra-trees", "boosting")
PUBLISHED_NAMES = {
    "gpumemnet_mib": "gpumemnet, published",
    "horus_mib": "horus, published",
    "faketensor_mib": "faketensor, published",
}


def real(args: argparse.Namespace) -> list[str]:
    jobs = real_jobs(args)
    columns = (*REAL, *PUBLISHED_NAMES.values())
    lines = [
        "Measured 2025-09 on an A100-SXM4-40GB; no model was trained on these jobs. Our estimates come from one trace",
        "of the example that reproduces the job; the last jobs have no example and only published values.",
        "Errors are signed; the error of a class is that of its upper edge, as in the publication.",
        "Not measured 2025-09: `gpt2 --size xl` (2024-10, another software) and `llama` (AEGIS, the first 200 s).",
        *assumptions(args),
        "",
        f"| job | measured MiB | {' | '.join(columns)} |",
        "| --- | ---: |" + " ---: |" * len(columns),
    ]
    errors: dict[str, list[float]] = {}
    for job in jobs:
        found = {name: signed_error(reported, job.measured_bytes) for name, reported in job.reported_bytes.items()}
        cells = [f"{found[name]:+.1%}" if name in found else "" for name in columns]
        lines.append(f"| {job.title} | {job.measured_bytes // MiB} | {' | '.join(cells)} |")
        for name, error in found.items():
            errors.setdefault(name, []).append(error)
    lines += ["", "| absolute error | jobs | median | mean | P95 | max | too low |", "| --- |" + " ---: |" * 6]
    for name in (column for column in columns if column in errors):
        sizes = [abs(error) for error in errors[name]]
        numbers = (quantile(sizes, 0.5), sum(sizes) / len(sizes), quantile(sizes, 0.95), max(sizes))
        low = sum(error < 0 for error in errors[name])
        lines.append(f"| {name} | {len(sizes)} | {' | '.join(f'{number:.1%}' for number in numbers)} | {low} |")
    if args.write:
        files = draw_all(RESULTS, jobs)
        lines += ["", *(f"![{file.stem.replace('_', ' ')}]({file.name})" for file in files)]
    return lines


def real_jobs(args: argparse.Namespace) -> list[RealJob]:
    """Jobs that an example reproduces, followed by published jobs without an example."""
    published = published_estimates(args.data / "paper_results.csv")
    found = []
    scripts = {job.title: job for job in measured_scripts(args.data / "realworld_measured.csv")}.values()
    for script in list(scripts)[: 3 if args.quick else None]:
        _, reported = published.pop(published_key(script), (0, {}))
        estimates = cached_estimates(args, script) | reported
        print(script.title, file=sys.stderr, flush=True)
        found.append(RealJob(title=script.title, measured_bytes=script.measured_bytes, reported_bytes=estimates))
    for job in [] if args.quick else jobs_of_traces(args):
        _, reported = published.pop(job.published, (0, {}))
        estimates = cached_estimates(args, job.script, gpus=job.gpus, longest=job.longest) | reported
        print(job.script.title, file=sys.stderr, flush=True)
        gpus = f" on {job.gpus} GPUs" if job.gpus > 1 else ""
        found.append(
            RealJob(title=job.script.title + gpus, measured_bytes=job.script.measured_bytes, reported_bytes=estimates)
        )
    for (model, batch), (measured_bytes, reported) in {} if args.quick else published.items():
        title = f"{model} --batch-size {batch} (no example)"
        found.append(RealJob(title=title, measured_bytes=measured_bytes, reported_bytes=reported))
    return found


def jobs_of_traces(args: argparse.Namespace) -> list[TraceJob]:
    """Jobs of the published traces beside those of `measured_scripts`."""
    profiles = args.data.parent / "carma" / "aegis" / "workload_profiles_a100.csv"
    return list(trace_jobs(args.data / "realworld_measured.csv", profiles))


def assumptions(args: argparse.Namespace) -> list[str]:
    """What is ours in the examples, since it is not published."""
    found = [f"`{job.script.title}` ({job.assumed})" for job in jobs_of_traces(args) if job.assumed]
    return ["Settings that are not published, and are ours: " + "; ".join(found) + "."]


def cached_estimates(
    args: argparse.Namespace, job: MeasuredScript, *, gpus: int = 1, longest: bool = False
) -> dict[str, float]:
    """`estimates_of`, once for each commit where results are cached."""
    found: dict[str, float] = args.cache.get(f"real {job.title}", lambda: estimates_of(job, gpus=gpus, longest=longest))
    return found


def estimates_of(job: MeasuredScript, *, gpus: int = 1, longest: bool = False) -> dict[str, float]:
    """Device bytes by our estimators, from one trace of the example."""
    traced = trace_of(job, gpus, longest)
    found = compare_estimators(traced, gpu_spec(GPU), (job.script, *job.args))
    return {
        result.name: result.estimate.device_bytes
        for result in found
        if result.estimate is not None and result.name in REAL
    }


@cache
def trace_of(job: MeasuredScript, gpus: int = 1, longest: bool = False) -> TracedResult:
    """Trace the example that reproduces the job; `longest`: with batches of the longest samples."""
    lengths = "longest" if longest else ""
    script = find_examples() / job.script
    return explain(script, job.args, gpu=GPU, gpus=gpus, sequence_lengths=lengths, timeout_s=TIMEOUT_S)


_NAMES = {
    "mobilenetV2": "mobilenet_v2",
    "efficientnet": "efficientnet_b0",
    "inception": "inception_v3",
    "Xception": "xception",
    "BERT_base": "bert_mlm base",
    "BERT_large": "bert_mlm large",
}


def published_key(job: MeasuredScript) -> tuple[str, str]:
    """Model and batch size of a job, as `published_estimates` has them."""
    size = job.args[job.args.index("--size") + 1] if "--size" in job.args else ""
    return f"{job.script.removesuffix('.py')} {size}".strip(), job.args[-1]


def published_estimates(path: Path) -> dict[tuple[str, str], tuple[int, dict[str, float]]]:
    """(Example, batch size) -> measured bytes and published estimates, from the later table of the publication."""
    found = {}
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
        if not row["table"].startswith("later"):
            continue
        columns = PUBLISHED_NAMES.items()
        reported = {name: float(row[column]) * MiB for column, name in columns if row[column]}
        key = (_NAMES.get(row["model"], row["model"]), row["batch"])
        found[key] = (round(float(row["actual_mib"])) * MiB, reported)
    return found


# -- utilization ------------------------------------------------------------------------------------------------------

_MODELS = {"efficientnet_b0": "efficientnet", "mobilenet_v2": "mobilenet", "mobilenetv3_small_100": "mobilenet"}
_MODELS |= {"inception_v3": "inception"}


def busy(args: argparse.Namespace) -> list[str]:
    """SMACT of the same scripts: learned from random networks, predicted from memory, and measured."""
    path = args.data.parent / "carma" / "aegis" / "workload_profiles_a100.csv"
    if not path.is_file():
        return [f"skipped: no `{path.name}` beside the published sets"]
    jobs = {job.title: job for job in measured_scripts(args.data / "realworld_measured.csv")}.values()
    lines = [
        "Measured: solo runs of AEGIS, CARMA's successor, on one A100-40GB, mean over the run; two runs are averaged.",
        "Learned: the shipped models, trained only on random networks; beyond: outside of their training range.",
        "By memory: the policies' prior for an unknown job, two numbers fitted to these runs among others.",
        f"One number: {ASSUMED_SMACT:.2f} for all jobs.",
        "",
        "| job | measured SMACT | learned | by memory | measured SMOCC | learned |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    names = ("learned SMACT", "learned SMACT, beyond", "SMACT by memory", "one number", "learned SMOCC")
    misses: dict[str, list[float]] = {name: [] for name in names}
    for job in list(jobs)[: 3 if args.quick else None]:
        smact, smocc = measured_activity(path, job)
        traced = trace_of(job)
        by_memory = expected_smact(traced.estimate.bound_bytes)
        try:
            found = utilization_of(
                traced.trace, features_of(traced.trace, (job.script, *job.args)), traced.replay_input.gpu
            )
        except UsageError:
            lines.append(f"| {job.title} | {smact:.2f} | - | {by_memory:.2f} | {smocc:.2f} | - |")
            continue
        misses["SMACT by memory"].append(abs(by_memory - smact))
        misses["one number"].append(abs(ASSUMED_SMACT - smact))
        misses["learned SMACT"].append(abs(found.smact - smact))
        if found.warnings:
            misses["learned SMACT, beyond"].append(abs(found.smact - smact))
        misses["learned SMOCC"].append(abs(found.smocc - smocc))
        mark = " (beyond)" if found.warnings else ""
        cells = f"{smact:.2f} | {found.smact:.2f}{mark} | {by_memory:.2f} | {smocc:.2f} | {found.smocc:.2f}"
        lines.append(f"| {job.title} | {cells} |")
        print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", "| absolute error | jobs | mean | max |", "| --- | ---: | ---: | ---: |"]
    present = [(name, found) for name, found in misses.items() if found]
    lines += [f"| {name} | {len(found)} | {statistics.mean(found):.3f} | {max(found):.3f} |" for name, found in present]
    return lines


def measured_activity(path: Path, job: MeasuredScript) -> tuple[float, float]:
    """SMACT and SMOCC of a job, the mean of its runs.

    Raises:
        ValueError: the table has no run of the job.
    """
    script = job.script.removesuffix(".py")
    batch = job.args[-1]
    if script == "bert_mlm":
        start = f"bert_{job.args[job.args.index('--size') + 1]}_wiki_bs{batch}"
    else:
        model = job.args[job.args.index("--model") + 1] if script == "cifar" else script
        start = f"{_MODELS.get(model, model)}_{'cifar100' if script == 'cifar' else 'imagenet'}_bs{batch}"
    rows = csv.DictReader(path.read_text("utf-8").splitlines())
    runs = [row for row in rows if row["spec"] == start or row["spec"].startswith(f"{start}_")]
    if not runs:
        raise ValueError(f"no run of `{job.title}` (`{start}`) in {path}")
    return tuple(statistics.mean(float(row[name]) for row in runs) for name in ("smact_mean", "smocc_mean"))  # type: ignore[return-value]
