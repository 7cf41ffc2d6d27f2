"""Compares estimates with PyTorch's CUDA build on a null GPU, allocation by allocation.

    python -m benchmarks.estimator.oracle --python VENV/bin/python [--select GLOB ...] [--first N] [--forks] [--write]

VENV has a CUDA build of torch 2.8 or newer, torchvision, timm, transformers, accelerate and lightning. Each job of
`oracle_jobs.py` runs for three optimizer steps on both sides in the same environment, so that the estimate queries the
same cuDNN. One job runs at a time. What the null GPU counted and the row of each job are files below `--folder` as soon
as they are known. A second run continues: it judges the jobs that were not judged with the same files of
`src/cotenant`, the same script and the same libraries, and takes the null GPU's side from its files. `--forks` runs
both sides in forks of processes with the libraries loaded, in a third of the time.

The page has all rows that were judged with these files of `src/cotenant`, with a section for each other environment
that was given as `--python`: reserved bytes and their difference, the share of PyTorch's allocations that the estimate
has in the same order, and the first difference with the place on both sides. Sizes are compared as blocks, rounded up
to 512 bytes. The estimate is replayed up to the last request of the null GPU, or what stands in its place where
requests differ: it goes on to the end of an epoch and to validation, the null GPU ends the script at the third step.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import fnmatch
import hashlib
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.estimator.oracle_forks import NullGpuForks
from benchmarks.estimator.oracle_jobs import OracleJob, all_jobs
from benchmarks.estimator.oracle_report import Comparison, Rows, page_lines, source_digest
from cotenant.core.errors import CotenantError
from cotenant.core.ports import EstimateRequest
from cotenant.estimators.trace_cache import TraceCache
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
from cotenant.osutil.procfs import session_usage
from cotenant.tracing.process.forkserver_client import ForkServerClient

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path.home() / ".cache" / "cotenant" / "null-gpu"
STEPS = 3
KNOWN_VALUES = "cotenant.tracing.cuda_build.known_tensors:install"
"""Gives the null GPU's side the values of masks and constants: libraries ask them before they make what is trained."""
KNOWN_VALUES_FILE = ROOT / "src/cotenant/tracing/cuda_build/known_tensors.py"
MAX_COMPARED = 40_000
"""Allocations compared in order; the quadratic comparison of more takes minutes."""


class NullGpuSide:
    """What the null GPU counted, from a file where it was counted before."""

    def __init__(self, libraries: NullGpuLibraries, folder: Path, *, forks: bool = False) -> None:
        self._libraries, self._folder = libraries, folder
        self._forks = NullGpuForks(libraries, environment()) if forks else None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def pids(self) -> tuple[int, ...]:
        """The process that forks, if there is one."""
        return () if self._forks is None or self._forks.pid is None else (self._forks.pid,)

    def key_of(self, job: OracleJob) -> str:
        """Digest of what decides a history: the job, its script, the null GPU, and the wheels."""
        digest = hashlib.sha256(f"{job.name} {self._libraries.preload[0].parent.name}".encode())
        for path in (*scripts_of(ROOT / job.script), KNOWN_VALUES_FILE):
            digest.update(path.read_bytes())
        return digest.hexdigest()[:16]

    def run(self, job: OracleJob) -> tuple[RequestHistory, dict[str, Any]]:
        """The history, and the peaks and the torch version as a dict; a script that raised has an `error`."""
        path = self._folder / f"{self.key_of(job)}.json.gz"
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
            return self._forks.run(
                job.gpu, command, steps=STEPS, env=environment(job), workdir=ROOT, total_bytes=total,
                prelude=KNOWN_VALUES,
            )  # fmt: skip
        return run_script(
            self._libraries, spec, command, steps=STEPS, record=True, workdir=ROOT, env=environment(job),
            total_bytes=total, prelude=KNOWN_VALUES,
        )  # fmt: skip


