"""Copies histories of the null GPU into the repository, where a test holds the tracer to them on a CPU build.

    python -m benchmarks.estimator.oracle_goldens --python VENV/bin/python [--folder FOLDER] [--select GLOB ...]

`oracle.py` made the histories, with VENV. Taken are those that the estimate of this environment agrees with, allocation
by allocation; what differs is printed, to be looked into. A CPU build has no cuDNN to query for the workspaces of
convolutions: the golden of a job that has any says which allocations are workspaces, as the estimate with VENV knows
them, and is compared without. The test compares only where torch and the job's libraries have the versions of the
golden.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.estimator.oracle import CACHE, ROOT, STEPS, environment, matching, rounded
from benchmarks.estimator.oracle_jobs import OracleJob, all_jobs
from cotenant.core.errors import CotenantError
from cotenant.estimators.api import explain
from cotenant.estimators.traced_result import TracedResult
from cotenant.nullgpu import RequestHistory, read_history, write_history

GOLDENS = ROOT / "tests" / "golden" / "null_gpu"
LIBRARIES = ("accelerate", "timm", "torchvision", "transformers")


def recorded(folder: Path) -> Iterator[tuple[RequestHistory, dict[str, object], OracleJob]]:
    """Histories in `folder` of jobs that ran to the end and that the null GPU can judge."""
    jobs = {job.name: job for job in all_jobs()}
    for path in sorted(folder.glob("*.json.gz")):
        history, about = read_history(path)
        job = jobs.get(str(about["job"]))
        if job is not None and about["ended"] != "raised" and not job.not_judged and job.free_bytes is None:
            yield history, about, job


@dataclass(frozen=True)
class Agreement:
    """How the estimate of a job compares with its history.

    Attributes:
        differs: what differs, empty if nothing.
        libraries: those that the job imported.
        workspaces: allocations of the history, counted from 0, that are left out of the comparison.
    """

    differs: str
    libraries: tuple[str, ...] = ()
    workspaces: tuple[int, ...] = ()


def agreement(history: RequestHistory, job: OracleJob, python: str) -> Agreement:
    """The comparison with the estimate of this environment, and with that of `python` for a job with convolutions."""
    try:
        here = _estimated(job, None)
        workspaces: tuple[int, ...] = ()
        requests = _requests(here)
        if any(op.kind.startswith("conv") for op in here.trace.ops):
            there = _requests(_estimated(job, python))[: len(history.allocations)]
            if [rounded(size) for size, _ in there] != [rounded(size) for size in history.allocations]:
                return Agreement("differs in the history's environment")
            workspaces = tuple(place for place, (_, category) in enumerate(there) if category == "workspace")
            requests = [(size, category) for size, category in requests if category != "workspace"]
    except CotenantError as error:
        return Agreement(f"not traced: {error}")
    left_out = set(workspaces)
    wanted = [rounded(size) for place, size in enumerate(history.allocations) if place not in left_out]
    equal, first, _ = matching(wanted, [rounded(size) for size, _ in requests[: len(wanted)]])
    differs = "" if first is None else f"{equal} of {len(wanted)} equal, the first difference at {first[0]}"
    return Agreement(differs, tuple(name for name in LIBRARIES if name in here.trace.header.libraries), workspaces)


def _estimated(job: OracleJob, python: str | None) -> TracedResult:
    return explain(
        ROOT / job.script, job.arguments, gpu=job.gpu, python=python, workdir=ROOT, timeout_s=600, steps=STEPS,
        env=environment(job), cache=False,
    )  # fmt: skip


def _requests(ours: TracedResult) -> list[tuple[int, str]]:
    """Bytes and category of each allocation."""
    found = (event for event in ours.traced_input.events if event.action == "alloc" and event.bytes > 0)
    return [(event.bytes, event.category) for event in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="the Python whose histories these are")
    parser.add_argument("--folder", type=Path, default=CACHE / "oracle", help="of `oracle.py` (default: %(default)s)")
    parser.add_argument("--select", action="append", help="jobs whose name matches; may be repeated (default: all)")
    parser.add_argument("--limit-kib", type=int, default=80, help="skip larger files (default: %(default)s)")
    args = parser.parse_args()
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for history, about, job in recorded(args.folder):
        if not any(fnmatch.fnmatchcase(job.name, pattern) for pattern in args.select or ["*"]):
            continue
        path = GOLDENS / f"{hashlib.sha256(job.name.encode()).hexdigest()[:12]}.json.gz"
        if path.exists():
            continue
        found = agreement(history, job, args.python)
        differs = found.differs
        if not differs:
            versions = {name: metadata.version(name) for name in found.libraries}
            members = {name: about[name] for name in ("job", "gpu", "env", "torch", "cudnn", "peak_reserved_bytes")}
            members |= {"command": job.command, "libraries": versions, "workspaces": found.workspaces}
            write_history(path, history, members)
            if path.stat().st_size > args.limit_kib << 10:
                differs = f"its file has {path.stat().st_size >> 10} KiB"
                path.unlink()
        print(f"{job.name}: {differs or 'taken'}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
