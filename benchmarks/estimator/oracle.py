"""Compares estimates with PyTorch's CUDA build on a null GPU, allocation by allocation.

    python -m benchmarks.estimator.oracle --python VENV/bin/python [--select GLOB ...] [--page PAGE ...] [--first N]
        [--again] [--forks] [--write]

VENV has a CUDA build of torch 2.8 or newer, torchvision, timm and transformers. Each job of `oracle_jobs.py` runs for
three optimizer steps on both sides in the same environment, so that the estimate queries the same cuDNN. One job runs
at a time. What the null GPU counted and each row of the table are files below `--folder` as soon as they are known, and
a second run continues: `--again` makes the estimates anew and takes the null GPU's side from the files. `--page` takes
the jobs of an earlier result page, and says how many of them it lacks. `--forks` runs both sides in forks of processes
with the libraries loaded, in a third of the time.

The table has reserved bytes and their difference, the share of PyTorch's allocations that the estimate has in the same
order, and the first difference with the place on both sides. Sizes are compared as blocks, rounded up to 512 bytes.
Where all requests agree the estimate is replayed up to the last one: it goes on to the end of an epoch, the null GPU
ends the script at the third step.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fnmatch
import hashlib
import json
import os
import platform
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.estimator.oracle_forks import NullGpuForks
from benchmarks.estimator.oracle_jobs import OracleJob, all_jobs
from cotenant.core.errors import CotenantError
from cotenant.core.ports import EstimateRequest
from cotenant.core.units import format_bytes
from cotenant.estimators.traced import TracedEstimator
from cotenant.estimators.traced_result import TracedResult
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import (
    NullGpuLibraries,
    RequestHistory,
    TrainingRun,
    build_libraries,
    find_wheels,
    read_history,
    run_script,
    write_history,
)
from cotenant.tracing.process.forkserver_client import ForkServerClient

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache" / "cotenant" / "null-gpu"
STEPS = 3
NEAR, FAR = 0.005, 0.02
KNOWN_CAUSES = {
    "_expand_mask": "the null GPU reads a mask of ones as zeros, and the library keeps it",
    "sdpa_mask": "the null GPU reads a mask of ones as zeros, and the library keeps it",
    "forward, no module, input": "the estimate's last step has the last batch of an epoch, the null GPU's has not",
}
"""Causes of first differences, by a part of their text."""
MAX_COMPARED = 40_000
"""Allocations compared in order; the quadratic comparison of more takes minutes."""


@dataclass(frozen=True)
class Comparison:
    """One job, on both sides; sizes in bytes."""

    name: str
    kind: str
    problem: str = ""
    not_judged: str = ""
    null_reserved_bytes: int = 0
    reserved_bytes: int = 0
    null_allocated_bytes: int = 0
    allocated_bytes: int = 0
    null_allocations: int = 0
    equal_allocations: int = 0
    first_difference: str = ""
    commit: str = ""
    torch: str = ""

    @property
    def error(self) -> float:
        """Relative error of the reserved bytes; positive if the estimate is too high."""
        return (self.reserved_bytes - self.null_reserved_bytes) / max(1, self.null_reserved_bytes)


class NullGpuSide:
    """What the null GPU counted, from a file where it was counted before."""

    def __init__(self, libraries: NullGpuLibraries, folder: Path, *, forks: bool = False) -> None:
        self._libraries, self._folder = libraries, folder
        self._forks = NullGpuForks(libraries, environment()) if forks else None
        folder.mkdir(parents=True, exist_ok=True)

    def path_of(self, job: OracleJob) -> Path:
        wheels = self._libraries.wheels
        key = f"{job.name} {wheels.cuda_major} {wheels.cudnn} {(ROOT / job.script).read_text()}"
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json.gz"

    def run(self, job: OracleJob) -> tuple[RequestHistory, dict[str, Any]]:
        """The history, and the peaks and the torch version as a dict; a script that raised has an `error`."""
        path = self.path_of(job)
        if not path.exists():
            found = self._counted(job)
            about = {
                "job": job.name, "command": job.command, "gpu": job.gpu, "env": dict(job.env), "torch": found.torch,
                "cudnn": list(self._libraries.wheels.cudnn), "steps": found.steps, "ended": found.ended,
                "error": found.error, "peak_allocated_bytes": found.peak_allocated_bytes,
                "peak_reserved_bytes": found.peak_reserved_bytes, "free_bytes": job.free_bytes,
                "forked": self._forks is not None,
            }  # fmt: skip
            write_history(path, found.history, about, with_places=True)
        return read_history(path)

    def close(self) -> None:
        """End the process that forks."""
        if self._forks is not None:
            self._forks.close()

    def _counted(self, job: OracleJob) -> TrainingRun:
        spec, command = gpu_spec(job.gpu), [str(ROOT / job.script), *job.arguments]
        total = None if job.free_bytes is None else job.free_bytes + spec.context.typical_bytes
        if self._forks is not None:
            return self._forks.run(job.gpu, command, steps=STEPS, env=environment(job), workdir=ROOT, total_bytes=total)
        return run_script(
            self._libraries, spec, command, steps=STEPS, record=True, workdir=ROOT, env=environment(job),
            total_bytes=total,
        )  # fmt: skip


class EstimateSide:
    """Estimates in the environment of `python`; `forks`: one fork server for each setting of the allocator."""

    def __init__(self, python: str, *, forks: bool = False) -> None:
        self._python, self._forks = python, forks
        self._servers: dict[str, ForkServerClient] = {}

    def run(self, job: OracleJob) -> TracedResult:
        server = None
        if self._forks:
            server = self._servers.setdefault(repr(sorted(job.env.items())), ForkServerClient())
        request = EstimateRequest(
            command=(str(ROOT / job.script), *job.arguments), workdir=str(ROOT), env=environment(job), gpu=job.gpu,
            timeout_s=600,
        )  # fmt: skip
        return TracedEstimator(steps=STEPS, python=self._python, forkserver=server).explain(request)

    def close(self) -> None:
        """End the fork servers."""
        for server in self._servers.values():
            server.close()


def environment(job: OracleJob | None = None) -> dict[str, str]:
    """The scripts of the generators import this package, which the environment need not have."""
    own = {} if job is None else job.env
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", **own}


def compare(null_side: NullGpuSide, estimates: EstimateSide, job: OracleJob) -> Comparison:
    """Both sides of a job; what stopped either of them is the `problem`."""
    try:
        null, about = null_side.run(job)
        if about["ended"] == "raised":
            return Comparison(job.name, job.kind, f"null GPU: {' '.join(str(about['error']).split())[-200:]}")
        ours = estimates.run(job)
    except CotenantError as error:
        return Comparison(job.name, job.kind, " ".join(str(error).split())[-200:])
    events = [event for event in ours.replay_input.events if event.action == "alloc" and event.bytes > 0]
    sizes = null.allocations[:MAX_COMPARED]
    # The estimate continues to the end of the last step and to the code after training.
    events = events[: len(sizes) + 500]
    equal, first = matching([rounded(size) for size in sizes], [rounded(event.bytes) for event in events])
    whole = ours.replay_input
    if first is None and len(events) > len(sizes):  # the null GPU ends the script behind the last one
        whole = replace(whole, events=whole.events[: whole.events.index(events[len(sizes)])])
    replay = whole.replay(job.free_bytes)
    return Comparison(
        job.name,
        job.kind,
        not_judged=job.not_judged,
        null_reserved_bytes=about["peak_reserved_bytes"],
        reserved_bytes=replay.peak_reserved_bytes,
        null_allocated_bytes=about["peak_allocated_bytes"],
        allocated_bytes=replay.peak_allocated_bytes,
        null_allocations=len(sizes),
        equal_allocations=equal,
        first_difference="" if first is None else difference_text(null, events, *first),
        commit=commit(),
        torch=str(about["torch"]),
    )


def rounded(size: int) -> int:
    """The block that the caching allocator makes for `size` bytes (c10, `round_size`, without divisions)."""
    return max(512, -(-size // 512) * 512)


def matching(wanted: Sequence[int], found: Sequence[int]) -> tuple[int, tuple[int, int] | None]:
    """Number of `wanted` sizes found in the same order, and where both first differ, as an index in each."""
    start = next((at for at, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        start = min(len(wanted), len(found))
        return start, None if start == len(wanted) else (start, start)
    rest = difflib.SequenceMatcher(None, wanted[start:], found[start:], autojunk=False)
    return start + sum(block.size for block in rest.get_matching_blocks()), (start, start)


def difference_text(null: RequestHistory, events: Sequence[Any], here: int, there: int) -> str:
    """The sizes that differ, with the stack of the null GPU's and the phase, module and category of ours."""
    wanted = f"null GPU: {null.allocations[here]:,} in {null.place(here) or 'C++'}"
    if there >= len(events):
        return f"{here}: {wanted}; estimate: none"
    event = events[there]
    ours = f"{event.bytes:,} in {event.phase}, {event.module or 'no module'}, {event.category}"
    return f"{here}: {wanted}; estimate: {ours}"


