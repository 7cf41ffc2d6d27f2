"""How well is the SM activity of unknown work predicted, by memory, by a roofline, by both, and by what interval?

    python -m benchmarks.estimator.activity [--rows 40] [--quick] [--write] [--data FOLDER]

Measured: 40 jobs of AEGIS that an example repeats, alone on an A100-40GB, mean over the run; and `--rows` random
networks each of GPUMemNet's MLPs and CNNs, mean of the samples above zero. Each is traced here. One network at a time
is left out (GPUMemNet's MLPs, and its CNNs, count as one network): the roofline's seven constants
(`estimators.roofline.Machine`) and the interval's reach are fitted to the others, in which each network counts as at
most three jobs. `by memory` is the shipped law, which was fitted to AEGIS' jobs, so it has an advantage there.
`learned` is the shipped model of layers, trained on GPUMemNet's rows: it is left out there.
"""

from __future__ import annotations

import argparse
import csv
import functools
import math
import random
import re
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks._lib.results import add_write_option, commit, today, version, write_result
from benchmarks.estimator.ground_truth import DATA, JOBS, run_script
from benchmarks.estimator.ground_truth_rows import Row, cnn_row, mlp_row
from benchmarks.estimator.trace_jobs import trace_jobs
from benchmarks.scheduler.own_estimates import workload_of
from cotenant.core.errors import CotenantError
from cotenant.core.trace import KernelGroup, MemoryTrace
from cotenant.demo.examples import find_examples
from cotenant.demo.published import measured_scripts
from cotenant.estimators.api import explain
from cotenant.estimators.learned.utilization import utilization_of
from cotenant.estimators.roofline import (
    BANDWIDTH_BYTES_HZ,
    FITTED,
    PRODUCT_FLOPS_HZ,
    SMS,
    STEEPNESS,
    VECTOR_FLOPS_HZ,
    Machine,
    roofline_smact,
)
from cotenant.estimators.trace_features import features_of
from cotenant.estimators.traced import TracedEstimator, fake_gpu_of
from cotenant.gpu_specs import gpu_spec
from cotenant.scheduling.prediction.interference import expected_smact
from cotenant.sim.workloads import workloads
from cotenant.tracing.process.trace_function import trace_function

