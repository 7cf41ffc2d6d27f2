"""The traced estimator against published measurements of jobs that small scripts rebuild.

    python benchmarks/ground_truth.py --set mlp [--rows N] [--seed S] [--quick] [--write] [--traces FOLDER]

Sets: `mlp`, `cnn`, `transformer` (networks of GPUMemNet's generator), `timm` (models of timm), all by nvidia-smi on an
A100-40GB in 2024; `xmem` (torchvision networks and language models on two small cards and an A100). The jobs are in
`benchmarks/jobs`; `ground_truth_rows.py` says which rows are left out, and why.

Where a set counts the whole device, one constant stands for the CUDA context and the libraries: what the first rows of
the sample leave beside our reserved bytes, most often or in the median. Those rows are not scored. Rows with batch norm
have a constant of their own in the set of CNNs: that stack loads whole libraries, and it needs one more. Beside our
numbers stand two rules: 16 bytes a parameter and the same constant, and the mean of the scored rows.

xMem's language models were measured with transformers 4.51.3, and other versions allocate otherwise. Install it aside
and name the folder:

    pip install --no-deps --target FOLDER transformers==4.51.3 'tokenizers==0.21.*' 'huggingface_hub==0.30.*'
    pip install --no-deps --target FOLDER requests urllib3 charset_normalizer idna
    python benchmarks/ground_truth.py --set xmem --pythonpath FOLDER

With `--traces FOLDER` traces are kept there and used again: another rule of the estimator is then a replay.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ground_truth_rows import GROUPS, Group, Row, read

from cotenant.core.errors import CotenantError
from cotenant.core.trace import MemoryTrace
from cotenant.core.units import MiB
from cotenant.estimators.margin import family_of
from cotenant.estimators.profiles import profile
from cotenant.estimators.traced import TracedEstimator, card_of
from cotenant.study.accuracy import percentile, signed_error
from cotenant.tracing import wire
from cotenant.tracing.forked import trace_function

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "benchmarks" / "jobs"
DATA = ROOT.parent / "shared" / "data"
FITTED_ROWS = 20
QUICK_ROWS = 12
QUICK_FITTED_ROWS = 3
WORST = 15
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How rows are estimated.

    Attributes:
        steps: optimizer steps to trace.
        traces: folder of kept traces, or None.
    """

    steps: int
    traces: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of a row.

    Attributes:
        reserved_bytes: predicted peak, on a card without limit if it does not fit.
        family: whose errors make its margin.
        oom: the estimator says that it does not fit.
        problem: why there is no estimate, or None.
    """

    row: Row
    reserved_bytes: int = 0
    allocated_bytes: int = 0
    margin_bytes: int = 0
    parameter_bytes: int = 0
    family: str = ""
    oom: bool = False
    problem: str | None = None
    elapsed_s: float = 0.0


# -- estimating ---------------------------------------------------------------------------------------------------


def preload(imports: Sequence[str], folders: Sequence[str]) -> None:
    """Load libraries once in a worker, before it forks a process for each row."""
    sys.path[:0] = list(folders)
    import torch
    import torch._dynamo  # 0.7 s that the first fake tensor of each forked process would spend

    if "torchvision" in imports:
        # A CUDA build of torchvision beside a CPU build of torch wants these to exist.
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not torch._C._jit_get_schemas_for_operator(f"torchvision::{name}"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        preload.keep = library  # type: ignore[attr-defined]
    for name in imports:
        importlib.import_module(name)


def run_script(path: str, args: Sequence[str]) -> None:
    """Run a job script in this process, silently, then leave it as a script does."""
    import runpy

    sys.argv = [path, *args]
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - the process ends with it
    runpy.run_path(path, run_name="__main__")
    raise SystemExit(0)


def recorded(row: Row, options: Options) -> MemoryTrace:
    """The trace of a row's job, kept or new."""
    kept = None
    if options.traces is not None:
        key = json.dumps([(JOBS / row.script).read_text(), row.args, row.gpu, options.steps])
        kept = options.traces / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
        if kept.exists():
            return wire.trace_from_dict(json.loads(kept.read_text()))
    job = functools.partial(run_script, str(JOBS / row.script), row.args)
    trace = trace_function(job, card=card_of(profile(row.gpu)), steps=options.steps, timeout_s=TIMEOUT_S)
    if kept is not None:
        wire.save(kept, wire.trace_to_dict(trace))
    return trace