def scripts_of(script: Path) -> list[Path]:
    """The script, and those beside it that it imports, or that they do."""
    found = [script]
    for path in found:  # which grows
        names = re.findall(r"^\s*(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
        beside = [path.with_name(f"{name}.py") for name in names]
        found += [other for other in beside if other.exists() and other not in found]
    return found


class EstimateSide:
    """Estimates in the environment of `python`; `forks`: one fork server for each setting of the allocator.

    Traces are kept in `folder`: that of a job under other settings of the allocator is the same.
    """

    def __init__(self, python: str, folder: Path, *, forks: bool = False) -> None:
        self._python, self._forks, self._cache = python, forks, TraceCache(folder)
        self._servers: dict[str, ForkServerClient] = {}

    def run(self, job: OracleJob) -> TracedResult:
        server = None
        if self._forks:
            server = self._servers.setdefault(repr(sorted(job.env.items())), ForkServerClient())
        request = EstimateRequest(
            command=(str(ROOT / job.script), *job.arguments), workdir=str(ROOT), env=environment(job), gpu=job.gpu,
            timeout_s=600,
        )  # fmt: skip
        return TracedEstimator(steps=STEPS, python=self._python, forkserver=server, cache=self._cache).explain(request)

    @property
    def pids(self) -> tuple[int, ...]:
        """The fork servers."""
        return tuple(server.pid for server in self._servers.values() if server.pid is not None)

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
            return Comparison(job.name, job.kind, f"null GPU: {' '.join(str(about['error']).split())[:200]}")
        ours = estimates.run(job)
    except CotenantError as error:
        return Comparison(job.name, job.kind, " ".join(str(error).split())[-200:])
    whole = ours.traced_input
    events = [event for event in whole.events if event.action == "alloc" and event.bytes > 0]
    sizes = null.allocations[:MAX_COMPARED]
    # The estimate continues to the end of the last step and to the code after training.
    events = events[: len(sizes) + 500]
    equal, first, end = matching([rounded(size) for size in sizes], [rounded(event.bytes) for event in events])
    if end < len(events):  # the null GPU ends the script behind the last one
        whole = replace(whole, events=whole.events[: whole.events.index(events[end])])
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
    )


