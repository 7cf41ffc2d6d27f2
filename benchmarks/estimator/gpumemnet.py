"""Reproduces the tables and figures of GPUMemNet on the same rows, with folds that do not leak.

    python -m benchmarks.estimator.gpumemnet [--part PART ...] [--quick] [--write] [--data FOLDER]

Parts: `kfold` (memory classes and bytes, folds by configuration), `shapes` (folds by shape of the architecture),
`neural` (the paper's two ensembles, minutes to hours), `utilization`, `overheads`, `real` (training scripts outside of
the training set: figures 5.11 to 5.13 of the thesis, with the examples of this repository), `busy` (SM activity of the
same scripts), `spread` (uniformity of the generators), `thesis` (tables 5.3, 5.5, 5.7 and the regressors of 5.4.2),
`baselines` (figures 5.1 to 5.3: Horus and FakeTensor on published rows), `generated` (the thesis' estimators learned
from sets of 5,100 simulated labels below `--runs`).
Accuracies are listed with two baselines: the majority class and a two-term line.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks._lib.results import RESULTS, ResultCache, add_write_option, commit, today, write_result
from benchmarks.estimator.gpumemnet_baselines import baselines
from benchmarks.estimator.gpumemnet_generated import MODELS as GENERATED_MODELS
from benchmarks.estimator.gpumemnet_generated import generated
from benchmarks.estimator.gpumemnet_real import ROOT, busy, real
from benchmarks.estimator.gpumemnet_thesis import thesis
from cotenant.core.stats import quantile
from cotenant.estimators import create
from cotenant.estimators.learned.network_features import NetworkLayer
from cotenant.learn.data_collection.ranges import Span

if TYPE_CHECKING:
    from cotenant.estimators.layer_kinds import LayerKind

DATA = ROOT.parent / "shared" / "data" / "gpumemnet"
MODELS = (
    "extra-trees-paper",
    "extra-trees",
    "random-forest",
    "boosting",
    "extra-trees-classes",
    "extra-trees-simulation",
    "simulation",
    "hybrid",
)
NEURAL = ("gpumemnet-mlp", "gpumemnet-sequence")
SETS = (
    ("MLP step 1, classes of 1000 MiB", "mlp.csv", "mlp_step1", False),
    ("MLP step 2, classes of 1000 MiB", "mlp.csv", "mlp_step2", False),
    ("CNN step 1 without residual and dense networks, classes of 8000 MiB", "cnn_step1.csv", "", True),
    ("CNN step 1, all networks, classes of 8000 MiB", "cnn_step1.csv", "", False),
    ("Transformer sample, classes of 8000 MiB", "transformer_sample.csv", "", False),
)
SHIPPED = (*NEURAL, "extra-trees", "boosting")
TRAINING_SETS = {
    "mlp": ("mlp.csv", "mlp_step2"),
    "cnn": ("cnn_step1.csv", ""),
    "transformer": ("transformer_sample.csv", ""),
}
SUMMARIES = ("efficientnet_32.txt", "gpt2_xl_bs2_sl512.txt")
QUICK_ROWS = 200
LONG = ("neural", "thesis", "generated")
"""Parts that take tens of minutes, or need sets that are not shipped."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", choices=list(PARTS), action="append", help=f"parts to run (default: all but {', '.join(LONG)})"
    )
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows of each set, three real models")
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published sets")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs"), help="of `generated`: a folder of `learn run` a family"
    )
    parser.add_argument("--models", nargs="+", default=GENERATED_MODELS, help="of `generated`")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="keep finished results of long parts there, and go on from them"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes for the simulations")
    args = parser.parse_args()
    if not (args.data / "mlp.csv").is_file():
        print(f"skipped: no published sets in `{args.data}`; set --data FOLDER")
        return 0
    args.cache = ResultCache(args.keep)
    for name in args.part or [part for part in PARTS if part not in LONG]:
        began_s = time.perf_counter()
        args.cache.saved_s = 0.0
        lines = PARTS[name](args)
        print("\n".join(lines) + "\n", flush=True)
        if args.write:
            write(name, lines, time.perf_counter() - began_s + args.cache.saved_s, quick=args.quick)
    return 0


# -- learned on rows ------------------------------------------------------------------------------------------------


