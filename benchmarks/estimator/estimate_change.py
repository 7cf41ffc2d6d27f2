"""CPU time of estimates at this checkout, beside another commit in the same run.

    python -m benchmarks.estimator.estimate_change [--before COMMIT] [--repeats N] [--quick]
    python -m benchmarks.estimator.estimate_change --checkouts ~/checkouts --python ~/env/bin/python --only karpathy

Each script is estimated by both, in alternation, `cotenant estimate --no-cache` in new processes: on a shared machine
the times of one day and of another cannot be compared. Seconds are user and system time of all processes, the median
of the repeats; `parent` is the process of the command line, the rest is the traced script and what it starts. Without
`--checkouts` the scripts are those of `examples/`; with it, recorded commands of `benchmarks/tried_scripts` whose
repository contains the word of `--only`, by the Python of `--python`. Answers are equal where bytes, breakdown and
warnings are.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from benchmarks._lib.results import commit
from benchmarks.estimator.estimate_latency import JOBS, QUICK_JOBS, ROOT

RECORDS = ROOT / "benchmarks" / "tried_scripts" / "records.json"
COMPARED = ("peak_allocated_bytes", "peak_reserved_bytes", "bound_bytes", "breakdown_bytes", "warnings", "error")
_RUN = """
import atexit, os, sys
atexit.register(lambda: print("cpu", *os.times()[:4], file=sys.stderr))
sys.path.insert(0, {source!r})
from cotenant.cli.main import run
run()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A command to estimate, in a folder; `options` of the estimate come before it."""

    name: str
    folder: Path
    options: Sequence[str]
    command: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """CPU seconds of one estimate, of all processes and of the first alone, and its answer."""

    total_s: float
    parent_s: float
    answer: dict[str, Any]


def examples(*, quick: bool) -> list[Script]:
    """The scripts of this repository."""
    jobs = QUICK_JOBS if quick else JOBS
    return [
        Script(
            name=name, folder=ROOT / "examples", options=("--python", sys.executable), command=("python", script, *args)
        )
        for name, (script, *args) in jobs.items()
    ]


def recorded(checkouts: Path, python: str, only: str) -> list[Script]:
    """The recorded commands with an answer of these repositories."""
    return [
        Script(
            name=f"{record['repository']} {record['command'][:60]}",
            folder=checkouts / record["repository"] / record["folder"],
            options=("--python", python, *shlex.split(record["options"])),
            command=shlex.split(record["command"]),
        )
        for record in json.loads(RECORDS.read_text())
        if record.get("outcome") == "answer" and only in record["repository"]
    ]


def estimate(source: Path, script: Script) -> Run:
    """An estimate by the package in the folder `source`."""
    words = [sys.executable, "-c", _RUN.format(source=str(source)), "estimate", "--json", "--no-cache"]
    # Another seed of hashes would be another order of sets in the script.
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [*words, *script.options, "--", *script.command],
        cwd=script.folder, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    times = next(line.split()[1:] for line in reversed(done.stderr.splitlines()) if line.startswith("cpu "))
    user_s, system_s, children_user_s, children_system_s = map(float, times)
    parent_s = user_s + system_s
    return Run(
        total_s=parent_s + children_user_s + children_system_s, parent_s=parent_s, answer=json.loads(done.stdout)
    )


def compare(sources: tuple[Path, Path], scripts: Sequence[Script], repeats: int) -> Iterator[str]:
    """A row of the table for each script, and the median of the ratios."""
    yield "| script | before, CPU s | now | ratio | parent before | now | answers |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- |"
    ratios = []
    for script in scripts:
        runs: tuple[list[Run], list[Run]] = ([], [])
        for number in range(repeats):
            for side in (0, 1) if number % 2 == 0 else (1, 0):
                runs[side].append(estimate(sources[side], script))
        before_s, now_s = (statistics.median(run.total_s for run in side) for side in runs)
        parents = (statistics.median(run.parent_s for run in side) for side in runs)
        first, second = ({key: side[0].answer.get(key) for key in COMPARED} for side in runs)
        differing = [key for key in COMPARED if first[key] != second[key]]
        ratios.append(now_s / before_s)
        parent_text = " | ".join(f"{parent_s:.2f}" for parent_s in parents)
        text = f"differ: {', '.join(differing)}" if differing else "equal" if second["error"] is None else "an error"
        yield f"| {script.name} | {before_s:.2f} | {now_s:.2f} | {ratios[-1]:.2f} | {parent_text} | {text} |"
    yield f"| **median** | | | {statistics.median(ratios):.2f} | | | |"


def main() -> int:
    """Compare and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="HEAD~1", metavar="COMMIT")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one small script, once, beside this commit itself")
    parser.add_argument("--checkouts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--only", default="", metavar="REPOSITORY")
    options = parser.parse_args()
    before = "HEAD" if options.quick else options.before
    scripts = (
        recorded(options.checkouts, options.python, options.only)
        if options.checkouts
        else examples(quick=options.quick)
    )
    if not scripts:
        parser.error(f"no recorded command with an answer is of `{options.only}`")
    print(f"Commit {commit()} beside {before}.\n")
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", before, "src"], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        sources = Path(folder, "src"), ROOT / "src"
        # As pip leaves it: neither side compiles itself in its first estimate.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *map(str, sources)], check=True)
        for line in compare(sources, scripts, 1 if options.quick else options.repeats):
            print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