def estimate_row(row: Row, options: Options) -> Result:
    """An estimate for one row; a job that cannot be traced is told, not raised."""
    began_s = time.perf_counter()
    try:
        trace = recorded(row, options)
        found = TracedEstimator(torch_version=row.torch).on(trace, profile(row.gpu)).estimate
    except CotenantError as error:
        return Result(row=row, problem=error.message, elapsed_s=time.perf_counter() - began_s)
    problem = "; ".join(found.warnings) if found.partial else None
    return Result(
        row=row,
        reserved_bytes=found.peak_reserved_bytes,
        allocated_bytes=found.peak_allocated_bytes or 0,
        margin_bytes=found.margin_bytes,
        parameter_bytes=parameter_bytes(trace),
        family=family_of(trace, profile(row.gpu)),
        oom=any(each.startswith("does not fit") for each in found.warnings),
        problem=problem,
        elapsed_s=time.perf_counter() - began_s,
    )


def parameter_bytes(trace: MemoryTrace) -> int:
    """Bytes of all parameters: of storages, so that shared ones count once."""
    return sum(event.bytes for event in trace.events if event.action == "alloc" and event.category == "parameter")


def estimate_rows(
    rows: Sequence[Row], options: Options, imports: Sequence[str], folders: Sequence[str], workers: int
) -> Iterator[Result]:
    """Results in the order of `rows`, from several workers that each fork a process for each row."""
    with ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=preload, initargs=(imports, folders)
    ) as pool:
        yield from pool.map(functools.partial(estimate_row, options=options), rows)


# -- scoring ------------------------------------------------------------------------------------------------------


def sample(rows: Sequence[Row], count: int | None, seed: int) -> list[Row]:
    """`count` rows in a random order, all of them by default."""
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]


def commonest(values: Sequence[int]) -> int:
    """The value that most of `values` are within 2 MiB of, if that is a third of them, else their median."""
    middle = int(statistics.median(values))
    near = {each: sum(abs(each - other) <= 2 * MiB for other in values) for each in values}
    best = max(values, key=lambda each: (near[each], -abs(each - middle)))
    return best if near[best] >= max(2, len(values) / 3) else middle


def outside_of(results: Sequence[Result]) -> dict[str, int]:
    """The constant beside reserved bytes, by what rows load: what these rows leave."""
    left: dict[str, list[int]] = {}
    for each in results:
        if not each.row.doubt:
            left.setdefault(each.row.loads, []).append(each.row.measured_bytes - each.reserved_bytes)
    return {loads: commonest(values) for loads, values in left.items()}


def split(results: Sequence[Result], fitted: int | None) -> tuple[list[Result], list[Result]]:
    """The first `fitted` results that are estimates, and the other ones; none and all for None."""
    done = [each for each in results if each.problem is None]
    return (done[:fitted], done[fitted:]) if fitted is not None else ([], done)


def error_line(title: str, errors: Sequence[float]) -> str:
    """One line of the table: absolute relative errors, and how many estimates are low."""
    if not errors:
        return f"| {title} | 0 | | | | | | | |"
    sizes = [abs(each) for each in errors]
    numbers = [
        statistics.median(sizes),
        statistics.fmean(sizes),
        *(percentile(sizes, p) for p in (0.9, 0.95)),
        max(sizes),
    ]
    low = sum(each < 0 for each in errors) / len(errors)
    far = sum(each < -0.01 for each in errors) / len(errors)
    return (
        f"| {title} | {len(errors)} | " + " | ".join(f"{each:.2%}" for each in numbers) + f" | {low:.0%} | {far:.1%} |"
    )


