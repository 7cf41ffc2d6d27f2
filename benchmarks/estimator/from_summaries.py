"""GPU memory from a printed summary of a model alone, beside what the jobs were measured to use.

    python -m benchmarks.estimator.from_summaries [--data FOLDER] [--write]

Summaries and measurements are GPUMemNet's and CARMA's (`gpumemnet/summaries`, `realworld_measured.csv`, runs of
2025-09). Jobs are left out whose summary is a copy of another network's, and those on two GPUs.
The rules of the simulation were written with these jobs at hand: the errors are not of jobs that it had not seen.
"""

from __future__ import annotations

import argparse
import csv
import platform
import statistics
from pathlib import Path

from benchmarks._lib.results import add_write_option, today, write_result
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import MiB
from cotenant.gpu_specs import gpu_spec
from cotenant.learn.model_summaries.estimator import learned, read_model, simulated

DATA = Path(__file__).parents[3] / "shared" / "data" / "gpumemnet"
NETWORKS = {
    "resnet50": ("resnet50", "torchvision"),
    "vgg": ("vgg16", "torchvision"),
    "Xception": ("xception", "timm"),
    "mobilenet": ("mobilenet_v2", "torchvision"),
    "efficientnet": ("efficientnet_b0", "torchvision"),
    "inceptionv3": ("inception_v3 (aux_logits=False)", "torchvision"),
    "resnet18cifar100": ("resnet18", "timm"),
    "resnet34cifar100": ("resnet34", "timm"),
    "efficientnetcifar": ("efficientnet_b0", "timm"),
}
BATCHES = (32, 64, 128)
OTHERS = (
    ("BERT_base_bs32_sl512", 32, "bert-base (BertForMaskedLM from config)"),
    ("BERT_large_bs8_sl512", 8, "bert-large (BertForMaskedLM from config)"),
    ("xlnet_base_cased_bs8_sl512", 8, "xlnet-base-cased"),
    ("xlnet_large_cased_bs4_sl512", 4, "xlnet-large-cased"),
)
COLUMNS = ("boosting", "extra-trees", "gpumemnet-mlp", "gpumemnet-sequence")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    add_write_option(parser)
    args = parser.parse_args()
    with (args.data / "realworld_measured.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"].startswith("2025")]
    jobs = []
    for stem, (model, library) in NETWORKS.items():
        for batch in BATCHES:
            found = [r for r in rows if r["model"] == model and r["library"] == library and int(r["batch"]) == batch]
            jobs += [(f"{stem}_{batch}", batch, int(found[0]["measured_mib"]))] if found else []
    for name, batch, model in OTHERS:
        found = [row for row in rows if row["model"] == model and int(row["batch"]) == batch]
        jobs += [(name, batch, int(found[0]["measured_mib"]))] if found else []
    lines = [
        f"| summary | measured, MiB | simulated | error | below the bound | {' | '.join(COLUMNS)} |",
        "| --- " * (5 + len(COLUMNS)) + "|",
    ]
    errors, misses, partial = [], 0, 0
    for name, batch, measured in jobs:
        line, error, is_partial, is_miss = one(args.data, name, batch, measured)
        lines.append(line)
        partial += is_partial
        if not is_partial:
            errors.append(error)
            misses += is_miss
    spread = sorted(abs(error) for error in errors)
    spread_text = f"median {statistics.median(spread):.1%}, 90th percentile {spread[int(0.9 * len(spread))]:.1%}"
    hidden = f"{len(errors)} jobs, and {partial} whose attention the summary hides (`>`: lower bounds)"
    lines += [
        "",
        f"{hidden}. Error: {spread_text}, from {min(errors):+.1%} to {max(errors):+.1%}; {misses} above the bound.",
    ]
    print("\n".join(lines))
    if args.write:
        head = [
            f"# Memory from summaries of models, {today()}",
            "",
            f"Python {platform.python_version()}. Command: `python -m benchmarks.estimator.from_summaries --write`.",
            "",
            *(__doc__ or "").split("\n\n")[2].splitlines(),
            "",
        ]
        write_result("from-summaries", "\n".join([*head, *lines]))


def one(data: Path, name: str, batch: int, measured_mib: int) -> tuple[str, float, bool, bool]:
    """The line of a job, its error, and whether it is a lower bound and whether the bound is too low."""
    request = EstimateRequest(
        command=(name,),
        workdir=str(data / "summaries" / "gpumemnet"),
        gpu="A100-40GB",
        model_summary=f"{name}.txt",
        batch_size=batch,
        tokens=512 if "sl512" in name else None,
    )
    model, gpu = read_model(request), gpu_spec("A100-40GB")
    estimate = simulated(model, gpu)
    error = estimate.device_bytes / MiB / measured_mib - 1
    is_miss = estimate.bound_bytes < measured_mib * MiB
    others = {result.name: result.estimate for result in learned(model, gpu)}
    cells = [
        name,
        str(measured_mib),
        f"{'>' if estimate.partial else ''}{estimate.device_bytes / MiB:.0f}",
        f"{error:+.1%}",
        "no" if is_miss else "yes",
    ]
    cells += ["-" if (found := others.get(key)) is None else f"{found.device_bytes / MiB:.0f}" for key in COLUMNS]
    return f"| {' | '.join(cells)} |", error, estimate.partial, is_miss


if __name__ == "__main__":
    main()
