"""GPUMemNet re-implemented, without its leaks: its tables and figures again, on the same rows.

    python benchmarks/gpumemnet.py [--part PART ...] [--quick] [--write] [--data FOLDER]

Parts: `kfold` (memory classes and bytes, honest folds), `shapes` (split by shape of the architecture), `neural` (the
paper's two ensembles, minutes to hours),
`utilization`, `overheads`, `real` (training scripts that nobody trained on: figures 5.11 to 5.13 of the thesis, with
the examples of this repository). Every table has the majority class and a two-term line beside it.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from cotenant.core.units import MiB
from cotenant.estimators import create
from cotenant.estimators.compare import opinions
from cotenant.estimators.learned_features import NetworkLayer
from cotenant.estimators.profiles import profile
from cotenant.study.accuracy import percentile, signed_error
from cotenant.study.examples import find_examples
from cotenant.study.published import MeasuredScript, measured_scripts

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "gpumemnet"
GPU = "A100-40GB"
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
REAL = ("traced", "hybrid", "gpumemnet-mlp", "gpumemnet-sequence", "extra-trees", "boosting")
QUICK_ROWS = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="only these; default: all but neural")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows of each set, three real models")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published sets")
    parser.add_argument("--workers", type=int, default=2, help="processes that simulate")
    args = parser.parse_args()
    if not (args.data / "mlp.csv").is_file():
        print(f"skipped: no published sets in `{args.data}`; say --data FOLDER")
        return 0
    for name in args.part or [each for each in PARTS if each != "neural"]:
        began_s = time.perf_counter()
        lines = PARTS[name](args)
        print("\n".join(lines) + "\n", flush=True)
        if args.write:
            write(name, lines, time.perf_counter() - began_s, quick=args.quick)
    return 0


# -- learned on rows ------------------------------------------------------------------------------------------------


def kfold(args: argparse.Namespace, models: Sequence[str] = MODELS, folds: int = 5) -> list[str]:
    from cotenant.learn.cards import score_table
    from cotenant.learn.features import table_of
    from cotenant.learn.kfold import cross_validate
    from cotenant.learn.published import is_plain, read_published
    from cotenant.learn.report import PUBLISHED, finding

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
        told = "; ".join(f"{name} {accuracy:.1%} (F1 {f1:.3f})" for name, accuracy, f1 in PUBLISHED[table.family])
        lines += ["", f"## {title}", "", *score_table(results), "", f"Published (own rows, leaky folds): {told}."]
        if "simulation" in models:
            lines.append(finding(results))
    return lines


def shapes(args: argparse.Namespace) -> list[str]:
    """Each shape of architecture left out once: what is learned of some, tried on another."""
    from cotenant.learn.cards import score_table
    from cotenant.learn.features import table_of
    from cotenant.learn.kfold import cross_validate
    from cotenant.learn.published import read_published

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
    from cotenant.learn.utilization import utilization_command

    found = []
    for by in ("config", "shape"):
        for each in utilization_command([args.data / "mlp.csv", args.data / "cnn_step1.csv"], by=by):
            numbers = f"{each.rows} | {each.r2:.4f} | {each.mae:.4f} | {each.constant_mae:.4f}"
            found.append(f"| {each.family} {each.measure}, split by {by} | {numbers} |")
    return [
        "5 folds by configuration; by shape, each shape of architecture is left out once. DRAMA was not published.",
        "",
        "| measure | rows | R2 | mean absolute error | of the median alone |",
        "| --- | ---: | ---: | ---: | ---: |",
        *found,
    ]


# -- overheads ------------------------------------------------------------------------------------------------------


def overheads(args: argparse.Namespace) -> list[str]:
    from cotenant.learn.summary import parse_summary

    lines = [
        "Median of repeated calls, one thread. Published: inference 2.3 ms (MLP ensemble) and 10.7 ms (Transformer",
        "ensemble) on an A100, parsers 0.99 ms (torchsummary of EfficientNet) and 1.77 ms (modelsummary of GPT-2 XL).",
        "",
        "| what | median ms | size |",
        "| --- | ---: | ---: |",
    ]
    for name in ("efficientnet_32.txt", "gpt2_xl_bs2_sl512.txt"):
        path = args.data / "summaries" / "gpumemnet" / name
        if path.is_file():
            text = path.read_text("utf-8")
            took = timed(lambda text=text: parse_summary(text, sequence=512))
            lines.append(f"| parser, `{name}` | {took:.2f} | {len(text) / 1024:.0f} KiB of text |")
    for family in ("mlp", "cnn", "transformer"):
        lines += [inference_line(name, family) for name in (*NEURAL, "extra-trees", "boosting") if has(name, family)]
    return lines


def has(model: str, family: str) -> bool:
    return (resources.files("cotenant.estimators") / "data" / "learned" / f"{model}-{family}.npz").is_file()


def inference_line(model: str, family: str) -> str:
    """From a network of 60 layers to an answer, features included."""
    from cotenant.estimators.learned import _Learned
    from cotenant.estimators.learned_features import Network
    from cotenant.estimators.learned_weights import shipped

    main_kind = {"mlp": "linear", "cnn": "conv", "transformer": "attention"}[family]
    layer = NetworkLayer(kind=main_kind, outputs=65536, parameters=65536, positions=64)  # type: ignore[arg-type]
    network = Network(batch=32, layers=(layer, NetworkLayer(kind="linear", outputs=256, parameters=65792)) * 30)
    estimator = create(model)
    assert isinstance(estimator, _Learned)
    weights = shipped(model, family)
    took = timed(lambda: estimator.says(weights, network, estimator.features_of(network)))
    file = resources.files("cotenant.estimators") / "data" / "learned" / f"{model}-{family}.npz"
    return f"| inference, {model}, {family} | {took:.2f} | {len(file.read_bytes()) / 1024:.0f} KiB of weights |"


def timed(call: Callable[[], object], repeat: int = 200) -> float:
    """Median milliseconds of a call."""
    call()
    times = []
    for _ in range(repeat):
        began_s = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began_s))
    return percentile(times, 0.5)


# -- real training scripts ------------------------------------------------------------------------------------------


def real(args: argparse.Namespace) -> list[str]:
    jobs = list({job.title: job for job in measured_scripts(args.data / "realworld_measured.csv")}.values())
    published = published_estimates(args.data / "paper_results.csv")
    errors: dict[str, list[float]] = {}
    columns = (*REAL, "gpumemnet, published", "horus, published", "faketensor, published")
    lines = [
        "Jobs of run 2025-09 on an A100-SXM4-40GB that an example of this repository repeats; no model saw them.",
        "Signed errors; of a class, of its upper edge, as the publication has it. All of ours are from one trace.",
        "",
        f"| job | measured MiB | {' | '.join(columns)} |",
        "| --- | ---: |" + " ---: |" * len(columns),
    ]
    for job in jobs[: 3 if args.quick else None]:
        told = estimates_of(job) | published.get((job.script.removesuffix(".py"), job.title.split()[-1]), {})
        cells = []
        for name in columns:
            error = signed_error(told[name], job.measured_bytes) if name in told else None
            cells.append("" if error is None else f"{error:+.1%}")
            if error is not None:
                errors.setdefault(name, []).append(error)
        lines.append(f"| {job.title} | {job.measured_bytes // MiB} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    lines += ["", "| absolute error | jobs | median | mean | P95 | max | too low |", "| --- |" + " ---: |" * 6]
    for name, found in errors.items():
        sizes = [abs(each) for each in found]
        numbers = (percentile(sizes, 0.5), sum(sizes) / len(sizes), percentile(sizes, 0.95), max(sizes))
        low = sum(each < 0 for each in found)
        lines.append(f"| {name} | {len(sizes)} | {' | '.join(f'{each:.1%}' for each in numbers)} | {low} |")
    return lines


def estimates_of(job: MeasuredScript) -> dict[str, float]:
    """Device bytes by our estimators, from one trace of the example."""
    from cotenant.estimators.api import explain

    script = find_examples() / job.script
    traced = explain(script, job.args, gpu=GPU)
    found = opinions(traced, profile(GPU), (str(script), *job.args))
    return {each.name: each.estimate.device_bytes for each in found if each.estimate is not None and each.name in REAL}


_NAMES = {
    "mobilenetV2": "mobilenet_v2",
    "efficientnet": "efficientnet_b0",
    "inception": "inception_v3",
    "Xception": "xception",
}


def published_estimates(path: Path) -> dict[tuple[str, str], dict[str, float]]:
    """What the publication has for its models, by example and batch size; the later table."""
    found = {}
    for row in csv.DictReader(path.read_text("utf-8").splitlines()):
        if not row["table"].startswith("later"):
            continue
        names = {"gpumemnet": "gpumemnet_mib", "horus": "horus_mib", "faketensor": "faketensor_mib"}
        told = {f"{name}, published": float(row[column]) * MiB for name, column in names.items() if row[column]}
        script = _NAMES.get(row["model"], row["model"])
        found[(script, row["batch"])] = told
        if script.startswith("BERT"):
            found[("bert_mlm", row["batch"])] = told  # base was measured with 32 samples, large with 8
    return found


PARTS: dict[str, Callable[[argparse.Namespace], list[str]]] = {
    "kfold": kfold,
    "shapes": shapes,
    "neural": neural,
    "utilization": utilization,
    "overheads": overheads,
    "real": real,
}


def say(model: str, fold: int) -> None:
    print(f"{model}, fold {fold + 1}", file=sys.stderr, flush=True)


def write(part: str, lines: Sequence[str], took_s: float, *, quick: bool) -> None:
    """Keep a part, with what is needed to repeat it."""
    from importlib import metadata

    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    path = ROOT / "benchmarks" / "results" / f"gpumemnet_{part}_no-gpu_{today}.md"
    versions = "; ".join(f"{name} {metadata.version(name)}" for name in ("torch", "numpy", "scikit-learn"))
    repeat = f"python benchmarks/gpumemnet.py --part {part}{' --quick' if quick else ''} --write"
    head = [
        f"# GPUMemNet again: {part}, {today}",
        "",
        f"Commit {commit()}; Python {platform.python_version()}; {versions}.",
        f"{os.cpu_count()} cores, shared, no GPU; {took_s:.0f} s. Repeat with `{repeat}`.",
        "Measured: GPUMemNet (arXiv 2602.17817) and CARMA, nvidia-smi on an A100-SXM4-40GB.",
        "",
    ]
    path.write_text("\n".join([*head, *lines]) + "\n", encoding="utf-8")
    print(f"written to {path.relative_to(ROOT)}")


def commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