def rounded(size: int) -> int:
    """The block that the caching allocator makes for `size` bytes (c10, `round_size`, without divisions)."""
    return max(512, -(-size // 512) * 512)


class Matching(NamedTuple):
    """How two sequences of sizes agree.

    Attributes:
        equal: sizes of the wanted sequence that the found one has in the same order.
        first: where both first differ, as an index in each.
        end: number of found sizes up to the last wanted one, or to what stands in its place.
    """

    equal: int
    first: tuple[int, int] | None
    end: int


def matching(wanted: Sequence[int], found: Sequence[int]) -> Matching:
    """Compare the sequences; `found` may continue behind the last of the `wanted` sizes."""
    start = next((at for at, pair in enumerate(zip(wanted, found, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        start = min(len(wanted), len(found))
        return Matching(start, None if start == len(wanted) else (start, start), start)
    rest = difflib.SequenceMatcher(None, wanted[start:], found[start:], autojunk=False).get_matching_blocks()
    last = next((block for block in reversed(rest) if block.size), difflib.Match(0, 0, 0))
    end = start + last.b + len(wanted) - start - last.a
    return Matching(start + sum(block.size for block in rest), (start, start), min(len(found), end))


def difference_text(null: RequestHistory, events: Sequence[Any], here: int, there: int) -> str:
    """The sizes that differ, with the stack of the null GPU's and the phase, module and category of ours."""
    wanted = f"null GPU: {null.allocations[here]:,} in {null.place(here) or 'C++'}"
    if there >= len(events):
        return f"{here}: {wanted}; estimate: none"
    event = events[there]
    ours = f"{event.bytes:,} in {event.phase}, {event.module or 'no module'}, {event.category}"
    return f"{here}: {wanted}; estimate: {ours}"


def chosen_jobs(select: Sequence[str]) -> list[OracleJob]:
    """Jobs whose name matches a pattern, those of the first pattern first; all without a pattern."""
    jobs = all_jobs()
    chosen: dict[str, OracleJob] = {}
    for pattern in select or ["*"]:
        chosen |= {job.name: job for job in jobs if fnmatch.fnmatchcase(job.name, pattern)}
    return list(chosen.values())


class CpuClock:
    """CPU seconds of this process, its ended children, and the sessions that `pids` lead."""

    def __init__(self) -> None:
        self._before_s: dict[int, float] = {}

    def since_last_s(self, pids: Iterable[int]) -> float:
        """Seconds since the last call; a process that was not known then counts from its start."""
        own = os.times()
        now_s = {0: own.user + own.system + own.children_user + own.children_system}
        now_s |= {pid: session_usage(pid).cpu_s for pid in pids}
        # A server that ended was waited for: its time is among our children's, and was counted in part before.
        ended_s = sum(cpu_s for pid, cpu_s in self._before_s.items() if pid not in now_s)
        found_s = sum(cpu_s - self._before_s.get(pid, 0.0) for pid, cpu_s in now_s.items()) - ended_s
        self._before_s = now_s
        return found_s


def libraries_of(python: str | None) -> NullGpuLibraries | None:
    """The null GPU for a Python with a CUDA build of torch; None, with a message, where none is given."""
    if python is None:
        print("needs --python: a Python with a CUDA build of torch; nothing compared")
        return None
    return build_libraries(find_wheels(python), CACHE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python with a CUDA build of torch 2.8 or newer")
    parser.add_argument("--select", action="append", help="jobs whose name matches; may be repeated (default: all)")
    parser.add_argument("--first", type=int, help="at most so many of them")
    parser.add_argument("--folder", type=Path, default=CACHE / "oracle", help="of the files (default: %(default)s)")
    parser.add_argument("--forks", action="store_true", help="run both sides in forks")
    parser.add_argument("--until", type=float, help="start no job after so many seconds")
    parser.add_argument("--quick", action="store_true", help="one perceptron")
    parser.add_argument("--page", default="oracle", help="name of the result page (default: %(default)s)")
    add_write_option(parser)
    args = parser.parse_args()
    libraries = libraries_of(args.python)
    if libraries is None:
        return 0
    patterns = ["examples/mlp.py on A100-40GB"] if args.quick else args.select or []
    jobs = chosen_jobs(patterns)[: args.first]
    rows = Rows(args.folder, source_digest(ROOT))
    stack = ""
    with (
        contextlib.closing(NullGpuSide(libraries, args.folder, forks=args.forks)) as null_side,
        contextlib.closing(EstimateSide(args.python, args.folder / "traces", forks=args.forks)) as estimates,
    ):
        stack = f"torch {torch_version(args.python)}, cuDNN {'.'.join(map(str, libraries.wheels.cudnn))}"
        judge(jobs, null_side, estimates, rows, stack=stack, until_s=args.until)
    lines = page_lines(rows.all(), all_jobs(), main_stack=stack)
    print("\n".join(lines))
    if args.write:
        head = f"Commit {commit()}; {stack}, Python {platform.python_version()}; no GPU."
        option = "" if args.page == "oracle" else f" --page {args.page}"
        repeat = (
            f"Repeat with `python -m benchmarks.estimator.oracle --python VENV/bin/python --forks --write{option}`."
        )
        title = f"# Estimates beside a null GPU, {today()}"
        write_result(args.page, "\n".join([title, "", head, repeat, "", *lines]))
    return 0


def judge(
    jobs: Sequence[OracleJob],
    null_side: NullGpuSide,
    estimates: EstimateSide,
    rows: Rows,
    *,
    stack: str,
    until_s: float | None,
) -> None:
    """Compare the jobs that have no row, one after the other; none is begun after `until_s` seconds."""
    began_s, clock, made_at = time.monotonic(), CpuClock(), commit()
    clock.since_last_s(())
    for job in jobs:
        key = null_side.key_of(job)
        if rows.get(key) is not None:
            continue
        started_s = time.monotonic()
        if until_s is not None and started_s - began_s > until_s:
            break
        row = compare(null_side, estimates, job)
        cpu_s = clock.since_last_s((*null_side.pids, *estimates.pids))
        rows.add(key, replace(row, commit=made_at, stack=stack, cpu_s=round(cpu_s, 1)))
        outcome = f"{row.error:+.2%}, {row.equal_allocations} of {row.null_allocations} allocations"
        times = f"{time.monotonic() - started_s:.1f} s, {cpu_s:.1f} s of CPU"
        print(f"{times}, {job.name}: {row.problem or outcome}", flush=True)


def torch_version(python: str) -> str:
    """Of the environment of `python`, with the name of the build."""
    found = [python, "-c", "import torch; print(torch.__version__)"]
    return subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
