"""Every estimator on the same jobs: which is how far off, and how often too low.

    python -m benchmarks.estimator.ranking [--quick] [--write] [--data FOLDER]

Each row is a job of `realworld_measured.csv`, run 2025-09 (whole-device peak by nvidia-smi on an A100-SXM4-40GB),
which a script of `examples/` repeats. A script is traced once; all estimators answer from that trace. What GPUMemNet
and CARMA published for FakeTensor and Horus on these jobs stands beside our versions of both. `estimates.py` shows the
rows of ours one by one.
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
    """One measured job and what every estimator says of it, in device bytes; `problems` say why one has no answer."""

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
        print(f"skipped: no published measurements at `{table}`; say --data FOLDER")
        return 0
    jobs = [job for job in measured_scripts(table) if not args.quick or job.title in QUICK]
    rows = measure(jobs, find_examples(), published_horus(args.data / "paper_results.csv"))
    report = "\n".join(report_lines(rows))
    print("\n" + report)
    if args.write:
        write(report, quick=args.quick)
    return int(any("traced" in row.problems for row in rows))


def measure(jobs: Sequence[MeasuredScript], folder: Path, horus: Mapping[str, int]) -> list[Row]:
    """A row for each job; one that was measured twice is traced once."""
    answers: dict[str, tuple[dict[str, int], dict[str, str]]] = {}
    distinct = {job.title: job for job in jobs}.values()
    for number, job in enumerate(distinct, start=1):
        told, problems = ask(job, folder)
        print(f"[{number}] {job.title}: {problems.get('traced', 'done')}", file=sys.stderr, flush=True)
        answers[job.title] = told, problems
    rows = []
    for job in jobs:
        told, problems = answers[job.title]
        published = {FAKETENSOR_PUBLISHED: job.faketensor_bytes, HORUS_PUBLISHED: horus.get(job.title)}
        known = {name: value for name, value in published.items() if value is not None}
        rows.append(Row(job=job, device_bytes={**told, **known}, problems=problems))
    return rows


def ask(job: MeasuredScript, folder: Path) -> tuple[dict[str, int], dict[str, str]]:
    """Device bytes by estimator, and the problems of those that have no answer."""
    command = (str(folder / job.script), *job.args)
    request = EstimateRequest(command=command, workdir=str(Path.cwd()), env=dict(os.environ), gpu=GPU)
    try:
        traced = TracedEstimator().explain(request)
    except CotenantError as error:
        return {}, {"traced": error.message}
    found = compare_estimators(traced, gpu_spec(GPU), command)
    told = {result.name: result.estimate.device_bytes for result in found if result.estimate is not None}
    return told, {result.name: result.problem for result in found if result.problem is not None}


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
    """A line for each estimator that answered, by the median of its absolute relative error."""
    errors: dict[str, list[float]] = {}
    for row in rows:
        for name, told in row.device_bytes.items():
            errors.setdefault(name, []).append(signed_error(told, row.job.measured_bytes))
    found = {name: summary for name, signed in errors.items() if (summary := summarize_errors(signed)) is not None}
    lines = []
    for name, summary in sorted(found.items(), key=lambda item: (item[1].median, item[0])):
        numbers = " | ".join(f"{value:.1%}" for value in (summary.median, summary.mean, summary.p95, summary.worst))
        lines.append(f"| {name} | {summary.count} | {numbers} | {summary.low / summary.count:.0%} |")
    return lines


def problem_lines(rows: Iterable[Row]) -> list[str]:
    """Who did not answer, how often, and the first reason."""
    found: dict[str, list[str]] = {}
    for row in rows:
        for name, problem in row.problems.items():
            found.setdefault(name, []).append(problem)
    return [
        f"No answer of {name} in {len(told)} rows: {told[0].removeprefix(f'{name}: ')}." for name, told in found.items()
    ]


def write(report: str, *, quick: bool) -> None:
    """Keep the report, with what is needed to repeat it."""
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