def report_lines(rows: Sequence[Comparison]) -> Iterator[str]:
    yield "| job | null | estimate | error | allocations | equal | first difference (bytes) |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    for row in rows:
        if row.problem:
            yield f"| `{row.name}` | - | - | - | - | - | {row.problem} |"
            continue
        sizes = f"{format_bytes(row.null_reserved_bytes)} | {format_bytes(row.reserved_bytes)} | {row.error:+.2%}"
        counts = f"{row.null_allocations:,} | {row.equal_allocations / max(1, row.null_allocations):.1%}"
        yield f"| `{row.name}` | {sizes} | {counts} | {cause_of(row)} |"
    yield from summary_lines(rows)


def cause_of(row: Comparison) -> str:
    """Why a row differs: a known cause, or the first difference."""
    if row.not_judged:
        return f"not judged: {row.not_judged}"
    known = next((cause for place, cause in KNOWN_CAUSES.items() if place in row.first_difference), "")
    return known or row.first_difference


def summary_lines(rows: Sequence[Comparison]) -> Iterator[str]:
    """Counts for each kind of job; rows that the null GPU cannot judge are left out, and counted."""
    answered = [row for row in rows if not row.problem and not row.not_judged]
    yield ""
    yield "| kind | jobs | equal reserved bytes | within 0.5 % | above 2 % | equal allocations |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for kind in (*sorted({row.kind for row in answered}), "all"):
        of_kind = [row for row in answered if kind in (row.kind, "all")]
        equal = sum(row.null_reserved_bytes == row.reserved_bytes for row in of_kind)
        near, far = sum(abs(row.error) <= NEAR for row in of_kind), sum(abs(row.error) > FAR for row in of_kind)
        alike = sum(row.equal_allocations for row in of_kind) / max(1, sum(row.null_allocations for row in of_kind))
        yield f"| {kind} | {len(of_kind)} | {equal} | {near} | {far} | {alike:.2%} |"
    yield ""
    problems, others = sum(bool(row.problem) for row in rows), sum(bool(row.not_judged) for row in rows)
    yield f"Not counted: {problems} jobs that either side could not run, {others} that the null GPU cannot judge."


