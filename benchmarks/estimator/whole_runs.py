"""Estimates beside whole runs of training loops on a null GPU: all epochs, validations, rollouts and samplings.

    python -m benchmarks.estimator.whole_runs --python PYTHON [--gpu RTX3060-12GB] [--select NAME ...] [--write]

The oracle ends a script after three optimizer steps; what comes later is judged here. The scripts are
`jobs/*_loops.py`. PYTHON has a CUDA build of torch 2.8 or newer. Results of kernels
read as zeros on a null GPU, so a loop that ends by its loss ends at once: those are listed with their reason. Loops
through libraries need accelerate, datasets, diffusers, lightning, peft, sentence-transformers, timm, torchmetrics,
torchvision, transformers and trl there.
"""

from __future__ import annotations

import argparse
import ast
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks._lib.results import add_write_option, commit, today, write_result
from benchmarks.estimator.oracle import KNOWN_VALUES, environment, libraries_of, torch_version
from cotenant.gpu_specs import gpu_spec
from cotenant.nullgpu import NullGpuError, NullGpuLibraries, run_script

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = (
    *("vision_loops.py", "synthesis_loops.py", "language_loops.py", "sequence_loops.py", "agent_loops.py"),
    *("occasional_loops.py", "applied_vision_loops.py", "applied_signals_loops.py", "applied_language_loops.py"),
    *("habit_loops.py", "trainer_loops.py", "library_loops.py", "fine_tuning_loops.py"),
    *("autograd_loops.py", "device_loops.py"),
)
WITH_KNOWN_VALUES = ("trainer_loops.py", "library_loops.py", "fine_tuning_loops.py")
"""Run with values of masks and constants, which these libraries ask before they choose what to compute."""
NOT_JUDGED = {"style": "L-BFGS ends at a gradient of zeros", "sorted_texts": "lengths differ; a warning says so",
              "preference": "sizes are the sums of masks that were computed",
              "sparse_tables": "the number of different rows was computed"}  # fmt: skip
_EVERY_STEP = 10**9
_MiB = 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """One loop: bytes reserved and allocated at most, on the null GPU and in the estimate, or why there are none."""

    name: str
    null_reserved: int = 0
    reserved: int = 0
    null_allocated: int = 0
    allocated: int = 0
    problem: str = ""

    @property
    def reserved_error(self) -> float:
        return self.reserved / self.null_reserved - 1

    @property
    def allocated_error(self) -> float:
        return self.allocated / self.null_allocated - 1

    def line(self) -> str:
        """Its line of the table."""
        if self.problem:
            return f"| `{self.name}` | {self.problem} | | | | | |"
        return (
            f"| `{self.name}` | {self.null_reserved / _MiB:,.0f} | {self.reserved / _MiB:,.0f} | "
            f"{self.reserved_error:+.1%} | {self.null_allocated / _MiB:,.1f} | {self.allocated / _MiB:,.1f} | "
            f"{self.allocated_error:+.1%} |"
        )


def loops() -> Iterator[tuple[Path, str]]:
    """Script and name of each loop, by the source: the functions of `LOOPS`."""
    for name in SCRIPTS:
        path = ROOT / "benchmarks" / "estimator" / "jobs" / name
        functions = {part.name for part in ast.parse(path.read_text()).body if isinstance(part, ast.FunctionDef)}
        listed = next(
            part.value
            for part in ast.parse(path.read_text()).body
            if isinstance(part, ast.AnnAssign) and ast.unparse(part.target) == "LOOPS" and part.value is not None
        )
        yield from ((path, node.id) for node in ast.walk(listed) if isinstance(node, ast.Name) and node.id in functions)


def compare(libraries: NullGpuLibraries, python: str, gpu: str, script: Path, name: str) -> Row:
    """Run a loop to its end on the null GPU, and estimate it."""
    if name in NOT_JUDGED:
        return Row(name, problem=f"not judged: {NOT_JUDGED[name]}")
    command = [sys.executable, "-m", "cotenant", "estimate", "--json", "--no-cache", "--python", python, "--gpu", gpu]
    words = [*command, "--backend", "trace", "--", str(script), name]
    answer = json.loads(subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT).stdout)
    if "error" in answer:
        return Row(name, problem=f"no estimate: {answer['error']['message']}")
    known: dict[str, Any] = {"prelude": KNOWN_VALUES, "env": environment()} if script.name in WITH_KNOWN_VALUES else {}
    try:
        run = run_script(libraries, gpu_spec(gpu), [str(script), name], steps=_EVERY_STEP, workdir=ROOT, **known)
    except NullGpuError as error:
        return Row(name, problem=f"null GPU: {error}")
    if run.error:
        return Row(name, problem=f"null GPU: {run.error}")
    return Row(
        name,
        run.peak_reserved_bytes,
        answer["peak_reserved_bytes"],
        run.peak_allocated_bytes,
        answer["peak_allocated_bytes"],
    )


def page(rows: list[Row]) -> list[str]:
    """Summary and table."""
    judged = [row for row in rows if not row.problem]
    equal = sum(row.reserved == row.null_reserved for row in judged)
    near = sum(abs(row.reserved_error) <= 0.005 for row in judged)
    far = sum(abs(row.reserved_error) > 0.02 for row in judged)
    return [
        (
            f"{len(judged)} of {len(rows)} loops were judged: {equal} reserve the same bytes, {near} are within 0.5 %, "
            f"{far} differ by more than 2 %."
        ),
        "",
        "| loop | null GPU, MiB reserved | estimate | error | null GPU, MiB allocated | estimate | error |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(row.line() for row in rows),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", help="a Python with a CUDA build of torch 2.8 or newer")
    parser.add_argument("--gpu", default="A100-40GB", help="(default: %(default)s)")
    parser.add_argument("--select", nargs="+", help="names of loops (default: all)")
    parser.add_argument("--quick", action="store_true", help="one loop")
    add_write_option(parser)
    args = parser.parse_args()
    libraries = libraries_of(args.python)
    if libraries is None:
        return 0
    chosen = [(script, name) for script, name in loops() if args.select is None or name in args.select]
    rows = []
    for script, name in chosen[: 1 if args.quick else None]:
        rows.append(compare(libraries, args.python, args.gpu, script, name))
        print(rows[-1].line(), flush=True)
    lines = page(rows)
    print(lines[0])
    if args.write:
        stack = f"torch {torch_version(args.python)}, cuDNN {'.'.join(map(str, libraries.wheels.cudnn))}"
        head = [
            f"# Estimates beside whole runs on a null {args.gpu}, {today()}",
            "",
            f"Commit {commit()}; {stack}, Python {platform.python_version()}; no GPU.",
            f"Repeat with `python -m benchmarks.estimator.whole_runs --python PYTHON --gpu {args.gpu} --write`.",
            "",
        ]
        write_result(f"whole-runs-{args.gpu}", "\n".join([*head, *lines]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