def score_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """Errors of the rows that ran, ours and of two rules."""
    ran = [each for each in scored if not each.row.measured_oom]
    if not ran:
        return ["No row to score."]
    truth = [each.row.measured_bytes for each in ran]
    mean = statistics.fmean(truth)
    pairs = {
        "cotenant": [each.reserved_bytes + outside[each.row.loads] for each in ran],
        "16 bytes a parameter": [4 * each.parameter_bytes + outside[each.row.loads] for each in ran],
        "mean of these rows": [mean] * len(ran),
    }
    lines = [
        "| absolute relative error | rows | median | mean | P90 | P95 | max | low | low by > 1 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for title, values in pairs.items():
        errors = [signed_error(value, true) for value, true in zip(values, truth, strict=True)]
        lines.append(error_line(title, errors))
    within = sum(abs(value - true) <= 2 * MiB for value, true in zip(pairs["cotenant"], truth, strict=True))
    missed = [each for each in ran if each.row.measured_bytes > bound(each, outside)]
    margin = statistics.fmean(each.margin_bytes / (each.reserved_bytes + outside[each.row.loads]) for each in ran)
    lines += [
        "",
        f"Within 2 MiB: {within} of {len(ran)}.",
        f"Measured peak above our bound: {len(missed)} of {len(ran)}, with a mean margin of {margin:.1%}.",
    ]
    return lines


def bound(result: Result, outside: Mapping[str, int]) -> int:
    """What a policy would find free for this row, context as fitted."""
    return result.reserved_bytes + outside[result.row.loads] + result.margin_bytes


def failure_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """Wrong calls of out-of-memory, and runs that fail under a cap at the estimate, as xMem counts them.

    A second run is capped at the estimate, rounded to 1 % of the card, if both runs and the estimator agree that the
    job fits. Nothing was run here: one fails if its measured peak is above the cap. A capped allocator can squeeze a
    job a little, so this counts some failures that would not be.
    """
    wrong = [each.row.title for each in scored if each.oom != each.row.measured_oom]
    fits = [each for each in scored if not each.oom and not each.row.measured_oom]
    lines = [f"Wrong OOM calls: {len(wrong)} of {len(scored)}" + (f" ({'; '.join(wrong)})." if wrong else ".")]
    for title, with_margin in (("estimate", 0), ("bound", 1)):
        failed = 0
        for each in fits:
            known = profile(each.row.gpu)
            total = known.torch_total_bytes or known.memory_total_bytes
            kernels = outside[each.row.loads]
            asked = each.reserved_bytes + kernels + with_margin * each.margin_bytes
            cap = round(min(asked / total, 1.0), 2) * total
            failed += cap < each.row.measured_bytes - kernels
        share = (failed + len(wrong)) / len(scored)
        lines.append(f"PEF, second run capped at the {title}: {share:.1%} ({failed} runs above their cap).")
    return lines


def worst_lines(scored: Sequence[Result], outside: Mapping[str, int]) -> list[str]:
    """The largest errors, one by one."""
    ran = [each for each in scored if not each.row.measured_oom]

    def error(each: Result) -> float:
        return signed_error(each.reserved_bytes + outside[each.row.loads], each.row.measured_bytes)

    lines = ["| largest errors | measured MiB | estimated MiB | error |", "| --- | ---: | ---: | ---: |"]
    for each in sorted(ran, key=lambda one: -abs(error(one)))[:WORST]:
        told = (each.reserved_bytes + outside[each.row.loads]) / MiB
        lines.append(f"| {each.row.title} | {each.row.measured_bytes / MiB:.0f} | {told:.0f} | {error(each):+.1%} |")
    return lines


def constants(group: Group, fitted: Sequence[Result], scored: Sequence[Result]) -> dict[str, int]:
    """What the figures of `group` hold beside reserved bytes, by what rows load; every row has one."""
    known = outside_of(fitted) if group.outside_bytes is None else {"": group.outside_bytes}
    usual = statistics.median_low(known.values())
    return {**{each.row.loads: usual for each in scored}, **known}


def report_lines(group: Group, results: Sequence[Result], left_out: Counter[str], fitted_rows: int) -> list[str]:
    """All that is told of a set."""
    fitted, scored = split(results, fitted_rows if group.outside_bytes is None else None)
    outside = constants(group, fitted, scored)
    told = ", ".join(f"{size / MiB:.0f} MiB{f' with {loads}' if loads else ''}" for loads, size in outside.items())
    if fitted:
        spread = [(each.row.measured_bytes - each.reserved_bytes) / MiB for each in fitted]
        told += f", by {len(fitted)} rows ({min(spread):.0f} to {max(spread):.0f})"
    lines = [f"Measured: {group.measures}. Beside reserved bytes: {told}."]
    if left_out:
        lines.append("Left out: " + ", ".join(f"{count} {why}" for why, count in left_out.most_common()) + ".")
    lines += ["", *score_lines(scored, outside)]
    if any(each.row.measured_oom for each in scored):
        lines += failure_lines(scored, outside)
    times = [each.elapsed_s for each in results]
    lines += [
        f"Seconds a row (warm, forked): median {statistics.median(times):.2f}, P95 {percentile(times, 0.95):.2f}.",
        "",
        *worst_lines(scored, outside),
    ]
    doubts = Counter(each.row.doubt for each in scored if each.row.doubt)
    lines += [f"\nCounted though doubtful: {count} readings {why}." for why, count in doubts.most_common()]
    failed = Counter(each.problem for each in results if each.problem is not None)
    lines += [f"\nNo estimate for {count}: {why}" for why, count in failed.most_common()]
    return lines


# -- the program --------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=[*GROUPS], required=True, dest="group")
    parser.add_argument("--rows", type=int, help="rows to score; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="rows whose title holds this text")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps to trace")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows")
    parser.add_argument("--write", action="store_true", help="keep the result in benchmarks/results")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--traces", type=Path, help="folder to keep traces in")
    parser.add_argument("--pythonpath", default="", help="folders that the jobs import from first")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dump", type=Path, help="file for every row's numbers, as JSON lines")
    args = parser.parse_args()

    group = GROUPS[args.group]
    if not (args.data / group.file).is_file():
        print(f"skipped: no published measurements at `{args.data / group.file}`; say --data FOLDER")
        return 0
    rows, left_out = read(group, args.data)
    rows = [each for each in rows if args.only in each.title]
    fitted_rows = QUICK_FITTED_ROWS if args.quick else FITTED_ROWS
    wanted = QUICK_ROWS if args.quick else args.rows
    count = wanted + fitted_rows if wanted is not None and group.outside_bytes is None else wanted
    rows = sample(rows, count, args.seed)
    if args.traces:
        args.traces.mkdir(parents=True, exist_ok=True)
    options = Options(steps=args.steps, traces=args.traces)
    results = []
    folders = [each for each in args.pythonpath.split(os.pathsep) if each]
    for number, each in enumerate(estimate_rows(rows, options, group.imports, folders, args.workers), start=1):
        told = each.problem or f"{each.elapsed_s:.1f} s"
        print(f"[{number}/{len(rows)}] {each.row.title}: {told}", file=sys.stderr, flush=True)
        results.append(each)
    report = "\n".join(report_lines(group, results, left_out, fitted_rows))
    print(report)
    if args.dump:
        fitted, scored = split(results, fitted_rows if group.outside_bytes is None else None)
        outside = constants(group, fitted, results)
        lines = [json.dumps(as_json(each, outside[each.row.loads])) for each in scored]
        args.dump.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if args.write:
        write(group, report, args)
    return 0


def as_json(result: Result, outside_bytes: int) -> dict[str, object]:
    """A row's numbers; `outside_bytes`: what the set counts beside reserved bytes."""
    row = result.row
    return {
        "title": row.title,
        "args": row.args,
        "gpu": row.gpu,
        "measured_bytes": row.measured_bytes,
        "measured_oom": row.measured_oom,
        "reserved_bytes": result.reserved_bytes,
        "allocated_bytes": result.allocated_bytes,
        "outside_bytes": outside_bytes,
        "margin_bytes": result.margin_bytes,
        "parameter_bytes": result.parameter_bytes,
        "family": result.family,
        "oom": result.oom,
        "problem": result.problem,
    }


def write(group: Group, report: str, args: argparse.Namespace) -> None:
    """Keep the report, with what is needed to repeat it."""
    from estimates import commit, version

    today = datetime.datetime.now(tz=datetime.timezone.utc).date()
    path = ROOT / "benchmarks" / "results" / f"ground_truth_{group.name}_no-gpu_{today}.md"
    options = [f"--rows {args.rows}"] if args.rows is not None else []
    options += [
        f"--seed {args.seed}",
        *(["--quick"] if args.quick else []),
        *(["--pythonpath FOLDER"] if args.pythonpath else []),
    ]
    libraries = ("torch", "torchvision", "timm", "transformers")
    head = [
        f"# Estimates against `{group.file}`, {today}",
        "",
        f"Commit {commit()}; {'; '.join(f'{name} {version(name)}' for name in libraries)}; no GPU.",
        f"Repeat with `python benchmarks/ground_truth.py --set {group.name} {' '.join(options)}`.",
        *(["Jobs imported from FOLDER first: transformers there is not the version above."] if args.pythonpath else []),
        *(["Some traces were kept from a run of another commit; seconds count those as read."] if args.traces else []),
        "",
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join([*head, report]) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