GPU = "A100-40GB"
SEED = 5
MAX_JOBS = 3
"""A network counts as at most so many jobs."""
SIDE = 0.90
"""Of the jobs that are within the interval on each side."""
MLPS, CNNS = "GPUMemNet MLP", "GPUMemNet CNN"
PRIOR_STD = (0.4, 0.3, 0.4, 0.4, 0.2, 0.7, 0.7)
"""Standard deviations of the logs of the constants around a first guess, so that no few jobs decide them alone."""
GUESS = Machine(
    product_efficiency=0.5, bandwidth_efficiency=0.7, host_s=9e-6, launch_s=3e-6, waiting=1.2, flops_per_sm=8e6
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A measured job and what its trace says; `learned` is None where it was trained on the job, or knows none."""

    title: str
    network: str
    smact: float
    bound_bytes: int
    learned: float | None
    kernels: tuple[KernelGroup, ...]


def aegis_jobs(data: Path, *, quick: bool) -> Iterator[Job]:
    table, profiles = data / "realworld_measured.csv", data.parent / "carma" / "aegis" / "workload_profiles_a100.csv"
    jobs = [(script, 1, False) for script in {script.title: script for script in measured_scripts(table)}.values()]
    jobs += [(job.script, job.gpus, job.longest) for job in trace_jobs(table, profiles)]
    for script, gpus, longest in jobs[:: 12 if quick else 1]:
        start = workload_of(script)
        measured = [work.smact for name, work in workloads().items() if name == start or name.startswith(f"{start}_")]
        if not measured:
            continue
        lengths = "longest" if longest else ""
        path = find_examples() / script.script
        found = explain(path, script.args, gpu=GPU, gpus=gpus, sequence_lengths=lengths, timeout_s=1200.0)
        yield _job(
            start, re.sub(r"_bs\d+.*", "", start), statistics.mean(measured), found.estimate.bound_bytes, found.trace
        )


def gpumemnet_jobs(data: Path, count: int) -> Iterator[Job]:
    rng, gpu = random.Random(SEED), gpu_spec(GPU)
    for file, make, network in (("cnn_step1.csv", cnn_row, CNNS), ("mlp.csv", mlp_row, MLPS)):
        with (data / file).open(newline="", encoding="utf-8") as lines:
            busy = [cells for cells in csv.DictReader(lines) if cells["avg_smact"] and float(cells["avg_smact"]) > 0]
        rows = [(float(cells["avg_smact"]), row) for cells in busy if isinstance(row := make(cells), Row)]
        for smact, row in rng.sample(rows, count):
            job = functools.partial(run_script, str(JOBS / row.script), row.args)
            try:
                trace = trace_function(job, gpu=fake_gpu_of(gpu), steps=3, timeout_s=180.0)
            except CotenantError as error:
                print(f"left out: {row.title}: {error.message}", file=sys.stderr)
                continue
            bound = TracedEstimator(torch_version=row.torch).on(trace, gpu).estimate.bound_bytes
            yield _job(row.title, network, smact, bound, trace)


def _job(title: str, network: str, smact: float, bound_bytes: int, trace: MemoryTrace) -> Job:
    learned = None
    if network not in (MLPS, CNNS):
        try:
            learned = utilization_of(trace, features_of(trace), gpu_spec(GPU)).smact
        except CotenantError:
            learned = None
    print(f"{title}: SMACT {smact:.2f}", file=sys.stderr, flush=True)
    kernels = trace.header.kernels
    return Job(title=title, network=network, smact=smact, bound_bytes=bound_bytes, learned=learned, kernels=kernels)


class KernelTable:
    """The kernels of all jobs as columns, so that a fit judges all jobs by a few operations."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        import numpy as np

        rows = [(number, kernel) for number, job in enumerate(jobs) for kernel in job.kernels]
        self._jobs = len(jobs)
        self._job = np.array([number for number, _ in rows])
        self._product = np.array([kernel[0] == "product" for _, kernel in rows])
        self._rate = np.array([PRODUCT_FLOPS_HZ.get(kernel[1], VECTOR_FLOPS_HZ) for _, kernel in rows])
        self._count, self._flops, self._bytes, self._results = np.array([kernel[2:] for _, kernel in rows], float).T

    def smacts(self, machine: Machine) -> Any:
        """What `roofline_smact` says of each job, as an array; 0 of a job without kernels."""
        import numpy as np

        work = np.where(self._product, self._flops / machine.flops_per_sm, self._results / machine.results_per_sm)
        filled = np.clip(work, 1.0, SMS) / SMS
        rate = machine.product_efficiency * self._rate * np.where(self._product, filled, 1.0)
        bandwidth = machine.bandwidth_efficiency * BANDWIDTH_BYTES_HZ
        seconds = np.maximum(np.maximum(self._flops / rate, self._bytes / bandwidth), machine.launch_s) * self._count
        busy_s, active_s, host_s = (
            np.bincount(self._job, weights=values, minlength=self._jobs)
            for values in (seconds, seconds * filled, self._count * machine.host_s)
        )
        step_s = (busy_s**STEEPNESS + host_s**STEEPNESS) ** (1.0 / STEEPNESS)
        return np.minimum(1.0, active_s / (machine.waiting * np.maximum(step_s, 1e-30)))


def fitted(jobs: Sequence[Job]) -> Machine:
    """The constants that fit these jobs best; each network counts as at most `MAX_JOBS`."""
    import numpy as np
    from scipy.optimize import minimize

    names = [field.name for field in fields(Machine)]
    start = [math.log(getattr(GUESS, name)) for name in names]
    table, weights = KernelTable(jobs), np.array(weights_of(jobs))
    measured = np.array([job.smact for job in jobs])

    def machine(logs: Sequence[float]) -> Machine:
        return Machine(**{name: math.exp(value) for name, value in zip(names, logs, strict=True)})

    def loss(logs: Any) -> float:
        errors = weights * ((table.smacts(machine(logs)) - measured) / 0.08) ** 2
        off = [((value - first) / std) ** 2 for value, first, std in zip(logs, start, PRIOR_STD, strict=True)]
        return float(errors.sum()) + sum(off)

    return machine(
        minimize(loss, start, method="Nelder-Mead", options={"maxiter": 400, "xatol": 0.02, "fatol": 0.05}).x
    )


def weights_of(jobs: Sequence[Job]) -> list[float]:
    counts = {job.network: sum(other.network == job.network for other in jobs) for job in jobs}
    return [min(MAX_JOBS, counts[job.network]) / counts[job.network] for job in jobs]


def quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """The least value that `share` of the weight does not exceed."""
    total, reached = sum(weights), 0.0
    for value, weight in sorted(zip(values, weights, strict=True)):
        reached += weight
        if reached >= share * total - 1e-9:
            return value
    return max(values)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is predicted of a job whose network is left out."""

    job: Job
    roofline: float
    by_memory: float

    @property
    def parts(self) -> list[float]:
        learned = [] if self.job.learned is None else [self.job.learned]
        return [self.roofline, self.by_memory, *learned]


def left_out(jobs: Sequence[Job]) -> list[Prediction]:
    """Predictions of all jobs, of each network by what was fitted to the others."""
    found = []
    for network in sorted({job.network for job in jobs}):
        machine = fitted([job for job in jobs if job.network != network])
        for job in jobs:
            if job.network == network:
                roofline = roofline_smact(job.kernels, machine) or 0.0
                found.append(Prediction(job, roofline, expected_smact(job.bound_bytes)))
        print(f"without {network}: {machine}", file=sys.stderr, flush=True)
    return found


def reach_of(found: Sequence[Prediction], parts: str) -> tuple[float, float]:
    """How far the interval reaches beyond its parts, so that `SIDE` of these are within on each side."""
    weights = weights_of([prediction.job for prediction in found])
    below = [min(_parts(prediction, parts)) - prediction.job.smact for prediction in found]
    above = [prediction.job.smact - max(_parts(prediction, parts)) for prediction in found]
    return quantile(below, weights, SIDE), quantile(above, weights, SIDE)


def _parts(prediction: Prediction, parts: str) -> list[float]:
    return [prediction.by_memory] if parts == "by memory" else prediction.parts


def report(found: Sequence[Prediction]) -> list[str]:
    groups = (("AEGIS", lambda name: name not in (MLPS, CNNS)), (CNNS, CNNS.__eq__), (MLPS, MLPS.__eq__))
    lines = ["Mean absolute error of the expected SM activity.", ""]
    lines += [
        "| jobs | number | by memory | roofline | learned | mean of all |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, is_in in groups:
        rows = [prediction for prediction in found if is_in(prediction.job.network)]
        learned = [prediction for prediction in rows if prediction.job.learned is not None]
        cells = [
            f"{statistics.mean(abs(row.by_memory - row.job.smact) for row in rows):.3f}",
            f"{statistics.mean(abs(row.roofline - row.job.smact) for row in rows):.3f}",
            f"{statistics.mean(abs((row.job.learned or 0) - row.job.smact) for row in learned):.3f} ({len(learned)})"
            if learned
            else "-",
            f"{statistics.mean(abs(statistics.mean(row.parts) - row.job.smact) for row in rows):.3f}",
        ]
        lines.append(f"| {name} | {len(rows)} | {' | '.join(cells)} |")
    lines += ["", f"Intervals for {SIDE:.0%} on each side, their reach fitted without the network.", ""]
    lines += ["| jobs | interval | above its lower end | below its upper end | within | width |"]
    lines += ["| --- | --- | --- | --- | --- | --- |"]
    for name, is_in in groups:
        for parts in ("by memory", "around all parts"):
            hits: list[tuple[bool, bool, float]] = []
            for network in sorted({row.job.network for row in found if is_in(row.job.network)}):
                below, above = reach_of([row for row in found if row.job.network != network], parts)
                for row in [row for row in found if row.job.network == network]:
                    low = max(0.0, min(_parts(row, parts)) - below)
                    high = min(1.0, max(_parts(row, parts)) + above)
                    hits.append((row.job.smact >= low, row.job.smact <= high, high - low))
            shares = [statistics.mean(hit[0] for hit in hits), statistics.mean(hit[1] for hit in hits)]
            shares.append(statistics.mean(hit[0] and hit[1] for hit in hits))
            width = statistics.mean(hit[2] for hit in hits)
            lines.append(f"| {name} | {parts} | {' | '.join(f'{share:.0%}' for share in shares)} | {width:.2f} |")
    below, above = reach_of(found, "around all parts")
    memory = reach_of(found, "by memory")
    lines += [
        "",
        f"Reach by all: {below:.3f} below, {above:.3f} above; by memory alone {memory[0]:.3f} and {memory[1]:.3f}.",
    ]
    lines += ["", "| job | measured | by memory | roofline | learned |", "| --- | --- | --- | --- | --- |"]
    for row in found:
        if row.job.network not in (MLPS, CNNS):
            values = (row.job.smact, row.by_memory, row.roofline, row.job.learned)
            cells = ["-" if value is None else f"{value:.2f}" for value in values]
            lines.append(f"| {row.job.title} | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40, help="rows of each of GPUMemNet's sets (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="four jobs of AEGIS, 2 rows of each set")
    parser.add_argument("--data", type=Path, default=DATA / "gpumemnet", help="folder of realworld_measured.csv")
    add_write_option(parser)
    args = parser.parse_args()
    if not (args.data / "realworld_measured.csv").is_file():
        print(f"skipped: no published measurements in `{args.data}`; set --data FOLDER")
        return 0
    jobs = [*aegis_jobs(args.data, quick=args.quick), *gpumemnet_jobs(args.data, 2 if args.quick else args.rows)]
    lines = report(left_out(jobs))
    machine = fitted(jobs)
    lines += [
        "",
        f"Fitted to all: {', '.join(f'{field.name} {getattr(machine, field.name):.3g}' for field in fields(Machine))}.",
    ]
    lines += [f"Shipped: {FITTED}."]
    print("\n".join(lines))
    if args.write:
        head = [
            f"# SM activity of unknown work, {today()}",
            "",
            f"Commit {commit()}; torch {version('torch')}; no GPU.",
            "Repeat with `python -m benchmarks.estimator.activity --write`.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
        ]
        write_result("activity", "\n".join([*head, *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
