"""Copies histories of the null GPU into the repository, where a test holds the tracer to them on a CPU build.

    python -m benchmarks.estimator.oracle_goldens [--folder FOLDER] [--select GLOB ...] [--limit-kib N]

`oracle.py` made the histories. Taken are those that the estimate of this environment agrees with, allocation by
allocation; what differs is printed, to be looked into. Jobs with convolutions mostly differ on a CPU build, which has
no cuDNN to query for their workspaces. The test compares only where torch and the job's libraries have the versions of
the golden.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from benchmarks.estimator.oracle import CACHE, ROOT, STEPS, environment, matching, rounded
from benchmarks.estimator.oracle_jobs import OracleJob, all_jobs
from cotenant.core.errors import CotenantError
from cotenant.estimators.api import explain
from cotenant.nullgpu import RequestHistory, read_history, write_history

GOLDENS = ROOT / "tests" / "golden" / "null_gpu"
LIBRARIES = ("accelerate", "timm", "torchvision", "transformers")


def recorded(folder: Path) -> Iterator[tuple[RequestHistory, dict[str, object], OracleJob]]:
    """Histories in `folder` of jobs that ran to the end and whose sizes do not depend on data."""
    jobs = {job.name: job for job in all_jobs()}
    for path in sorted(folder.glob("*.json.gz")):
        history, about = read_history(path)
        job = jobs.get(str(about["job"]))
        if job is not None and about["ended"] != "raised" and not job.data_dependent and job.free_bytes is None:
            yield history, about, job


def difference(history: RequestHistory, job: OracleJob) -> tuple[str, tuple[str, ...]]:
    """What differs from the estimate of this environment, empty if nothing, and the libraries that the job imported."""
    try:
        ours = explain(
            ROOT / job.script, job.arguments, gpu=job.gpu, workdir=ROOT, timeout_s=600, steps=STEPS,
            env=environment(job), cache=False,
        )  # fmt: skip
    except CotenantError as error:
        return f"not traced: {error}", ()
    sizes = [rounded(event.bytes) for event in ours.replay_input.events if event.action == "alloc" and event.bytes > 0]
    wanted = [rounded(size) for size in history.allocations]
    equal, first = matching(wanted, sizes[: len(wanted)])
    libraries = tuple(name for name in LIBRARIES if name in ours.trace.header.libraries)
    return ("" if first is None else f"{equal} of {len(wanted)} equal, the first difference at {first[0]}"), libraries


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        differs, libraries = difference(history, job)
        if not differs:
            versions = {name: metadata.version(name) for name in libraries}
            members = {name: about[name] for name in ("job", "gpu", "env", "torch", "cudnn", "peak_reserved_bytes")}
            write_history(path, history, {**members, "command": job.command, "libraries": versions})
            if path.stat().st_size > args.limit_kib << 10:
                differs = f"its file has {path.stat().st_size >> 10} KiB"
                path.unlink()
        print(f"{job.name}: {differs or 'taken'}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
