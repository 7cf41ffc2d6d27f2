"""Regenerates our columns of `sim/data/reported_a100.csv`: bounds and SM activity of the jobs of CARMA's traces.

    python -m benchmarks.scheduler.own_estimates [--quick] [--write] [--data FOLDER]

Each job is the example script that repeats it, for an A100-40GB, with this torch (`demo.published`, `trace_jobs`).
Jobs of another number of epochs have the same estimate. A bound above the GPU's memory is written as that memory: such
a job gets a GPU to itself. `--quick` estimates two jobs and compares them with the table.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.estimator.published_scripts import DATA
from benchmarks.estimator.trace_jobs import trace_jobs
from cotenant.core.units import MiB
from cotenant.demo.examples import find_examples
from cotenant.demo.published import MeasuredScript, measured_scripts
from cotenant.estimators.api import explain
from cotenant.gpu_specs import gpu_spec
from cotenant.sim.workloads import DATA_PATH

GPU = "A100-40GB"
TABLE = DATA_PATH / "reported_a100.csv"
TIMEOUT_S = 1200.0
QUICK = ("mobilenet_v2 --batch-size 32", "cifar --model resnet18 --batch-size 32")

_MODELS = {
    "efficientnet_b0": "efficientnet",
    "mobilenet_v2": "mobilenet",
    "mobilenetv3_small_100": "mobilenet",
    "inception_v3": "inception",
}
_WHOLE = {"unet": "unet_voc", "dlrm": "dlrm_criteo", "detection": "maskrcnn_coco", "llama": "llama3_width_8layer_wiki"}
_SIZED = {"bert_mlm": "bert_{}_wiki", "gpt2": "gpt2_{}_wiki", "xlnet": "xlnet_{}_cased_wiki"}


def workload_of(job: MeasuredScript) -> str:
    """How the names of the job's workloads in the table begin."""
    script, args = job.script.removesuffix(".py"), job.args
    batch = args[args.index("--batch-size") + 1]
    if script in _WHOLE:
        return _WHOLE[script] if script == "unet" else f"{_WHOLE[script]}_bs{batch}"
    if script in _SIZED:
        return f"{_SIZED[script].format(args[args.index('--size') + 1])}_bs{batch}"
    model = args[args.index("--model") + 1] if script == "cifar" else script
    return f"{_MODELS.get(model, model)}_{'cifar100' if script == 'cifar' else 'imagenet'}_bs{batch}"


def estimates(data: Path, *, quick: bool) -> Iterator[tuple[str, dict[str, str]]]:
    """(Start of the name, our columns) of every job that an example repeats."""
    table, profiles = data / "realworld_measured.csv", data.parent / "carma" / "aegis" / "workload_profiles_a100.csv"
    jobs = [(script, 1, False) for script in {script.title: script for script in measured_scripts(table)}.values()]
    jobs += [(job.script, job.gpus, job.longest) for job in trace_jobs(table, profiles)]
    capacity = gpu_spec(GPU).memory_total_bytes // MiB
    for script, gpus, longest in jobs:
        if quick and script.title not in QUICK:
            continue
        lengths = "longest" if longest else ""
        path = find_examples() / script.script
        found = explain(path, script.args, gpu=GPU, gpus=gpus, sequence_lengths=lengths, timeout_s=TIMEOUT_S)
        bound = min(round(found.estimate.bound_bytes / MiB), capacity)
        print(f"{script.title}: {bound} MiB, measured {script.measured_bytes // MiB}", file=sys.stderr, flush=True)
        activity = found.estimate.smact_interval
        cells = {"cotenant": str(bound)}
        if activity is not None:
            names = ("smact_low", "smact", "smact_high")
            cells |= {name: f"{value:.2f}" for name, value in zip(names, activity, strict=True)}
        yield workload_of(script), cells


def with_estimates(text: str, columns: dict[str, dict[str, str]]) -> str:
    """The table with these columns, by the start of a workload's name."""
    comments = [line for line in text.splitlines(keepends=True) if line.startswith("#")]
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = list(csv.DictReader(lines))
    for row in rows:
        name = row["workload"]
        found = [cells for start, cells in columns.items() if name == start or name.startswith(f"{start}_")]
        row.update(found[0] if found else {})
    written = io.StringIO()
    writer = csv.DictWriter(written, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return "".join(comments) + written.getvalue()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two jobs")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of realworld_measured.csv")
    args = parser.parse_args()
    if not (args.data / "realworld_measured.csv").is_file():
        print(f"skipped: no published measurements in `{args.data}`; set --data FOLDER")
        return 0
    before = TABLE.read_text("utf-8")
    after = with_estimates(before, dict(estimates(args.data, quick=args.quick)))
    changed = sum(old != new for old, new in zip(before.splitlines(), after.splitlines(), strict=True))
    print(f"{changed} rows of the table differ")
    if args.write:
        TABLE.write_text(after, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