def kfold(args: argparse.Namespace, models: Sequence[str] = MODELS, folds: int = 5) -> list[str]:
    from cotenant.learn.datasets.feature_table import table_of
    from cotenant.learn.datasets.published import is_plain, read_published
    from cotenant.learn.models.cross_validation import cross_validate
    from cotenant.learn.models.model_card import score_table
    from cotenant.learn.reports.model_report import PUBLISHED, finding

    lines = [
        f"{folds} folds by configuration, seed 0, a fresh model for each; out of memory is the class above 40,000 MiB.",
        "Crashed rows are left out; errors in bytes are of jobs that trained with less than 36,000 MiB.",
    ]
    for title, file, source, plain in SETS:
        rows = [
            row for row in read_published(args.data / file) if source in row.source and (is_plain(row) or not plain)
        ]
        table = table_of(rows[:QUICK_ROWS] if args.quick else rows, workers=args.workers)
        results = cross_validate(table, models, folds=folds, on_fold=say)
        published = "; ".join(f"{name} {accuracy:.1%} (F1 {f1:.3f})" for name, accuracy, f1 in PUBLISHED[table.family])
        lines += ["", f"## {title}", "", *score_table(results), "", f"Published (own rows, leaky folds): {published}."]
        if "simulation" in models:
            lines.append(finding(results))
    return lines


def shapes(args: argparse.Namespace) -> list[str]:
    """Leave-one-out over the shapes of architecture."""
    from cotenant.learn.datasets.feature_table import table_of
    from cotenant.learn.datasets.published import read_published
    from cotenant.learn.models.cross_validation import cross_validate
    from cotenant.learn.models.model_card import score_table

    lines = ["Each shape of architecture is tested by models that saw only the others; seed 0."]
    for title, file, source, plain in SETS:
        if plain or source == "mlp_step1" or file == "transformer_sample.csv":
            continue
        rows = [row for row in read_published(args.data / file) if source in row.source]
        table = table_of(rows[:QUICK_ROWS] if args.quick else rows, workers=args.workers)
        results = cross_validate(table, ("extra-trees", "boosting", "simulation", "hybrid"), by="shape", on_fold=say)
        lines += ["", f"## {title}", "", *score_table(results)]
    return lines


def neural(args: argparse.Namespace) -> list[str]:
    import torch

    torch.set_num_threads(1)
    return kfold(args, NEURAL, folds=3)


def utilization(args: argparse.Namespace) -> list[str]:
    from cotenant.learn.models.utilization import utilization_command

    found = []
    for by in ("config", "shape"):
        for line in utilization_command([args.data / "mlp.csv", args.data / "cnn_step1.csv"], by=by):
            numbers = f"{line.rows} | {line.r2:.4f} | {line.mae:.4f} | {line.constant_mae:.4f}"
            found.append(f"| {line.family} {line.measure}, split by {by} | {numbers} |")
    return [
        "5 folds by configuration; by shape, each shape of architecture is left out once. DRAMA was not published.",
        "",
        "| measure | rows | R2 | mean absolute error | of the median alone |",
        "| --- | ---: | ---: | ---: | ---: |",
        *found,
    ]


# -- overheads ------------------------------------------------------------------------------------------------------


def overheads(args: argparse.Namespace) -> list[str]:
    import torch

    torch.set_num_threads(1)
    lines = [
        "Times of calls: median of repeated ones, one thread. Published: inference 2.25 to 2.40 ms (MLP ensemble) and",
        "10.6 to 10.7 ms (Transformer ensemble) on an A100, with 1,495 to 1,646 and 7,556 to 13,586 numbers; parsers",
        "0.99 ms (torchsummary of EfficientNet) and 1.77 ms (modelsummary of GPT-2 XL). Times of training were not.",
        "",
        "| parser | median ms | text |",
        "| --- | ---: | ---: |",
        *[parser_line(args.data / "summaries" / "gpumemnet" / name) for name in SUMMARIES],
        "",
        "Inference: from a network of 60 layers to an answer, features included. Training: CPU time of one model on",
        "all rows, without features and simulation; torch has one thread.",
        "",
        "| model | inference, median ms | numbers | weights KiB | rows | training, CPU s |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for family, (file, source) in TRAINING_SETS.items():
        trainings = training_times(args, family, file, source)
        lines += [model_line(model, family, *trainings[model]) for model in SHIPPED]
    return lines


def parser_line(path: Path) -> str:
    from cotenant.learn.model_summaries.summary import parse_summary

    text = path.read_text("utf-8")
    took = timed(lambda: parse_summary(text, sequence=512))
    return f"| `{path.name}` | {took:.2f} | {len(text) / 1024:.0f} KiB |"


def training_times(args: argparse.Namespace, family: str, file: str, source: str) -> dict[str, tuple[int, float]]:
    """Rows, and CPU seconds to fit each model to them."""
    from cotenant.learn.datasets.feature_table import table_of
    from cotenant.learn.datasets.published import read_published
    from cotenant.learn.models.training import TRAINED

    rows = [row for row in read_published(args.data / file) if source in row.source]
    table = table_of(rows[:QUICK_ROWS] if args.quick else rows, workers=args.workers)
    found = {}
    for model in SHIPPED:
        say(f"{model} of {family}", 0)
        began_s = time.process_time()
        TRAINED[model](table, 0)
        found[model] = (len(table), time.process_time() - began_s)
    return found


def model_line(model: str, family: str, rows: int, training_s: float) -> str:
    """Inference time, size and training time of a shipped model."""
    from cotenant.estimators.learned.estimators import LearnedEstimator
    from cotenant.estimators.learned.network_features import Network
    from cotenant.estimators.learned.weights import shipped

    main_kind: LayerKind = {"mlp": "linear", "cnn": "conv", "transformer": "attention"}[family]  # type: ignore[assignment]
    layer = NetworkLayer(kind=main_kind, outputs=65536, parameters=65536, positions=64)
    network = Network(batch=32, layers=(layer, NetworkLayer(kind="linear", outputs=256, parameters=65792)) * 30)
    estimator = create(model)
    assert isinstance(estimator, LearnedEstimator)
    weights = shipped(model, family)
    took = timed(lambda: estimator.predict_mib(weights, network, estimator.features_of(network)))
    file = resources.files("cotenant.estimators") / "data" / "learned" / f"{model}-{family}.npz"
    numbers = sum(array.size for array in weights.arrays.values())
    size = len(file.read_bytes()) / 1024
    return f"| {model}, {family} | {took:.2f} | {numbers:,} | {size:.0f} | {rows} | {training_s:.1f} |"


def timed(call: Callable[[], object], repeat: int = 200) -> float:
    """Median milliseconds of a call."""
    call()
    times = []
    for _ in range(repeat):
        began_s = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began_s))
    return quantile(times, 0.5)