def commits_of(rows: Sequence[Comparison]) -> str:
    """How many estimates were made at which commit, the latest rows' first."""
    counts = Counter(row.commit or "an earlier one" for row in reversed(rows) if not row.problem)
    return "Estimates by commit: " + ", ".join(f"{number} of {name}" for name, number in counts.items()) + "."


def jobs_of_page(path: Path) -> list[str]:
    """Names of the jobs in the table of a result page, in order."""
    return re.findall(r"^\| `(.+?)` \|", path.read_text(), re.MULTILINE)


def chosen_jobs(select: Sequence[str], pages: Sequence[Path]) -> tuple[list[OracleJob], int]:
    """Jobs whose name matches a pattern or is on a page, in their order; how many of the pages' exist no longer."""
    jobs = all_jobs()
    named = {name for page in pages for name in jobs_of_page(page)}
    patterns = select or ([] if pages else ["*"])
    chosen = [
        job for job in jobs if job.name in named or any(fnmatch.fnmatchcase(job.name, pattern) for pattern in patterns)
    ]
    return chosen, len(named - {job.name for job in jobs})


class Rows:
    """Rows on disk, one JSON line each, appended as they are known; the last line of a job counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.found = {row["name"]: Comparison(**row) for row in map(json.loads, lines)}

    def add(self, row: Comparison) -> None:
        self.found[row.name] = row
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python with a CUDA build of torch 2.8 or newer")
    parser.add_argument("--select", action="append", help="jobs whose name matches; may be repeated (default: all)")
    parser.add_argument("--page", action="append", type=Path, help="jobs of an earlier page; may be repeated")
    parser.add_argument("--first", type=int, help="at most so many of them")
    parser.add_argument("--folder", type=Path, default=CACHE / "oracle", help="of the files (default: %(default)s)")
    parser.add_argument("--again", action="store_true", help="make estimates anew; the null GPU's side is kept")
    parser.add_argument("--forks", action="store_true", help="run both sides in forks")
    parser.add_argument("--until", type=float, help="start no job after so many seconds")
    parser.add_argument("--quick", action="store_true", help="one perceptron")
    add_write_option(parser)
    args = parser.parse_args()
    if not args.python:
        print("needs --python: a Python with a CUDA build of torch; nothing compared")
        return 0
    libraries = build_libraries(find_wheels(args.python), CACHE)
    patterns = ["examples/mlp.py on A100-40GB"] if args.quick else args.select or []
    chosen, unknown = chosen_jobs(patterns, args.page or [])
    chosen = chosen[: args.first]
    rows = Rows(args.folder / "rows.jsonl")
    missing = [job for job in chosen if args.again or job.name not in rows.found]
    with (
        contextlib.closing(NullGpuSide(libraries, args.folder, forks=args.forks)) as null_side,
        contextlib.closing(EstimateSide(args.python, forks=args.forks)) as estimates,
    ):
        judge(missing, null_side, estimates, rows, until_s=args.until)
    found = [(job, rows.found[job.name]) for job in chosen if job.name in rows.found]
    lines = list(report_lines([replace(row, not_judged=job.not_judged) for job, row in found]))
    print("\n".join(lines))
    if args.write:
        cudnn = ".".join(map(str, libraries.wheels.cudnn))
        torch = ", ".join(sorted({row.torch for _, row in found if row.torch}))
        versions = f"torch {torch}, cuDNN {cudnn}, Python {platform.python_version()}"
        head = f"Commit {commit()}; {versions}; no GPU. {commits_of([row for _, row in found])}"
        repeat = "Repeat with `python -m benchmarks.estimator.oracle --python VENV/bin/python --write`."
        if args.page:
            absent = len(chosen) - len(found) + unknown
            repeat += f" Jobs of earlier pages that were not judged again: {absent}."
        write_result("oracle", "\n".join([f"# Estimates beside a null GPU, {today()}", "", head, repeat, "", *lines]))
    return 0


def judge(
    jobs: Sequence[OracleJob], null_side: NullGpuSide, estimates: EstimateSide, rows: Rows, *, until_s: float | None
) -> None:
    """Compare the jobs one after the other; none is begun after `until_s` seconds."""
    began_s = time.monotonic()
    for job in jobs:
        started_s = time.monotonic()
        if until_s is not None and started_s - began_s > until_s:
            break
        row = compare(null_side, estimates, job)
        rows.add(row)
        outcome = f"{row.error:+.2%}, {row.equal_allocations} of {row.null_allocations} allocations"
        print(f"{time.monotonic() - started_s:.1f} s, {job.name}: {row.problem or outcome}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
