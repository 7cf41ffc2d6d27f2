"""Ranks all estimators on the same jobs by relative error, and shows how often each is too low.

    python -m benchmarks.estimator.ranking [--quick] [--write] [--data FOLDER]

Each job is one of `realworld_measured.csv`, measured 2025-09 (whole-device peak by nvidia-smi, A100-SXM4-40GB), that a
script of `examples/` reproduces. Each script is traced once; all estimators use that trace. The values that GPUMemNet
and CARMA published for FakeTensor and Horus are listed next to our versions of both. `published_scripts.py` lists our
estimates job by job.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, version, write_result
from benchmarks.estimator.published_scripts import DATA, GPU
from cotenant.core.errors import CotenantError
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import MiB
from cotenant.demo.accuracy import signed_error, summarize_errors
from cotenant.demo.examples import find_examples
from cotenant.demo.published import MeasuredScript, measured_scripts
from cotenant.estimators.compare import compare_estimators
from cotenant.estimators.traced import TracedEstimator
from cotenant.gpu_specs import gpu_spec

FAMILIES = ("transformers", "CNN ImageNet", "CNN CIFAR")
QUICK = (
    "bert_mlm --size base --batch-size 32",
    "mobilenet_v2 --batch-size 32",
    "cifar --model resnet18 --batch-size 32",
)
HORUS_PUBLISHED, FAKETENSOR_PUBLISHED = "horus, as published", "faketensor, as published"

# Names in `paper_results.csv`, which has no column for the library: its CNNs are those of ImageNet.
_HORUS_NAMES = {
    "vgg16": "vgg16",
    "resnet50": "resnet50",
    "Xception": "xception",
    "mobilenetV2": "mobilenet_v2",
    "efficientnet": "efficientnet_b0",
    "inception": "inception_v3",
    "BERT_base": "bert_mlm --size base",
    "BERT_large": "bert_mlm --size large",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured job with the device bytes of every estimator; `problems`: why an estimator has no estimate."""

    job: MeasuredScript
    device_bytes: Mapping[str, int]
    problems: Mapping[str, str] = field(default_factory=dict)

    @property
    def family(self) -> str:
        if self.job.script == "bert_mlm.py":
            return FAMILIES[0]
        return FAMILIES[2] if self.job.script == "cifar.py" else FAMILIES[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{len(QUICK)} jobs, one of each family, instead of all")
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    args = parser.parse_args()

    table = args.data / "realworld_measured.csv"
    if not table.is_file():
        print(f"skipped: no published measurements at `{table}`; set --data FOLDER")
        return 0
    jobs = [job for job in measured_scripts(table) if not args.quick or job.title in QUICK]
    rows = measure(jobs, find_examples(), published_horus(args.data / "paper_results.csv"))
    report = "\n".join(report_lines(rows))
    print("\n" + report)
    if args.write:
        write(report, quick=args.quick)
    return int(any("traced" in row.problems for row in rows))


def measure(jobs: Sequence[MeasuredScript], folder: Path, horus: Mapping[str, int]) -> list[Row]:
    """One row per job; a job with two measurements is traced once."""
    answers: dict[str, tuple[dict[str, int], dict[str, str]]] = {}
    distinct = {job.title: job for job in jobs}.values()
    for number, job in enumerate(distinct, start=1):
        device_bytes, problems = estimate_all(job, folder)
        print(f"[{number}] {job.title}: {problems.get('traced', 'done')}", file=sys.stderr, flush=True)
        answers[job.title] = device_bytes, problems
    rows = []
    for job in jobs:
        device_bytes, problems = answers[job.title]
        published = {FAKETENSOR_PUBLISHED: job.faketensor_bytes, HORUS_PUBLISHED: horus.get(job.title)}
        known = {name: value for name, value in published.items() if value is not None}
        rows.append(Row(job=job, device_bytes={**device_bytes, **known}, problems=problems))
    return rows


def estimate_all(job: MeasuredScript, folder: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Device bytes by estimator, and the problems of the estimators without an estimate."""
    command = (str(folder / job.script), *job.args)
    request = EstimateRequest(command=command, workdir=str(Path.cwd()), env=dict(os.environ), gpu=GPU)
    try:
        traced = TracedEstimator().explain(request)
    except CotenantError as error:
        return {}, {"traced": error.message}
    found = compare_estimators(traced, gpu_spec(GPU), command)
    device_bytes = {result.name: result.estimate.device_bytes for result in found if result.estimate is not None}
    return device_bytes, {result.name: result.problem for result in found if result.problem is not None}


def published_horus(table: Path) -> dict[str, int]:
    """Bytes by title of a job, from `paper_results.csv`; empty without that file."""
    if not table.is_file():
        return {}
    with table.open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if row["model"] in _HORUS_NAMES and row["horus_mib"]]
    return {
        f"{_HORUS_NAMES[row['model']]} --batch-size {row['batch']}": round(float(row["horus_mib"]) * MiB)
        for row in found
    }


def report_lines(rows: Sequence[Row]) -> list[str]:
    """A table for each family, and one for all jobs, best median first."""
    lines: list[str] = []
    for family in (*FAMILIES, "all"):
        chosen = [row for row in rows if family in ("all", row.family)]
        if not chosen:
            continue
        lines += [
            f"## {family}: {len(chosen)} measurements",
            "",
            "| estimator | rows | median | mean | P95 | max | too low |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
            *ranking(chosen),
            "",
        ]
    return [*lines, *problem_lines(rows)]


def ranking(rows: Sequence[Row]) -> list[str]:
    """One table row per estimator, sorted by the median of its absolute relative error."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        for name, estimated in row.device_bytes.items():
            errors.setdefault(name, []).append(signed_error(estimated, row.job.measured_bytes))
    found = {name: summary for name, signed in errors.items() if (summary := summarize_errors(signed)) is not None}
    lines = []
    for name, summary in sorted(found.items(), key=lambda item: (item[1].median, item[0])):
        numbers = " | ".join(f"{value:.1%}" for value in (summary.median, summary.mean, summary.p95, summary.worst))
        lines.append(f"| {name} | {summary.count} | {numbers} | {summary.low / summary.count:.0%} |")
    return lines


def problem_lines(rows: Iterable[Row]) -> list[str]:
    """Estimators without an estimate: in how many rows, and the first reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, problem in row.problems.items():
            found.setdefault(name, []).append(problem)
    return [
        f"No estimate of {name} in {len(problems)} rows: {problems[0].removeprefix(f'{name}: ')}."
        for name, problems in found.items()
    ]


def write(report: str, *, quick: bool) -> None:
    """Write the report with the command, the commit and the versions."""
    versions = "; ".join(f"{name} {version(name)}" for name in ("torch", "torchvision", "timm", "transformers"))
    head = [
        f"# Estimators against published measurements, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {versions}.",
        f"{os.cpu_count()} cores, no GPU; estimated for {GPU}; there is no seed to set.",
        f"Repeat with `python -m benchmarks.estimator.ranking{' --quick' if quick else ''} --write`.",
        "Measured: GPUMemNet and CARMA, run 2025-09, nvidia-smi on an A100-SXM4-40GB; library versions there unknown.",
        "Errors are absolute and relative to the measured peak; `too low` is the share of estimates below it.",
        "",
    ]
    write_result("estimators", "\n".join([*head, report]))


if __name__ == "__main__":
    sys.exit(main())