def spread(args: argparse.Namespace) -> list[str]:
    """Uniformity of the generators' draws; figures with `--write`."""
    from cotenant.learn.data_collection.generate import generate
    from cotenant.learn.data_collection.ranges import load_ranges
    from cotenant.learn.reports.spread_plot import drawn, save_spread

    count = QUICK_ROWS if args.quick else 3000
    lines = [
        f"{count} configurations of each family, seed 0. Of each range, bound or not, the largest distance between the",
        "share of draws below a value and the share of the range that lies below it (Kolmogorov-Smirnov).",
        "",
        "| family | setting | draws | distance |",
        "| --- | --- | ---: | ---: |",
    ]
    for family in TRAINING_SETS:
        ranges = load_ranges(family)
        configs = generate(ranges, count, 0)
        for name, range_ in ranges.ranges.items():
            if isinstance(range_, Span):
                values = drawn(configs, name, range_)
                lines.append(f"| {family} | {name} | {len(values)} | {distance(values, range_):.4f} |")
        if args.write:
            path = RESULTS / f"gpumemnet_spread_{family}.svg"
            save_spread(path, configs, ranges)
            lines += [f"| {family} | all | | ![drawn]({path.name}) |"]
    return lines


def distance(values: Sequence[float], span: Span) -> float:
    """Kolmogorov-Smirnov distance to the uniform distribution over `span`; an integer v counts as v to v + 1."""
    low, high, step = (0.0, 1.0, 0.0) if span.of else (span.low, span.high + 1, 1.0)
    ordered = sorted(values)
    most = 0.0
    for i, value in enumerate(ordered, start=1):
        if ordered[i : i + 1] != [value]:
            end = value + step
            place = math.log(end / low) / math.log(high / low) if span.by == "log" else (end - low) / (high - low)
            most = max(most, abs(place - i / len(ordered)))
    return most


PARTS: dict[str, Callable[[argparse.Namespace], list[str]]] = {
    "kfold": kfold,
    "shapes": shapes,
    "neural": neural,
    "utilization": utilization,
    "overheads": overheads,
    "real": real,
    "busy": busy,
    "spread": spread,
    "thesis": thesis,
    "baselines": baselines,
    "generated": generated,
}


def say(model: str, fold: int) -> None:
    print(f"{model}, fold {fold + 1}", file=sys.stderr, flush=True)


def write(part: str, lines: Sequence[str], took_s: float, *, quick: bool) -> None:
    """Write the result of a part with the command, the commit and the versions."""
    from importlib import metadata

    versions = "; ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "scikit-learn"))
    repeat = f"python -m benchmarks.estimator.gpumemnet --part {part}{' --quick' if quick else ''} --write"
    head = [
        f"# GPUMemNet again: {part}, {today()}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {versions}.",
        f"{os.cpu_count()} cores, shared, no GPU; {took_s:.0f} s. Repeat with `{repeat}`.",
        "Measured: GPUMemNet (arXiv 2602.17817) and CARMA, nvidia-smi on an A100-SXM4-40GB.",
        "",
    ]
    write_result(f"gpumemnet_{part}", "\n".join([*head, *lines]))


if __name__ == "__main__":
    sys.exit(main())
