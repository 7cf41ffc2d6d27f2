"""Accuracy of the traced estimator on published measurements of jobs that small scripts reproduce.

    python -m benchmarks.estimator.ground_truth --set mlp [--rows N] [--seed S] [--quick] [--write] [--traces FOLDER]

Sets: `mlp`, `cnn`, `transformer` (networks of GPUMemNet's generator), `timm` (models of timm), all by nvidia-smi on an
A100-40GB in 2024; `xmem` (torchvision networks and language models on two small cards and an A100); those of
`published_memory_rows.py`: peaks that public repositories print. The jobs are in `benchmarks/estimator/jobs`;
`ground_truth_rows.py` documents which rows are excluded, and why.

Where a set measures the whole device, one constant covers the CUDA context and the libraries: the mode or median of
measured minus reserved bytes over the first rows of the sample. These rows are not scored. CNNs with batch norm have a
constant of their own, since batch norm loads one more library. There are two baselines: 16 bytes per parameter
plus the same constant, and the mean of the scored rows.

xMem's language models were measured with transformers 4.51.3; other versions allocate differently. Install it into a
folder of its own and pass that folder:

    pip install --no-deps --target FOLDER transformers==4.51.3 'tokenizers==0.21.*' 'huggingface_hub==0.30.*'
    pip install --no-deps --target FOLDER requests urllib3 charset_normalizer idna
    python -m benchmarks.estimator.ground_truth --set xmem --pythonpath FOLDER

The models of timm were measured with 1.0.9: the table has models that 1.0.8 lacks, and none of the 34 that 1.0.10 adds.
Other versions allocate differently (1.0.31 computes Hiera's global attention in one kernel):

    pip install --no-deps --target FOLDER timm==1.0.9
    python -m benchmarks.estimator.ground_truth --set timm --pythonpath FOLDER

`--traces FOLDER` caches traces, so that a change of the estimator needs only replays; pages name the commit that made
them.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks._lib.results import add_write_option, commit, today, version, write_result
from benchmarks.estimator import ground_truth_rows
from benchmarks.estimator.ground_truth_rows import Group, Row, read
from benchmarks.estimator.ground_truth_scores import Result, constants, report_lines, split
from benchmarks.estimator.published_detection_rows import PUBLISHED_DETECTION
from benchmarks.estimator.published_finetuning_rows import PUBLISHED_FINETUNING
from benchmarks.estimator.published_memory_rows import PUBLISHED_MEMORY
from cotenant.core.errors import CotenantError
from cotenant.core.trace import MemoryTrace
from cotenant.estimators.margin import family_of
from cotenant.estimators.traced import TracedEstimator, fake_gpu_of
from cotenant.gpu_specs import gpu_spec
from cotenant.tracing.patches.libraries import load_torchvision_operators
from cotenant.tracing.process import serialization
from cotenant.tracing.process.trace_function import trace_function

GROUPS = {**ground_truth_rows.GROUPS, **PUBLISHED_MEMORY, **PUBLISHED_FINETUNING, **PUBLISHED_DETECTION}
ROOT = Path(__file__).resolve().parents[2]
JOBS = ROOT / "benchmarks" / "estimator" / "jobs"
DATA = ROOT.parent / "shared" / "data"
FITTED_ROWS = 20
QUICK_ROWS = 12
QUICK_FITTED_ROWS = 3
TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How rows are estimated.

    Attributes:
        steps: optimizer steps to trace.
        traces: folder of cached traces, or None; `commit`: of this checkout, by which new ones are filed.
    """

    steps: int
    traces: Path | None
    commit: str = "unknown"


# -- estimating ---------------------------------------------------------------------------------------------------


def preload(imports: Sequence[str], folders: Sequence[str]) -> None:
    """Import libraries once in a worker, before it forks a process per row."""
    sys.path[:0] = list(folders)

    if "torchvision" in imports:
        load_torchvision_operators()
    for name in imports:
        importlib.import_module(name)


def run_script(path: str, args: Sequence[str]) -> None:
    """Run a job script in this process without output, then exit as a script does."""
    import runpy

    sys.argv = [path, *args]
    sys.path.insert(0, str(Path(path).parent))  # as Python does for a script
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - the process ends with it
    runpy.run_path(path, run_name="__main__")
    raise SystemExit(0)


def cached_trace(row: Row, traces: Path, steps: int) -> Path | None:
    """The file of a row's trace in folder `traces`, of whatever commit; None if there is none."""
    return min(traces.glob(f"*/{_trace_name(row, steps)}"), default=None)


def _trace_name(row: Row, steps: int) -> str:
    key = json.dumps([(JOBS / row.script).read_text(), row.args, row.gpu, steps])
    return f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def recorded(row: Row, options: Options) -> tuple[MemoryTrace, str]:
    """The trace of a row's job, from the cache or new, and the commit that made it."""
    new = None
    if options.traces is not None:
        cached = cached_trace(row, options.traces, options.steps)
        if cached is not None:
            return serialization.trace_from_dict(json.loads(cached.read_text())), cached.parent.name
        new = options.traces / options.commit / _trace_name(row, options.steps)
    job = functools.partial(run_script, str(JOBS / row.script), row.args)
    trace = trace_function(job, gpu=fake_gpu_of(gpu_spec(row.gpu)), steps=options.steps, timeout_s=TIMEOUT_S)
    if new is not None:
        new.parent.mkdir(parents=True, exist_ok=True)
        serialization.save(new, serialization.trace_to_dict(trace))
    return trace, options.commit


def estimate_row(row: Row, options: Options) -> Result:
    """Estimate one row; a tracing error is returned as `problem`."""
    began_s = time.perf_counter()
    try:
        trace, traced_at = recorded(row, options)
        found = TracedEstimator(torch_version=row.torch).on(trace, gpu_spec(row.gpu))
    except CotenantError as error:
        return Result(row=row, problem=error.message, elapsed_s=time.perf_counter() - began_s)
    estimate = found.estimate
    problem = "; ".join(estimate.warnings) if estimate.partial else None
    return Result(
        row=row,
        reserved_bytes=estimate.peak_reserved_bytes,
        allocated_bytes=estimate.peak_allocated_bytes or 0,
        margin_bytes=estimate.margin_bytes,
        parameter_bytes=parameter_bytes(trace),
        unlimited_bytes=found.fit.reserved_bytes,
        spread_bytes=found.spread_bytes,
        split_bytes=found.reserved_range.split_bytes,
        retried=found.replay.retries > 0 or found.fit.verdict == "no",
        family=family_of(trace, gpu_spec(row.gpu), torch_version=row.torch),
        oom=any(warning.startswith("does not fit") for warning in estimate.warnings),
        problem=problem,
        traced_at=traced_at,
        elapsed_s=time.perf_counter() - began_s,
    )


def parameter_bytes(trace: MemoryTrace) -> int:
    """Bytes of all parameter storages; tied parameters count once."""
    return sum(event.bytes for event in trace.events if event.action == "alloc" and event.category == "parameter")


def estimate_rows(
    rows: Sequence[Row], options: Options, imports: Sequence[str], folders: Sequence[str], workers: int
) -> Iterator[Result]:
    """Results in the order of `rows`, from several workers that fork one process per row."""
    with ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=preload, initargs=(imports, folders)
    ) as pool:
        yield from pool.map(functools.partial(estimate_row, options=options), rows)


# -- the program --------------------------------------------------------------------------------------------------


def sample(rows: Sequence[Row], count: int | None, seed: int) -> list[Row]:
    """`count` rows in a random order, all of them by default."""
    shuffled = list(rows)
    random.Random(seed).shuffle(shuffled)
    return shuffled[:count]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=[*GROUPS], required=True, dest="group")
    parser.add_argument("--rows", type=int, help="rows to score (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (default: %(default)s)")
    parser.add_argument("--only", default="", help="rows whose title contains this text")
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps to trace")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROWS} rows")
    add_write_option(parser)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--traces", type=Path, help="folder of cached traces")
    parser.add_argument("--pythonpath", default="", help="folders put first on the jobs' import path")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--dump", type=Path, help="file for every row's numbers, as JSON lines")
    args = parser.parse_args()

    group = GROUPS[args.group]
    if not (args.data / group.file).is_file():
        print(f"skipped: no published measurements at `{args.data / group.file}`; set --data FOLDER")
        return 0
    folders = [part for part in args.pythonpath.split(os.pathsep) if part]
    sys.path[:0] = folders
    absent = [name for name in group.imports if importlib.util.find_spec(name.partition(".")[0]) is None]
    if absent:
        print(f"skipped: this set needs {', '.join(absent)}, which is not installed")
        return 0
    rows, left_out = read(group, args.data)
    rows = [row for row in rows if args.only in row.title]
    fitted_rows = QUICK_FITTED_ROWS if args.quick else FITTED_ROWS
    wanted = QUICK_ROWS if args.quick else args.rows
    count = wanted + fitted_rows if wanted is not None and group.outside_bytes is None else wanted
    rows = sample(rows, count, args.seed)
    options = Options(steps=args.steps, traces=args.traces, commit=commit())
    results = []
    for number, result in enumerate(estimate_rows(rows, options, group.imports, folders, args.workers), start=1):
        outcome = result.problem or f"{result.elapsed_s:.1f} s"
        print(f"[{number}/{len(rows)}] {result.row.title}: {outcome}", file=sys.stderr, flush=True)
        results.append(result)
    report = "\n".join(report_lines(group, results, left_out, fitted_rows))
    print(report)
    if args.dump:
        dump(args.dump, group, results, fitted_rows)
    if args.write:
        write(group, report, args, Counter(result.traced_at for result in results if result.traced_at))
    return 0


def dump(file: Path, group: Group, results: Sequence[Result], fitted_rows: int) -> None:
    """Write the numbers of the scored rows, a line of JSON each."""
    fitted, scored = split(results, fitted_rows if group.outside_bytes is None else None)
    outside = constants(group, fitted, results)
    lines = [json.dumps(as_json(result, outside[result.row.loads])) for result in scored]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def as_json(result: Result, outside_bytes: int) -> dict[str, object]:
    """A row's numbers; `outside_bytes`: the set's constant beside reserved bytes."""
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


def traces_line(commits: Mapping[str, int]) -> str:
    """The commits that made the traces of a page, with their numbers of rows."""
    return f"Traces are of {', '.join(f'{name} ({count} rows)' for name, count in commits.items())}."


def write(group: Group, report: str, args: argparse.Namespace, commits: Mapping[str, int]) -> None:
    """Write the report with the command, the commit and the versions; `commits`: those of the traces."""
    options = [f"--rows {args.rows}"] if args.rows is not None else []
    options += [
        f"--seed {args.seed}",
        *(["--quick"] if args.quick else []),
        *(["--pythonpath FOLDER"] if args.pythonpath else []),
    ]
    libraries = dict.fromkeys(("torch", "torchvision", "timm", "transformers", *group.packages))
    head = [
        f"# Estimates against `{group.file}`, {today()}",
        "",
        f"Commit {commit()}; {'; '.join(f'{name} {version(name)}' for name in libraries)}; no GPU.",
        f"Repeat with `python -m benchmarks.estimator.ground_truth --set {group.name} {' '.join(options)}`.",
        *(["FOLDER comes first on the import path of the jobs, and of these versions."] if args.pythonpath else []),
        *([f"{traces_line(commits)} Seconds of cached ones include only reading."] if args.traces else []),
        "",
    ]
    write_result(f"ground_truth_{group.name}", "\n".join([*head, report]))


if __name__ == "__main__":
    sys.exit(main())
